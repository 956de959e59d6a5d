/* The parts of a trainer that exist once for each size of clips (bucket): transformer, sparse layer and
 * shapes. All sizes share weights, gradients, optimizer state and the memory of a pass, because a rank trains
 * on one size at a time. */
#ifndef DSVI_TRAINER_SIZES_H
#define DSVI_TRAINER_SIZES_H

#include "train/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Fails with DSV_E_UNSUPPORTED if `cp_ranks` ranks that share a clip would have clips of several sizes, of
 * data.buckets, sampled or held out: the tokens of one size only are divided among them. No `sizes`: those of
 * the settings. */
DsvStatus dsvi_trainer_sizes_check(const DsvConfig *settings, const DsviClipSizes *sizes, int64_t cp_ranks);

/* Lists the sizes, with their shapes. `sizes` NULL: the one size of the settings. A size that codec or model
 * do not take fails with the codec's message and the name of the size. */
DsvStatus dsvi_trainer_sizes_list(DsviTrainer *trainer, const DsviClipSizes *sizes);
/* Creates transformer and sparse layer of all sizes. `shape` has all fields but frames, height and width. */
DsvStatus dsvi_trainer_sizes_create(DsviTrainer *trainer, const DsviDitShape *shape, DsviSparseLog *log,
                                    void *log_context);
void dsvi_trainer_sizes_free(DsviTrainer *trainer);

/* Take memory: what persists between passes, what a pass uses, and the host's. */
void dsvi_trainer_sizes_carve(DsviTrainer *trainer, DsviArena *arena);
void dsvi_trainer_sizes_carve_pass(DsviTrainer *trainer, DsviArena *arena);
void dsvi_trainer_sizes_carve_host(DsviTrainer *trainer, DsviArena *arena);
/* Takes host memory for activations that wait there (offload=residual). Sizes share it. */
void dsvi_trainer_sizes_carve_kept(DsviTrainer *trainer, DsviArena *arena);
/* Returns the size whose passes need the most memory; valid after a carve. */
const DsviTrainerSize *dsvi_trainer_sizes_largest(const DsviTrainer *trainer);

void dsvi_trainer_sizes_set_comm(DsviTrainer *trainer);
/* Measures what attention of every size costs, before the trainer has device memory (dsvi_sparse_measure). */
DsvStatus dsvi_trainer_sizes_measure(DsviTrainer *trainer);
DsvStatus dsvi_trainer_sizes_setup(DsviTrainer *trainer, const DsviDitWeights *weights);
/* Begin and end a training step of the sparse layers. */
DsvStatus dsvi_trainer_sizes_step_begin(DsviTrainer *trainer, int64_t step);
DsvStatus dsvi_trainer_sizes_step_end(DsviTrainer *trainer);

/* Makes size number `size` the current one: its shapes, buffers, transformer and sparse layer. */
void dsvi_trainer_use(DsviTrainer *trainer, int64_t size);

/* Returns the predicted cost of a batch of each size, relative to one another: FLOPs of linear layers and of
 * attention (dsvi_sparse_expected_work). cost: (size_count) */
void dsvi_trainer_sizes_costs(const DsviTrainer *trainer, double *cost);

#ifdef __cplusplus
}
#endif
#endif
