/* What a run tells as JSON lines: metrics.jsonl, one object a step; blocks.jsonl, one object for each block
 * of a measuring step; decisions.jsonl, one object for each decision of the sparse layer; validation.jsonl,
 * one object for each measurement of the held-out loss. Finite numbers are
 * written so that they read back to the bit, others as null; a run that was resumed leaves the same lines as
 * one that was never stopped, times and memory aside. */
#ifndef DSVI_METRICS_H
#define DSVI_METRICS_H

#include <stdint.h>

#include "sparse/sparse.h"
#include "train/held_out.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One file of such lines. */
typedef struct DsvMetrics DsvMetrics;

/* Opens for appending what comes after step `resume_step` (0: from the beginning). Lines of later steps,
 * left by an earlier attempt, are cut off, and so is a last line that was never finished. Any other line
 * that is no object with a step is DSV_E_FORMAT and named. */
DsvStatus dsvi_metrics_open(const char *path, int64_t resume_step, DsvMetrics **out);
void dsvi_metrics_close(DsvMetrics **metrics);

/* Step of the last line in the file; 0: there is none. */
int64_t dsvi_metrics_last_step(const DsvMetrics *metrics);

typedef struct DsvMetricsStep {
    int64_t step;
    double loss, grad_norm, lr;
    float loss_bins[DSV_SIGMA_BINS]; /* mean loss of the samples in each tenth of sigma; NaN: none there */
    double step_ms, tokens_per_s, data_wait_ms, forward_ms, backward_ms, optimizer_ms;
    double density;
    int64_t sparse_blocks;
    double captured_mass, predictor_loss; /* NaN: none */
    uint64_t memory_bytes;
} DsvMetricsStep;

/* All write whole lines and hand them to the system at once. None allocates. */
DsvStatus dsvi_metrics_step(DsvMetrics *metrics, const DsvMetricsStep *line);
DsvStatus dsvi_metrics_block(DsvMetrics *metrics, int64_t step, int64_t block, int64_t heads,
                             const DsvSparseBlockReport *report);
DsvStatus dsvi_metrics_held_out(DsvMetrics *metrics, int64_t step, const DsvHeldOutLoss *loss);
/* `reason` is the sentence of the log. */
DsvStatus dsvi_metrics_decision(DsvMetrics *metrics, int64_t step, const char *reason);

#ifdef __cplusplus
}
#endif
#endif
