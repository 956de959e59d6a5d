/* Sections of the page about training: loss, loss by noise level, gradient norm, learning rate. */
#include <math.h>
#include <stdlib.h>

#include "report/report_curve.h"
#include "report/report_heat.h"
#include "report/report_page.h"
#include "report/report_plot.h"
#include "report/report_text.h"

enum {
    /* A smoothed curve averages 1 / SMOOTHED_PARTS of the steps, and at least SMOOTHED_MIN steps. */
    SMOOTHED_PARTS = 40,
    SMOOTHED_MIN = 5,
    NOISE_COLUMNS = 60, /* largest number of columns of the map of loss by noise level */
    NOISE_PARTS = 10    /* "first tenth" and "last tenth" of the steps */
};
static const double OUTLIERS = 0.01; /* fraction of a curve's points that may lie above the axis, and below
                                        it, because they are spikes */

/* Returns an empty plot whose x axis is the steps of the run. */
static DsviPlot step_plot(const DsviReportData *data, const char *title, const char *y_name, int height)
{
    const DsviReportTable *steps = &data->steps;
    return (DsviPlot){
        .title = title,
        .x_name = "step",
        .y_name = y_name,
        .height = height,
        .whole_x = true,
        .x0 = dsvi_report_cell(steps, 0, DSVI_STEP),
        .x1 = dsvi_report_cell(steps, steps->rows - 1, DSVI_STEP),
    };
}

static int64_t smoothing_window(const DsviReportData *data)
{
    int64_t window = data->steps.rows / SMOOTHED_PARTS;
    return window > SMOOTHED_MIN ? window : SMOOTHED_MIN;
}

/* Curves of a column of the steps. */
typedef struct Column {
    DsviCurve raw, smooth;
    double low, high; /* range of the y values of both curves, without a few spikes */
} Column;

static void take_column(const DsviReportData *data, DsviReportStep column, Column *c)
{
    c->low = c->high = NAN;
    dsvi_curve_raw(&data->steps, column, &c->raw);
    dsvi_curve_smooth(&data->steps, column, smoothing_window(data), &c->smooth);
    dsvi_curve_range(&c->raw, OUTLIERS, &c->low, &c->high);
    dsvi_curve_range(&c->smooth, 0, &c->low, &c->high);
}

DsvStatus dsvi_report_loss(FILE *to, const DsviReportData *data)
{
    Column loss;
    DsviCurve held, dense;
    if (data->steps.rows == 0) {
        dsvi_report_note(to, DSVI_NO_STEPS);
        return DSV_OK;
    }
    DsviPlot plot = step_plot(data, "Loss", "loss", 280);
    take_column(data, DSVI_LOSS, &loss);
    dsvi_curve_raw(&data->validation, DSVI_VALIDATION_LOSS, &held);
    dsvi_curve_raw(&data->validation, DSVI_VALIDATION_DENSE_LOSS, &dense);
    dsvi_curve_range(&held, 0, &loss.low, &loss.high);
    dsvi_curve_range(&dense, 0, &loss.low, &loss.high);
    dsvi_plot_span(&plot, loss.low, loss.high);
    dsvi_plot_add(&plot, &(DsviPlotSeries){.curve = &loss.raw, .name = "training, each step", .faint = true});
    dsvi_plot_add(&plot, &(DsviPlotSeries){.curve = &loss.smooth, .name = "training, smoothed"});
    dsvi_plot_add(&plot, &(DsviPlotSeries){.curve = &held, .name = "held out", .color = 1, .dots = true});
    dsvi_plot_add(
        &plot,
        &(DsviPlotSeries){.curve = &dense, .name = "held out, all blocks dense", .color = 2, .dots = true});
    dsvi_plot_put(to, &plot);
    return DSV_OK;
}

/* Computes the mean loss of every noise level over the rows first to last - 1. */
static void noise_curve(const DsviReportData *data, int64_t first, int64_t last, DsviCurve *curve)
{
    curve->count = 0;
    for (int64_t bin = 0; bin < DSVI_REPORT_BINS; bin++)
        dsvi_curve_add(curve, ((double)bin + 0.5) / DSVI_REPORT_BINS,
                       dsvi_report_mean(&data->steps, DSVI_LOSS_BIN + bin, first, last));
}

static void noise_plot(FILE *to, const DsviReportData *data)
{
    static const char *const name[] = {"first tenth of the steps", "last tenth", "held out, newest"};
    static const int color[] = {5, 0, 1};
    DsviCurve curve[3];
    double low = NAN, high = NAN;
    int64_t rows = data->steps.rows, part = (rows + NOISE_PARTS - 1) / NOISE_PARTS;
    DsviPlot plot = {
        .title = "Loss by noise level",
        .x_name = "sigma",
        .y_name = "loss",
        .height = 250,
        .x0 = 0,
        .x1 = 1,
    };
    noise_curve(data, 0, part, &curve[0]);
    noise_curve(data, rows - part, rows, &curve[1]);
    curve[2].count = 0;
    for (int64_t i = 0; i < data->validation_bins; i++)
        dsvi_curve_add(&curve[2], data->bin_sigma[i], data->bin_loss[i]);
    for (int i = 0; i < 3; i++) {
        dsvi_curve_range(&curve[i], 0, &low, &high);
        dsvi_plot_add(
            &plot, &(DsviPlotSeries){.curve = &curve[i], .name = name[i], .color = color[i], .dots = true});
    }
    dsvi_plot_span(&plot, low, high);
    fputs("<div>\n<h3>At the start, at the end, held out</h3>\n", to);
    dsvi_plot_put(to, &plot);
    fputs("</div>\n", to);
}

/* Writes the map of training loss by noise level and step. */
static void noise_map(FILE *to, const DsviReportData *data)
{
    float value[DSVI_REPORT_BINS * NOISE_COLUMNS];
    double label[NOISE_COLUMNS];
    int64_t rows = data->steps.rows, columns = rows < NOISE_COLUMNS ? rows : NOISE_COLUMNS;
    DsviHeat heat = {
        .title = "Training loss by noise level over time",
        .row_name = "sigma",
        .column_name = "step",
        .rows = DSVI_REPORT_BINS,
        .columns = columns,
        .frames = 1,
        .value = value,
        .label = label,
        .tenths = true,
        .log = true,
    };
    for (int64_t c = 0; c < columns; c++) {
        int64_t first = rows * c / columns, last = rows * (c + 1) / columns;
        label[c] = dsvi_report_cell(&data->steps, first, DSVI_STEP);
        for (int64_t bin = 0; bin < DSVI_REPORT_BINS; bin++)
            value[bin * columns + c] = (float)dsvi_report_mean(&data->steps, DSVI_LOSS_BIN + bin, first,
                                                               last);
    }
    dsvi_heat_span(&heat);
    fputs("<div>\n<h3>Training, over time</h3>\n", to);
    dsvi_heat_put(to, &heat);
    fputs("</div>\n", to);
}

DsvStatus dsvi_report_noise(FILE *to, const DsviReportData *data)
{
    bool training = false;
    for (int64_t bin = 0; bin < DSVI_REPORT_BINS; bin++)
        training = training || !isnan(dsvi_report_mean(&data->steps, DSVI_LOSS_BIN + bin, 0, INT64_MAX));
    if (!training && data->validation_bins == 0) {
        dsvi_report_note(to, "This run did not record its loss by noise level.");
        return DSV_OK;
    }
    fputs("<div class=\"pair\">\n", to);
    noise_plot(to, data);
    if (training)
        noise_map(to, data);
    fputs("</div>\n", to);
    return DSV_OK;
}

DsvStatus dsvi_report_gradient(FILE *to, const DsviReportData *data)
{
    Column norm;
    if (data->steps.rows == 0) {
        dsvi_report_note(to, DSVI_NO_STEPS);
        return DSV_OK;
    }
    DsviPlot plot = step_plot(data, "Gradient norm", "gradient norm", 200);
    take_column(data, DSVI_GRAD_NORM, &norm);
    dsvi_plot_span(&plot, norm.low, norm.high);
    dsvi_plot_add(&plot, &(DsviPlotSeries){.curve = &norm.raw, .name = "each step", .faint = true});
    dsvi_plot_add(&plot, &(DsviPlotSeries){.curve = &norm.smooth, .name = "smoothed"});
    dsvi_plot_put(to, &plot);
    return DSV_OK;
}

/* The axis begins at zero: the schedule ends near zero, and a logarithmic axis would show mostly its end. */
DsvStatus dsvi_report_rate(FILE *to, const DsviReportData *data)
{
    DsviCurve rate;
    double low = NAN, high = NAN;
    dsvi_curve_raw(&data->steps, DSVI_LR, &rate);
    dsvi_curve_range(&rate, 0, &low, &high);
    if (rate.count == 0) {
        dsvi_report_note(to, data->steps.rows ? "This run did not record its learning rate." : DSVI_NO_STEPS);
        return DSV_OK;
    }
    if (low == high) {
        dsvi_report_figure(to);
        dsvi_put_round(to, high, 3);
        fputs("</b> at every step</p>\n", to);
        return DSV_OK;
    }
    DsviPlot plot = step_plot(data, "Learning rate", "learning rate", 200);
    dsvi_plot_span(&plot, 0, high);
    dsvi_plot_add(&plot, &(DsviPlotSeries){.curve = &rate, .name = "learning rate"});
    dsvi_plot_put(to, &plot);
    return DSV_OK;
}
