/* Sections of the page about sparse attention: density (fraction of keys that are listed), captured mass
   (fraction of the exact attention weights on listed keys) and output error (relative error of attention's
   output over lists and tail) over time, by block and by head, and the decisions of the guard, which switches
   blocks between dense and sparse. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report/report_curve.h"
#include "report/report_heat.h"
#include "report/report_page.h"
#include "report/report_plot.h"
#include "report/report_table.h"
#include "report/report_text.h"

enum {
    MAP_COLUMNS = 160,
    MAP_CELLS = 24000, /* limits of a map of blocks over time */
    HEAD_FRAMES = 60,
    HEAD_CELLS = 48000,       /* limits of a map of heads with a slider, over all frames */
    HEAD_CELLS_AT_ONCE = 4096 /* limit of the cells of a map of heads at one step */
};

static const char NO_MEASUREMENTS[] =
    "No measurements: sparse attention is off, or no step has measured it yet.";

/* Returns whether a block's output error was measured: runs of earlier versions have none. */
static bool has_errors(const DsviReportData *data)
{
    return !isnan(dsvi_report_mean(&data->blocks, DSVI_BLOCK_ERROR, 0, data->blocks.rows));
}

/* Returns whether the guard decides by the output error instead of captured mass. */
static bool decides_by_error(const DsviReportData *data)
{
    return data->has_config && strcmp(data->config.sparse_tail, "none") != 0;
}

DsvStatus dsvi_report_sparsity(FILE *to, const DsviReportData *data)
{
    const DsviReportTable *steps = &data->steps;
    DsviCurve density, captured, error;
    double low = NAN, high = NAN;
    bool guarded = data->has_config && data->config.sparse_enabled, by_error = decides_by_error(data);
    if (steps->rows == 0) {
        dsvi_report_note(to, DSVI_NO_STEPS);
        return DSV_OK;
    }
    dsvi_curve_pieces(steps, DSVI_DENSITY, DSVI_CURVE_PIECES, &density);
    dsvi_curve_pieces(steps, DSVI_CAPTURED_MASS, DSVI_CURVE_PIECES, &captured);
    dsvi_curve_pieces(steps, DSVI_OUTPUT_ERROR, DSVI_CURVE_PIECES, &error);
    dsvi_curve_range(&density, 0, &low, &high);
    if (low == 1 && captured.count == 0) {
        dsvi_report_note(to, "All blocks used dense attention at every step.");
        return DSV_OK;
    }
    DsviPlot plot = {
        .title = "Density, captured mass and output error",
        .x_name = "step",
        .y_name = "fraction",
        .height = 220,
        .whole_x = true,
        .y0 = 0,
        .y1 = 1.03,
        .x0 = dsvi_report_cell(steps, 0, DSVI_STEP),
        .x1 = dsvi_report_cell(steps, steps->rows - 1, DSVI_STEP),
        .rule = by_error ? data->config.sparse_max_error : data->config.sparse_min_mass,
        .rule_name = !guarded   ? NULL
                     : by_error ? "output error allowed of a sparse block"
                                : "captured mass required of a sparse block",
    };
    dsvi_plot_add(&plot, &(DsviPlotSeries){.curve = &density, .name = "density, mean over blocks"});
    dsvi_plot_add(&plot, &(DsviPlotSeries){.curve = &captured,
                                           .color = 2,
                                           .name = "captured mass, mean over sparse blocks"});
    dsvi_plot_add(&plot, &(DsviPlotSeries){
                             .curve = &error, .color = 1, .name = "output error, mean over sparse blocks"});
    dsvi_plot_put(to, &plot);
    return DSV_OK;
}

/* Returns a value of a measured block. The density of a dense block is 1, whatever density its lists would
 * have. */
static double block_value(const DsviReportData *data, int64_t row, DsviReportBlock column)
{
    if (row < 0)
        return NAN;
    if (column == DSVI_BLOCK_DENSITY && dsvi_report_cell(&data->blocks, row, DSVI_BLOCK_SPARSE) == 0)
        return 1;
    return dsvi_report_cell(&data->blocks, row, column);
}

/* Returns the frame for place i of n places that are spread evenly over all frames; the last is the
 * newest. */
static int64_t spread_frame(const DsviReportData *data, int64_t i, int64_t n)
{
    return n > 1 ? (data->frames - 1) * i / (n - 1) : data->frames - 1;
}

/* Writes a map with its title; if all its values are equal, the value instead. */
static void put_map(FILE *to, DsviHeat *heat)
{
    double value;
    fprintf(to, "<h3>%s</h3>\n", heat->title);
    if (dsvi_heat_flat(heat, &value)) {
        dsvi_report_figure(to);
        dsvi_put_round(to, value, 3);
        fprintf(to, "</b> in every %s, at every measurement</p>\n",
                heat->label ? heat->row_name : heat->column_name);
        return;
    }
    dsvi_heat_span(heat);
    dsvi_heat_put(to, heat);
}

static DsvStatus block_map(FILE *to, const DsviReportData *data, const char *title, DsviReportBlock column)
{
    double label[MAP_COLUMNS];
    int64_t limit = MAP_CELLS / data->block_count, columns = data->frames;
    columns = columns < MAP_COLUMNS ? columns : MAP_COLUMNS;
    columns = columns < limit ? columns : limit;
    float *value = malloc((size_t)(columns * data->block_count) * sizeof *value);
    if (!value)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a map of %lld blocks", (long long)data->block_count);
    for (int64_t c = 0; c < columns; c++) {
        int64_t f = spread_frame(data, c, columns);
        label[c] = dsvi_report_cell(&data->blocks, data->frame[f], DSVI_BLOCK_STEP);
        for (int64_t b = 0; b < data->block_count; b++)
            value[b * columns + c] = (float)block_value(data, dsvi_report_block_row(data, f, b), column);
    }
    DsviHeat heat = {
        .title = title,
        .row_name = "block",
        .column_name = "step",
        .rows = data->block_count,
        .columns = columns,
        .frames = 1,
        .value = value,
        .label = label,
    };
    put_map(to, &heat);
    free(value);
    return DSV_OK;
}

DsvStatus dsvi_report_blocks(FILE *to, const DsviReportData *data)
{
    if (data->frames == 0) {
        dsvi_report_note(to, NO_MEASUREMENTS);
        return DSV_OK;
    }
    fputs("<p>One column for each measurement, or for as many as fit.</p>\n", to);
    DSVI_TRY(block_map(to, data, "Density: fraction of the keys that queries attend to", DSVI_BLOCK_DENSITY));
    DSVI_TRY(block_map(to, data, "Captured mass of the lists, also in dense blocks", DSVI_BLOCK_CAPTURED));
    if (has_errors(data))
        DSVI_TRY(block_map(to, data, "Output error: relative error of attention over lists and tail",
                           DSVI_BLOCK_ERROR));
    return block_map(to, data, "share90: fraction of the keys that holds 90 % of a query's attention",
                     DSVI_BLOCK_SHARE90);
}

/* Writes a map of blocks and heads with `frames` frames. `first` is the column of head 0 in data->blocks. */
static DsvStatus head_map(FILE *to, const DsviReportData *data, const char *title, int64_t first,
                          int64_t frames)
{
    int64_t rows = data->block_count, heads = data->heads;
    float *value = malloc((size_t)(frames * rows * heads) * sizeof *value);
    if (!value)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a map of %lld heads", (long long)(rows * heads));
    for (int64_t i = 0; i < frames * rows * heads; i++) {
        int64_t f = spread_frame(data, i / (rows * heads), frames);
        int64_t row = dsvi_report_block_row(data, f, i / heads % rows);
        value[i] = row < 0 ? NAN : (float)dsvi_report_cell(&data->blocks, row, first + i % heads);
    }
    DsviHeat heat = {
        .title = title,
        .row_name = "block",
        .column_name = "head",
        .rows = rows,
        .columns = heads,
        .frames = frames,
        .value = value,
    };
    fputs("<div>\n", to);
    put_map(to, &heat);
    fputs("</div>\n", to);
    free(value);
    return DSV_OK;
}

static void head_slider(FILE *to, const DsviReportData *data, int64_t frames)
{
    fputs("<div class=\"slider\" hidden data-steps=\"", to);
    for (int64_t i = 0; i < frames; i++)
        fprintf(to, "%s%.0f", i ? " " : "",
                dsvi_report_cell(&data->blocks, data->frame[spread_frame(data, i, frames)], DSVI_BLOCK_STEP));
    fprintf(to,
            "\"><label for=\"when\">step</label><input id=\"when\" type=\"range\" min=\"0\" max=\"%lld\" "
            "value=\"%lld\"><output>%.0f</output></div>\n",
            (long long)frames - 1, (long long)frames - 1,
            dsvi_report_cell(&data->blocks, data->frame[data->frames - 1], DSVI_BLOCK_STEP));
}

/* Writes the captured mass (fraction of the exact attention weights on listed keys) that the guard
   (sparse/guard.c) requires of every head, or with a tail the output error that the guard allows. */
static void head_bound(FILE *to, const DsvConfig *config)
{
    double bound = fmin(config->sparse_min_head_mass, config->sparse_min_mass);
    if (config->sparse_enabled && strcmp(config->sparse_tail, "none") != 0) {
        fputs("<p>A block is sparse only while the output error of each head is at most ", to);
        dsvi_put_short(to, fmax(config->sparse_max_head_error, config->sparse_max_error), 2);
        fputs(".</p>\n", to);
        return;
    }
    if (!config->sparse_enabled || bound <= 0)
        return;
    fputs("<p>A block is sparse only while its lists hold at least ", to);
    dsvi_put_short(to, bound, 2);
    fputs(" of each head's attention.</p>\n", to);
}

DsvStatus dsvi_report_heads(FILE *to, const DsviReportData *data)
{
    int64_t cells = data->block_count * data->heads, frames = data->frames;
    if (data->frames == 0 || cells == 0) {
        dsvi_report_note(to, NO_MEASUREMENTS);
        return DSV_OK;
    }
    if (cells > HEAD_CELLS_AT_ONCE) {
        dsvi_report_note(to, "This model has more heads than the page can show.");
        return DSV_OK;
    }
    frames = frames < HEAD_FRAMES ? frames : HEAD_FRAMES;
    frames = frames < HEAD_CELLS / cells ? frames : HEAD_CELLS / cells;
    if (data->has_config)
        head_bound(to, &data->config);
    head_slider(to, data, frames);
    fputs("<div class=\"pair\">\n", to);
    DSVI_TRY(head_map(to, data, "Captured mass", DSVI_BLOCK_HEADS, frames));
    DSVI_TRY(head_map(to, data, "share90: fraction of the keys that holds 90 % of the attention",
                      DSVI_BLOCK_HEADS + data->heads, frames));
    if (has_errors(data))
        DSVI_TRY(head_map(to, data, "Output error", DSVI_BLOCK_HEADS + 2 * data->heads, frames));
    fputs("</div>\n", to);
    return DSV_OK;
}

DsvStatus dsvi_report_decisions(FILE *to, const DsviReportData *data)
{
    int64_t shown = data->decisions < DSVI_DECISIONS_MAX ? data->decisions : DSVI_DECISIONS_MAX;
    if (shown == 0) {
        dsvi_report_note(to, "No decision about attention has been made.");
        return DSV_OK;
    }
    fputs("<p>Which blocks turned sparse or dense or stayed dense, and why, newest first", to);
    if (shown < data->decisions) {
        fprintf(to, ": the newest %lld of ", (long long)shown);
        dsvi_put_count(to, (double)data->decisions);
    }
    fputs(".</p>\n", to);
    dsvi_scroll_begin(to, "Decisions");
    fputs("<tr><th scope=\"col\">step</th><th scope=\"col\">decision</th></tr>\n", to);
    for (int64_t i = 0; i < shown; i++) {
        int64_t at = (data->decisions - 1 - i) % DSVI_DECISIONS_MAX;
        fputs("<tr><td class=\"n\">", to);
        dsvi_put_count(to, data->decision[at].step);
        fputs("</td><td>", to);
        dsvi_put_text(to, data->decision[at].reason);
        fputs("</td></tr>\n", to);
    }
    dsvi_scroll_end(to);
    return DSV_OK;
}
