/* The loss on clips kept out of training.
 *
 * A fixed set of windows is encoded once and kept in memory; each has noise of its own. A measurement is
 * the mean squared error of the velocity for every window at ten noise levels, the middles of the tenths of
 * sigma: the same windows, noise, levels and batches at every measurement, and in every run of the same seed
 * and clips. What differs between two runs is then the models alone.
 *
 * The pass has a plan and a sparse layer of its own, for batches as large as in training. The layer takes
 * over what that of training has learnt and decided, so blocks attend as they do there, exploration aside,
 * and nothing of it reaches back. */
#ifndef DSVI_HELD_OUT_H
#define DSVI_HELD_OUT_H

#include "base/arena.h"
#include "data/dataset.h"
#include "dist/mesh.h"
#include "dsv/events.h"
#include "model/codec.h"
#include "model/dit.h"
#include "train/flow_draw.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvHeldOut DsvHeldOut;

typedef struct DsvHeldOutLoss {
    double loss;                        /* mean over windows and levels */
    double bin_sigma[DSV_SIGMA_BINS];
    double bin_loss[DSV_SIGMA_BINS];    /* mean over windows */
    double dense_loss;                  /* as loss, with all attention dense; NaN: no block is sparse */
} DsvHeldOutLoss;

/* For settings->validation_clips windows of shape `latent`; settings, mesh, config, table and context are
 * kept. The context groups of `mesh` measure a part of the batches each, and all ranks get the whole.
 * `context`: how the ranks of a group share them, NULL where a rank has its own. */
DsvStatus dsvi_held_out_create(DsvBackend *backend, const DsvMesh *mesh, const DsvConfig *settings,
                               DsvVideoShape latent, const DsvDitConfig *config, const DsvParamTable *table,
                               const DsvContext *context, DsvHeldOut **out);
void dsvi_held_out_free(DsvHeldOut **held_out);
/* Device memory, zero when bound: what lasts; what a measurement uses, and is free for anything between two.
 * Host memory, where the windows lie. */
void dsvi_held_out_carve(DsvHeldOut *held_out, DsvArena *arena);
void dsvi_held_out_carve_run(DsvHeldOut *held_out, DsvArena *arena);
void dsvi_held_out_carve_host(DsvHeldOut *held_out, DsvArena *arena);
/* After binding. The weights' compute copy is the caller's to keep up to date. */
DsvStatus dsvi_held_out_setup(DsvHeldOut *held_out, const DsvDitWeights *weights);

/* Reads and encodes the windows that this rank measures anything of. A window that cannot be read is
 * replaced as dsvi_dataset_spread_again says, and its item named through `warn` (may be NULL), each once.
 * */
DsvStatus dsvi_held_out_fill(DsvHeldOut *held_out, const DsvDataset *dataset, const DsvConfig *settings,
                             const DsvCodec *codec, void (*warn)(void *context, const char *line),
                             void *warn_context);
/* Bytes of those windows. */
size_t dsvi_held_out_bytes(const DsvHeldOut *held_out);

/* `sparse`: the layer of training. DSV_E_INTERRUPTED when the caller of the run wants to stop, where one rank
 * measures alone. Does not allocate. */
DsvStatus dsvi_held_out_measure(DsvHeldOut *held_out, const DsvSparse *sparse, const DsvEvents *events,
                                DsvHeldOutLoss *loss);

#ifdef __cplusplus
}
#endif
#endif
