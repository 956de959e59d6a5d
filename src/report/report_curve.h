/* A column of a table as a line of few points, whatever the length of the run. */
#ifndef DSVI_REPORT_CURVE_H
#define DSVI_REPORT_CURVE_H

#include "report/report_data.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSVI_CURVE_POINTS = 800, DSVI_CURVE_PIECES = DSVI_CURVE_POINTS / 2 };

typedef struct DsvCurve {
    int count;
    double x[DSVI_CURVE_POINTS], y[DSVI_CURVE_POINTS];
} DsvCurve;

/* Every number of a column over the first column; of many, the least and the most of each of
 * DSVI_CURVE_PIECES pieces of the run, so that spikes stay. */
void dsvi_curve_raw(const DsvReportTable *table, int64_t column, DsvCurve *curve);

/* Means over `window` rows around each of at most DSVI_CURVE_POINTS / 2 rows. */
void dsvi_curve_smooth(const DsvReportTable *table, int64_t column, int64_t window, DsvCurve *curve);

/* Means of at most `most` pieces that make up the run, over the piece's middle. A piece without a number
 * has no point. */
void dsvi_curve_pieces(const DsvReportTable *table, int64_t column, int most, DsvCurve *curve);

/* Adds a point, while there is room. */
void dsvi_curve_add(DsvCurve *curve, double x, double y);

/* Widens [*low, *high] to hold the curve but for the share `outliers` of its points at either end. Both NaN:
 * nothing yet. */
void dsvi_curve_range(const DsvCurve *curve, double outliers, double *low, double *high);

#ifdef __cplusplus
}
#endif
#endif
