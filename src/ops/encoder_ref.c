/* Reference implementation of the text encoder's ops. See encoder.h. */
#include "ops/encoder.h"

#include <math.h>
#include <stdlib.h>

#include "ops/pointwise.h"

DsvStatus dsvi_rms_norm_ref(DsviStream *stream, const DsviRmsNormArgs *args)
{
    (void)stream;
    for (int64_t r = 0; r < args->rows; r++) {
        double squares = 0;
        for (int64_t i = r * args->channels; i < (r + 1) * args->channels; i++) {
            double x = dsvi_load(args->acc, args->x, i);
            squares += x * x;
        }
        double rstd = 1 / sqrt(squares / (double)args->channels + args->eps);
        for (int64_t c = 0; c < args->channels; c++) {
            int64_t i = r * args->channels + c;
            dsvi_store(args->act, args->y, i,
                       dsvi_load(args->acc, args->x, i) * rstd * dsvi_load(args->acc, args->weight, c));
        }
    }
    return DSV_OK;
}

DsvStatus dsvi_gelu_product_ref(DsviStream *stream, const DsviGeluProductArgs *args)
{
    (void)stream;
    for (int64_t i = 0; i < args->n; i++) {
        double gate = dsvi_load(args->dtype, args->gate, i);
        double gelu = gate / (1 + exp(-DSVI_GELU_SLOPE * (gate + DSVI_GELU_CUBIC * gate * gate * gate)));
        dsvi_store(args->dtype, args->y, i, gelu * dsvi_load(args->dtype, args->x, i));
    }
    return DSV_OK;
}

/* Replaces the values x by exp(x - max) and returns their sum. */
static double exponentials(double *x, int64_t n)
{
    double max = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++)
        max = fmax(max, x[i]);
    for (int64_t i = 0; i < n; i++)
        sum += x[i] = exp(x[i] - max);
    return sum;
}

DsvStatus dsvi_softmax_ref(DsviStream *stream, const DsviSoftmaxArgs *args)
{
    (void)stream;
    double *p = malloc((size_t)(args->cols > 0 ? args->cols : 1) * sizeof *p);
    if (!p)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %lld numbers", (long long)args->cols);
    for (int64_t r = 0; r < args->rows; r++) {
        for (int64_t c = 0; c < args->cols; c++)
            p[c] = args->scale * dsvi_load(args->acc, args->x, r * args->cols + c);
        double sum = exponentials(p, args->cols);
        for (int64_t c = 0; c < args->cols; c++)
            dsvi_store(args->act, args->y, r * args->cols + c, p[c] / sum);
    }
    free(p);
    return DSV_OK;
}

/* Attention of query `i` of head `h` to the keys [begin, end); p has room for end - begin numbers. */
static void attend_row(const DsviBiasAttentionArgs *args, int64_t i, int64_t h, int64_t begin, int64_t end,
                       double *p)
{
    int64_t dim = args->head_dim, reach = args->reach;
    for (int64_t j = begin; j < end; j++) {
        int64_t distance = j - i < -reach ? -reach : j - i > reach ? reach : j - i;
        double dot = 0;
        for (int64_t d = 0; d < dim; d++)
            dot += dsvi_load(args->act, args->q, i * args->stride + h * dim + d) *
                   dsvi_load(args->act, args->k, j * args->stride + h * dim + d);
        p[j - begin] = args->scale * dot +
                       dsvi_load(args->acc, args->bias, h * (2 * reach + 1) + reach + distance);
    }
    double sum = exponentials(p, end - begin);
    for (int64_t d = 0; d < dim; d++) {
        double out = 0;
        for (int64_t j = begin; j < end; j++)
            out += p[j - begin] * dsvi_load(args->act, args->v, j * args->stride + h * dim + d);
        dsvi_store(args->act, args->out, (i * args->heads + h) * dim + d, out / sum);
    }
}

DsvStatus dsvi_bias_attention_ref(DsviStream *stream, const DsviBiasAttentionArgs *args)
{
    (void)stream;
    double *p = malloc((size_t)(args->longest > 0 ? args->longest : 1) * sizeof *p);
    if (!p)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %lld numbers", (long long)args->longest);
    for (int64_t g = 0; g < args->segments; g++)
        for (int64_t i = args->starts[g]; i < args->starts[g + 1]; i++)
            for (int64_t h = 0; h < args->heads; h++)
                attend_row(args, i, h, args->starts[g], args->starts[g + 1], p);
    free(p);
    return DSV_OK;
}
