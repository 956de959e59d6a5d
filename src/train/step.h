/* One training step. The implementation in step.c is the main path of the program. */
#ifndef DSVI_STEP_H
#define DSVI_STEP_H

#include "data/sample.h"
#include "train/flow_draw.h"
#include "train/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviStepResult {
    int64_t step;
    double loss;                      /* mean over the samples of the step on all ranks */
    double bin_loss[DSVI_SIGMA_BINS]; /* sum of the losses of the samples whose noise level sigma is in the
                                       * bin */
    int64_t bin_samples[DSVI_SIGMA_BINS];
    double grad_norm; /* L2 norm of all gradients before clipping */
    double lr;
    double forward_s, backward_s, optimizer_s; /* seconds */
    double wait_s;                             /* seconds in which the host waited for samples */
    int64_t batches[DSVI_CLIP_SIZES_MAX];      /* micro-batches of each size, on all ranks */
    bool begun; /* false: no sample was available, so the step did not begin; the trainer is unchanged */
} DsviStepResult;

/* Where samples come from: the prefetch of a run, random latents of a benchmark, tensors of a test. */
typedef struct DsviSampleSource {
    void *context;
    /* Writes the next sample: sample->latent (trainer->elements) and, unless sample->text is NULL, at most
     * config.text_len rows of text states. If ranks that share samples pass over different numbers of
     * windows, all use the sample of the rank that passed over fewest. After a failure all later calls must
     * fail too. */
    DsvStatus (*next)(void *context, DsviSample *sample);
    bool text; /* samples have text states; false: the model is trained without text */
} DsviSampleSource;

/* Draws gradient_accumulation_steps micro-batches from `source` and updates the weights once. With several
 * ranks, the `source` of each rank must return the samples of this rank (dsvi_trainer_first_sample); all
 * ranks end with the same weights. If the loss or the gradient norm is not finite, all ranks return
 * DSV_E_DIVERGED, trainer->diverged is set, and the weights are unchanged; but if the backward pass updates
 * them (zero.h), only a loss that is not finite leaves them unchanged. */
DsvStatus dsvi_train_step(DsviTrainer *trainer, const DsviSampleSource *source, DsviStepResult *result);

/* The gradients of one micro-batch, added to those of earlier ones: the forward pass to the loss and the
 * backward pass. The caller has filled trainer->latents (clean), noise, sigma, timestep and text. Adds to the
 * loss and the times in `result`.
 * last_pass: no micro-batch of the step follows, so gradients are summed over the ranks during the pass.
 * next: where the host draws the next micro-batch from while the device computes; NULL: none is needed. */
DsvStatus dsvi_train_gradients(DsviTrainer *trainer, bool last_pass, const DsviSampleSource *next,
                               DsviStepResult *result);
/* The last part of a step, once all micro-batches have added their gradients: sums them over the ranks, clips
 * by the global norm, updates the weights (AdamW at result->lr) and their moving average, and lets the guard
 * of sparse attention decide. result->step and result->lr are set by the caller. */
DsvStatus dsvi_train_update(DsviTrainer *trainer, DsviStepResult *result);

#ifdef __cplusplus
}
#endif
#endif
