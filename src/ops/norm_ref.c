/* Reference implementation of the normalisations. See norm.h.
 *
 * With z = (x - mean) rstd and g = dL/dz, the gradient of both norms has the form
 *     dx = rstd (g - [mean of g] - z (mean of g z)),
 * where the term in brackets is present only if the mean is subtracted. Sums over tokens are kept in double
 * and added to their gradient once. */
#include "ops/norm.h"

#include <math.h>
#include <stdbool.h>

#include "ops/gemm.h"

DsvStatus dsvi_layer_norm_fwd_ref(DsviStream *stream, const DsviLayerNormArgs *args)
{
    int64_t channels = args->channels, listed = dsvi_listed_tokens(&args->only, args->tokens);
    if (args->sum)
        DSVI_TRY(dsvi_gate_residual_fwd_ref(stream, args->sum));
    for (int64_t i = 0; i < args->batch * listed; i++) {
        int64_t row = dsvi_listed_row(&args->only, args->tokens, i);
        int64_t start = row * channels, modulation = row / args->tokens * args->sample_stride;
        double mean = 0, variance = 0;
        for (int64_t c = 0; c < channels; c++)
            mean += dsvi_load(args->acc, args->x, start + c);
        mean /= (double)channels;
        for (int64_t c = 0; c < channels; c++) {
            double centred = dsvi_load(args->acc, args->x, start + c) - mean;
            variance += centred * centred;
        }
        variance /= (double)channels;
        double rstd = 1 / sqrt(variance + args->eps);
        for (int64_t c = 0; c < channels; c++) {
            double z = (dsvi_load(args->acc, args->x, start + c) - mean) * rstd;
            double scale = args->one_plus + dsvi_load(args->acc, args->scale, modulation + c);
            dsvi_store(args->act, args->y, start + c,
                       z * scale + dsvi_load(args->acc, args->shift, modulation + c));
        }
        dsvi_store(args->acc, args->mean, row, mean);
        dsvi_store(args->acc, args->rstd, row, rstd);
    }
    return DSV_OK;
}

/* Returns the normalised value z = (x - mean) * rstd of channel c of a row. */
static double layer_norm_z(const DsviLayerNormArgs *args, int64_t row, int64_t c)
{
    double x = dsvi_load(args->acc, args->x, row * args->channels + c);
    return (x - dsvi_load(args->acc, args->mean, row)) * dsvi_load(args->acc, args->rstd, row);
}

/* Returns the gradient of the loss with respect to the normalised value z of channel c of a row. */
static double layer_norm_dz(const DsviLayerNormArgs *args, int64_t row, int64_t c)
{
    int64_t modulation = row / args->tokens * args->sample_stride;
    return dsvi_load(args->act, args->dy, row * args->channels + c) *
           (args->one_plus + dsvi_load(args->acc, args->scale, modulation + c));
}

/* Adds the gradients of scale and shift, summed over `rows` processed rows starting at number `first`. All
 * these rows share the scale and shift at offset `modulation`. */
static void layer_norm_modulation_grad(const DsviLayerNormArgs *args, int64_t first, int64_t rows,
                                       int64_t modulation)
{
    for (int64_t c = 0; c < args->channels; c++) {
        double dscale = dsvi_load(args->acc, args->dscale, modulation + c);
        double dshift = dsvi_load(args->acc, args->dshift, modulation + c);
        for (int64_t i = first; i < first + rows; i++) {
            int64_t row = dsvi_listed_row(&args->only, args->tokens, i);
            double dy = dsvi_load(args->act, args->dy, row * args->channels + c);
            dscale += dy * layer_norm_z(args, row, c);
            dshift += dy;
        }
        dsvi_store(args->acc, args->dscale, modulation + c, dscale);
        dsvi_store(args->acc, args->dshift, modulation + c, dshift);
    }
}

DsvStatus dsvi_layer_norm_bwd_ref(DsviStream *stream, const DsviLayerNormArgs *args)
{
    int64_t channels = args->channels, listed = dsvi_listed_tokens(&args->only, args->tokens);
    for (int64_t i = 0; i < args->batch * listed; i++) {
        int64_t row = dsvi_listed_row(&args->only, args->tokens, i);
        double mean_g = 0, mean_gz = 0, rstd = dsvi_load(args->acc, args->rstd, row);
        for (int64_t c = 0; c < channels; c++) {
            double g = layer_norm_dz(args, row, c);
            mean_g += g;
            mean_gz += g * layer_norm_z(args, row, c);
        }
        mean_g /= (double)channels;
        mean_gz /= (double)channels;
        for (int64_t c = 0; c < channels; c++) {
            double g = layer_norm_dz(args, row, c), z = layer_norm_z(args, row, c);
            double dx = dsvi_load(args->acc, args->dx, row * channels + c);
            dsvi_store(args->acc, args->dx, row * channels + c, dx + rstd * (g - mean_g - z * mean_gz));
        }
    }
    if (args->sample_stride == 0)
        layer_norm_modulation_grad(args, 0, args->batch * listed, 0);
    else
        for (int64_t b = 0; b < args->batch; b++)
            layer_norm_modulation_grad(args, b * listed, listed, b * args->sample_stride);
    return args->then ? dsvi_gate_residual_bwd_ref(stream, args->then) : DSV_OK;
}

/* Rotates the pair (a, b), channels c and c + 1 of a token, by the angle of the RoPE tables. With direction
 * -1 it rotates back. */
static void rotate(const DsviRmsNormRopeArgs *args, int64_t token, int64_t c, double direction, double *a,
                   double *b)
{
    if (!args->cos)
        return;
    int64_t at = token * (args->head_dim / 2) + c % args->head_dim / 2;
    double cosine = dsvi_load(args->acc, args->cos, at);
    double sine = direction * dsvi_load(args->acc, args->sin, at);
    double rotated = *a * cosine - *b * sine;
    *b = *a * sine + *b * cosine;
    *a = rotated;
}

/* Returns u = x * rstd * weight, the RMS norm before the rotation, of channel c of the row whose first
 * element is `start`. */
static double rms_norm_u(const DsviRmsNormRopeArgs *args, int64_t start, int64_t c, double rstd)
{
    return dsvi_load(args->act, args->x, start + c) * rstd * dsvi_load(args->acc, args->weight, c);
}

DsvStatus dsvi_rms_norm_rope_fwd_ref(DsviStream *stream, const DsviRmsNormRopeArgs *args)
{
    int64_t channels = args->heads * args->head_dim;
    (void)stream;
    for (int64_t row = 0; row < args->batch * args->tokens; row++) {
        int64_t start = row * channels;
        double square = 0;
        for (int64_t c = 0; c < channels; c++) {
            double x = dsvi_load(args->act, args->x, start + c);
            square += x * x;
        }
        double rstd = 1 / sqrt(square / (double)channels + args->eps);
        for (int64_t c = 0; c < channels; c += 2) {
            bool pair = c + 1 < channels;
            double a = rms_norm_u(args, start, c, rstd), b = pair ? rms_norm_u(args, start, c + 1, rstd) : 0;
            rotate(args, row % args->tokens, c, 1, &a, &b);
            dsvi_store(args->act, args->y, start + c, a);
            if (pair)
                dsvi_store(args->act, args->y, start + c + 1, b);
        }
        dsvi_store(args->acc, args->rstd, row, rstd);
    }
    return DSV_OK;
}

/* Computes the gradient of the loss with respect to u, the RMS norm before the rotation, for channels c and c
 * + 1: dy rotated back. du[1] is 0 if channel c + 1 does not exist. */
static void rms_norm_du(const DsviRmsNormRopeArgs *args, int64_t row, int64_t c, double du[2])
{
    int64_t channels = args->heads * args->head_dim, at = row * channels + c;
    du[0] = dsvi_load(args->act, args->dy, at);
    du[1] = c + 1 < channels ? dsvi_load(args->act, args->dy, at + 1) : 0;
    rotate(args, row % args->tokens, c, -1, &du[0], &du[1]);
}

static void rms_norm_dweight(const DsviRmsNormRopeArgs *args)
{
    int64_t channels = args->heads * args->head_dim;
    for (int64_t c = 0; c < channels; c++) {
        double sum = dsvi_load(args->acc, args->dweight, c);
        for (int64_t row = 0; row < args->batch * args->tokens; row++) {
            double du[2];
            rms_norm_du(args, row, c - c % 2, du);
            sum += du[c % 2] * dsvi_load(args->act, args->x, row * channels + c) *
                   dsvi_load(args->acc, args->rstd, row);
        }
        dsvi_store(args->acc, args->dweight, c, sum);
    }
}

DsvStatus dsvi_rms_norm_rope_bwd_ref(DsviStream *stream, const DsviRmsNormRopeArgs *args)
{
    int64_t channels = args->heads * args->head_dim;
    rms_norm_dweight(args); /* must run before dx is written, because dx may overwrite dy */
    for (int64_t row = 0; row < args->batch * args->tokens; row++) {
        double mean_gz = 0, rstd = dsvi_load(args->acc, args->rstd, row), du[2];
        for (int64_t c = 0; c < channels; c++) {
            if (c % 2 == 0)
                rms_norm_du(args, row, c, du);
            mean_gz += du[c % 2] * dsvi_load(args->acc, args->weight, c) *
                       dsvi_load(args->act, args->x, row * channels + c) * rstd;
        }
        mean_gz /= (double)channels;
        for (int64_t c = 0; c < channels; c++) {
            if (c % 2 == 0)
                rms_norm_du(args, row, c, du);
            double z = dsvi_load(args->act, args->x, row * channels + c) * rstd;
            double g = du[c % 2] * dsvi_load(args->acc, args->weight, c);
            dsvi_store(args->act, args->dx, row * channels + c, rstd * (g - z * mean_gz));
        }
    }
    DsviColSumArgs sum = {.m = args->batch * args->tokens,
                          .n = channels,
                          .x_dtype = args->act,
                          .x = args->dx,
                          .ldx = channels,
                          .y_dtype = args->acc,
                          .y = args->dx_sum};
    return args->dx_sum ? dsvi_col_sum_ref(stream, &sum) : DSV_OK;
}
