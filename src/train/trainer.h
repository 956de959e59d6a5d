/* The state of a training run: model, weights, optimizer, sparse layer, groups of ranks and buffers.
 *
 * A DsviTrainer does not access files: run/run.c passes samples to it, and run/checkpoint.c saves and loads
 * its state. All its device memory is one allocation. One function lays out this memory twice: first it only
 * counts bytes, which gives the memory plan printed before the first step; then it assigns addresses. From
 * the check of the plan until the trainer is freed, the device refuses allocations beyond memory_gib. */
#ifndef DSVI_TRAINER_H
#define DSVI_TRAINER_H

#include "base/arena.h"
#include "data/clip_sizes.h"
#include "device/device_speeds.h"
#include "device/host_pool.h"
#include "dist/mesh.h"
#include "dist/peers.h"
#include "dsv/config.h"
#include "model/codec/codec.h"
#include "model/dit/dit.h"
#include "model/dit/dit_frozen.h"
#include "ops/ops.h"
#include "sample/generator.h"
#include "sparse/sparse.h"
#include "train/cp_plans.h"
#include "train/dealer.h"
#include "train/held_out.h"
#include "train/trainer_experts.h"
#include "train/zero.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The contribution of one rank's samples to the loss and gradient norm of a step. */
typedef struct DsviStepPart {
    double loss;                      /* what this rank adds to the mean loss over all samples of the step */
    double bin_loss[DSVI_SIGMA_BINS]; /* sum of the losses of the samples whose noise level sigma is in the
                                       * bin */
    int64_t bin_samples[DSVI_SIGMA_BINS];
    double grad_square; /* sum of squares of this rank's shard of the gradient */
} DsviStepPart;

/* What a trainer has for each size of clips (trainer_sizes.h). */
typedef struct DsviTrainerSize {
    DsviClipSize clip;
    DsviVideoShape video, latent; /* of one window: of its pixels (3, T, H, W), and of its latent */
    int64_t elements;             /* number of elements of one latent */
    int64_t inputs;               /* number of elements of a sample's input: of the latent, then of what the
                                   * model takes beside it */
    DsviSparse *sparse;
    DsviDit *dit;
    float *latents, *noise, *grad; /* buffers in the memory of a pass */
    size_t pass_bytes;             /* memory of a pass */
    DsviSparseLog *log; /* receives the lines of the size's sparse layer, after its name; or NULL */
    void *log_context;
} DsviTrainerSize;

typedef struct DsviTrainer {
    const DsvConfig *settings;
    DsviBackend *backend;
    DsviComm *comm;        /* all ranks of the run, for host memory; NULL: one rank */
    DsviComm *device_comm; /* the same ranks for device memory; equal to `comm` on a CPU */
    DsviMesh mesh;         /* how the ranks divide clips, tokens and state */
    DsviCpGroup *group;    /* ranks that share this rank's clips; NULL: this rank has its own clips */
    bool owns_groups;      /* false: mesh and group are another trainer's (dsvi_trainer_plan) */
    const DsviCodec *codec;
    DsviTrainerSize sizes[DSVI_CLIP_SIZES_MAX];
    int64_t size_count, main_size; /* main_size: the current one between steps */
    int64_t inputs_max;            /* largest `inputs` of a size */
    int64_t image_elements; /* elements of the image states that follow a sample's input in host memory;
                             * 0: the model takes no image states */
    DsviDealer *dealer;     /* NULL: one size */

    /* Those of the current size (dsvi_trainer_use). */
    DsviVideoShape video, latent;
    int64_t elements, inputs;
    DsviSparse *sparse;
    DsviDit *dit;

    DsviClipSizes clips; /* the sizes that were asked for; empty: the one of the settings */
    DsviDitConfig config;
    DsviParamTable table;
    /* With lora_rank above 0 the run trains the matrices of a LoRA beside the model's frozen weights. */
    DsviLoraParams lora;               /* empty otherwise */
    DsviDitFrozen *frozen;             /* NULL otherwise */
    DsviDitWeights lora_weights;       /* compute weights of the matrices */
    const DsviParamTable *trained;     /* what is trained: `table`, or lora.table */
    DsviZero zero;                     /* trained weights, gradients, Adam moments, moving average */
    DsviCp *cp;                        /* context parallelism, used by training, held-out loss and sampling;
                                        * NULL: this rank has its own clips */
    DsviCpPlans *plans;                /* updates the parallel plans of `cp`; NULL: plans never change */
    DsviGenerator *generator;          /* samples validation clips with the weights in training; or NULL */
    const DsviTrainerExperts *experts; /* lent to sampled clips; NULL: one model, or no clips are sampled */
    int expert;                        /* the one that `frozen` holds */
    DsviHeldOut *held_out;             /* measures the held-out loss; NULL if validation.data is empty */

    void *memory;            /* the one device allocation */
    DsviArena arena;         /* layout of `memory` */
    void *host_memory;       /* the one host allocation, made by the device (pinned on a GPU) */
    DsviHostPool waiting;    /* what waits in host memory (trainer_offload.h) */
    DsviDeviceSpeeds speeds; /* from which choices predict times (plan_speeds.h), or nominal ones */
    size_t passes_begin;     /* offset in `arena` of the memory that passes share; set by every layout */
    size_t others_bytes;     /* of that memory, what sampling and held-out measurements use */
    DsviArena host_arena;    /* layout of `host_memory`; `used` and `by_class` count `waiting` too */
    size_t host_available;   /* bytes of host memory that could be allocated before the run took any */
    DsviPeersOnMachine here; /* here.sum: bytes of host memory of all ranks on this machine */

    /* One micro-batch in device memory. latents and noise are valid until the forward pass has used them:
     * they share memory with activations. */
    float *latents;        /* (B, inputs): latents, clean at first, then mixed with noise; each is followed
                            * by the condition that an image-to-video model takes */
    float *image;          /* (B, image_elements) states of pictures */
    float *noise;          /* (B, elements): noise, then the target velocity */
    float *sigma;          /* (B) */
    float *timestep;       /* (B); with model.first_frame=given (B, 2): that of the first frame, 0, and that
                            * of the others */
    float *text;           /* (B, text_len, text_dim): text states, then rows of zeros; all rows are zero
                            * without text */
    float *loss;           /* (B) */
    float *channel_weight; /* (latent channels) weights of the loss; NULL: all are 1 */

    /* Host buffers for uploads and downloads of the micro-batch. */
    float *host_latents;                           /* (B, inputs_max + image_elements) */
    float *host_text;                              /* (B, text_len, text_dim) */
    float *host_sigma, *host_timestep, *host_loss; /* (B), host_timestep as `timestep` */
    double *host_weight;                           /* (B) weights of the samples' gradients */
    float *host_channel_weight;                    /* (latent channels) or NULL */
    float *host_lora; /* rank 0, with a LoRA: (trained->elements) what is read from or written to a file;
                       * NULL: not this rank, or no LoRA */
    DsviStepPart *step_parts; /* (ranks) contributions of all ranks to the current step */
    int64_t *passed_over;     /* (cp_ranks) number of broken clips that each rank of the cp group skipped
                               * before it got the current sample */

    int64_t step;                /* steps done */
    uint64_t sample;             /* samples used so far by all ranks: the position in the data */
    DsviDatasetFingerprint data; /* identifies the data set; set by run.c, zero otherwise */
    int64_t pass;                /* of the step to which the next micro-batch belongs, from 0 */
    int64_t next_size;           /* size of the next micro-batch, if it is drawn */
    bool drawn;                  /* the host buffers already hold the next micro-batch */
    bool diverged;               /* the current step diverged, as found by all ranks together */
} DsviTrainer;

/* Arguments of dsvi_trainer_create. The caller keeps ownership of everything. All objects must outlive the
 * trainer, except `config`, which is copied. */
typedef struct DsviTrainerArgs {
    const DsvConfig *settings;
    DsviBackend *backend;
    DsviComm *comm; /* all ranks of the run, for host memory; NULL: one rank */
    const DsviCodec *codec;
    const DsviDitConfig *config;       /* shape of the model */
    const DsviTrainerExperts *experts; /* of sampled clips; NULL: they need one model */
    const DsviClipSizes *sizes;        /* of clips; NULL: the one of the settings */
    dsvi_batch_size_fn *size_of;       /* returns the size of a batch; not called if there is one size */
    void *size_context;                /* passed to `size_of` */
    const DsviDeviceSpeeds *speeds;    /* NULL: measured, if choices need them and the options allow it */
    int64_t ranks_here;                /* with offload=auto: ranks that share the host's memory; 0: counted by
                                        * dsvi_trainer_create */
    DsviSparseLog *log;      /* receives decisions of the sparse layer and parallel plans; or NULL */
    DsviSparseLog *plan_log; /* receives the choices of offload and offload_update; or NULL */
    void *log_context;       /* passed to both logs */
} DsviTrainerArgs;

/* Plans and allocates memory and sets up all parts; the weights are not initialised. With several ranks,
 * all ranks must make this and all later calls in the same order. Each rank processes micro-batches of
 * train_batch_size samples; ranks of one cp group (ranks that share clips) process the same samples. On
 * failure *out is NULL. */
DsvStatus dsvi_trainer_create(const DsviTrainerArgs *args, DsviTrainer **out);
void dsvi_trainer_free(DsviTrainer **trainer);

/* Returns the device and host memory that a trainer of the same model would need with `settings`. Allocates
 * neither. `like` must have settings, backend, mesh, group, codec, config, `clips` and, with offload=auto,
 * `speeds`, or zeros for nominal ones; the rest is not used. */
DsvStatus dsvi_trainer_plan(const DsviTrainer *like, const DsvConfig *settings, DsviArena *plan,
                            DsviArena *host_plan);
/* As dsvi_trainer_plan, and reports the choices of offload=auto to `log`, line by line. */
DsvStatus dsvi_trainer_plan_report(const DsviTrainer *like, const DsvConfig *settings, DsviSparseLog *log,
                                   void *log_context, DsviArena *plan, DsviArena *host_plan);

/* Returns the number of this rank's first sample in the next micro-batch, and sets *size (may be NULL) to the
 * size of the micro-batch. */
uint64_t dsvi_trainer_next_batch(const DsviTrainer *trainer, int64_t *size);
/* Returns the number of this rank's first sample in the next micro-batch. */
uint64_t dsvi_trainer_first_sample(const DsviTrainer *trainer);
/* Returns the number of samples in one micro-batch of all ranks together. */
uint64_t dsvi_trainer_samples(const DsviTrainer *trainer);

/* With a LoRA: reads the model's frozen weights from `path` (dsvi_weights_read). Called by all ranks, before
 * dsvi_trainer_start or the load of a checkpoint. */
DsvStatus dsvi_trainer_load_frozen(DsviTrainer *trainer, const char *path);

/* Initialises the trained weights, and their moving average if there is one, from `source` of rank 0, which
 * is asked for the buckets once for each of them. Clears the Adam moments. Called by all ranks. */
DsvStatus dsvi_trainer_start(DsviTrainer *trainer, const DsviBucketIo *source);
/* The same from initial values (dsvi_weights_init), and from a file or folder (dsvi_weights_read), which rank
 * 0 reads. */
DsvStatus dsvi_trainer_start_new(DsviTrainer *trainer, uint64_t seed);
DsvStatus dsvi_trainer_start_from(DsviTrainer *trainer, const char *path);
/* Copies the weights in a file or folder, which rank 0 reads, to DSVI_STATE_MASTER or DSVI_STATE_EMA. Called
 * by all ranks. */
DsvStatus dsvi_trainer_store_file(DsviTrainer *trainer, DsviStateArray array, const char *path);

#ifdef __cplusplus
}
#endif
#endif
