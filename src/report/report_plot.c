/* See report_plot.h. A drawing has SIDE x SIDE units, which the browser scales to the available size. */
#include "report/report_plot.h"

#include <math.h>

#include "report/report_axis.h"
#include "report/report_table.h"
#include "report/report_text.h"

enum { SIDE = 1000, X_TICKS = 10, TALL = 200 }; /* TALL: pixels above which a plot gets more y ticks */

static const double LOG_FROM = 30; /* an axis is logarithmic if largest / smallest value is above this */

/* Returns the distance of x from the left end of the axis, as a fraction of its length. */
static double fraction_x(const DsviPlot *plot, double x)
{
    double span = plot->x1 - plot->x0;
    return span > 0 ? (x - plot->x0) / span : 0.5;
}

/* Returns the distance of y from the bottom of the axis, as a fraction of its length; clamped, because SVG
 * viewers do not handle very large coordinates. */
static double fraction_y(const DsviPlot *plot, double y)
{
    double fraction = plot->log ? log(fmax(y, 1e-300) / plot->y0) / log(plot->y1 / plot->y0)
                                : (y - plot->y0) / (plot->y1 - plot->y0);
    return fmin(fmax(fraction, -1), 2);
}

void dsvi_plot_span(DsviPlot *plot, double low, double high)
{
    if (isnan(low) || isnan(high))
        low = 0, high = 1;
    plot->log = low > 0 && high > LOG_FROM * low;
    if (plot->log) {
        plot->y0 = low / 1.2;
        plot->y1 = high * 1.2;
        return;
    }
    double span = high - low;
    if (!(span > 1e-9 * fmax(fabs(low), fabs(high)))) /* all values are equal */
        span = fmax(fabs(high), 1e-12);
    plot->y0 = low >= 0 && low < 1.5 * span ? 0 : low - 0.06 * span;
    plot->y1 = high + 0.06 * span;
}

void dsvi_plot_add(DsviPlot *plot, const DsviPlotSeries *series)
{
    if (series->curve->count == 0)
        return;
    DSVI_ASSERT(plot->count < DSVI_PLOT_SERIES_MAX);
    plot->series[plot->count] = *series;
    plot->series[plot->count++].dots |= series->curve->count == 1; /* a line with one point is invisible */
}

static void put_entry(FILE *to, const DsviPlotSeries *series)
{
    fprintf(to, "<span class=\"s%d\"><i%s></i>", series->color, series->faint ? " class=\"light\"" : "");
    dsvi_put_text(to, series->name);
    if (series->note[0]) {
        fputc(' ', to);
        dsvi_put_text(to, series->note);
    }
    fputs("</span>", to);
}

/* Writes the key, unless the plot has only one series, which the axis title names. */
static void put_plot_key(FILE *to, const DsviPlot *plot)
{
    if (plot->count < 2 && !plot->rule_name)
        return;
    fputs("<figcaption class=\"key\">", to);
    for (int i = 0; i < plot->count; i++)
        put_entry(to, &plot->series[i]);
    if (plot->rule_name) {
        fputs("<span><i class=\"dash\"></i>", to);
        dsvi_put_text(to, plot->rule_name);
        fputs(": ", to);
        dsvi_put_round(to, plot->rule, 3);
        fputs("</span>", to);
    }
    fputs("</figcaption>\n", to);
}

double dsvi_plot_value(const DsviPlot *plot, int i, int p)
{
    double below = plot->stack && i > 0 ? plot->series[i - 1].curve->y[p] : 0;
    return plot->series[i].curve->y[p] - below;
}

/* Writes the description for screen readers. */
static void put_plot_description(FILE *to, const DsviPlot *plot)
{
    dsvi_put_text(to, plot->title);
    fprintf(to, " by %s, ", plot->x_name);
    dsvi_put_round(to, plot->x0, 6);
    fputs(" to ", to);
    dsvi_put_round(to, plot->x1, 6);
    for (int i = 0; i < plot->count; i++) {
        const DsviPlotSeries *series = &plot->series[i];
        double low = NAN, high = NAN;
        for (int p = 0; p < series->curve->count; p++) {
            low = fmin(low, dsvi_plot_value(plot, i, p));
            high = fmax(high, dsvi_plot_value(plot, i, p));
        }
        fputs(i ? "; " : ". ", to);
        dsvi_put_text(to, series->name);
        fputs(": first ", to);
        dsvi_put_short(to, dsvi_plot_value(plot, i, 0), 4);
        fputs(", last ", to);
        dsvi_put_short(to, dsvi_plot_value(plot, i, series->curve->count - 1), 4);
        fputs(", lowest ", to);
        dsvi_put_short(to, low, 4);
        fputs(", highest ", to);
        dsvi_put_short(to, high, 4);
    }
    fputc('.', to);
}

static void put_level(FILE *to, const char *class, double y)
{
    fprintf(to, "<line class=\"%s\" x2=\"%d\" y1=\"", class, SIDE);
    dsvi_put_fixed(to, y, 1);
    fputs("\" y2=\"", to);
    dsvi_put_fixed(to, y, 1);
    fputs("\"/>", to);
}

static void put_points(FILE *to, const DsviPlot *plot, const DsviCurve *curve, bool backwards)
{
    for (int i = 0; i < curve->count; i++) {
        int p = backwards ? curve->count - 1 - i : i;
        dsvi_put_fixed(to, SIDE * fraction_x(plot, curve->x[p]), 1);
        fputc(',', to);
        dsvi_put_fixed(to, SIDE * (1 - fraction_y(plot, curve->y[p])), 2);
        fputc(' ', to);
    }
}

/* Writes the area between a series and the series below it. */
static void put_area(FILE *to, const DsviPlot *plot, int i)
{
    const DsviCurve *above = plot->series[i].curve;
    DsviCurve ground = {.count = 2, .x = {above->x[0], above->x[above->count - 1]}};
    fprintf(to, "<polygon class=\"area s%d\" points=\"", plot->series[i].color);
    put_points(to, plot, above, false);
    put_points(to, plot, i > 0 ? plot->series[i - 1].curve : &ground, true);
    fputs("\"/>\n", to);
}

/* Writes the points as lines of almost no length with round ends, which stay round when the drawing is
 * stretched; circles would not. */
static void put_dots(FILE *to, const DsviPlot *plot, const DsviPlotSeries *series)
{
    fprintf(to, "<path class=\"dots s%d\" d=\"", series->color);
    for (int i = 0; i < series->curve->count; i++) {
        fputc('M', to);
        dsvi_put_fixed(to, SIDE * fraction_x(plot, series->curve->x[i]), 1);
        fputc(' ', to);
        dsvi_put_fixed(to, SIDE * (1 - fraction_y(plot, series->curve->y[i])), 1);
        fputs("h.01", to);
    }
    fputs("\"/>\n", to);
}

static void put_series(FILE *to, const DsviPlot *plot, const DsviPlotSeries *series)
{
    if (series->dots)
        put_dots(to, plot, series);
    fprintf(to, "<polyline class=\"curve s%d%s\" data-name=\"", series->color, series->faint ? " faint" : "");
    dsvi_put_text(to, series->name);
    fputs("\" points=\"", to);
    put_points(to, plot, series->curve, false);
    fputs("\"/>\n", to);
}

static void put_plot_drawing(FILE *to, const DsviPlot *plot, const DsviTicks *y_ticks)
{
    fprintf(to, "<svg viewBox=\"0 0 %d %d\" preserveAspectRatio=\"none\" data-x=\"%s\" data-scale=\"", SIDE,
            SIDE, plot->x_name);
    const double scale[] = {plot->x0, plot->x1, plot->y0, plot->y1};
    for (int i = 0; i < 4; i++) {
        dsvi_put_short(to, scale[i], 9);
        fputc(' ', to);
    }
    fprintf(to, "%d\"%s>", plot->log, plot->stack ? " data-stack" : "");
    for (int i = 0; i < y_ticks->count; i++)
        put_level(to, "grid", SIDE * (1 - fraction_y(plot, y_ticks->value[i])));
    if (plot->rule_name)
        put_level(to, "rule", SIDE * (1 - fraction_y(plot, plot->rule)));
    fputc('\n', to);
    for (int i = 0; plot->stack && i < plot->count; i++)
        put_area(to, plot, i);
    for (int i = 0; i < plot->count; i++)
        put_series(to, plot, &plot->series[i]);
    fprintf(to, "<line class=\"cursor\" y2=\"%d\"/></svg>", SIDE);
}

static void put_chart(FILE *to, const DsviPlot *plot)
{
    DsviTicks x_ticks, y_ticks;
    dsvi_ticks_even(&x_ticks, plot->x0, plot->x1, X_TICKS, plot->whole_x);
    if (plot->log)
        dsvi_ticks_log(&y_ticks, plot->y0, plot->y1);
    else
        dsvi_ticks_even(&y_ticks, plot->y0, plot->y1, plot->height > TALL ? 6 : 5, false);
    fputs("<div class=\"chart\" role=\"img\" aria-label=\"", to);
    put_plot_description(to, plot);
    fprintf(to, "\"><span class=\"axis\">%s</span><div class=\"drawing\" style=\"height:%dpx\">",
            plot->y_name, plot->height);
    for (int i = 0; i < y_ticks.count; i++)
        dsvi_label_y(to, 1 - fraction_y(plot, y_ticks.value[i]), &y_ticks, i);
    put_plot_drawing(to, plot, &y_ticks);
    for (int i = 0; i < x_ticks.count; i++)
        dsvi_label_x(to, fraction_x(plot, x_ticks.value[i]), &x_ticks, i);
    fprintf(to, "</div><span class=\"axis across\">%s</span></div>\n", plot->x_name);
}

void dsvi_plot_put(FILE *to, const DsviPlot *plot)
{
    fputs("<figure>\n", to);
    put_plot_key(to, plot);
    put_chart(to, plot);
    dsvi_table_of_plot(to, plot);
    fputs("</figure>\n", to);
}
