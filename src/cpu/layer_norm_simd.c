/* SIMD variants of layer_norm, row by row. The gradients of scale and shift are computed column by column in
 * a second pass. Formulas: ops/norm_ref.c. */
#include <math.h>

#include "cpu/simd_fill.h"
#include "cpu/simd_rows.h"

/* Returns the offset of a row's values in the arrays scale and shift. */
static int64_t layer_norm_modulation_of(const DsviLayerNormArgs *args, int64_t row)
{
    return row / args->tokens * args->sample_stride;
}

/* Computes a row of x as a gated residual sum. */
DSVI_SPECIALISED void layer_norm_sum_row(DsviDtype act, const DsviGateResidualArgs *args, int64_t row)
{
    int64_t channels = args->channels, of_sample = row / args->tokens * args->gate_stride;
    const float *x = (const float *)args->x + row * channels;
    const float *gate = args->gate ? (const float *)args->gate + of_sample : NULL;
    const void *y = dsvi_at(act, args->y, row * channels);
    float *out = (float *)args->out + row * channels;
#pragma omp simd
    for (int64_t c = 0; c < channels; c++)
        out[c] = x[c] + (gate ? gate[c] : 1) * dsvi_get(act, y, c);
}

DSVI_SPECIALISED void layer_norm_forward_row(DsviDtype act, const DsviLayerNormArgs *args, int64_t row)
{
    int64_t channels = args->channels;
    const float *x = (const float *)args->x + row * channels;
    const float *scale = (const float *)args->scale + layer_norm_modulation_of(args, row);
    const float *shift = (const float *)args->shift + layer_norm_modulation_of(args, row);
    void *y = dsvi_at(act, args->y, row * channels);
    float sum = 0, square = 0, one_plus = (float)args->one_plus;
    if (args->sum)
        layer_norm_sum_row(act, args->sum, row);
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < channels; c++)
        sum += x[c];
    float mean = sum / (float)channels;
#pragma omp simd reduction(+ : square)
    for (int64_t c = 0; c < channels; c++)
        square += (x[c] - mean) * (x[c] - mean);
    float rstd = 1 / sqrtf(square / (float)channels + (float)args->eps);
#pragma omp simd
    for (int64_t c = 0; c < channels; c++)
        dsvi_put(act, y, c, (x[c] - mean) * rstd * (one_plus + scale[c]) + shift[c]);
    ((float *)args->mean)[row] = mean;
    ((float *)args->rstd)[row] = rstd;
}

static void layer_norm_forward_rows(void *context, int64_t begin, int64_t end, int worker)
{
    const DsviLayerNormArgs *args = context;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        int64_t row = dsvi_listed_row(&args->only, args->tokens, i);
        if (args->act == DSVI_BF16)
            layer_norm_forward_row(DSVI_BF16, args, row);
        else
            layer_norm_forward_row(DSVI_F32, args, row);
    }
}

static DsvStatus cpu_layer_norm_fwd(DsviStream *stream, const DsviLayerNormArgs *args)
{
    (void)stream;
    DSVI_TRY(dsvi_simd_check("layer_norm", args->act, args->acc));
    dsvi_parallel_for(args->batch * dsvi_listed_tokens(&args->only, args->tokens),
                      dsvi_rows_per_piece(args->channels), layer_norm_forward_rows, (void *)args);
    return DSV_OK;
}

DSVI_SPECIALISED void layer_norm_backward_row(DsviDtype act, const DsviLayerNormArgs *args, int64_t row)
{
    int64_t channels = args->channels;
    const float *x = (const float *)args->x + row * channels;
    const float *scale = (const float *)args->scale + layer_norm_modulation_of(args, row);
    const void *dy = dsvi_at(act, args->dy, row * channels);
    float *dx = (float *)args->dx + row * channels;
    float mean = ((const float *)args->mean)[row], rstd = ((const float *)args->rstd)[row];
    float mean_g = 0, mean_gz = 0, one_plus = (float)args->one_plus;
#pragma omp simd reduction(+ : mean_g, mean_gz)
    for (int64_t c = 0; c < channels; c++) {
        float g = dsvi_get(act, dy, c) * (one_plus + scale[c]);
        mean_g += g;
        mean_gz += g * ((x[c] - mean) * rstd);
    }
    mean_g /= (float)channels;
    mean_gz /= (float)channels;
#pragma omp simd
    for (int64_t c = 0; c < channels; c++) {
        float g = dsvi_get(act, dy, c) * (one_plus + scale[c]);
        dx[c] += rstd * (g - mean_g - (x[c] - mean) * rstd * mean_gz);
    }
}

static void layer_norm_backward_rows(void *context, int64_t begin, int64_t end, int worker)
{
    const DsviLayerNormArgs *args = context;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        int64_t row = dsvi_listed_row(&args->only, args->tokens, i);
        if (args->act == DSVI_BF16)
            layer_norm_backward_row(DSVI_BF16, args, row);
        else
            layer_norm_backward_row(DSVI_F32, args, row);
    }
}

/* Adds the gradients of scale and shift of `columns` columns, summed over `rows` processed rows
 * starting at number `first_row`, which share the scale and shift. */
DSVI_SPECIALISED void layer_norm_modulation_columns(DsviDtype act, const DsviLayerNormArgs *args,
                                                    int64_t first_row, int64_t rows, int64_t first,
                                                    int64_t columns)
{
    float scale_total[DSVI_COLUMNS] = {0}, shift_total[DSVI_COLUMNS] = {0};
    for (int64_t begin = 0; begin < rows; begin += DSVI_ROWS) {
        float scale_part[DSVI_COLUMNS] = {0}, shift_part[DSVI_COLUMNS] = {0};
        for (int64_t i = first_row + begin; i < first_row + dsvi_min(begin + DSVI_ROWS, rows); i++) {
            int64_t row = dsvi_listed_row(&args->only, args->tokens, i);
            const float *x = (const float *)args->x + row * args->channels + first;
            const void *dy = dsvi_at(act, args->dy, row * args->channels + first);
            float mean = ((const float *)args->mean)[row], rstd = ((const float *)args->rstd)[row];
#pragma omp simd
            for (int64_t c = 0; c < columns; c++) {
                scale_part[c] += dsvi_get(act, dy, c) * ((x[c] - mean) * rstd);
                shift_part[c] += dsvi_get(act, dy, c);
            }
        }
        for (int64_t c = 0; c < columns; c++) {
            scale_total[c] += scale_part[c];
            shift_total[c] += shift_part[c];
        }
    }
    int64_t at = layer_norm_modulation_of(args, dsvi_listed_row(&args->only, args->tokens, first_row)) +
                 first;
    for (int64_t c = 0; c < columns; c++) {
        ((float *)args->dscale)[at + c] += scale_total[c];
        ((float *)args->dshift)[at + c] += shift_total[c];
    }
}

/* A piece is a block of columns of one set of rows that share scale and shift: the rows of a sample, or all
 * rows. */
static void layer_norm_modulation_pieces(void *context, int64_t begin, int64_t end, int worker)
{
    const DsviLayerNormArgs *args = context;
    int64_t listed = dsvi_listed_tokens(&args->only, args->tokens);
    int64_t rows = args->sample_stride ? listed : args->batch * listed;
    int64_t blocks = dsvi_pieces(args->channels, DSVI_COLUMNS);
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        int64_t first = i % blocks * DSVI_COLUMNS, columns = dsvi_min(DSVI_COLUMNS, args->channels - first);
        if (args->act == DSVI_BF16)
            layer_norm_modulation_columns(DSVI_BF16, args, i / blocks * rows, rows, first, columns);
        else
            layer_norm_modulation_columns(DSVI_F32, args, i / blocks * rows, rows, first, columns);
    }
}

static DsvStatus cpu_layer_norm_bwd(DsviStream *stream, const DsviLayerNormArgs *args)
{
    int64_t sets = args->sample_stride ? args->batch : 1;
    int64_t rows = args->batch * dsvi_listed_tokens(&args->only, args->tokens);
    DSVI_TRY(dsvi_simd_check("layer_norm", args->act, args->acc));
    if (rows == 0)
        return DSV_OK;
    dsvi_parallel_for(rows, dsvi_rows_per_piece(args->channels), layer_norm_backward_rows, (void *)args);
    dsvi_parallel_for(sets * dsvi_pieces(args->channels, DSVI_COLUMNS), 1, layer_norm_modulation_pieces,
                      (void *)args);
    return args->then ? DSVI_SIMD(gate_residual_bwd)(stream, args->then) : DSV_OK;
}

void DSVI_SIMD(fill_layer_norm)(DsviOps *ops)
{
    DSVI_OPS_SET(ops, layer_norm_fwd, cpu_layer_norm_fwd, DSVI_SIMD_NAME);
    DSVI_OPS_SET(ops, layer_norm_bwd, cpu_layer_norm_bwd, DSVI_SIMD_NAME);
}
