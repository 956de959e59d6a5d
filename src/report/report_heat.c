/* See report_heat.h. */
#include "report/report_heat.h"

#include <math.h>

#include "report/report_text.h"

enum { LEFT = 52, RIGHT = 10, TOP = 4, BOTTOM = 22, LABEL_WIDTH = 70, ROW_LABELS_MOST = 16 };
static const double SPAN_STEP = 0.05, THOUSANDTHS = 1000, VALUE_MOST = 1e9;

/* Dark blue over green to yellow: even to the eye, told apart without red, readable on light and dark. */
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
            fprintf(to, "%02x", (unsigned)lround(anchor[first][c] + (at - first) *
                                                 (anchor[first + 1][c] - anchor[first][c])));
        fputs("}\n", to);
    }
    fputs(".ramp i { background: linear-gradient(90deg", to);
    for (int i = 0; i < ANCHORS; i++)
        fprintf(to, ", #%02x%02x%02x", anchor[i][0], anchor[i][1], anchor[i][2]);
    fputs("); }\n", to);
}

void dsvi_heat_span(DsvHeat *heat)
{
    double low = NAN, high = NAN;
    for (int64_t i = 0; i < heat->frames * heat->rows * heat->columns; i++) {
        if (heat->log && !(heat->value[i] > 0))
            continue;
        low = fmin(low, heat->value[i]); /* fmin and fmax pass over a NaN */
        high = fmax(high, heat->value[i]);
    }
    heat->log = heat->log && low < high;
    heat->low = low;
    heat->high = high;
    if (heat->log)
        return;
    if (isnan(low))
        low = 0, high = 1;
    heat->low = fmax(floor(low / SPAN_STEP + 1e-6), -VALUE_MOST) * SPAN_STEP;
    heat->high = fmin(ceil(high / SPAN_STEP - 1e-6), VALUE_MOST) * SPAN_STEP;
    if (heat->high < heat->low + SPAN_STEP / 2)
        heat->high = heat->low + SPAN_STEP;
}

/* The colour of a value; -1: none. */
static int level_of(const DsvHeat *heat, float value)
{
    double share = heat->log ? log(fmax(value, heat->low) / heat->low) / log(heat->high / heat->low)
                             : (value - heat->low) / (heat->high - heat->low);
    if (isnan(value) || isnan(share))
        return -1;
    return (int)fmin(fmax(floor(share * DSVI_HEAT_LEVELS), 0), DSVI_HEAT_LEVELS - 1);
}

static double row_height(const DsvHeat *heat)
{
    return fmin(fmax(240.0 / (double)heat->rows, 5), 26);
}

static double column_width(const DsvHeat *heat)
{
    return (double)(heat->width - LEFT - RIGHT) / (double)heat->columns;
}

static const float *newest(const DsvHeat *heat)
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

/* One element a cell, in the order of the values: what the slider recolours. */
static void put_cells(FILE *to, const DsvHeat *heat)
{
    double width = column_width(heat), height = row_height(heat);
    for (int64_t i = 0; i < heat->rows * heat->columns; i++) {
        fputs("<rect ", to);
        put_class(to, level_of(heat, newest(heat)[i]));
        fputs(" x=\"", to);
        dsvi_put_fixed(to, LEFT + (double)(i % heat->columns) * width, 2);
        fputs("\" y=\"", to);
        dsvi_put_fixed(to, TOP + (double)(i / heat->columns) * height, 2);
        fputs("\" width=\"", to);
        dsvi_put_fixed(to, width, 2);
        fputs("\" height=\"", to);
        dsvi_put_fixed(to, height, 2);
        fputs("\"/>", to);
    }
}

/* Right, down, back to the left. */
static void put_run(FILE *to, double left, double top, double right, double height)
{
    const struct {
        char letter;
        double value;
    } move[] = {{'M', left}, {' ', top}, {'H', right}, {'v', height}, {'H', left}};
    for (size_t i = 0; i < sizeof move / sizeof *move; i++) {
        fputc(move[i].letter, to);
        dsvi_put_fixed(to, move[i].value, 1);
    }
    fputc('z', to);
}

/* Stretches of one row and colour, each a rectangle in the path of the colour. */
static void put_runs(FILE *to, const DsvHeat *heat, int level)
{
    double width = column_width(heat), height = row_height(heat);
    bool opened = false;
    for (int64_t r = 0; r < heat->rows; r++)
        for (int64_t c = 0, end; c < heat->columns; c = end) {
            const float *row = newest(heat) + r * heat->columns;
            int own = level_of(heat, row[c]);
            for (end = c + 1; end < heat->columns && level_of(heat, row[end]) == own; end++)
                continue;
            if (own != level)
                continue;
            if (!opened) {
                fputs("<path ", to);
                put_class(to, level);
                fputs(" d=\"", to);
                opened = true;
            }
            put_run(to, LEFT + (double)c * width, TOP + (double)r * height, LEFT + (double)end * width,
                    height);
        }
    if (opened)
        fputs("\"/>\n", to);
}

static void put_labels(FILE *to, const DsvHeat *heat)
{
    double height = row_height(heat), width = column_width(heat);
    int64_t every = (heat->rows + ROW_LABELS_MOST - 1) / ROW_LABELS_MOST;
    for (int64_t r = 0; r < heat->rows; r += every) {
        fprintf(to, "<text class=\"y\" x=\"%d\" y=\"", LEFT - 6);
        dsvi_put_fixed(to, TOP + ((double)r + 0.5) * height + 4, 1);
        fputs("\">", to);
        if (heat->tenths)
            dsvi_put_fixed(to, (double)r / 10, 1);
        else
            dsvi_put_count(to, (double)r);
        fputs("</text>", to);
    }
    double at_most = (heat->width - LEFT - RIGHT) / (heat->label ? LABEL_WIDTH : 24.0);
    every = (int64_t)ceil((double)heat->columns / at_most);
    for (int64_t c = 0; c < heat->columns; c += every) {
        fputs("<text class=\"x\" x=\"", to);
        dsvi_put_fixed(to, LEFT + ((double)c + 0.5) * width, 1);
        fputs("\" y=\"", to);
        dsvi_put_fixed(to, TOP + (double)heat->rows * height + 15, 1);
        fputs("\">", to);
        dsvi_put_count(to, heat->label ? heat->label[c] : (double)c);
        fputs("</text>", to);
    }
    fputc('\n', to);
}

static void put_scale(FILE *to, const DsvHeat *heat)
{
    fputs("<div class=\"ramp\"><span>", to);
    dsvi_put_fixed(to, heat->low, 2);
    fputs("</span><i></i><span>", to);
    dsvi_put_fixed(to, heat->high, 2);
    fprintf(to, "</span><span>%s down, %s across</span></div>", heat->row_name, heat->column_name);
}

static void put_values(FILE *to, const DsvHeat *heat)
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
                    isnan(value) ? -1 : fmin(fmax(value, 0), VALUE_MOST) * THOUSANDTHS);
        }
        fputc(']', to);
    }
    fputs("]}</script>", to);
}

void dsvi_heat_put(FILE *to, const DsvHeat *heat)
{
    double height = row_height(heat) * (double)heat->rows;
    put_scale(to, heat);
    fprintf(to, "<figure><svg viewBox=\"0 0 %d ", heat->width);
    dsvi_put_fixed(to, TOP + height + BOTTOM, 0);
    fprintf(to, "\" data-rows=\"%s\" data-columns=\"%s\"%s data-grid=\"%d %d %d ", heat->row_name,
            heat->column_name, heat->tenths ? " data-tenths" : "", LEFT, TOP, heat->width - LEFT - RIGHT);
    dsvi_put_fixed(to, height, 2);
    fputs("\" data-range=\"", to);
    dsvi_put_fixed(to, heat->low, 2);
    fputc(' ', to);
    dsvi_put_fixed(to, heat->high, 2);
    fprintf(to, " %d\"><g class=\"cells\">\n", DSVI_HEAT_LEVELS);
    if (heat->frames > 1)
        put_cells(to, heat);
    for (int level = -1; level < DSVI_HEAT_LEVELS && heat->frames == 1; level++)
        put_runs(to, heat, level);
    fputs("</g>", to);
    put_labels(to, heat);
    fputs("</svg>", to);
    put_values(to, heat);
    fputs("</figure>\n", to);
}
