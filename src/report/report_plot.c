/* See report_plot.h. */
#include "report/report_plot.h"

#include <math.h>

#include "report/report_text.h"

/* Around the plotting area: room for numbers. */
enum { LEFT = 52, RIGHT = 10, TOP = 8, BOTTOM = 24, TICK_GAP = 5, TICKS_MOST = 12, DOT = 3 };

static const double LOG_FROM = 30; /* the largest over the least from which an axis is logarithmic */

static double inner_width(const DsvPlot *plot)
{
    return plot->width - LEFT - RIGHT;
}

static double inner_height(const DsvPlot *plot)
{
    return plot->height - TOP - BOTTOM;
}

static double place_x(const DsvPlot *plot, double x)
{
    double span = plot->x1 - plot->x0;
    return LEFT + (span > 0 ? (x - plot->x0) / span : 0.5) * inner_width(plot);
}

/* Values far off the axis would be numbers that no drawing has. */
static double place_y(const DsvPlot *plot, double y)
{
    double share = plot->log ? log(fmax(y, 1e-300) / plot->y0) / log(plot->y1 / plot->y0)
                             : (y - plot->y0) / (plot->y1 - plot->y0);
    return TOP + (1 - fmin(fmax(share, -1), 2)) * inner_height(plot);
}

void dsvi_plot_span(DsvPlot *plot, double low, double high)
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
    if (!(span > 1e-9 * fmax(fabs(low), fabs(high)))) /* all alike */
        span = fmax(fabs(high), 1e-12);
    plot->y0 = low >= 0 && low < 1.5 * span ? 0 : low - 0.06 * span;
    plot->y1 = high + 0.06 * span;
}

/* The step of ticks: 1, 2 or 5 times a power of ten, at most `most` of them in the span. */
static double tick_step(double span, int most)
{
    double step = pow(10, floor(log10(span / most)));
    static const double factor[] = {1, 2, 5, 10};
    for (int i = 0; i < 4; i++)
        if (span / (factor[i] * step) <= most)
            return factor[i] * step;
    return 10 * step;
}

static void put_tick(FILE *to, double value, double step)
{
    if (fabs(value) >= 10000 && step >= 100 && fmod(fabs(value), 100) == 0) {
        bool millions = fabs(value) >= 1e6;
        double part = value / (millions ? 1e6 : 1e3);
        dsvi_put_fixed(to, part, part == floor(part) ? 0 : 1);
        fputc(millions ? 'M' : 'k', to);
        return;
    }
    int decimals = step > 0 && step < 1 ? (int)ceil(-log10(step) - 1e-9) : 0;
    if (value != 0 && (decimals > 5 || fabs(value) >= 1e7))
        dsvi_put_short(to, value, 2);
    else
        dsvi_put_fixed(to, value, decimals > 5 ? 0 : decimals);
}

static void y_tick(FILE *to, const DsvPlot *plot, double value, double step)
{
    double y = place_y(plot, value);
    fprintf(to, "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"", LEFT, plot->width - RIGHT);
    dsvi_put_fixed(to, y, 1);
    fputs("\" y2=\"", to);
    dsvi_put_fixed(to, y, 1);
    fprintf(to, "\"/><text class=\"y\" x=\"%d\" y=\"", LEFT - TICK_GAP);
    dsvi_put_fixed(to, y + 4, 1);
    fputs("\">", to);
    put_tick(to, value, step);
    fputs("</text>", to);
}

/* 1, 2 and 5 times powers of ten; of many decades the powers alone. */
static void log_ticks(FILE *to, const DsvPlot *plot)
{
    static const double factor[] = {1, 2, 5};
    double decades = log10(plot->y1 / plot->y0);
    int every = decades > 8 ? (int)ceil(decades / 8) : 1, factors = decades > 2.5 ? 1 : 3;
    for (int e = (int)floor(log10(plot->y0)); pow(10, e) <= plot->y1; e += every)
        for (int i = 0; i < factors; i++) {
            double value = factor[i] * pow(10, e);
            if (value >= plot->y0 && value <= plot->y1)
                y_tick(to, plot, value, pow(10, e));
        }
}

static void y_ticks(FILE *to, const DsvPlot *plot)
{
    if (plot->log) {
        log_ticks(to, plot);
        return;
    }
    double step = tick_step(plot->y1 - plot->y0, plot->height > 200 ? 6 : 5);
    double first = ceil(plot->y0 / step - 1e-9);
    for (int i = 0; i < TICKS_MOST && (first + i) * step <= plot->y1; i++)
        y_tick(to, plot, (first + i) * step, step);
}

static void x_ticks(FILE *to, const DsvPlot *plot)
{
    double span = plot->x1 - plot->x0;
    double step = span > 0 ? tick_step(span, plot->width > DSVI_PLOT_HALF ? 10 : 5) : 1;
    double first = ceil(plot->x0 / step - 1e-9);
    for (int i = 0; i < TICKS_MOST && (first + i) * step <= plot->x1 + 1e-9 * span; i++) {
        fputs("<text class=\"x\" x=\"", to);
        dsvi_put_fixed(to, place_x(plot, (first + i) * step), 1);
        fprintf(to, "\" y=\"%d\">", plot->height - 6);
        put_tick(to, (first + i) * step, step);
        fputs("</text>", to);
    }
}

void dsvi_plot_begin(FILE *to, const DsvPlot *plot)
{
    fprintf(to, "<figure><svg viewBox=\"0 0 %d %d\" data-x=\"%s\" data-box=\"%d %d ", plot->width,
            plot->height, plot->x_name, LEFT, TOP);
    dsvi_put_fixed(to, inner_width(plot), 0);
    fputc(' ', to);
    dsvi_put_fixed(to, inner_height(plot), 0);
    fputs("\" data-scale=\"", to);
    const double scale[] = {plot->x0, plot->x1, plot->y0, plot->y1};
    for (int i = 0; i < 4; i++) {
        dsvi_put_short(to, scale[i], 9);
        fputc(' ', to);
    }
    fprintf(to, "%d\"%s>", plot->log, plot->stack ? " data-stack" : "");
    y_ticks(to, plot);
    x_ticks(to, plot);
    /* What lies off the axis is cut by an inner drawing, whose units are those of the outer. */
    int left = LEFT - DOT, top = TOP - DOT, width = plot->width - RIGHT + DOT - left,
        height = plot->height - BOTTOM + DOT - top;
    fprintf(to, "<svg x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" viewBox=\"%d %d %d %d\">\n", left, top,
            width, height, left, top, width, height);
}

static void put_points(FILE *to, const DsvPlot *plot, const DsvCurve *curve, bool backwards)
{
    for (int i = 0; i < curve->count; i++) {
        int p = backwards ? curve->count - 1 - i : i;
        dsvi_put_fixed(to, place_x(plot, curve->x[p]), 1);
        fputc(',', to);
        dsvi_put_fixed(to, place_y(plot, curve->y[p]), 2);
        fputc(' ', to);
    }
}

void dsvi_plot_curve(FILE *to, const DsvPlot *plot, const DsvCurve *curve, const DsvPlotStyle *style)
{
    if (curve->count == 0)
        return;
    for (int i = 0; style->dots && i < curve->count; i++) {
        fprintf(to, "<circle class=\"dot s%d\" r=\"%d\" cx=\"", style->color, DOT);
        dsvi_put_fixed(to, place_x(plot, curve->x[i]), 1);
        fputs("\" cy=\"", to);
        dsvi_put_fixed(to, place_y(plot, curve->y[i]), 1);
        fputs("\"/>", to);
    }
    fprintf(to, "<polyline class=\"curve s%d%s\"", style->color, style->faint ? " faint" : "");
    if (style->name) {
        fputs(" data-name=\"", to);
        dsvi_put_text(to, style->name);
        fputc('"', to);
    }
    fputs(" points=\"", to);
    put_points(to, plot, curve, false);
    fputs("\"/>\n", to);
}

void dsvi_plot_area(FILE *to, const DsvPlot *plot, const DsvCurve *below, const DsvCurve *above, int color)
{
    fprintf(to, "<polygon class=\"area s%d\" points=\"", color);
    put_points(to, plot, above, false);
    put_points(to, plot, below, true);
    fputs("\"/>\n", to);
}

void dsvi_plot_rule(FILE *to, const DsvPlot *plot, double y, const char *name)
{
    double at = place_y(plot, y);
    fprintf(to, "<line class=\"rule\" x1=\"%d\" x2=\"%d\" y1=\"", LEFT, plot->width - RIGHT);
    dsvi_put_fixed(to, at, 1);
    fputs("\" y2=\"", to);
    dsvi_put_fixed(to, at, 1);
    fprintf(to, "\"/><text x=\"%d\" y=\"", LEFT + 4);
    dsvi_put_fixed(to, at > TOP + 14 ? at - 4 : at + 13, 1);
    fputs("\">", to);
    dsvi_put_text(to, name);
    fputs("</text>\n", to);
}

void dsvi_plot_end(FILE *to, const DsvPlot *plot)
{
    fprintf(to, "</svg><line class=\"cursor\" y1=\"%d\" y2=\"%d\"/></svg></figure>\n", TOP,
            plot->height - BOTTOM);
}

void dsvi_plot_key(FILE *to, int color, const char *name)
{
    fprintf(to, "<span class=\"s%d\"><i></i>", color);
    dsvi_put_text(to, name);
    fputs("</span>", to);
}
