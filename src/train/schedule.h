/* The learning rate of each step of a run. */
#ifndef DSVI_SCHEDULE_H
#define DSVI_SCHEDULE_H

#include "dsv/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the learning rate of step `step`, counted from 1. It grows linearly from 0 and reaches `lr` at step
 * warmup_steps. Then, with d = (step - start) / (max_train_steps + 1 - start) and r = lr_min_ratio:
 *     constant   lr
 *     cosine     lr (r + (1 - r) (1 + cos(pi d)) / 2)   start: the end of the warm-up, or step 1
 *     linear     lr (r + (1 - r) (1 - d))               start: the same
 *     wsd        as linear, and lr before the start     start: max_train_steps + 1 - lr_decay_steps, but not
 *                                                       before the end of the warm-up
 * The final value r lr would be reached at step max_train_steps + 1. */
double dsvi_learning_rate(const DsvConfig *settings, int64_t step);

#ifdef __cplusplus
}
#endif
#endif
