/* JSON lines files of a run: metrics.jsonl has one object per step; blocks.jsonl one object per block of each
 * step with exact measurements; decisions.jsonl one object per decision of the sparse layer (to make a
 * block's attention dense or sparse, for example); validation.jsonl one object per measurement of the
 * held-out loss. Finite numbers are written with enough digits to read back identical bits, other numbers as
 * null. A resumed run writes the same lines as an uninterrupted one, except times and memory. */
#ifndef DSVI_METRICS_H
#define DSVI_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include "sparse/sparse.h"
#include "train/held_out.h"
#include "run/superseded.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One open JSON lines file. */
typedef struct DsviMetrics DsviMetrics;

/* Opens a file and finds the last line whose step is at most `resume_step`. Does not change the file,
 * which need not exist. Everything after the line found is cut by dsvi_metrics_begin: lines of later
 * steps, and unreadable bytes at the end after a crash. An unreadable line before a line of these steps
 * is DSV_E_FORMAT. */
DsvStatus dsvi_metrics_open(const char *path, int64_t resume_step, DsviMetrics **out);

/* Cuts the file after the last line of `resume_step`, or creates it. The part cut off is copied into
 * `superseded` first. */
DsvStatus dsvi_metrics_begin(DsviMetrics *metrics, DsviSuperseded *superseded);

void dsvi_metrics_close(DsviMetrics **metrics);

/* Returns the step of the last line; 0 if there is none. */
int64_t dsvi_metrics_last_step(const DsviMetrics *metrics);

/* Waits until all lines written so far are on disk (fsync). */
DsvStatus dsvi_metrics_sync(DsviMetrics *metrics);

/* Returns whether the path still leads to the open file. It does not if the file was removed, moved or
 * replaced. */
bool dsvi_metrics_in_place(const DsviMetrics *metrics);
/* If the file is not in place, writes a copy with all lines to its path. A file found at the path is moved
 * into `superseded`. */
DsvStatus dsvi_metrics_restore(DsviMetrics *metrics, DsviSuperseded *superseded);

typedef struct DsviMetricsStep {
    int64_t step;
    double loss, grad_norm, lr;
    float loss_bins[DSVI_SIGMA_BINS]; /* mean loss of the samples in each bin of sigma; NaN: no samples */
    double step_ms, tokens_per_s, data_wait_ms, forward_ms, backward_ms, optimizer_ms;
    double density;
    int64_t sparse_blocks;
    /* fraction of the exact attention weights on listed keys, relative error of attention's output over lists
     * and tail, and the predictor's loss; NaN: not measured */
    double captured_mass, output_error, predictor_loss;
    uint64_t memory_bytes;
} DsviMetricsStep;

/* The following functions write one whole line and flush it to the operating system. They do not allocate. */
DsvStatus dsvi_metrics_step(DsviMetrics *metrics, const DsviMetricsStep *line);
DsvStatus dsvi_metrics_block(DsviMetrics *metrics, int64_t step, int64_t block, int64_t heads,
                             const DsviSparseBlockReport *report);
DsvStatus dsvi_metrics_held_out(DsviMetrics *metrics, int64_t step, const DsviHeldOutLoss *loss);
/* Writes a decision of the sparse layer; `reason` is the sentence that was logged for it. */
DsvStatus dsvi_metrics_decision(DsviMetrics *metrics, int64_t step, const char *reason);

#ifdef __cplusplus
}
#endif
#endif
