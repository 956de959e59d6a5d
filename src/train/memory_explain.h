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

#ifdef __cplusplus
}
#endif
#endif
