/* One step of training. */
#ifndef DSVI_STEP_H
#define DSVI_STEP_H

#include "train/flow_draw.h"
#include "train/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvStepResult {
    int64_t step;
    double loss;                  /* mean over the samples of the step, of all ranks */
    double bin_loss[DSV_SIGMA_BINS];     /* summed over the samples whose sigma lies there */
    int64_t bin_samples[DSV_SIGMA_BINS];
    double grad_norm;             /* before clipping */
    double lr;
    double forward_s, backward_s, optimizer_s, wait_s; /* wait_s: for data */
    bool begun; /* false: it failed for want of a sample, and all is as the step before has left it */
} DsvStepResult;

/* Where samples come from: the prefetch of a run, random latents of a benchmark, tensors of a test. */
typedef struct DsvSampleSource {
    void *context;
    /* The next latent (trainer->elements F32). *passed_over is 0 before the call; after it, how many clips
     * proved broken before the one that it was made of. Ranks that share samples may differ in that: all then
     * train on the latent of the rank that passed over fewest. A failure lasts: so does the next call. */
    DsvStatus (*next)(void *context, float *latent, int64_t *passed_over);
} DsvSampleSource;

/* Draws gradient_accumulation_steps micro-batches from `source`, and makes one update. With several ranks
 * each draws its own samples, `source` gives a rank those of its share, and all end with the same weights.
 * DSV_E_DIVERGED, on all ranks and with trainer->diverged set, when the loss or the gradient norm is not
 * finite: the weights are then still those of the step before. */
DsvStatus dsvi_train_step(DsvTrainer *trainer, const DsvSampleSource *source, DsvStepResult *result);

/* Its two halves. gradients: of the step's last micro-batch, which lies in trainer->latents (clean), noise,
 * sigma, timestep and text, added to those of the micro-batches before; result's loss and times grow. update:
 * the norm of what has gathered, clipping, AdamW at result->lr, moving average; the step is then done. */
DsvStatus dsvi_train_gradients(DsvTrainer *trainer, DsvStepResult *result);
DsvStatus dsvi_train_update(DsvTrainer *trainer, DsvStepResult *result);

#ifdef __cplusplus
}
#endif
#endif
