/* SIMD variants of rms_norm_rope, row by row. The gradient of the weight is computed column by column in a
 * first pass, because dx may overwrite dy. Formulas: ops/norm_ref.c. */
#include <math.h>

#include "cpu/simd_fill.h"
#include "cpu/simd_rows.h"

enum { CHUNK = 256 }; /* channels processed at a time, in a local array of floats; even */

/* Rotates channels [first, first + count) of a token, which are stored in u, by their angles; with direction
 * -1 rotates back. Does nothing without tables; otherwise first and count must be even. */
static void rotate_channels(const DsviRmsNormRopeArgs *args, int64_t token, int64_t first, int64_t count,
                            float direction, float *u)
{
    int64_t half = args->head_dim / 2;
    if (!args->cos)
        return;
    const float *cosine = (const float *)args->cos + token * half;
    const float *sine = (const float *)args->sin + token * half;
    while (count > 0) {
        int64_t pair = first % args->head_dim / 2, pairs = dsvi_min(half - pair, count / 2);
#pragma omp simd
        for (int64_t p = 0; p < pairs; p++) {
            float a = u[2 * p], b = u[2 * p + 1], c = cosine[pair + p], s = direction * sine[pair + p];
            u[2 * p] = a * c - b * s;
            u[2 * p + 1] = a * s + b * c;
        }
        first += 2 * pairs;
        count -= 2 * pairs;
        u += 2 * pairs;
    }
}

DSVI_SPECIALISED void rms_norm_forward_row(DsviDtype act, const DsviRmsNormRopeArgs *args, int64_t row)
{
    int64_t channels = args->heads * args->head_dim;
    const void *x = dsvi_at(act, args->x, row * channels);
    const float *weight = args->weight;
    void *y = dsvi_at(act, args->y, row * channels);
    float square = 0, u[CHUNK];
#pragma omp simd reduction(+ : square)
    for (int64_t c = 0; c < channels; c++)
        square += dsvi_get(act, x, c) * dsvi_get(act, x, c);
    float rstd = 1 / sqrtf(square / (float)channels + (float)args->eps);
    for (int64_t first = 0; first < channels; first += CHUNK) {
        int64_t count = dsvi_min(CHUNK, channels - first);
#pragma omp simd
        for (int64_t c = 0; c < count; c++)
            u[c] = dsvi_get(act, x, first + c) * rstd * weight[first + c];
        rotate_channels(args, row % args->tokens, first, count, 1, u);
#pragma omp simd
        for (int64_t c = 0; c < count; c++)
            dsvi_put(act, y, first + c, u[c]);
    }
    ((float *)args->rstd)[row] = rstd;
}

static void rms_norm_rope_forward_rows(void *context, int64_t begin, int64_t end, int worker)
{
    const DsviRmsNormRopeArgs *args = context;
    (void)worker;
    for (int64_t row = begin; row < end; row++) {
        if (args->act == DSVI_BF16)
            rms_norm_forward_row(DSVI_BF16, args, row);
        else
            rms_norm_forward_row(DSVI_F32, args, row);
    }
}

static DsvStatus cpu_rms_norm_rope_fwd(DsviStream *stream, const DsviRmsNormRopeArgs *args)
{
    (void)stream;
    DSVI_TRY(dsvi_simd_check("rms_norm_rope", args->act, args->acc));
    dsvi_parallel_for(args->batch * args->tokens, dsvi_rows_per_piece(args->heads * args->head_dim),
                      rms_norm_rope_forward_rows, (void *)args);
    return DSV_OK;
}

/* Computes the gradient of the loss with respect to u, the row before its rotation, for channels [first,
 * first + count): dy rotated back. */
DSVI_SPECIALISED void rms_norm_load_du(DsviDtype act, const DsviRmsNormRopeArgs *args, int64_t row,
                                       int64_t first, int64_t count, float *du)
{
    const void *dy = dsvi_at(act, args->dy, row * args->heads * args->head_dim + first);
#pragma omp simd
    for (int64_t c = 0; c < count; c++)
        du[c] = dsvi_get(act, dy, c);
    rotate_channels(args, row % args->tokens, first, count, -1, du);
}

DSVI_SPECIALISED void rms_norm_backward_row(DsviDtype act, const DsviRmsNormRopeArgs *args, int64_t row)
{
    int64_t channels = args->heads * args->head_dim;
    const void *x = dsvi_at(act, args->x, row * channels);
    const float *weight = args->weight;
    void *dx = dsvi_at(act, args->dx, row * channels);
    float rstd = ((const float *)args->rstd)[row], mean_gz = 0, du[CHUNK];
    for (int64_t first = 0; first < channels; first += CHUNK) {
        int64_t count = dsvi_min(CHUNK, channels - first);
        rms_norm_load_du(act, args, row, first, count, du);
#pragma omp simd reduction(+ : mean_gz)
        for (int64_t c = 0; c < count; c++)
            mean_gz += du[c] * weight[first + c] * (dsvi_get(act, x, first + c) * rstd);
    }
    mean_gz /= (float)channels;
    for (int64_t first = 0; first < channels; first += CHUNK) {
        int64_t count = dsvi_min(CHUNK, channels - first);
        rms_norm_load_du(act, args, row, first, count, du);
#pragma omp simd
        for (int64_t c = 0; c < count; c++) {
            float z = dsvi_get(act, x, first + c) * rstd;
            dsvi_put(act, dx, first + c, rstd * (du[c] * weight[first + c] - z * mean_gz));
        }
    }
}

static void rms_norm_rope_backward_rows(void *context, int64_t begin, int64_t end, int worker)
{
    const DsviRmsNormRopeArgs *args = context;
    (void)worker;
    for (int64_t row = begin; row < end; row++) {
        if (args->act == DSVI_BF16)
            rms_norm_backward_row(DSVI_BF16, args, row);
        else
            rms_norm_backward_row(DSVI_F32, args, row);
    }
}

DSVI_SPECIALISED void rms_norm_weight_columns(DsviDtype act, const DsviRmsNormRopeArgs *args, int64_t first,
                                              int64_t columns)
{
    int64_t channels = args->heads * args->head_dim, rows = args->batch * args->tokens;
    float total[DSVI_COLUMNS] = {0};
    for (int64_t begin = 0; begin < rows; begin += DSVI_ROWS) {
        float part[DSVI_COLUMNS] = {0}, du[DSVI_COLUMNS];
        for (int64_t row = begin; row < dsvi_min(begin + DSVI_ROWS, rows); row++) {
            const void *x = dsvi_at(act, args->x, row * channels + first);
            float rstd = ((const float *)args->rstd)[row];
            rms_norm_load_du(act, args, row, first, columns, du);
#pragma omp simd
            for (int64_t c = 0; c < columns; c++)
                part[c] += du[c] * (dsvi_get(act, x, c) * rstd);
        }
        for (int64_t c = 0; c < columns; c++)
            total[c] += part[c];
    }
    for (int64_t c = 0; c < columns; c++)
        ((float *)args->dweight)[first + c] += total[c];
}

static void rms_norm_weight_piece(void *context, int64_t begin, int64_t end, int worker)
{
    const DsviRmsNormRopeArgs *args = context;
    (void)worker;
    if (args->act == DSVI_BF16)
        rms_norm_weight_columns(DSVI_BF16, args, begin, end - begin);
    else
        rms_norm_weight_columns(DSVI_F32, args, begin, end - begin);
}

static DsvStatus cpu_rms_norm_rope_bwd(DsviStream *stream, const DsviRmsNormRopeArgs *args)
{
    int64_t channels = args->heads * args->head_dim, rows = args->batch * args->tokens;
    DSVI_TRY(dsvi_simd_check("rms_norm_rope", args->act, args->acc));
    dsvi_parallel_for(channels, DSVI_COLUMNS, rms_norm_weight_piece, (void *)args);
    dsvi_parallel_for(rows, dsvi_rows_per_piece(channels), rms_norm_rope_backward_rows, (void *)args);
    DsviColSumArgs sum = {.m = rows,
                          .n = channels,
                          .x_dtype = args->act,
                          .x = args->dx,
                          .ldx = channels,
                          .y_dtype = args->acc,
                          .y = args->dx_sum};
    return args->dx_sum ? DSVI_SIMD(col_sum)(stream, &sum) : DSV_OK;
}

void DSVI_SIMD(fill_rms_norm_rope)(DsviOps *ops)
{
    DSVI_OPS_SET(ops, rms_norm_rope_fwd, cpu_rms_norm_rope_fwd, DSVI_SIMD_NAME);
    DSVI_OPS_SET(ops, rms_norm_rope_bwd, cpu_rms_norm_rope_bwd, DSVI_SIMD_NAME);
}
