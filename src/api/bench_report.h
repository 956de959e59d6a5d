/* What benchmarks share: medians, and figures as a table and as JSON. */
#ifndef DSVI_BENCH_REPORT_H
#define DSVI_BENCH_REPORT_H

#include <stddef.h>

#include "dsv/bench.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sorts the values and returns the middle one (of an even number, the lower middle). */
double dsvi_median(double *values, size_t count);

typedef struct DsvBenchFigure {
    const char *name;
    double value;
} DsvBenchFigure;

typedef struct DsvBenchLabel {
    const char *name, *value;
} DsvBenchLabel;

/* One line per label and figure to `line` (may be NULL), and all of them as one JSON object to json_path (may
 * be NULL). A figure that is not finite is null there. */
DsvStatus dsvi_bench_report(const DsvBenchLabel *labels, size_t label_count, const DsvBenchFigure *figures,
                            size_t figure_count, const char *json_path, DsvLine *line, void *context);

#ifdef __cplusplus
}
#endif
#endif
