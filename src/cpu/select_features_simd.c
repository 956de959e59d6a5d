/* SIMD variants of select_covariance and select_features (ops/select.h): the inputs of selectors. No two
 * pieces of work write to the same output; scratch is small enough for the stack. */
#include "base/threads.h"
#include "cpu/attention_tile.h"
#include "cpu/simd_fill.h"
#include "cpu/tile_product.h"

enum {
    BLOCK_ROWS = 32,    /* rows of x summed in one product */
    BLOCK_MOMENTS = 32, /* rows of a second-moment matrix (D, D) that one piece of work computes */
    BLOCK_CHUNKS = 16   /* chunks of rows whose means are projected in one product */
};

static DsvStatus check_request(DsviDtype act, int64_t dim, int64_t features)
{
    if (act != DSVI_F32 && act != DSVI_BF16)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "select: this variant takes F32 and BF16, not %s",
                         dsvi_dtype_name(act));
    if (dim > DSVI_HEAD_DIM_MAX || features > DSVI_HEAD_DIM_MAX)
        return DSVI_FAIL(DSV_E_SHAPE, "select: rows of %lld projected to %lld, expected at most %d",
                         (long long)dim, (long long)features, DSVI_HEAD_DIM_MAX);
    return DSV_OK;
}

static void add_floats(float *restrict sum, const float *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        sum[i] += x[i];
}

/* Adds the sampled rows x of head h (every stride-th token) to the moments that select_covariance sums: x
 * x^T to rows [first, first + BLOCK_MOMENTS) of args->second and, if first == 0, x to args->first. */
static void moments(const DsviSelectCovarianceArgs *args, int64_t h, int64_t first)
{
    float x[BLOCK_ROWS * DSVI_HEAD_DIM_MAX], sum[DSVI_HEAD_DIM_MAX] = {0};
    float products[BLOCK_MOMENTS * DSVI_HEAD_DIM_MAX] = {0};
    int64_t dim = args->head_dim, width = dsvi_round_up(dim, DSVI_LANES);
    int64_t count = dim - first < BLOCK_MOMENTS ? dim - first : (int64_t)BLOCK_MOMENTS;
    int64_t per_sample = args->tokens > args->offset
                             ? (args->tokens - args->offset + args->stride - 1) / args->stride
                             : 0;
    DsviTileProduct add = {.m = dsvi_round_up(count, DSVI_TILE_ROWS),
                           .n = width,
                           .a = x + first,
                           .a_row = 1,
                           .a_col = width,
                           .b = x,
                           .ldb = width,
                           .c = products,
                           .ldc = width,
                           .factor = 1,
                           .add = true};
    for (int64_t row = 0; row < args->batch * per_sample;) {
        for (add.k = 0; add.k < BLOCK_ROWS && row < args->batch * per_sample; add.k++, row++) {
            int64_t s = args->offset + row % per_sample * args->stride;
            dsvi_row_load(args->act, args->x.data, dsvi_heads_at(&args->x, row / per_sample, s, h), dim,
                          width, x + add.k * width);
            add_floats(sum, x + add.k * width, dim);
        }
        dsvi_tile_product(&add);
    }
    for (int64_t i = 0; i < count; i++)
        add_floats(args->second + (h * dim + first + i) * dim, products + i * width, dim);
    if (first == 0)
        add_floats(args->first + h * dim, sum, dim);
}

static void moments_range(void *context, int64_t begin, int64_t end, int worker)
{
    const DsviSelectCovarianceArgs *args = context;
    int64_t blocks = (args->head_dim + BLOCK_MOMENTS - 1) / BLOCK_MOMENTS;
    (void)worker;
    for (int64_t n = begin; n < end; n++)
        moments(args, n / blocks, n % blocks * BLOCK_MOMENTS);
}

static DsvStatus cpu_select_covariance(DsviStream *stream, const DsviSelectCovarianceArgs *args)
{
    (void)stream;
    DSVI_TRY(check_request(args->act, args->head_dim, args->head_dim));
    int64_t blocks = (args->head_dim + BLOCK_MOMENTS - 1) / BLOCK_MOMENTS;
    dsvi_parallel_for(args->heads * blocks, 1, moments_range, (void *)args);
    return DSV_OK;
}

/* Computes the mean of the rows of chunk c, padded with zeros to `width`. */
static void select_features_chunk_mean(const DsviSelectFeaturesArgs *args, int64_t b, int64_t h, int64_t c,
                                       int64_t width, float *mean)
{
    float x[DSVI_HEAD_DIM_MAX];
    int64_t begin = c * args->chunk;
    int64_t end = begin + args->chunk < args->tokens ? begin + args->chunk : args->tokens;
    dsvi_row_load(args->act, args->x.data, dsvi_heads_at(&args->x, b, begin, h), args->dim, width, mean);
    if (end == begin + 1)
        return;
    for (int64_t s = begin + 1; s < end; s++) {
        dsvi_row_load(args->act, args->x.data, dsvi_heads_at(&args->x, b, s, h), args->dim, args->dim, x);
        add_floats(mean, x, args->dim);
    }
    for (int64_t d = 0; d < args->dim; d++)
        mean[d] /= (float)(end - begin);
}

/* Projects the means of `count` chunks to features: y = means P, where P is the projection of head h.
 * Computed by a tile product if the features are a multiple of the vector length, else row by row. */
static void select_features_project(const DsviSelectFeaturesArgs *args, int64_t h, const float *means,
                                    int64_t width, int64_t count, float *y)
{
    int64_t features = args->features;
    const float *projection = args->projection + h * args->dim * features;
    if (features % DSVI_LANES == 0) {
        dsvi_tile_product(&(DsviTileProduct){.m = dsvi_round_up(count, DSVI_TILE_ROWS),
                                             .n = features,
                                             .k = args->dim,
                                             .a = means,
                                             .a_row = width,
                                             .a_col = 1,
                                             .b = projection,
                                             .ldb = features,
                                             .c = y,
                                             .ldc = features,
                                             .factor = 1});
        return;
    }
    memset(y, 0, (size_t)(count * features) * sizeof *y);
    for (int64_t c = 0; c < count; c++)
        for (int64_t d = 0; d < args->dim; d++)
            for (int64_t r = 0; r < features; r++)
                y[c * features + r] += means[c * width + d] * projection[d * features + r];
}

static void features_range(void *context, int64_t begin, int64_t end, int worker)
{
    const DsviSelectFeaturesArgs *args = context;
    float means[BLOCK_CHUNKS * DSVI_HEAD_DIM_MAX], y[BLOCK_CHUNKS * DSVI_HEAD_DIM_MAX];
    int64_t width = dsvi_round_up(args->dim, DSVI_LANES);
    int64_t chunks = (args->tokens + args->chunk - 1) / args->chunk;
    int64_t blocks = (chunks + BLOCK_CHUNKS - 1) / BLOCK_CHUNKS;
    (void)worker;
    memset(means, 0, sizeof means); /* a tile product may read rows after the last mean */
    for (int64_t n = begin; n < end; n++) {
        int64_t pair = n / blocks, first = n % blocks * BLOCK_CHUNKS;
        int64_t count = chunks - first < BLOCK_CHUNKS ? chunks - first : (int64_t)BLOCK_CHUNKS;
        float *out = args->y + (pair * chunks + first) * args->features;
        for (int64_t c = 0; c < count; c++)
            select_features_chunk_mean(args, pair / args->heads, pair % args->heads, first + c, width,
                                       means + c * width);
        if (args->projection)
            select_features_project(args, pair % args->heads, means, width, count, y);
        for (int64_t c = 0; c < count; c++)
            memcpy(out + c * args->features, args->projection ? y + c * args->features : means + c * width,
                   (size_t)args->features * sizeof *out);
    }
}

static DsvStatus cpu_select_features(DsviStream *stream, const DsviSelectFeaturesArgs *args)
{
    (void)stream;
    DSVI_TRY(check_request(args->act, args->dim, args->features));
    int64_t chunks = (args->tokens + args->chunk - 1) / args->chunk;
    int64_t blocks = (chunks + BLOCK_CHUNKS - 1) / BLOCK_CHUNKS;
    dsvi_parallel_for(args->batch * args->heads * blocks, 1, features_range, (void *)args);
    return DSV_OK;
}

void DSVI_SIMD(fill_select_features)(DsviOps *ops)
{
    DSVI_OPS_SET(ops, select_covariance, cpu_select_covariance, DSVI_SIMD_NAME);
    DSVI_OPS_SET(ops, select_features, cpu_select_features, DSVI_SIMD_NAME);
}
