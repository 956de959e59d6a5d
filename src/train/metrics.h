/* What a run tells as JSON lines: metrics.jsonl, one object a step; blocks.jsonl, one object for each block
 * of a measuring step; decisions.jsonl, one object for each decision of the sparse layer; validation.jsonl,
 * one object for each measurement of the held-out loss. Finite numbers are
 * written so that they read back to the bit, others as null; a run that was resumed leaves the same lines as
 * one that was never stopped, times and memory aside. */
#ifndef DSVI_METRICS_H
#define DSVI_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include "sparse/sparse.h"
#include "train/held_out.h"
#include "train/superseded.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One file of such lines. */
typedef struct DsvMetrics DsvMetrics;

/* Reads the lines of steps up to `resume_step` and changes nothing; the file need not exist. What comes after
 * those lines is what dsvi_metrics_begin will cut: lines of later steps, and what a crash left unreadable at
 * the end. A line without a step that has a line of those steps after it is DSV_E_FORMAT and named. */
DsvStatus dsvi_metrics_open(const char *path, int64_t resume_step, DsvMetrics **out);

/* Makes the file end with the last line of `resume_step`, ready for the lines of the steps after it. The rest
 * is copied into `superseded` first. */
DsvStatus dsvi_metrics_begin(DsvMetrics *metrics, DsvSuperseded *superseded);

void dsvi_metrics_close(DsvMetrics **metrics);

/* Step of the last line in the file; 0: there is none. */
int64_t dsvi_metrics_last_step(const DsvMetrics *metrics);

/* Returns when every line written so far is on the disk. */
DsvStatus dsvi_metrics_sync(DsvMetrics *metrics);

/* Whether the path still leads to the file that is being written: not once it was removed, moved or replaced.
 * Then dsvi_metrics_restore puts a copy with every line written so far in its place; what was found at the
 * path goes into `superseded`. */
bool dsvi_metrics_in_place(const DsvMetrics *metrics);
DsvStatus dsvi_metrics_restore(DsvMetrics *metrics, DsvSuperseded *superseded);

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
