/* See report_heat.h. */
#include "report/report_heat.h"

#include <math.h>

#include "report/report_axis.h"
#include "report/report_table.h"
#include "report/report_text.h"

/* In CSS pixels: height of a map, limits of the height of a row, largest width of a column, and the margins
 * at the sides of a drawing in page.html. X_TICKS is the largest number of ticks. */
enum { HEIGHT = 240, ROW_LOW = 5, ROW_HIGH = 26, COLUMN_WIDE = 64, MARGIN = 62, X_TICKS = 10 };
static const double SPAN_STEP = 0.05, THOUSANDTHS = 1000, VALUE_MAX = 1e9;

/* Dark blue, green, yellow: perceptually even, readable for red-blind viewers, on light and on dark pages. */
static const unsigned char anchor[][3] = {
    {0x1f, 0x2a, 0x5a}, {0x2a, 0x62, 0x9a}, {0x2f, 0x97, 0x93}, {0x8b, 0xc1, 0x5b}, {0xf7, 0xdf, 0x6f},
};
enum { ANCHORS = sizeof anchor / sizeof *anchor };

void dsvi_heat_palette(FILE *to)
{
    for (int level = 0; level < DSVI_HEAT_LEVELS; level++) {
        double at = (double)level / (DSVI_HEAT_LEVELS - 1) * (ANCHORS - 1);
        int first = at < ANCHORS - 1 ? (int)at : ANCHORS - 2;
        fprintf(to, ".c%d{fill:#", level);
        for (int c = 0; c < 3; c++)
            fprintf(to, "%02x",
                    (unsigned)lround(anchor[first][c] +
                                     (at - first) * (anchor[first + 1][c] - anchor[first][c])));
        fputs("}\n", to);
    }
    fputs(".ramp i { background: linear-gradient(90deg", to);
    for (int i = 0; i < ANCHORS; i++)
        fprintf(to, ", #%02x%02x%02x", anchor[i][0], anchor[i][1], anchor[i][2]);
    fputs("); }\n", to);
}

void dsvi_heat_span(DsviHeat *heat)
{
    double low = NAN, high = NAN;
    for (int64_t i = 0; i < heat->frames * heat->rows * heat->columns; i++) {
        if (heat->log && !(heat->value[i] > 0))
            continue;
        low = fmin(low, heat->value[i]); /* fmin and fmax ignore NaN */
        high = fmax(high, heat->value[i]);
    }
    heat->log = heat->log && low < high;
    heat->low = low;
    heat->high = high;
    if (heat->log)
        return;
    if (isnan(low))
        low = 0, high = 1;
    heat->low = fmax(floor(low / SPAN_STEP + 1e-6), -VALUE_MAX) * SPAN_STEP;
    heat->high = fmin(ceil(high / SPAN_STEP - 1e-6), VALUE_MAX) * SPAN_STEP;
    if (heat->high < heat->low + SPAN_STEP / 2)
        heat->high = heat->low + SPAN_STEP;
}

bool dsvi_heat_flat(const DsviHeat *heat, double *value)
{
    float low = NAN, high = NAN;
    for (int64_t i = 0; i < heat->frames * heat->rows * heat->columns; i++) {
        if (isnan(heat->value[i])) /* a cell that was not measured */
            return false;
        low = fminf(low, heat->value[i]);
        high = fmaxf(high, heat->value[i]);
    }
    *value = low;
    return low == high;
}

/* Returns the index of a value's colour; -1 for NaN. */
static int colour_level(const DsviHeat *heat, float value)
{
    double fraction = heat->log ? log(fmax(value, heat->low) / heat->low) / log(heat->high / heat->low)
                                : (value - heat->low) / (heat->high - heat->low);
    if (isnan(value) || isnan(fraction))
        return -1;
    return (int)fmin(fmax(floor(fraction * DSVI_HEAT_LEVELS), 0), DSVI_HEAT_LEVELS - 1);
}

static const float *newest_frame(const DsviHeat *heat)
{
    return heat->value + (heat->frames - 1) * heat->rows * heat->columns;
}

static void put_class(FILE *to, int level)
{
    if (level < 0)
        fputs("class=\"cn\"", to);
    else
        fprintf(to, "class=\"c%d\"", level);
}

/* Writes one SVG element per cell, in the order of the values, which the page's slider recolours. */
static void put_cells(FILE *to, const DsviHeat *heat)
{
    for (int64_t i = 0; i < heat->rows * heat->columns; i++) {
        fputs("<rect ", to);
        put_class(to, colour_level(heat, newest_frame(heat)[i]));
        fprintf(to, " x=\"%lld\" y=\"%lld\" width=\"1\" height=\"1\"/>", (long long)(i % heat->columns),
                (long long)(i / heat->columns));
    }
}

/* Writes all cells of one colour as one SVG path: a rectangle for each run of neighbouring cells in a row. */
static void put_level_cells(FILE *to, const DsviHeat *heat, int level)
{
    bool opened = false;
    for (int64_t r = 0; r < heat->rows; r++)
        for (int64_t c = 0, end; c < heat->columns; c = end) {
            const float *row = newest_frame(heat) + r * heat->columns;
            int first = colour_level(heat, row[c]);
            for (end = c + 1; end < heat->columns && colour_level(heat, row[end]) == first; end++)
                continue;
            if (first != level)
                continue;
            if (!opened) {
                fputs("<path ", to);
                put_class(to, level);
                fputs(" d=\"", to);
                opened = true;
            }
            fprintf(to, "M%lld %lldH%lldv1H%lldz", (long long)c, (long long)r, (long long)end, (long long)c);
        }
    if (opened)
        fputs("\"/>\n", to);
}

/* Labels each row with its index at its middle; intervals of 0.1 with their borders. */
static void put_row_labels(FILE *to, const DsviHeat *heat)
{
    DsviTicks ticks;
    if (heat->tenths)
        dsvi_ticks_even(&ticks, 0, 1, 5, false);
    else
        dsvi_ticks_index(&ticks, heat->rows, DSVI_TICKS_MAX);
    for (int i = 0; i < ticks.count; i++) {
        double fraction = heat->tenths ? ticks.value[i] : (ticks.value[i] + 0.5) / (double)heat->rows;
        dsvi_label_y(to, fraction, &ticks, i);
    }
}

/* Returns the position, in columns, of a label value between the labels of the columns, by interpolation. */
static double place_label(const DsviHeat *heat, double value)
{
    int64_t c = 0;
    while (c + 2 < heat->columns && heat->label[c + 1] <= value)
        c++;
    double step = heat->columns > 1 ? heat->label[c + 1] - heat->label[c] : 0;
    return (double)c + (step > 0 ? (value - heat->label[c]) / step : 0);
}

static void put_column_labels(FILE *to, const DsviHeat *heat)
{
    DsviTicks ticks;
    if (heat->label)
        dsvi_ticks_even(&ticks, heat->label[0], heat->label[heat->columns - 1], X_TICKS, true);
    else
        dsvi_ticks_index(&ticks, heat->columns, DSVI_TICKS_MAX);
    for (int i = 0; i < ticks.count; i++) {
        double column = heat->label ? place_label(heat, ticks.value[i]) : ticks.value[i];
        dsvi_label_x(to, (column + 0.5) / (double)heat->columns, &ticks, i);
    }
}

static void put_scale(FILE *to, const DsviHeat *heat)
{
    fputs("<figcaption class=\"ramp\"><span>", to);
    dsvi_put_fixed(to, heat->low, 2);
    fputs("</span><i></i><span>", to);
    dsvi_put_fixed(to, heat->high, 2);
    fputs("</span></figcaption>\n", to);
}

static void put_values(FILE *to, const DsviHeat *heat)
{
    int64_t cells = heat->rows * heat->columns;
    fprintf(to, "<script type=\"application/json\">{\"rows\":%lld,\"columns\":%lld,\"labels\":",
            (long long)heat->rows, (long long)heat->columns);
    if (heat->label)
        for (int64_t c = 0; c < heat->columns; c++)
            fprintf(to, "%s%.0f", c ? "," : "[", heat->label[c]);
    fputs(heat->label ? "],\"frames\":[" : "null,\"frames\":[", to);
    for (int64_t f = 0; f < heat->frames; f++) {
        fputs(f ? ",[" : "[", to);
        for (int64_t i = 0; i < cells; i++) {
            float value = heat->value[f * cells + i];
            fprintf(to, "%s%.0f", i ? "," : "",
                    isnan(value) ? -1 : fmin(fmax(value, 0), VALUE_MAX) * THOUSANDTHS);
        }
        fputc(']', to);
    }
    fputs("]}</script>", to);
}

/* Writes the description for screen readers. */
static void put_heat_description(FILE *to, const DsviHeat *heat)
{
    double low = NAN, high = NAN;
    for (int64_t i = 0; i < heat->rows * heat->columns; i++) {
        low = fmin(low, newest_frame(heat)[i]);
        high = fmax(high, newest_frame(heat)[i]);
    }
    dsvi_put_text(to, heat->title);
    fprintf(to, ", by %s and %s: from ", heat->row_name, heat->column_name);
    dsvi_put_short(to, low, 3);
    fputs(" to ", to);
    dsvi_put_short(to, high, 3);
    fputc('.', to);
}

static void put_heat_drawing(FILE *to, const DsviHeat *heat)
{
    fprintf(to,
            "<svg class=\"cells\" viewBox=\"0 0 %lld %lld\" preserveAspectRatio=\"none\" "
            "data-rows=\"%s\" data-columns=\"%s\"%s data-range=\"",
            (long long)heat->columns, (long long)heat->rows, heat->row_name, heat->column_name,
            heat->tenths ? " data-tenths" : "");
    dsvi_put_fixed(to, heat->low, 2);
    fputc(' ', to);
    dsvi_put_fixed(to, heat->high, 2);
    fprintf(to, " %d\">\n", DSVI_HEAT_LEVELS);
    if (heat->frames > 1)
        put_cells(to, heat);
    for (int level = -1; level < DSVI_HEAT_LEVELS && heat->frames == 1; level++)
        put_level_cells(to, heat, level);
    fputs("</svg>", to);
}

void dsvi_heat_put(FILE *to, const DsviHeat *heat)
{
    double height = fmin(fmax((double)HEIGHT / (double)heat->rows, ROW_LOW), ROW_HIGH) * (double)heat->rows;
    fputs("<figure>\n", to);
    put_scale(to, heat);
    fprintf(to, "<div class=\"chart\" style=\"max-width:%lldpx\" role=\"img\" aria-label=\"",
            (long long)(MARGIN + COLUMN_WIDE * heat->columns));
    put_heat_description(to, heat);
    fprintf(to, "\"><span class=\"axis\">%s</span><div class=\"drawing\" style=\"height:", heat->row_name);
    dsvi_put_fixed(to, height, 0);
    fputs("px\">", to);
    put_row_labels(to, heat);
    put_heat_drawing(to, heat);
    put_column_labels(to, heat);
    fprintf(to, "</div><span class=\"axis across\">%s</span></div>\n", heat->column_name);
    put_values(to, heat);
    dsvi_table_of_heat(to, heat);
    fputs("</figure>\n", to);
}
