/* The learning rate of each step of a run. */
#ifndef DSVI_SCHEDULE_H
#define DSVI_SCHEDULE_H

#include "dsv/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the learning rate of step `step`, counted from 1. It grows linearly from 0 and reaches `lr` at step
 * warmup_steps. Then it stays constant, or (lr_scheduler=cosine) follows half a cosine that would reach 0 at
 * step max_train_steps + 1. */
double dsvi_learning_rate(const DsvConfig *settings, int64_t step);

#ifdef __cplusplus
}
#endif
#endif
