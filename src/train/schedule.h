/* The learning rate over a run. */
#ifndef DSVI_SCHEDULE_H
#define DSVI_SCHEDULE_H

#include "dsv/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* For step 1, 2, ... of max_train_steps: linear from 0 over warmup_steps (step warmup_steps has the full
 * lr), then constant, or half a cosine that would reach 0 at the step after the last. */
double dsvi_learning_rate(const DsvConfig *settings, int64_t step);

#ifdef __cplusplus
}
#endif
#endif
