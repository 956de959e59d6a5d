/* The page's sections on cost: what a step's time goes to, and memory. */
#include <math.h>

#include "report/report_curve.h"
#include "report/report_page.h"
#include "report/report_plot.h"
#include "report/report_text.h"

enum { TIME_PIECES = 200, PARTS = 5, OTHER = PARTS - 1, COLORS = 6 };
static const double SLOW_PIECES = 0.02, MIB = 1048576, GIB = 1073741824;

static const char *const part_name[PARTS] = {"data wait", "forward", "backward", "optimizer", "other"};

/* Mean milliseconds of the parts of steps first to last - 1; `other` is what the whole step has more. */
static void mean_parts(const DsvReportData *data, int64_t first, int64_t last, double part[PARTS])
{
    static const DsvReportStep column[OTHER] = {
        DSVI_DATA_WAIT_MS, DSVI_FORWARD_MS, DSVI_BACKWARD_MS, DSVI_OPTIMIZER_MS,
    };
    part[OTHER] = dsvi_report_mean(&data->steps, DSVI_STEP_MS, first, last);
    for (int p = 0; p < OTHER; p++) {
        double mean = dsvi_report_mean(&data->steps, column[p], first, last);
        part[p] = isnan(mean) ? 0 : mean;
        part[OTHER] -= part[p];
    }
    part[OTHER] = part[OTHER] > 0 ? part[OTHER] : 0;
}

/* Borders between the parts, each the sum of those below. */
static void stack_parts(const DsvReportData *data, DsvCurve border[PARTS + 1])
{
    int64_t rows = data->steps.rows, pieces = rows < TIME_PIECES ? rows : TIME_PIECES;
    for (int p = 0; p <= PARTS; p++)
        border[p].count = 0;
    for (int64_t i = 0; i < pieces; i++) {
        int64_t first = rows * i / pieces, last = rows * (i + 1) / pieces;
        double part[PARTS], sum = 0, x = dsvi_report_cell(&data->steps, (first + last - 1) / 2, DSVI_STEP);
        mean_parts(data, first, last, part);
        dsvi_curve_add(&border[0], x, 0);
        for (int p = 0; p < PARTS; p++) {
            sum += part[p];
            dsvi_curve_add(&border[p + 1], x, sum);
        }
    }
}

static void time_table(FILE *to, const DsvReportData *data)
{
    double part[PARTS], sum = 0;
    mean_parts(data, 0, data->steps.rows, part);
    for (int p = 0; p < PARTS; p++)
        sum += part[p];
    fputs("<div class=\"key\">", to);
    for (int p = 0; p < PARTS; p++) {
        fprintf(to, "<span class=\"s%d\"><i></i>%s ", p, part_name[p]);
        dsvi_put_ms(to, part[p]);
        fputs(" (", to);
        dsvi_put_fixed(to, sum > 0 ? 100 * part[p] / sum : 0, 0);
        fputs(" %)</span>", to);
    }
    fputs("</div>\n", to);
}

DsvStatus dsvi_report_time(FILE *to, const DsvReportData *data)
{
    const DsvReportTable *steps = &data->steps;
    DsvCurve border[PARTS + 1];
    double low = 0, high = NAN;
    if (isnan(dsvi_report_mean(steps, DSVI_FORWARD_MS, 0, steps->rows))) {
        dsvi_report_note(to, steps->rows ? "This run does not tell the parts of a step's time."
                                         : "No step is done yet.");
        return DSV_OK;
    }
    DsvPlot plot = {
        .x_name = "step", .width = DSVI_PLOT_WIDE, .height = 230, .stack = true,
        .x0 = dsvi_report_cell(steps, 0, DSVI_STEP),
        .x1 = dsvi_report_cell(steps, steps->rows - 1, DSVI_STEP),
    };
    stack_parts(data, border);
    dsvi_curve_range(&border[PARTS], SLOW_PIECES, &low, &high);
    dsvi_plot_span(&plot, low, high);
    fputs("<p>Milliseconds of a step, and means over the run.</p>\n", to);
    time_table(to, data);
    dsvi_plot_begin(to, &plot);
    for (int p = 0; p < PARTS; p++)
        dsvi_plot_area(to, &plot, &border[p], &border[p + 1], p);
    for (int p = 0; p < PARTS; p++)
        dsvi_plot_curve(to, &plot, &border[p + 1], &(DsvPlotStyle){.name = part_name[p], .color = p});
    dsvi_plot_end(to, &plot);
    return DSV_OK;
}

static void planned_memory(FILE *to, const DsvReportData *data)
{
    fputs("<p>Planned before the first step: ", to);
    dsvi_put_bytes(to, data->planned_bytes);
    fputs(".</p>\n<div class=\"bar\">", to);
    for (int64_t i = 0; i < data->memory_classes; i++) {
        fprintf(to, "<i class=\"s%d\" style=\"flex:", (int)(i % COLORS));
        dsvi_put_fixed(to, data->memory[i].bytes / MIB, 3);
        fprintf(to, "%s\"></i>", i < COLORS ? "" : ";opacity:.55");
    }
    fputs("</div><div class=\"key\">", to);
    for (int64_t i = 0; i < data->memory_classes; i++) {
        fprintf(to, "<span class=\"s%d\"><i%s></i>", (int)(i % COLORS),
                i < COLORS ? "" : " style=\"opacity:.55\"");
        dsvi_put_text(to, data->memory[i].name);
        fputc(' ', to);
        dsvi_put_bytes(to, data->memory[i].bytes);
        fputs("</span>", to);
    }
    fputs("</div>\n", to);
}

DsvStatus dsvi_report_memory(FILE *to, const DsvReportData *data)
{
    const DsvReportTable *steps = &data->steps;
    DsvCurve resident;
    double low = NAN, high = NAN;
    if (data->memory_classes > 0)
        planned_memory(to, data);
    else
        dsvi_report_note(to, "This run keeps no plan of its memory.");
    dsvi_curve_raw(steps, DSVI_MEMORY_BYTES, &resident);
    dsvi_curve_range(&resident, 0, &low, &high);
    if (resident.count == 0 || !(high > 0))
        return DSV_OK;
    double unit = high > 4 * GIB ? GIB : MIB, planned = data->planned_bytes / unit;
    for (int i = 0; i < resident.count; i++)
        resident.y[i] /= unit;
    DsvPlot plot = {
        .x_name = "step", .width = DSVI_PLOT_WIDE, .height = 140,
        .x0 = dsvi_report_cell(steps, 0, DSVI_STEP),
        .x1 = dsvi_report_cell(steps, steps->rows - 1, DSVI_STEP),
    };
    dsvi_plot_span(&plot, 0, fmax(high / unit, planned)); /* fmax passes over a NaN */
    fprintf(to, "<h3>Resident, %s</h3>\n", unit == GIB ? "GiB" : "MiB");
    dsvi_plot_begin(to, &plot);
    dsvi_plot_curve(to, &plot, &resident, &(DsvPlotStyle){.name = unit == GIB ? "GiB" : "MiB", .color = 0});
    if (planned > 0)
        dsvi_plot_rule(to, &plot, planned, "planned");
    dsvi_plot_end(to, &plot);
    return DSV_OK;
}
