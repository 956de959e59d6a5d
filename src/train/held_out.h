/* The held-out loss: the loss on clips that are not trained on.
 *
 * A fixed set of windows is encoded once and kept in host memory. Each window has its own fixed noise. A
 * measurement computes the mean squared error of the velocity for every window at ten noise levels (sigma =
 * 0.05, 0.15, ... 0.95, or as many in the range sigma_min to sigma_max). Windows, noise, levels and batches
 * are the same at every measurement, and in every run with the same seed and clips. Two runs therefore differ
 * by their models only.
 *
 * A measurement uses a separate model instance and sparse layer, with the batch size of training. The sparse
 * layer copies the state of the training's sparse layer before each measurement: blocks attend as they do in
 * training, but without exploration. Measurements do not change the training's state. */
#ifndef DSVI_HELD_OUT_H
#define DSVI_HELD_OUT_H

#include "base/arena.h"
#include "data/dataset.h"
#include "dist/mesh.h"
#include "dsv/events.h"
#include "model/codec/codec.h"
#include "model/dit/dit.h"
#include "train/flow_draw.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviHeldOut DsviHeldOut;

typedef struct DsviHeldOutLoss {
    double loss; /* mean over windows and noise levels */
    double bin_sigma[DSVI_SIGMA_BINS];
    double bin_loss[DSVI_SIGMA_BINS]; /* mean over windows at this noise level */
    double dense_loss;                /* `loss` with dense attention; NaN if no block is sparse */
} DsviHeldOutLoss;

/* Arguments of dsvi_held_out_create. The caller keeps ownership; all objects must outlive the result. */
typedef struct DsviHeldOutArgs {
    DsviBackend *backend;
    const DsviMesh *mesh;      /* each cp group (ranks that share clips) measures a part of the batches */
    const DsvConfig *settings; /* validation_clips is the number of windows */
    DsviVideoShape latent;     /* shape of one window's latent */
    const DsviDitConfig *config;
    const DsviParamTable *table;
    const DsviLoraParams *lora; /* the LoRA in training; NULL: none */
    const DsviCp *cp;           /* context parallelism of training; NULL: this rank has its own clips */
} DsviHeldOutArgs;

DsvStatus dsvi_held_out_create(const DsviHeldOutArgs *args, DsviHeldOut **out);
void dsvi_held_out_free(DsviHeldOut **held_out);
/* Takes from `arena` the device memory that keeps its contents between measurements. The memory that the
 * arena provides must be zero. */
void dsvi_held_out_carve(DsviHeldOut *held_out, DsviArena *arena);
/* Takes the device memory that is used during a measurement only. Between measurements the caller may use it
 * for anything. */
void dsvi_held_out_carve_run(DsviHeldOut *held_out, DsviArena *arena);
/* Takes from `arena` the host memory in which the latents of the windows are kept. */
void dsvi_held_out_carve_host(DsviHeldOut *held_out, DsviArena *arena);
/* Prepares the model instance for measurements. Call after the arenas given to the carve functions have
 * memory. The caller must keep the compute copy of the weights up to date. */
DsvStatus dsvi_held_out_setup(DsviHeldOut *held_out, const DsviDitWeights *weights);

/* Reads and encodes the windows that this rank needs for its part of a measurement, and reads the text states
 * of their first captions if the data set has text states (of config->text_dim elements). A window that
 * cannot be read is replaced by another one (dsvi_dataset_spread_again), and `warn` (may be NULL) is called
 * once for each broken item of the data set. */
DsvStatus dsvi_held_out_fill(DsviHeldOut *held_out, const DsviDataset *dataset, const DsvConfig *settings,
                             const DsviCodec *codec, void (*warn)(void *context, const char *line),
                             void *warn_context);
/* Returns the bytes of the latents of the windows that this rank needs. */
size_t dsvi_held_out_bytes(const DsviHeldOut *held_out);

/* Measures the held-out loss; called by all ranks, which all get the same result. `sparse` is the sparse
 * layer of training, whose state is copied. With one rank, returns DSV_E_INTERRUPTED if events->stop asks to
 * stop; with several ranks, stop requests are ignored. Does not allocate. */
DsvStatus dsvi_held_out_measure(DsviHeldOut *held_out, const DsviSparse *sparse, const DsvEvents *events,
                                DsviHeldOutLoss *loss);

#ifdef __cplusplus
}
#endif
#endif
