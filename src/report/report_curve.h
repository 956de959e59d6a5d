/* Curves: a column of a table, reduced to at most DSVI_CURVE_POINTS points for runs of any length. */
#ifndef DSVI_REPORT_CURVE_H
#define DSVI_REPORT_CURVE_H

#include "report/report_data.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSVI_CURVE_POINTS = 800, DSVI_CURVE_PIECES = DSVI_CURVE_POINTS / 2 };

typedef struct DsviCurve {
    int count;
    double x[DSVI_CURVE_POINTS], y[DSVI_CURVE_POINTS];
} DsviCurve;

/* y is the number in `column`, x the number in the first column. Makes a point of every row; of a long table,
 * points of the minimum and the maximum of each of DSVI_CURVE_PIECES pieces, so that spikes stay visible. */
void dsvi_curve_raw(const DsviReportTable *table, int64_t column, DsviCurve *curve);

/* Makes a moving average over `window` rows, at up to DSVI_CURVE_PIECES rows that are spread evenly. */
void dsvi_curve_smooth(const DsviReportTable *table, int64_t column, int64_t window, DsviCurve *curve);

/* Divides the table into at most `limit` pieces of consecutive rows, and makes a point of each piece's mean
 * at the middle of the piece. A piece without numbers has no point. */
void dsvi_curve_pieces(const DsviReportTable *table, int64_t column, int limit, DsviCurve *curve);

/* Adds a point, unless y is NaN or the curve is full. */
void dsvi_curve_add(DsviCurve *curve, double x, double y);

/* Widens the range [*low, *high], which is empty if both are NaN, to contain the y of the curve, except for
 * the fraction `outliers` of its points at either end. */
void dsvi_curve_range(const DsviCurve *curve, double outliers, double *low, double *high);

#ifdef __cplusplus
}
#endif
#endif
