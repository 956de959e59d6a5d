/* One step of training. */
#ifndef DSVI_STEP_H
#define DSVI_STEP_H

#include "train/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvStepResult {
    int64_t step;
    double loss;                  /* mean over the samples of the step */
    double grad_norm;             /* before clipping */
    double lr;
    double forward_s, backward_s, optimizer_s, wait_s; /* wait_s: for data */
} DsvStepResult;

/* Draws gradient_accumulation_steps micro-batches from `data`, and makes one update. DSV_E_DIVERGED when the
 * loss or the gradient norm is not finite: the weights are then still those of the step before. */
DsvStatus dsvi_train_step(DsvTrainer *trainer, DsvPrefetch *data, DsvStepResult *result);

#ifdef __cplusplus
}
#endif
#endif
