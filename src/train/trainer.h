/* Everything a training run holds, made once: the five structs a reader meets in step.c come together here.
 *
 * A DsvTrainer knows nothing of files: run.c feeds it, checkpoint.c stores it. All its device memory is one
 * allocation, planned by the same function that carves it; the preview printed before the first step is
 * that plan. */
#ifndef DSVI_TRAINER_H
#define DSVI_TRAINER_H

#include "base/arena.h"
#include "dsv/config.h"
#include "model/codec.h"
#include "model/dit.h"
#include "ops/ops.h"
#include "sample/generator.h"
#include "sparse/sparse.h"
#include "train/held_out.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvTrainer {
    const DsvConfig *settings;
    DsvBackend *backend;
    const DsvCodec *codec;
    DsvVideoShape video, latent;   /* of one clip: (3, T, H, W) and what the codec makes of it */
    int64_t elements;              /* of one latent */

    DsvDitConfig config;
    DsvParamTable table;
    DsvSparse *sparse;
    DsvDit *dit;
    DsvGenerator *generator;       /* samples clips for validation with the weights being trained */
    DsvHeldOut *held_out;          /* measures the held-out loss; NULL without validation.data */

    void *memory;                  /* the one device allocation */
    DsvArena arena;                /* its plan */
    void *host_memory;             /* the one host allocation, for what goes up and down: the device's own */
    DsvArena host_arena;

    /* Flat arrays in the layout of `table`, F32, device memory. */
    DsvDitWeights weights;
    void *moment1, *moment2;
    void *ema;                     /* NULL when ema_decay is 0 */

    /* One micro-batch, device memory. */
    float *latents;                /* (B, elements): clean latents, then the noisy ones */
    float *noise;                  /* (B, elements): noise, then the target */
    float *output;                 /* (B, elements): velocity, then its gradient */
    float *sigma, *timestep;       /* (B) */
    float *text;                   /* (B, text_len, text_dim) */
    float *loss;                   /* (B) */
    double *grad_square;           /* (1) */

    /* The same on the host, before upload and after download. */
    float *host_latents;           /* (B, elements) */
    float *host_sigma, *host_timestep, *host_loss; /* (B) */
    float *host_flat;              /* (table.elements): one flat array on its way to or from a file */

    int64_t step;                  /* steps done */
    uint64_t sample;               /* samples trained on: the position in the data */
    bool drawn;                    /* the micro-batch after them lies in the host arrays */
} DsvTrainer;

/* Plans, allocates and sets up everything; weights are not initialised yet. `log` hears the sparse layer's
 * decisions. On failure *out is NULL. */
DsvStatus dsvi_trainer_create(const DsvConfig *settings, DsvBackend *backend, const DsvCodec *codec,
                              const DsvDitConfig *config, DsvSparseLog *log, void *log_context,
                              DsvTrainer **out);
void dsvi_trainer_free(DsvTrainer **trainer);

/* The device memory that a trainer of the same model with other settings would take. */
DsvStatus dsvi_trainer_plan(const DsvTrainer *like, const DsvConfig *settings, DsvArena *plan);

/* Starts from the weights in host_flat: moments zero, moving average the weights themselves. */
DsvStatus dsvi_trainer_start(DsvTrainer *trainer);

#ifdef __cplusplus
}
#endif
#endif
