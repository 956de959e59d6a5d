/* Sections of the page about cost: parts of a step's time, and memory. */
#include <math.h>

#include "report/report_curve.h"
#include "report/report_page.h"
#include "report/report_plot.h"
#include "report/report_text.h"

enum { TIME_PIECES = 200, PARTS = 5, OTHER = PARTS - 1, COLORS = 6 };
/* SLOW_PIECES: fraction of the slowest pieces that may exceed the axis. FLAT: if memory use changes
   relatively by less than this during the run, a number is shown instead of a chart. */
static const double SLOW_PIECES = 0.02, FLAT = 0.05, MIB = 1048576, GIB = 1073741824;

static const char *const part_name[PARTS] = {"data wait", "forward", "backward", "optimizer", "other"};

/* Computes the mean milliseconds of each part over the steps first to last - 1; part[OTHER] is the rest of
 * the step. */
static void mean_parts(const DsviReportData *data, int64_t first, int64_t last, double part[PARTS])
{
    static const DsviReportStep column[OTHER] = {
        DSVI_DATA_WAIT_MS,
        DSVI_FORWARD_MS,
        DSVI_BACKWARD_MS,
        DSVI_OPTIMIZER_MS,
    };
    part[OTHER] = dsvi_report_mean(&data->steps, DSVI_STEP_MS, first, last);
    for (int p = 0; p < OTHER; p++) {
        double mean = dsvi_report_mean(&data->steps, column[p], first, last);
        part[p] = isnan(mean) ? 0 : mean;
        part[OTHER] -= part[p];
    }
    part[OTHER] = part[OTHER] > 0 ? part[OTHER] : 0;
}

/* Computes the upper border of each part of a stacked chart. */
static void stack_parts(const DsviReportData *data, DsviCurve border[PARTS])
{
    int64_t rows = data->steps.rows, pieces = rows < TIME_PIECES ? rows : TIME_PIECES;
    for (int p = 0; p < PARTS; p++)
        border[p].count = 0;
    for (int64_t i = 0; i < pieces; i++) {
        int64_t first = rows * i / pieces, last = rows * (i + 1) / pieces;
        double part[PARTS], sum = 0, x = dsvi_report_cell(&data->steps, (first + last - 1) / 2, DSVI_STEP);
        mean_parts(data, first, last, part);
        for (int p = 0; p < PARTS; p++) {
            sum += part[p];
            dsvi_curve_add(&border[p], x, sum);
        }
    }
}

/* Writes the mean time of a part and its fraction of the step: "80 ms (33 %)". */
static void note_part(const double part[PARTS], int p, char *note, size_t room)
{
    double sum = 0;
    FILE *to = fmemopen(note, room, "w");
    for (int i = 0; i < PARTS; i++)
        sum += part[i];
    note[0] = 0;
    if (!to)
        return; /* without memory for the text, the key of the plot has no note */
    dsvi_put_ms(to, part[p]);
    fputs(" (", to);
    dsvi_put_fixed(to, sum > 0 ? 100 * part[p] / sum : 0, 0);
    fputs(" %)", to);
    fclose(to);
    note[room - 1] = 0;
}

DsvStatus dsvi_report_time(FILE *to, const DsviReportData *data)
{
    const DsviReportTable *steps = &data->steps;
    DsviCurve border[PARTS];
    double low = 0, high = NAN, part[PARTS];
    if (isnan(dsvi_report_mean(steps, DSVI_FORWARD_MS, 0, steps->rows))) {
        dsvi_report_note(to,
                         steps->rows ? "This run did not record the parts of a step's time." : DSVI_NO_STEPS);
        return DSV_OK;
    }
    DsviPlot plot = {
        .title = "Parts of a step's time",
        .x_name = "step",
        .y_name = "ms",
        .height = 230,
        .stack = true,
        .whole_x = true,
        .x0 = dsvi_report_cell(steps, 0, DSVI_STEP),
        .x1 = dsvi_report_cell(steps, steps->rows - 1, DSVI_STEP),
    };
    stack_parts(data, border);
    mean_parts(data, 0, steps->rows, part);
    dsvi_curve_range(&border[PARTS - 1], SLOW_PIECES, &low, &high);
    dsvi_plot_span(&plot, low, high);
    for (int p = 0; p < PARTS; p++) {
        DsviPlotSeries series = {.curve = &border[p], .name = part_name[p], .color = p};
        note_part(part, p, series.note, sizeof series.note);
        dsvi_plot_add(&plot, &series);
    }
    fputs("<p>The parts of a step's time, stacked, with their means over the run.</p>\n", to);
    dsvi_plot_put(to, &plot);
    return DSV_OK;
}

static void planned_memory(FILE *to, const DsviReportData *data)
{
    fputs("<p>Planned before the first step: ", to);
    dsvi_put_bytes(to, data->planned_bytes);
    fputs(".</p>\n<div class=\"bar\" aria-hidden=\"true\">", to);
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

/* Writes memory use as a number, for runs in which it changes by less than FLAT. */
static void memory_figure(FILE *to, const DsviReportData *data, double low, double high)
{
    dsvi_report_figure(to);
    dsvi_put_bytes(to, high);
    fputs("</b> in use at most", to);
    if (low < high) {
        fputs(", never less than ", to);
        dsvi_put_bytes(to, low);
    }
    if (data->planned_bytes > 0) {
        fputs("; ", to);
        dsvi_put_fixed(to, 100 * high / data->planned_bytes, 0);
        fputs(" % of the plan", to);
    }
    fputs("</p>\n", to);
}

static void memory_plot(FILE *to, const DsviReportData *data, DsviCurve *used, double high)
{
    const DsviReportTable *steps = &data->steps;
    double unit = high > 4 * GIB ? GIB : MIB;
    for (int i = 0; i < used->count; i++)
        used->y[i] /= unit;
    DsviPlot plot = {
        .title = "Memory in use",
        .x_name = "step",
        .y_name = unit == GIB ? "GiB" : "MiB",
        .height = 160,
        .whole_x = true,
        .x0 = dsvi_report_cell(steps, 0, DSVI_STEP),
        .x1 = dsvi_report_cell(steps, steps->rows - 1, DSVI_STEP),
        .rule = data->planned_bytes / unit,
        .rule_name = data->planned_bytes > 0 ? "planned" : NULL,
    };
    dsvi_plot_span(&plot, 0, fmax(high / unit, plot.rule)); /* fmax ignores NaN */
    dsvi_plot_add(&plot, &(DsviPlotSeries){.curve = used, .name = "in use"});
    fputs("<h3>In use</h3>\n", to);
    dsvi_plot_put(to, &plot);
}

DsvStatus dsvi_report_memory(FILE *to, const DsviReportData *data)
{
    DsviCurve used;
    double low = NAN, high = NAN;
    if (data->memory_classes > 0)
        planned_memory(to, data);
    else
        dsvi_report_note(to, "This run did not record its memory plan.");
    dsvi_curve_raw(&data->steps, DSVI_MEMORY_BYTES, &used);
    dsvi_curve_range(&used, 0, &low, &high);
    if (used.count == 0 || !(high > 0))
        return DSV_OK;
    if (high - low <= FLAT * high)
        memory_figure(to, data, low, high);
    else
        memory_plot(to, data, &used, high);
    return DSV_OK;
}
