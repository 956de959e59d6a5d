/* See report_table.h. */
#include "report/report_table.h"

#include <math.h>
#include <stdlib.h>

#include "report/report_text.h"

enum {
    LINE_ROWS = 12,
    DOT_ROWS = 24, /* largest number of points shown of a line, and of a series of separate measurements */
    ROWS_MAX = LINE_ROWS + DSVI_PLOT_SERIES_MAX * DOT_ROWS,
    MAP_COLUMNS = 8,
    DIGITS = 4
};

void dsvi_scroll_begin(FILE *to, const char *name)
{
    fputs("<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"", to);
    dsvi_put_text(to, name);
    fputs("\"><table>\n", to);
}

void dsvi_scroll_end(FILE *to)
{
    fputs("</table></div>\n", to);
}

/* Begins a folded table. Screen readers read `title`, to distinguish the tables of the page. */
static void fold_begin(FILE *to, const char *title)
{
    fputs("<details><summary>Values<span class=\"aloud\"> of: ", to);
    dsvi_put_text(to, title);
    fputs("</span></summary>\n", to);
    dsvi_scroll_begin(to, title);
}

static void fold_end(FILE *to)
{
    dsvi_scroll_end(to);
    fputs("</details>\n", to);
}

static int compare_x(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Adds the x of at most `limit` points of a curve, including the first and the last. Returns the new
 * count. */
static int add_points(const DsviCurve *curve, int limit, double *x, int count)
{
    int points = curve->count < limit ? curve->count : limit;
    for (int i = 0; i < points; i++)
        x[count++] = curve->x[points > 1 ? (curve->count - 1) * i / (points - 1) : 0];
    return count;
}

/* Chooses the x of the table's rows, ascending; returns their number. */
static int choose_rows(const DsviPlot *plot, double x[ROWS_MAX])
{
    const DsviCurve *longest = NULL;
    int count = 0, kept = 0;
    for (int i = 0; i < plot->count; i++) {
        const DsviPlotSeries *series = &plot->series[i];
        if (series->dots)
            count = add_points(series->curve, DOT_ROWS, x, count);
        else if (!longest || series->curve->count > longest->count)
            longest = series->curve;
    }
    if (longest)
        count = add_points(longest, LINE_ROWS, x, count);
    qsort(x, (size_t)count, sizeof *x, compare_x);
    for (int i = 0; i < count; i++)
        if (kept == 0 || x[i] != x[kept - 1])
            x[kept++] = x[i];
    return kept;
}

/* Returns the index of the point that the table shows for a series at x. For a series of separate
   measurements this is the measurement at x; for a line, the nearest point if x is between the line's ends.
   Returns -1 if there is none. */
static int point_at(const DsviPlotSeries *series, double x)
{
    const DsviCurve *curve = series->curve;
    int best = 0;
    for (int p = 1; p < curve->count; p++)
        if (fabs(curve->x[p] - x) < fabs(curve->x[best] - x))
            best = p;
    if (series->dots)
        return curve->x[best] == x ? best : -1;
    return x >= curve->x[0] && x <= curve->x[curve->count - 1] ? best : -1;
}

static void put_cell(FILE *to, double value)
{
    fputs("<td class=\"n\">", to);
    dsvi_put_short(to, value, DIGITS);
    fputs("</td>", to);
}

static void put_column_name(FILE *to, const char *name)
{
    fputs("<th scope=\"col\">", to);
    dsvi_put_text(to, name);
    fputs("</th>", to);
}

void dsvi_table_of_plot(FILE *to, const DsviPlot *plot)
{
    double x[ROWS_MAX];
    int rows = choose_rows(plot, x);
    fold_begin(to, plot->title);
    fputs("<tr>", to);
    put_column_name(to, plot->x_name);
    for (int i = 0; i < plot->count; i++)
        put_column_name(to, plot->series[i].name);
    fputs("</tr>\n", to);
    for (int r = 0; r < rows; r++) {
        fputs("<tr><th scope=\"row\">", to);
        if (plot->whole_x)
            dsvi_put_count(to, x[r]);
        else
            dsvi_put_short(to, x[r], 2);
        fputs("</th>", to);
        for (int i = 0; i < plot->count; i++) {
            int p = point_at(&plot->series[i], x[r]);
            put_cell(to, p < 0 ? NAN : dsvi_plot_value(plot, i, p));
        }
        fputs("</tr>\n", to);
    }
    fold_end(to);
}

/* Returns the column of the map for column i of the n columns of the table. */
static int64_t shown_column(const DsviHeat *heat, int64_t i, int64_t n)
{
    return n > 1 ? (heat->columns - 1) * i / (n - 1) : heat->columns - 1;
}

void dsvi_table_of_heat(FILE *to, const DsviHeat *heat)
{
    const float *value = heat->value + (heat->frames - 1) * heat->rows * heat->columns;
    bool some = heat->frames == 1 && heat->columns > MAP_COLUMNS;
    int64_t columns = some ? MAP_COLUMNS : heat->columns;
    fold_begin(to, heat->title);
    fprintf(to, "<tr><th scope=\"col\">%s</th>", heat->row_name);
    for (int64_t i = 0; i < columns; i++) {
        int64_t c = shown_column(heat, i, columns);
        fprintf(to, "<th scope=\"col\">%s ", heat->column_name);
        dsvi_put_count(to, heat->label ? heat->label[c] : (double)c);
        fputs("</th>", to);
    }
    fputs("</tr>\n", to);
    for (int64_t r = 0; r < heat->rows; r++) {
        fputs("<tr><th scope=\"row\">", to);
        if (heat->tenths)
            fprintf(to, "0.%lld to %s%lld", (long long)r, r == 9 ? "1." : "0.", (long long)(r + 1) % 10);
        else
            fprintf(to, "%lld", (long long)r);
        fputs("</th>", to);
        for (int64_t i = 0; i < columns; i++)
            put_cell(to, value[r * heat->columns + shown_column(heat, i, columns)]);
        fputs("</tr>\n", to);
    }
    fold_end(to);
}
