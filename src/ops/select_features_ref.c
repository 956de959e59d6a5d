/* Reference implementation of the inputs of selectors: second moments, and projected means of rows. See
 * select.h. */
#include "ops/select.h"

/* Returns the sum of x_i x_j over every stride-th token of head h, x being the token's row of q or k; if j <
 * 0, the sum of x_i. */
static double covariance_sum(const DsviSelectCovarianceArgs *args, int64_t h, int64_t i, int64_t j)
{
    double sum = 0;
    for (int64_t b = 0; b < args->batch; b++) {
        for (int64_t s = args->offset; s < args->tokens; s += args->stride) {
            int64_t at = dsvi_heads_at(&args->x, b, s, h);
            double other = j < 0 ? 1 : dsvi_load(args->act, args->x.data, at + j);
            sum += dsvi_load(args->act, args->x.data, at + i) * other;
        }
    }
    return sum;
}

DsvStatus dsvi_select_covariance_ref(DsviStream *stream, const DsviSelectCovarianceArgs *args)
{
    (void)stream;
    int64_t dim = args->head_dim;
    for (int64_t h = 0; h < args->heads; h++) {
        for (int64_t i = 0; i < dim; i++) {
            float *first = args->first + h * dim + i;
            float *second = args->second + (h * dim + i) * dim;
            *first = (float)(*first + covariance_sum(args, h, i, -1));
            for (int64_t j = 0; j < dim; j++)
                second[j] = (float)(second[j] + covariance_sum(args, h, i, j));
        }
    }
    return DSV_OK;
}

/* Returns element d of the mean of `chunk` consecutive rows of x, those of chunk number c. */
static double ops_select_features_chunk_mean(const DsviSelectFeaturesArgs *args, int64_t b, int64_t h,
                                             int64_t c, int64_t d)
{
    int64_t begin = c * args->chunk;
    int64_t end = begin + args->chunk < args->tokens ? begin + args->chunk : args->tokens;
    double sum = 0;
    for (int64_t s = begin; s < end; s++)
        sum += dsvi_load(args->act, args->x.data, dsvi_heads_at(&args->x, b, s, h) + d);
    return sum / (double)(end - begin);
}

static void features_chunk(const DsviSelectFeaturesArgs *args, int64_t b, int64_t h, int64_t c, float *y)
{
    for (int64_t r = 0; r < args->features; r++) {
        double sum = 0;
        if (!args->projection) {
            y[r] = (float)ops_select_features_chunk_mean(args, b, h, c, r);
            continue;
        }
        for (int64_t d = 0; d < args->dim; d++)
            sum += ops_select_features_chunk_mean(args, b, h, c, d) *
                   args->projection[(h * args->dim + d) * args->features + r];
        y[r] = (float)sum;
    }
}

DsvStatus dsvi_select_features_ref(DsviStream *stream, const DsviSelectFeaturesArgs *args)
{
    (void)stream;
    int64_t chunks = (args->tokens + args->chunk - 1) / args->chunk;
    for (int64_t b = 0; b < args->batch; b++)
        for (int64_t h = 0; h < args->heads; h++)
            for (int64_t c = 0; c < chunks; c++)
                features_chunk(args, b, h, c,
                               args->y + ((b * args->heads + h) * chunks + c) * args->features);
    return DSV_OK;
}
