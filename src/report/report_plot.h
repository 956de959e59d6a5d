/* Line plots and stacked areas as figures of the page: an SVG drawing that takes the width it is given, axes
 * whose labels are text of the page, a name for those who cannot see it, and a table of its values. */
#ifndef DSVI_REPORT_PLOT_H
#define DSVI_REPORT_PLOT_H

#include <stdbool.h>
#include <stdio.h>

#include "report/report_curve.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSVI_PLOT_SERIES_MAX = 6 };

typedef struct DsvPlotSeries {
    const DsvCurve *curve;
    const char *name;
    char note[64];          /* follows the name in the key; "" for none */
    int color;              /* 0 to 5 */
    bool faint, dots;       /* dots: every point is a measurement of its own */
} DsvPlotSeries;

typedef struct DsvPlot {
    const char *title;      /* what the plot shows, for its name and its table: "Loss" */
    const char *x_name, *y_name; /* titles of the axes, with the unit: "step", "ms" */
    int height;             /* of the drawing, in CSS pixels */
    double x0, x1, y0, y1;  /* what the axes span */
    bool whole_x;           /* x are whole numbers */
    bool log;               /* the y axis */
    bool stack;             /* each series is stacked on the one before */
    const char *rule_name;  /* a dashed line across at `rule`; NULL: none */
    double rule;
    int count;              /* series */
    DsvPlotSeries series[DSVI_PLOT_SERIES_MAX];
} DsvPlot;

/* Makes [y0, y1] fit for an axis: logarithmic for positive numbers that span decades, else from zero where
 * zero is near, with a margin. NaN (no numbers): 0 to 1. */
void dsvi_plot_span(DsvPlot *plot, double low, double high);

/* Adds a series, whose curve must outlive the plot; one without points is left out. */
void dsvi_plot_add(DsvPlot *plot, const DsvPlotSeries *series);

/* The value of point p of series i; of stacked series what the series adds. */
double dsvi_plot_value(const DsvPlot *plot, int i, int p);

/* The whole figure. */
void dsvi_plot_put(FILE *to, const DsvPlot *plot);

#ifdef __cplusplus
}
#endif
#endif
