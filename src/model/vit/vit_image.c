/* Prepares a picture for the image encoder: resizes it as Pillow does (bicubic, with a filter that is widened
 * when the picture becomes smaller, bytes after each of both passes), crops its centre and normalises it.
 *
 * An output row or column is a weighted sum of input rows or columns. As in Pillow the weights are whole
 * numbers with PRECISION bits after the point, so that the result does not depend on the machine. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/vit/vit.h"

enum { CHANNELS = 3, PRECISION = 22, SIDE_MAX = 65536 };
static const double REACH = 2; /* inputs on each side that a bicubic filter weighs, when it is not widened */

/* The weights of one axis. */
typedef struct Filter {
    int64_t outputs, width; /* of the output, and largest number of inputs of an output */
    int64_t *first, *count; /* (outputs) the inputs of an output */
    int32_t *weight;        /* (outputs, width) */
} Filter;

/* The cubic convolution kernel with a = -1/2. */
static double cubic(double x)
{
    x = fabs(x);
    if (x < 1)
        return (1.5 * x - 2.5) * x * x + 1;
    return x < REACH ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
}

static void filter_free(Filter *filter)
{
    free(filter->first);
    free(filter->count);
    free(filter->weight);
}

/* Makes the filter from `inputs` to `outputs` pixels. To be freed also after a failure. */
static DsvStatus filter_make(int64_t inputs, int64_t outputs, Filter *out)
{
    const double scale = (double)inputs / (double)outputs, widened = scale > 1 ? scale : 1;
    const double reach = REACH * widened;
    *out = (Filter){.outputs = outputs, .width = 2 * (int64_t)ceil(reach) + 1};
    double *exact = calloc((size_t)out->width, sizeof *exact);
    out->first = calloc((size_t)outputs, sizeof *out->first);
    out->count = calloc((size_t)outputs, sizeof *out->count);
    out->weight = calloc((size_t)(outputs * out->width), sizeof *out->weight);
    if (!exact || !out->first || !out->count || !out->weight) {
        free(exact);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to resize a picture to %lld pixels", (long long)outputs);
    }
    for (int64_t i = 0; i < outputs; i++) {
        const double centre = ((double)i + 0.5) * scale;
        int64_t first = (int64_t)(centre - reach + 0.5), end = (int64_t)(centre + reach + 0.5);
        double sum = 0;
        first = centre - reach + 0.5 < 0 ? 0 : first;
        end = end > inputs ? inputs : end;
        for (int64_t n = 0; n < end - first; n++)
            sum += exact[n] = cubic(((double)(first + n) - centre + 0.5) / widened);
        for (int64_t n = 0; n < end - first; n++)
            out->weight[i * out->width + n] = (int32_t)lround(exact[n] / sum * (1 << PRECISION));
        out->first[i] = first;
        out->count[i] = end - first;
    }
    free(exact);
    return DSV_OK;
}

/* Resizes one axis: from (outer, inputs, inner) to (outer, outputs, inner) bytes. */
static void filter_apply(const Filter *filter, int64_t outer, int64_t inputs, int64_t inner,
                         const uint8_t *from, uint8_t *to)
{
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < filter->outputs; i++)
            for (int64_t c = 0; c < inner; c++) {
                const uint8_t *in = from + (o * inputs + filter->first[i]) * inner + c;
                int64_t sum = 1 << (PRECISION - 1); /* rounds to nearest */
                for (int64_t n = 0; n < filter->count[i]; n++)
                    sum += in[n * inner] * (int64_t)filter->weight[i * filter->width + n];
                sum = sum < 0 ? 0 : sum >> PRECISION;
                to[(o * filter->outputs + i) * inner + c] = sum > 255 ? 255 : (uint8_t)sum;
            }
}

/* Resizes a picture to (rows, columns); *out is the caller's to free. Pillow resizes columns first, and
 * copies an axis whose length does not change, which filters of weight 1 do as well. */
static DsvStatus resize(int64_t height, int64_t width, const uint8_t *rgb, int64_t rows, int64_t columns,
                        uint8_t **out)
{
    DsvStatus status;
    Filter across = {0}, down = {0};
    uint8_t *narrow = malloc((size_t)(height * columns * CHANNELS));
    *out = malloc((size_t)(rows * columns * CHANNELS));
    if (!narrow || !*out) {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to resize a picture to %lld x %lld", (long long)rows,
                           (long long)columns);
        goto done;
    }
    DSVI_TRY_GOTO(status, filter_make(width, columns, &across), done);
    DSVI_TRY_GOTO(status, filter_make(height, rows, &down), done);
    filter_apply(&across, height, width, CHANNELS, rgb, narrow);
    filter_apply(&down, 1, height, columns * CHANNELS, narrow, *out);
done:
    filter_free(&across);
    filter_free(&down);
    free(narrow);
    return status;
}

DsvStatus dsvi_vit_prepare(const DsviVitProcessor *processor, int64_t height, int64_t width,
                           const uint8_t *rgb, float *pixels)
{
    const int64_t edge = processor->shortest_edge, crop = processor->crop;
    uint8_t *resized = NULL;
    if (height < 1 || width < 1 || height > SIDE_MAX || width > SIDE_MAX)
        return DSVI_FAIL(DSV_E_SHAPE, "a picture of %lld x %lld pixels, expected 1 to %d on each side",
                         (long long)height, (long long)width, SIDE_MAX);
    const int64_t rows = height <= width ? edge : edge * height / width;
    const int64_t columns = height <= width ? edge * width / height : edge;
    DsvStatus status = resize(height, width, rgb, rows, columns, &resized);
    const int64_t top = (rows - crop) / 2, left = (columns - crop) / 2;
    for (int64_t i = 0; status == DSV_OK && i < CHANNELS * crop * crop; i++) {
        const int64_t channel = i / (crop * crop), y = top + i / crop % crop, x = left + i % crop;
        const double value = resized[(y * columns + x) * CHANNELS + channel] * processor->factor;
        pixels[i] = (float)((value - processor->mean[channel]) / processor->std[channel]);
    }
    free(resized);
    return status;
}
