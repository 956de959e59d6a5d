/* SIMD variants of rms_norm, gelu_product and softmax. Formulas: ops/encoder_ref.c. */
#include <math.h>

#include "cpu/simd_fill.h"
#include "cpu/simd_math.h"
#include "cpu/simd_rows.h"

enum { CHUNK = 256 }; /* elements processed at a time, in local arrays of floats */

/* ---- rms_norm ---- */

DSVI_SPECIALISED void rms_norm_row(DsviDtype act, const DsviRmsNormArgs *args, int64_t row)
{
    const float *x = (const float *)args->x + row * args->channels, *weight = args->weight;
    void *y = dsvi_at(act, args->y, row * args->channels);
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t c = 0; c < args->channels; c++)
        squares += x[c] * x[c];
    float rstd = 1 / sqrtf(squares / (float)args->channels + (float)args->eps);
#pragma omp simd
    for (int64_t c = 0; c < args->channels; c++)
        dsvi_put(act, y, c, x[c] * rstd * weight[c]);
}

static void rms_norm_rows(void *context, int64_t begin, int64_t end, int worker)
{
    const DsviRmsNormArgs *args = context;
    (void)worker;
    for (int64_t row = begin; row < end; row++) {
        if (args->act == DSVI_BF16)
            rms_norm_row(DSVI_BF16, args, row);
        else
            rms_norm_row(DSVI_F32, args, row);
    }
}

static DsvStatus cpu_rms_norm(DsviStream *stream, const DsviRmsNormArgs *args)
{
    (void)stream;
    DSVI_TRY(dsvi_simd_check("rms_norm", args->act, args->acc));
    dsvi_parallel_for(args->rows, dsvi_rows_per_piece(args->channels), rms_norm_rows, (void *)args);
    return DSV_OK;
}

/* ---- gelu_product ---- */

/* y may be the memory of gate or of x, because each chunk is read before it is written. */
DSVI_SPECIALISED void gelu_product_range(DsviDtype dtype, const DsviGeluProductArgs *args, int64_t begin,
                                         int64_t end)
{
    const float slope = (float)DSVI_GELU_SLOPE, cubic = (float)DSVI_GELU_CUBIC;
    float gate[CHUNK] = {0}, x[CHUNK] = {0};
    for (int64_t first = begin; first < end; first += CHUNK) {
        int64_t count = dsvi_min(CHUNK, end - first);
#pragma omp simd
        for (int64_t i = 0; i < count; i++) {
            gate[i] = dsvi_get(dtype, args->gate, first + i);
            x[i] = dsvi_get(dtype, args->x, first + i);
        }
        for (int64_t i = 0; i < count; i += DSVI_LANES) {
            DsviVec g = dsvi_vec_load(gate + i);
            DsviVec e = dsvi_vec_exp(-slope * (g + cubic * g * g * g));
            dsvi_vec_store(x + i, g / (1.0f + e) * dsvi_vec_load(x + i));
        }
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            dsvi_put(dtype, args->y, first + i, x[i]);
    }
}

static void gelu_product_piece(void *context, int64_t begin, int64_t end, int worker)
{
    const DsviGeluProductArgs *args = context;
    (void)worker;
    if (args->dtype == DSVI_BF16)
        gelu_product_range(DSVI_BF16, args, begin, end);
    else
        gelu_product_range(DSVI_F32, args, begin, end);
}

static DsvStatus cpu_gelu_product(DsviStream *stream, const DsviGeluProductArgs *args)
{
    (void)stream;
    DSVI_TRY(dsvi_simd_check("gelu_product", args->dtype, DSVI_F32));
    dsvi_parallel_for(args->n, DSVI_PIECE, gelu_product_piece, (void *)args);
    return DSV_OK;
}

/* ---- softmax ---- */

/* Stores exp(scale x - largest) of `count` elements, at most CHUNK, and 0 up to the next whole vector. */
static void softmax_exponentials(const float *x, int64_t count, float scale, float largest, float *out)
{
    for (int64_t c = count; c < dsvi_round_up(count, DSVI_LANES); c++)
        out[c] = -INFINITY;
#pragma omp simd
    for (int64_t c = 0; c < count; c++)
        out[c] = x[c] * scale - largest;
    for (int64_t c = 0; c < count; c += DSVI_LANES)
        dsvi_vec_store(out + c, dsvi_vec_exp(dsvi_vec_load(out + c)));
}

/* Returns the largest scale x of a row. */
static float softmax_largest(const float *x, int64_t count, float scale)
{
    DsviVec most = dsvi_vec_all(-INFINITY);
    int64_t c = 0;
    for (; c + DSVI_LANES <= count; c += DSVI_LANES)
        most = dsvi_vec_max(most, dsvi_vec_load(x + c) * scale);
    float largest = dsvi_vec_largest(most);
    for (; c < count; c++)
        largest = fmaxf(largest, x[c] * scale);
    return largest;
}

/* Exponentials are computed twice, for the sum and for the result, which needs no memory for a row of them.
 */
DSVI_SPECIALISED void softmax_row(DsviDtype act, const DsviSoftmaxArgs *args, int64_t row)
{
    const float *x = (const float *)args->x + row * args->cols;
    void *y = dsvi_at(act, args->y, row * args->cols);
    float scale = (float)args->scale, largest = softmax_largest(x, args->cols, scale), value[CHUNK];
    DsviVec total = dsvi_vec_all(0);
    for (int64_t first = 0; first < args->cols; first += CHUNK) {
        int64_t count = dsvi_min(CHUNK, args->cols - first);
        softmax_exponentials(x + first, count, scale, largest, value);
        for (int64_t c = 0; c < count; c += DSVI_LANES)
            total += dsvi_vec_load(value + c);
    }
    float factor = 1 / dsvi_vec_sum(total);
    for (int64_t first = 0; first < args->cols; first += CHUNK) {
        int64_t count = dsvi_min(CHUNK, args->cols - first);
        softmax_exponentials(x + first, count, scale, largest, value);
#pragma omp simd
        for (int64_t c = 0; c < count; c++)
            dsvi_put(act, y, first + c, value[c] * factor);
    }
}

static void softmax_rows(void *context, int64_t begin, int64_t end, int worker)
{
    const DsviSoftmaxArgs *args = context;
    (void)worker;
    for (int64_t row = begin; row < end; row++) {
        if (args->act == DSVI_BF16)
            softmax_row(DSVI_BF16, args, row);
        else
            softmax_row(DSVI_F32, args, row);
    }
}

static DsvStatus cpu_softmax(DsviStream *stream, const DsviSoftmaxArgs *args)
{
    (void)stream;
    DSVI_TRY(dsvi_simd_check("softmax", args->act, args->acc));
    dsvi_parallel_for(args->rows, dsvi_rows_per_piece(args->cols), softmax_rows, (void *)args);
    return DSV_OK;
}

void DSVI_SIMD(fill_encoder)(DsviOps *ops)
{
    DSVI_OPS_SET(ops, rms_norm, cpu_rms_norm, DSVI_SIMD_NAME);
    DSVI_OPS_SET(ops, gelu_product, cpu_gelu_product, DSVI_SIMD_NAME);
    DSVI_OPS_SET(ops, softmax, cpu_softmax, DSVI_SIMD_NAME);
}
