/* What waits in host memory while the device does not use it (option offload): how much of it, and its
 * memory. How it travels: zero_offload.c (optimizer state), zero_lend.c (trained weights and their
 * gradients), model/dit/dit_lent.c (frozen weights), model/dit/dit_stack.c (kept activations). */
#ifndef DSVI_TRAINER_OFFLOAD_H
#define DSVI_TRAINER_OFFLOAD_H

#include "device/carve.h"
#include "train/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Fails with DSV_E_USAGE or DSV_E_UNSUPPORTED if the options ask for what a run of `ranks` ranks,
 * `shard_ranks` of which divide the state, does not have. */
DsvStatus dsvi_trainer_offload_check(const DsvConfig *settings, int64_t ranks, int64_t shard_ranks);
/* Returns whether the weights of the trainer's blocks can wait in host memory: the frozen ones beside a LoRA,
 * or else those that are trained. */
bool dsvi_trainer_lends(const DsviTrainer *trainer);
/* Chooses how many blocks wait in host memory: the fewest with which the device memory that `layout` takes of
 * the trainer is at most memory_gib, because each costs time for its copies; all of them without memory_gib.
 * If trained weights wait, so do all state and, in steps of one micro-batch, the gradients of all blocks.
 * If no number suffices, the one with which it takes the least memory. Kept activations wait all or none.
 * offload=auto chooses both (memory_plan.h), and knows that the run takes `host_beside` bytes of other host
 * memory. Also chooses where state that waits is updated (update_place.h). Reports choices from predicted
 * times to `log`, which may be NULL. */
DsvStatus dsvi_trainer_offload_choose(DsviTrainer *trainer, dsvi_layout_fn *layout, size_t host_beside,
                                      DsviSparseLog *log, void *log_context);
/* Takes the host memory of what waits there (dsvi_layout_fn). */
void dsvi_trainer_offload_carve(void *trainer, DsviArena *arena);
/* Allocates that memory and counts it in trainer->host_arena. `log` receives a line if it cannot be
 * page-locked. */
DsvStatus dsvi_trainer_offload_open(DsviTrainer *trainer, DsviSparseLog *log, void *log_context);

/* Waits until no copy uses that memory, before it is freed after a failure. */
void dsvi_trainer_offload_settle(DsviTrainer *trainer);

#ifdef __cplusplus
}
#endif
#endif
