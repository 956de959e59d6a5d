/* Scores of sampled queries against all keys, for the ops that look at whole rows (profile, predictor_loss).
 *
 * Sixteen sampled queries stand side by side in lanes; a block of scores is (keys, 16), keys down, so that
 * what is done per query runs down a lane. Keys pass in tiles of packed rows. */
#ifndef DSVI_SAMPLED_ROWS_H
#define DSVI_SAMPLED_ROWS_H

#include "base/threads.h"
#include "cpu/attention_tile.h"
#include "cpu/tile_product.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSVI_SAMPLES = 16 };

/* Queries sample[0 .. count) of (b, h), transposed to (width, 16); zeros beyond. `rows` has room for
 * (16, width). */
static inline void dsvi_samples_load(DsvDtype dtype, const DsvHeads *q, int64_t b, int64_t h,
                                     const int32_t *sample, int64_t count, int64_t dim, int64_t width,
                                     float *rows, float *transposed)
{
    for (int64_t i = 0; i < count; i++)
        dsvi_row_load(dtype, q->data, dsvi_heads_at(q, b, sample[i], h), dim, width, rows + i * width);
    dsvi_rows_transpose(rows, width, width, count, transposed, DSVI_SAMPLES);
}

/* scores[j, i] = factor k_j . q_i for the `count` keys from `first` on, whose rows go to `keys` (count,
 * width). Both have room for whole DSVI_TILE_ROWS. */
static inline void dsvi_samples_score(DsvDtype dtype, const DsvHeads *k, int64_t b, int64_t h,
                                      int64_t first, int64_t count, int64_t dim, int64_t width,
                                      const float *transposed, double factor, float *keys, float *scores)
{
    DsvTileProduct product = {
        .m = dsvi_round_up(count, DSVI_TILE_ROWS), .n = DSVI_SAMPLES, .k = dim,
        .a = keys, .a_row = width, .a_col = 1, .b = transposed, .ldb = DSVI_SAMPLES,
        .c = scores, .ldc = DSVI_SAMPLES, .factor = (float)factor, .add = false, .pairs = false};
    for (int64_t j = 0; j < count; j++)
        dsvi_row_load(dtype, k->data, dsvi_heads_at(k, b, first + j, h), dim, width, keys + j * width);
    memset(keys + count * width, 0, (size_t)((product.m - count) * width) * sizeof *keys);
    dsvi_tile_product(&product);
}

/* Scratch is kept per piece of work where pieces are fewer than workers. */
static inline int64_t dsvi_scratch_count(int64_t pieces)
{
    return pieces < dsvi_threads_count() ? pieces : (int64_t)dsvi_threads_count();
}

static inline int64_t dsvi_scratch_number(int64_t pieces, int64_t piece, int worker)
{
    return pieces < dsvi_threads_count() ? piece : (int64_t)worker;
}

#ifdef __cplusplus
}
#endif
#endif
