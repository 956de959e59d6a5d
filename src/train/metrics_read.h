/* Reading a run's metrics.jsonl back. */
#ifndef DSVI_METRICS_READ_H
#define DSVI_METRICS_READ_H

#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvMetricsSummary {
    int64_t last_step;  /* 0: no steps yet */
    double first_loss;  /* mean over the first 10 steps; NaN when there are none */
    double last_loss;   /* mean over the last 20 steps */
} DsvMetricsSummary;

/* A last line that was never finished, as a full disk leaves it, is left out. DSV_E_FORMAT names the first
 * other line that is no metrics object. */
DsvStatus dsvi_metrics_summarise(const char *path, DsvMetricsSummary *summary);

#ifdef __cplusplus
}
#endif
#endif
