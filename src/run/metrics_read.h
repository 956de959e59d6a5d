/* Reads a run's metrics.jsonl. */
#ifndef DSVI_METRICS_READ_H
#define DSVI_METRICS_READ_H

#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviMetricsSummary {
    int64_t last_step; /* 0: no steps */
    double first_loss; /* mean over the first 10 steps; NaN when there are none */
    double last_loss;  /* mean over the last 20 steps */
} DsviMetricsSummary;

/* Computes the summary of the metrics file at `path`. An unfinished last line, for example after the disk
 * was full, is ignored. Any other line that is not an object with step and loss is DSV_E_FORMAT, with its
 * line number. */
DsvStatus dsvi_metrics_summarise(const char *path, DsviMetricsSummary *summary);

#ifdef __cplusplus
}
#endif
#endif
