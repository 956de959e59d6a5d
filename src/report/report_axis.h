/* Axes of charts: positions of ticks, and their labels. Labels are HTML text that is positioned by fractions
 * of the chart's width and height; only the SVG drawing is stretched, so that labels keep their size on every
 * screen. */
#ifndef DSVI_REPORT_AXIS_H
#define DSVI_REPORT_AXIS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { DSVI_TICKS_MAX = 16 };

typedef struct DsviTicks {
    int count;
    double value[DSVI_TICKS_MAX];
    double step[DSVI_TICKS_MAX]; /* distance between neighbouring ticks, which sets the decimals of a label */
} DsviTicks;

/* Places ticks at multiples of 1, 2 or 5 times a power of ten between `low` and `high`: at most about `limit`
 * of them, where limit <= 10. whole: only at whole numbers. */
void dsvi_ticks_even(DsviTicks *ticks, double low, double high, int limit, bool whole);
/* Places ticks of a logarithmic axis at 1, 2 and 5 times powers of ten, or only at powers of ten if the axis
 * spans many. 0 < low < high. */
void dsvi_ticks_log(DsviTicks *ticks, double low, double high);
/* Places at most `limit` ticks at equal distances on the numbers 0 to count - 1. */
void dsvi_ticks_index(DsviTicks *ticks, int64_t count, int limit);

/* Writes label i of the vertical axis; `fraction` of the height is above it. */
void dsvi_label_y(FILE *to, double fraction, const DsviTicks *ticks, int i);

/* Writes label i of the horizontal axis; `fraction` of the width is to its left. The label's CSS class
 * (page.html) is t0 if every chart has space for it, t1 or t2 if only wider charts have. A label without
 * space is left out. */
void dsvi_label_x(FILE *to, double fraction, const DsviTicks *ticks, int i);

#ifdef __cplusplus
}
#endif
#endif
