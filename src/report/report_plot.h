/* Line plots and stacked areas, as SVG inside the page. */
#ifndef DSVI_REPORT_PLOT_H
#define DSVI_REPORT_PLOT_H

#include <stdbool.h>
#include <stdio.h>

#include "report/report_curve.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSVI_PLOT_WIDE = 1058, DSVI_PLOT_HALF = 514 }; /* units across, which are pixels on a wide screen */

typedef struct DsvPlot {
    const char *x_name;     /* "step" */
    int width, height;
    double x0, x1, y0, y1;  /* what the axes span */
    bool log;               /* the y axis */
    bool stack;             /* curves are borders of stacked areas, lowest first */
} DsvPlot;

/* How a curve is drawn and named; colour 0 to 5. */
typedef struct DsvPlotStyle {
    const char *name;       /* NULL: not named under the pointer */
    int color;
    bool faint, dots;
} DsvPlotStyle;

/* Makes [y0, y1] fit for an axis: of positive numbers that span decades logarithmic, else from zero where
 * zero is near, with a margin. NaN (no numbers): 0 to 1. */
void dsvi_plot_span(DsvPlot *plot, double low, double high);

void dsvi_plot_begin(FILE *to, const DsvPlot *plot);
void dsvi_plot_curve(FILE *to, const DsvPlot *plot, const DsvCurve *curve, const DsvPlotStyle *style);
/* The area between two curves over the same x. */
void dsvi_plot_area(FILE *to, const DsvPlot *plot, const DsvCurve *below, const DsvCurve *above, int color);
/* A dashed line across, with its name. */
void dsvi_plot_rule(FILE *to, const DsvPlot *plot, double y, const char *name);
void dsvi_plot_end(FILE *to, const DsvPlot *plot);

/* One entry of the list of colours that goes above a plot. */
void dsvi_plot_key(FILE *to, int color, const char *name);

#ifdef __cplusplus
}
#endif
#endif
