/* Axes of charts: where ticks go, and their labels. Labels are text of the page, placed by shares of the
 * chart's width and height, so that they keep their size whatever the width of the screen. */
#ifndef DSVI_REPORT_AXIS_H
#define DSVI_REPORT_AXIS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { DSVI_TICKS_MAX = 16 };

typedef struct DsvTicks {
    int count;
    double value[DSVI_TICKS_MAX];
    double step[DSVI_TICKS_MAX]; /* the distance that a label's digits have to tell, at each tick */
} DsvTicks;

/* Multiples of 1, 2 or 5 times a power of ten from `low` to `high`, about `most` of them, 10 or fewer. With
 * `whole` whole numbers only. */
void dsvi_ticks_even(DsvTicks *ticks, double low, double high, int most, bool whole);
/* 1, 2 and 5 times powers of ten; over many decades the powers only. 0 < low < high. */
void dsvi_ticks_log(DsvTicks *ticks, double low, double high);
/* At most `most` of the numbers 0 to count - 1. */
void dsvi_ticks_index(DsvTicks *ticks, int64_t count, int most);

/* A label of the vertical axis; `share` of the height from the top. */
void dsvi_label_y(FILE *to, double share, const DsvTicks *ticks, int i);

/* Label i of the horizontal axis; `share` of the width from the left. Its class tells from which width of the
 * chart on the page shows it: t0 always, t1 and t2 on wider ones (page.html). */
void dsvi_label_x(FILE *to, double share, const DsvTicks *ticks, int i);

#ifdef __cplusplus
}
#endif
#endif
