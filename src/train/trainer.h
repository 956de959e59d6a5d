/* Everything a training run holds, made once: the five structs a reader meets in step.c come together here.
 *
 * A DsvTrainer knows nothing of files: run.c feeds it, checkpoint.c stores it. All its device memory is one
 * allocation, planned by the same function that carves it; the preview printed before the first step is
 * that plan. */
#ifndef DSVI_TRAINER_H
#define DSVI_TRAINER_H

#include "base/arena.h"
#include "dist/mesh.h"
#include "dist/peers.h"
#include "dsv/config.h"
#include "model/codec.h"
#include "model/dit.h"
#include "ops/ops.h"
#include "sample/generator.h"
#include "sparse/sparse.h"
#include "train/context_plans.h"
#include "train/held_out.h"
#include "train/zero.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the samples of one rank add to a step; of all ranks together once it is done. */
typedef struct DsvStepShare {
    double loss;                         /* parts of a mean over all samples of the step */
    double bin_loss[DSV_SIGMA_BINS];     /* summed over the samples whose sigma lies there */
    int64_t bin_samples[DSV_SIGMA_BINS];
    double grad_square;                  /* of the own stretches of the summed gradient */
} DsvStepShare;

typedef struct DsvTrainer {
    const DsvConfig *settings;
    DsvBackend *backend;
    DsvComm *comm;                 /* the ranks that train together; NULL: one alone */
    DsvComm *device_comm;          /* the same for device memory: comm itself where that is the host's */
    DsvMesh mesh;                  /* who of them does what */
    DsvContextGroup *group;        /* those that share this one's clips; NULL: it has them alone */
    bool owns_groups;              /* a trainer that is planned and no more has borrowed both */
    const DsvCodec *codec;
    DsvVideoShape video, latent;   /* of one clip: (3, T, H, W) and what the codec makes of it */
    int64_t elements;              /* of one latent */

    DsvDitConfig config;
    DsvParamTable table;
    DsvZero zero;                  /* weights, gradients, moments, moving average */
    DsvContext *context;           /* how ranks share clips: in training, held-out loss and sampling alike;
                                    * NULL: this rank has its clips alone */
    DsvContextPlans *plans;        /* how attention is shared out in it; NULL: as at the start */
    DsvSparse *sparse;
    DsvDit *dit;
    DsvGenerator *generator;       /* samples clips for validation with the weights of training; or NULL */
    DsvHeldOut *held_out;          /* measures the held-out loss; NULL without validation.data */

    void *memory;                  /* the one device allocation */
    DsvArena arena;                /* its plan */
    void *host_memory;             /* the one host allocation, for what goes up and down: the device's own */
    DsvArena host_arena;
    DsvPeersHere here;             /* its sum: bytes of such allocations */

    /* One micro-batch, device memory. */
    float *latents;                /* (B, elements): clean, then noisy; up to the forward pass */
    float *noise;                  /* (B, elements): noise, then the target; up to the forward pass */
    float *sigma, *timestep;       /* (B) */
    float *text;                   /* (B, text_len, text_dim) */
    float *loss;                   /* (B) */
    float *channel_weight;         /* (latent channels) of the loss; NULL where all count alike */

    /* The same on the host, before upload and after download. */
    float *host_latents;           /* (B, elements) */
    float *host_sigma, *host_timestep, *host_loss; /* (B) */
    float *host_channel_weight;    /* (latent channels) or NULL */
    float *host_flat;              /* (table.elements) of rank 0: one flat array on its way to or from a file;
                                    * scratch of the others */
    DsvStepShare *share;           /* (ranks) of the step at work */
    int64_t *passed_over;          /* (context_ranks) broken clips before the one of the sample being drawn */

    int64_t step;                  /* steps done */
    uint64_t sample;               /* samples trained on, by all ranks together: the position in the data */
    DsvDatasetMark data;           /* in which data; a trainer alone has none */
    bool drawn;                    /* the micro-batch after them lies in the host arrays */
    bool diverged;                 /* the step at work, as all ranks have found together */
} DsvTrainer;

/* Plans, allocates and sets up everything; weights are not initialised yet. `log` hears the sparse layer's
 * decisions. `comm`: NULL, or the ranks that train together, all of which make the same calls from here on;
 * on each a batch of train_batch_size, the same on all of a context group. On failure *out is NULL. */
DsvStatus dsvi_trainer_create(const DsvConfig *settings, DsvBackend *backend, DsvComm *comm,
                              const DsvCodec *codec, const DsvDitConfig *config, DsvSparseLog *log,
                              void *log_context, DsvTrainer **out);
void dsvi_trainer_free(DsvTrainer **trainer);

/* What a trainer of the same model with other settings would take of the device and of the host. */
DsvStatus dsvi_trainer_plan(const DsvTrainer *like, const DsvConfig *settings, DsvArena *plan,
                            DsvArena *host_plan);

/* The number of this rank's first sample in the next micro-batch, and samples in one of all ranks. */
uint64_t dsvi_trainer_first_sample(const DsvTrainer *trainer);
uint64_t dsvi_trainer_samples(const DsvTrainer *trainer);

/* Starts from the weights in host_flat of rank 0: moments zero, moving average the weights themselves. */
DsvStatus dsvi_trainer_start(DsvTrainer *trainer);

#ifdef __cplusplus
}
#endif
#endif
