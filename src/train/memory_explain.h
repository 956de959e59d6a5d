/* Error messages for runs that do not fit into the memory of the device or of the host. */
#ifndef DSVI_MEMORY_EXPLAIN_H
#define DSVI_MEMORY_EXPLAIN_H

#include "train/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Checks the memory plan of a run before anything is allocated. Returns DSV_E_NO_MEMORY with a message if
 * `plan`, of the device, exceeds memory_gib or the whole memory of the device, or if the ranks on this
 * machine together (trainer->here) need more host memory than it has or, with state in host memory, than it
 * has free (trainer->host_available); with device=cpu and one rank, device memory counts as well. The message
 * gives the bytes that are missing and the largest classes of memory, of the host those of `host_plan`, which
 * is this rank's. */
DsvStatus dsvi_memory_check(const DsviTrainer *trainer, const DsviArena *plan, const DsviArena *host_plan);

/* Called when the device could not allocate the bytes of `plan`. Returns DSV_E_NO_MEMORY with a message that
 * gives the bytes needed, the bytes free or memory_gib, the largest classes of memory, and options with which
 * the run would fit; if there are none, what lowers the largest class. host_plan: counts too with device=cpu
 * and offload, and if the device's part alone would fit; NULL: an allocation has failed. */
DsvStatus dsvi_memory_explain(const DsviTrainer *trainer, const DsviArena *plan, const DsviArena *host_plan);

#ifdef __cplusplus
}
#endif
#endif
