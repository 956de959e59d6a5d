/* The page's sections on learning: loss, loss by noise level, gradient norm, learning rate. */
#include <math.h>
#include <stdlib.h>

#include "report/report_curve.h"
#include "report/report_heat.h"
#include "report/report_page.h"
#include "report/report_plot.h"
#include "report/report_text.h"

enum {
    SMOOTHED_PARTS = 40,   /* a smoothed curve is a mean over so large a part of the run, */
    SMOOTHED_LEAST = 5,    /* and over so many steps at least */
    NOISE_COLUMNS = 60, NOISE_SHARE = 10 /* the beginning and the end of a run: a tenth of it */
};
static const double OUTLIERS = 0.01;

static DsvPlot step_plot(const DsvReportData *data, int width, int height)
{
    const DsvReportTable *steps = &data->steps;
    return (DsvPlot){
        .x_name = "step", .width = width, .height = height,
        .x0 = dsvi_report_cell(steps, 0, DSVI_STEP),
        .x1 = dsvi_report_cell(steps, steps->rows - 1, DSVI_STEP),
    };
}

static int64_t smoothed(const DsvReportData *data)
{
    int64_t window = data->steps.rows / SMOOTHED_PARTS;
    return window > SMOOTHED_LEAST ? window : SMOOTHED_LEAST;
}

/* Curves of a column: every step faint, and smoothed. */
typedef struct Column {
    DsvCurve raw, smooth;
    double low, high; /* of both, but for a few spikes */
} Column;

static void take_column(const DsvReportData *data, DsvReportStep column, Column *c)
{
    c->low = c->high = NAN;
    dsvi_curve_raw(&data->steps, column, &c->raw);
    dsvi_curve_smooth(&data->steps, column, smoothed(data), &c->smooth);
    dsvi_curve_range(&c->raw, OUTLIERS, &c->low, &c->high);
    dsvi_curve_range(&c->smooth, 0, &c->low, &c->high);
}

DsvStatus dsvi_report_loss(FILE *to, const DsvReportData *data)
{
    Column loss;
    DsvCurve held, dense;
    if (data->steps.rows == 0) {
        dsvi_report_note(to, "No step is done yet.");
        return DSV_OK;
    }
    DsvPlot plot = step_plot(data, DSVI_PLOT_WIDE, 280);
    take_column(data, DSVI_LOSS, &loss);
    dsvi_curve_raw(&data->validation, DSVI_VALIDATION_LOSS, &held);
    dsvi_curve_raw(&data->validation, DSVI_VALIDATION_DENSE_LOSS, &dense);
    dsvi_curve_range(&held, 0, &loss.low, &loss.high);
    dsvi_curve_range(&dense, 0, &loss.low, &loss.high);
    dsvi_plot_span(&plot, loss.low, loss.high);
    fputs("<div class=\"key\">", to);
    dsvi_plot_key(to, 0, "training, each step and smoothed");
    if (held.count > 0)
        dsvi_plot_key(to, 1, "held out");
    if (dense.count > 0)
        dsvi_plot_key(to, 2, "held out, all blocks dense");
    fputs("</div>\n", to);
    dsvi_plot_begin(to, &plot);
    dsvi_plot_curve(to, &plot, &loss.raw, &(DsvPlotStyle){.name = "loss", .color = 0, .faint = true});
    dsvi_plot_curve(to, &plot, &loss.smooth, &(DsvPlotStyle){.name = "smoothed", .color = 0});
    dsvi_plot_curve(to, &plot, &held, &(DsvPlotStyle){.name = "held out", .color = 1, .dots = true});
    dsvi_plot_curve(to, &plot, &dense, &(DsvPlotStyle){.name = "held out, dense", .color = 2, .dots = true});
    dsvi_plot_end(to, &plot);
    return DSV_OK;
}

/* Mean loss of every noise level over some of the steps. */
static void noise_curve(const DsvReportData *data, int64_t first, int64_t last, DsvCurve *curve)
{
    curve->count = 0;
    for (int64_t bin = 0; bin < DSVI_REPORT_BINS; bin++)
        dsvi_curve_add(curve, ((double)bin + 0.5) / DSVI_REPORT_BINS,
                       dsvi_report_mean(&data->steps, DSVI_LOSS_BIN + bin, first, last));
}

static void noise_plot(FILE *to, const DsvReportData *data)
{
    static const char *const name[] = {"first tenth of the steps", "last tenth", "held out, newest"};
    DsvCurve curve[3];
    double low = NAN, high = NAN;
    int64_t rows = data->steps.rows, part = (rows + NOISE_SHARE - 1) / NOISE_SHARE;
    DsvPlot plot = {.x_name = "sigma", .width = DSVI_PLOT_HALF, .height = 250, .x0 = 0, .x1 = 1};
    noise_curve(data, 0, part, &curve[0]);
    noise_curve(data, rows - part, rows, &curve[1]);
    curve[2].count = 0;
    for (int64_t i = 0; i < data->validation_bins; i++)
        dsvi_curve_add(&curve[2], data->bin_sigma[i], data->bin_loss[i]);
    fputs("<div><div class=\"key\">", to);
    for (int i = 0; i < 3; i++) {
        dsvi_curve_range(&curve[i], 0, &low, &high);
        if (curve[i].count > 0)
            dsvi_plot_key(to, i == 0 ? 5 : i - 1, name[i]);
    }
    fputs("</div>\n", to);
    dsvi_plot_span(&plot, low, high);
    dsvi_plot_begin(to, &plot);
    for (int i = 0; i < 3; i++)
        dsvi_plot_curve(to, &plot, &curve[i],
                        &(DsvPlotStyle){.name = name[i], .color = i == 0 ? 5 : i - 1, .dots = true});
    dsvi_plot_end(to, &plot);
    fputs("</div>\n", to);
}

/* Training loss, noise level by time. */
static void noise_map(FILE *to, const DsvReportData *data)
{
    float value[DSVI_REPORT_BINS * NOISE_COLUMNS];
    double label[NOISE_COLUMNS];
    int64_t rows = data->steps.rows, columns = rows < NOISE_COLUMNS ? rows : NOISE_COLUMNS;
    DsvHeat heat = {
        .row_name = "sigma", .column_name = "step", .width = DSVI_PLOT_HALF, .rows = DSVI_REPORT_BINS,
        .columns = columns, .frames = 1, .value = value, .label = label, .tenths = true, .log = true,
    };
    for (int64_t c = 0; c < columns; c++) {
        int64_t first = rows * c / columns, last = rows * (c + 1) / columns;
        label[c] = dsvi_report_cell(&data->steps, first, DSVI_STEP);
        for (int64_t bin = 0; bin < DSVI_REPORT_BINS; bin++)
            value[bin * columns + c] =
                (float)dsvi_report_mean(&data->steps, DSVI_LOSS_BIN + bin, first, last);
    }
    dsvi_heat_span(&heat);
    fputs("<div>", to);
    dsvi_heat_put(to, &heat);
    fputs("</div>\n", to);
}

DsvStatus dsvi_report_noise(FILE *to, const DsvReportData *data)
{
    bool training = false;
    for (int64_t bin = 0; bin < DSVI_REPORT_BINS; bin++)
        training = training || !isnan(dsvi_report_mean(&data->steps, DSVI_LOSS_BIN + bin, 0, INT64_MAX));
    if (!training && data->validation_bins == 0) {
        dsvi_report_note(to, "This run keeps no loss by noise level.");
        return DSV_OK;
    }
    fputs("<div class=\"pair\">\n", to);
    noise_plot(to, data);
    if (training)
        noise_map(to, data);
    fputs("</div>\n", to);
    return DSV_OK;
}

/* A plot of half the width of one column. */
static DsvStatus half_plot(FILE *to, const DsvReportData *data, DsvReportStep column, const char *name,
                           bool noisy)
{
    Column c;
    if (data->steps.rows == 0) {
        dsvi_report_note(to, "No step is done yet.");
        return DSV_OK;
    }
    DsvPlot plot = step_plot(data, DSVI_PLOT_HALF, 200);
    take_column(data, column, &c);
    dsvi_plot_span(&plot, c.low, c.high);
    if (!noisy && plot.log) { /* a schedule falls to almost nothing: that says little */
        plot.log = false;
        plot.y0 = 0;
    }
    dsvi_plot_begin(to, &plot);
    dsvi_plot_curve(to, &plot, &c.raw, &(DsvPlotStyle){.name = name, .color = 0, .faint = noisy});
    if (noisy)
        dsvi_plot_curve(to, &plot, &c.smooth, &(DsvPlotStyle){.name = "smoothed", .color = 0});
    dsvi_plot_end(to, &plot);
    return DSV_OK;
}

DsvStatus dsvi_report_gradient(FILE *to, const DsvReportData *data)
{
    return half_plot(to, data, DSVI_GRAD_NORM, "gradient norm", true);
}

DsvStatus dsvi_report_rate(FILE *to, const DsvReportData *data)
{
    return half_plot(to, data, DSVI_LR, "learning rate", false);
}
