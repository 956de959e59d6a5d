/* Error messages for runs that do not fit into the memory of the device or of the host. */
#ifndef DSVI_MEMORY_EXPLAIN_H
#define DSVI_MEMORY_EXPLAIN_H

#include "train/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Called when the device could not allocate the bytes of `plan`. Returns DSV_E_NO_MEMORY with a message that
 * gives the bytes needed, the bytes free, the largest classes of memory, and options with which the run would
 * fit, if there are any. */
DsvStatus dsvi_memory_explain(const DsviTrainer *trainer, const DsviArena *plan);

/* Called when the ranks on this machine together need more host memory than the machine has. Each rank's
 * allocation alone would succeed, because Linux overcommits memory, and a rank would be killed later. Returns
 * DSV_E_NO_MEMORY with a message. */
DsvStatus dsvi_memory_explain_host(const DsviTrainer *trainer);

#ifdef __cplusplus
}
#endif
#endif
