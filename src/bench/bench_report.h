/* Helpers of all benchmarks: medians, and results as a table and as JSON. */
#ifndef DSVI_BENCH_REPORT_H
#define DSVI_BENCH_REPORT_H

#include <stddef.h>

#include "dsv/bench.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sorts `values` and returns the median; for an even count, the lower of the two middle values. */
double dsvi_median(double *values, size_t count);

typedef struct DsviBenchFigure {
    const char *name;
    double value;
} DsviBenchFigure;

typedef struct DsviBenchLabel {
    const char *name, *value;
} DsviBenchLabel;

/* Writes one line per label and figure to `line` (may be NULL), and all of them as one JSON object to the
 * file json_path (may be NULL). A figure that is not finite becomes null in JSON. */
DsvStatus dsvi_bench_report(const DsviBenchLabel *labels, size_t label_count, const DsviBenchFigure *figures,
                            size_t figure_count, const char *json_path, DsvLine *line, void *context);

#ifdef __cplusplus
}
#endif
#endif
