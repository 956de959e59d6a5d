/* Line plots and stacked areas: an SVG drawing that fills the available width, axes with HTML labels, a
 * description for screen readers, and a table of the values. */
#ifndef DSVI_REPORT_PLOT_H
#define DSVI_REPORT_PLOT_H

#include <stdbool.h>
#include <stdio.h>

#include "report/report_curve.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSVI_PLOT_SERIES_MAX = 6 };

typedef struct DsviPlotSeries {
    const DsviCurve *curve;
    const char *name;
    char note[64]; /* shown after the name in the key; may be "" */
    int color;     /* 0 to 5: CSS class s0 to s5 */
    bool faint;    /* thin and pale */
    bool dots;     /* each point is a separate measurement and is shown as a dot */
} DsviPlotSeries;

typedef struct DsviPlot {
    const char *title;           /* for the description and the table: "Loss" */
    const char *x_name, *y_name; /* titles of the axes, with the unit: "step", "ms" */
    int height;                  /* height of the drawing in CSS pixels */
    double x0, x1, y0, y1;       /* ranges of the axes */
    bool whole_x;                /* all x are whole numbers */
    bool log;                    /* the y axis is logarithmic */
    bool stack;                  /* the curves are the upper borders of stacked areas */
    const char *rule_name;       /* name of a dashed horizontal line at y = `rule`; NULL: no line */
    double rule;
    int count; /* number of series */
    DsviPlotSeries series[DSVI_PLOT_SERIES_MAX];
} DsviPlot;

/* Sets the y axis for values from `low` to `high`, with a margin: logarithmic if the values are positive and
 * the largest is more than 30 times the smallest; otherwise linear, from 0 if the values are not far above 0.
 * If a bound is NaN (no values), the axis is 0 to 1. */
void dsvi_plot_span(DsviPlot *plot, double low, double high);

/* Adds a series; its curve must outlive the plot. A series without points is left out. */
void dsvi_plot_add(DsviPlot *plot, const DsviPlotSeries *series);

/* Returns the value of point p of series i; in a stacked plot the height of the series' area at this
 * point. */
double dsvi_plot_value(const DsviPlot *plot, int i, int p);

/* Writes the figure. */
void dsvi_plot_put(FILE *to, const DsviPlot *plot);

#ifdef __cplusplus
}
#endif
#endif
