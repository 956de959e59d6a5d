/* What to say when a run does not fit into its device's memory. */
#ifndef DSVI_MEMORY_EXPLAIN_H
#define DSVI_MEMORY_EXPLAIN_H

#include "train/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* `plan` found no memory: DSV_E_NO_MEMORY with what was wanted, what there is, the largest classes, and
 * settings that would fit, as far as any would. */
DsvStatus dsvi_memory_explain(const DsvTrainer *trainer, const DsvArena *plan);

/* The ranks on this machine want more of its memory than there is, together: each alone would be granted it,
 * and Linux would kill one of them once it is touched. */
DsvStatus dsvi_memory_explain_host(const DsvTrainer *trainer);

#ifdef __cplusplus
}
#endif
#endif
