/* See report_curve.h. */
#include "report/report_curve.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void dsvi_curve_add(DsviCurve *curve, double x, double y)
{
    if (curve->count == DSVI_CURVE_POINTS || isnan(y))
        return;
    curve->x[curve->count] = x;
    curve->y[curve->count++] = y;
}

/* Returns the first row of piece p of `pieces` pieces. */
static int64_t piece_start(const DsviReportTable *table, int64_t pieces, int64_t p)
{
    return table->rows * p / pieces;
}

static int64_t piece_count(const DsviReportTable *table, int64_t limit)
{
    return table->rows < limit ? table->rows : limit;
}

/* Adds the minimum and the maximum of the rows first to last - 1, in the order of their rows. */
static void add_extremes(const DsviReportTable *table, int64_t column, int64_t first, int64_t last,
                         DsviCurve *curve)
{
    int64_t lowest = -1, highest = -1;
    for (int64_t r = first; r < last; r++) {
        double value = dsvi_report_cell(table, r, column);
        if (isnan(value))
            continue;
        if (lowest < 0 || value < dsvi_report_cell(table, lowest, column))
            lowest = r;
        if (highest < 0 || value > dsvi_report_cell(table, highest, column))
            highest = r;
    }
    if (lowest < 0)
        return;
    int64_t early = lowest < highest ? lowest : highest, late = lowest < highest ? highest : lowest;
    dsvi_curve_add(curve, dsvi_report_cell(table, early, 0), dsvi_report_cell(table, early, column));
    if (late != early)
        dsvi_curve_add(curve, dsvi_report_cell(table, late, 0), dsvi_report_cell(table, late, column));
}

void dsvi_curve_raw(const DsviReportTable *table, int64_t column, DsviCurve *curve)
{
    int64_t pieces = table->rows <= DSVI_CURVE_POINTS ? table->rows : DSVI_CURVE_PIECES;
    curve->count = 0;
    for (int64_t p = 0; p < pieces; p++)
        add_extremes(table, column, piece_start(table, pieces, p), piece_start(table, pieces, p + 1), curve);
}

void dsvi_curve_smooth(const DsviReportTable *table, int64_t column, int64_t window, DsviCurve *curve)
{
    int64_t points = piece_count(table, DSVI_CURVE_PIECES), half = window / 2;
    curve->count = 0;
    for (int64_t p = 0; p < points; p++) {
        int64_t row = points > 1 ? (table->rows - 1) * p / (points - 1) : 0;
        dsvi_curve_add(curve, dsvi_report_cell(table, row, 0),
                       dsvi_report_mean(table, column, row - half, row + half + 1));
    }
}

void dsvi_curve_pieces(const DsviReportTable *table, int64_t column, int limit, DsviCurve *curve)
{
    int64_t pieces = piece_count(table, limit);
    curve->count = 0;
    for (int64_t p = 0; p < pieces; p++) {
        int64_t first = piece_start(table, pieces, p), last = piece_start(table, pieces, p + 1);
        dsvi_curve_add(curve, dsvi_report_cell(table, (first + last - 1) / 2, 0),
                       dsvi_report_mean(table, column, first, last));
    }
}

static int compare_y(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void dsvi_curve_range(const DsviCurve *curve, double outliers, double *low, double *high)
{
    double sorted[DSVI_CURVE_POINTS];
    if (curve->count == 0)
        return;
    memcpy(sorted, curve->y, (size_t)curve->count * sizeof *sorted);
    qsort(sorted, (size_t)curve->count, sizeof *sorted, compare_y);
    int skip = (int)floor(outliers * curve->count);
    *low = fmin(*low, sorted[skip]); /* fmin and fmax ignore NaN */
    *high = fmax(*high, sorted[curve->count - 1 - skip]);
}
