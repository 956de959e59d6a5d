/* Scores of sampled queries against all keys, for ops that need complete rows of scores (profile,
 * predictor_loss).
 *
 * Sixteen sampled queries are processed together, one per vector lane. A block of scores is (keys, 16), so
 * that a reduction over the keys of a query stays within one lane. Keys are loaded in tiles of packed
 * rows. */
#ifndef DSVI_SAMPLED_ROWS_H
#define DSVI_SAMPLED_ROWS_H

#include "base/threads.h"
#include "cpu/attention_tile.h"
#include "cpu/tile_product.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSVI_SAMPLES = 16 };

/* Rows of one head of q or k, from which samples are loaded. */
typedef struct DsviSampledHead {
    DsviDtype dtype;
    const DsviHeads *rows; /* (B, S, N, dim) dtype */
    int64_t b, h;
    int64_t dim;   /* elements of a row */
    int64_t width; /* dim rounded up to whole vectors */
} DsviSampledHead;

/* Loads queries sample[0 .. count) and stores them transposed in `transposed` (width, 16); lanes after
 * `count` are 0. `rows` is scratch of (16, width). */
static inline void dsvi_samples_load(const DsviSampledHead *q, const int32_t *sample, int64_t count,
                                     float *rows, float *transposed)
{
    for (int64_t i = 0; i < count; i++)
        dsvi_row_load(q->dtype, q->rows->data, dsvi_heads_at(q->rows, q->b, sample[i], q->h), q->dim,
                      q->width, rows + i * q->width);
    dsvi_rows_transpose(rows, q->width, q->width, count, transposed, DSVI_SAMPLES);
}

/* Arguments of dsvi_samples_score. `keys` and `scores` need room for `count` rows, rounded up to a multiple
 * of DSVI_TILE_ROWS. */
typedef struct DsviSampleScores {
    int64_t first, count;    /* range of keys */
    const float *transposed; /* (width, 16) queries from dsvi_samples_load */
    double factor;           /* multiplies every score */
    float *keys;             /* (count, width) scratch: the rows of the keys */
    float *scores;           /* (count, 16) overwritten */
} DsviSampleScores;

/* Computes scores[j, i] = factor k_j . q_i, where j = 0 is key `first`. */
static inline void dsvi_samples_score(const DsviSampledHead *k, const DsviSampleScores *args)
{
    int64_t count = args->count, width = k->width;
    DsviTileProduct product = {.m = dsvi_round_up(count, DSVI_TILE_ROWS),
                               .n = DSVI_SAMPLES,
                               .k = k->dim,
                               .a = args->keys,
                               .a_row = width,
                               .a_col = 1,
                               .b = args->transposed,
                               .ldb = DSVI_SAMPLES,
                               .c = args->scores,
                               .ldc = DSVI_SAMPLES,
                               .factor = (float)args->factor,
                               .add = false,
                               .pairs = false,
                               .piece = 0};
    for (int64_t j = 0; j < count; j++)
        dsvi_row_load(k->dtype, k->rows->data, dsvi_heads_at(k->rows, k->b, args->first + j, k->h), k->dim,
                      width, args->keys + j * width);
    memset(args->keys + count * width, 0, (size_t)((product.m - count) * width) * sizeof *args->keys);
    dsvi_tile_product(&product);
}

/* Number of scratch buffers for a parallel loop over `pieces`: one per piece, or one per worker if there are
 * more pieces than workers. */
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
