/* Products of small matrices that lie in cache: what attention is made of.
 *
 *     C = factor A B   or   C += A B        A (m, k), B (k, n), C (m, n) F32
 * A and B are made of 32-bit words (tile_words.h): a word is one F32, or with `pairs` two bf16 that are
 * consecutive along k; k counts words. Word (i, p) of A is a[i * a_row + p * a_col], so A may lie transposed.
 * B and C are row-major with rows ldb and ldc apart. m is a multiple of DSVI_TILE_ROWS, n of DSVI_LANES, k is
 * any; with pairs m is a multiple of 16 (AMX), k of DSVI_WORDS_UNIT, and a transposed A has at most 64
 * words of k and DSV_HEAD_DIM_MAX rows.
 *
 * A block of DSVI_TILE_ROWS x (2 vectors) of C stays in registers while k runs: 16 accumulators of 32
 * registers with AVX-512, 8 of 16 with AVX2, enough to hide the latency of two fused multiply-adds a
 * cycle. A's words are broadcast from memory, so that A needs no packing. */
#ifndef DSVI_TILE_PRODUCT_H
#define DSVI_TILE_PRODUCT_H

#include "cpu/tile_amx.h"
#include "cpu/tile_words.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvTileProduct {
    int64_t m, n, k;
    const float *a;
    int64_t a_row, a_col;
    const float *b;
    int64_t ldb;
    float *c;
    int64_t ldc;
    float factor; /* rounded after the sum; 1 where C is added to */
    bool add;
    bool pairs;
} DsvTileProduct;

/* One block of DSVI_TILE_ROWS rows and `vectors` vectors; inlined with constant `vectors` and `pairs`. */
static inline __attribute__((always_inline)) void dsvi_tile_block(const DsvTileProduct *t, const float *a,
                                                                  const float *b, float *c, int vectors,
                                                                  bool pairs)
{
    DsvVec sum[DSVI_TILE_ROWS][2];
    for (int i = 0; i < DSVI_TILE_ROWS; i++)
        for (int j = 0; j < vectors; j++)
            sum[i][j] = t->add ? dsvi_vec_load(c + i * t->ldc + j * DSVI_LANES) : dsvi_vec_all(0);
    for (int64_t p = 0; p < t->k; p++) {
        DsvVec row[2];
        for (int j = 0; j < vectors; j++)
            row[j] = dsvi_vec_load(b + p * t->ldb + j * DSVI_LANES);
        for (int i = 0; i < DSVI_TILE_ROWS; i++) {
            DsvVec word = dsvi_vec_all(a[i * t->a_row + p * t->a_col]);
            for (int j = 0; j < vectors; j++)
                sum[i][j] = dsvi_words_add(pairs, sum[i][j], word, row[j]);
        }
    }
    for (int i = 0; i < DSVI_TILE_ROWS; i++)
        for (int j = 0; j < vectors; j++)
            dsvi_vec_store(c + i * t->ldc + j * DSVI_LANES, t->add ? sum[i][j] : sum[i][j] * t->factor);
}

static inline __attribute__((always_inline)) void dsvi_tile_blocks(const DsvTileProduct *t, bool pairs)
{
    int64_t j = 0;
    for (; j + 2 * DSVI_LANES <= t->n; j += 2 * DSVI_LANES)
        for (int64_t i = 0; i < t->m; i += DSVI_TILE_ROWS)
            dsvi_tile_block(t, t->a + i * t->a_row, t->b + j, t->c + i * t->ldc + j, 2, pairs);
    for (; j < t->n; j += DSVI_LANES)
        for (int64_t i = 0; i < t->m; i += DSVI_TILE_ROWS)
            dsvi_tile_block(t, t->a + i * t->a_row, t->b + j, t->c + i * t->ldc + j, 1, pairs);
}

#if defined(__AMX_BF16__)
/* The matrix unit wants A row-major: a transposed one is turned first. */
static inline void dsvi_tile_product_amx(const DsvTileProduct *t)
{
    _Alignas(64) float turned[DSVI_AMX_M_MOST * DSVI_AMX_K_MOST];
    const float *a = t->a;
    int64_t lda = t->a_row;
    if (t->a_col != 1) {
        dsvi_rows_transpose((float *)a, t->a_col, t->m, t->k, turned, t->k);
        a = turned;
        lda = t->k;
    }
    dsvi_amx_product(t->m, t->n, t->k, a, lda, t->b, t->ldb, t->c, t->ldc, t->add);
    if (t->add || t->factor == 1)
        return;
    for (int64_t i = 0; i < t->m; i++)
        for (int64_t j = 0; j < t->n; j += DSVI_LANES)
            dsvi_vec_store(t->c + i * t->ldc + j, dsvi_vec_load(t->c + i * t->ldc + j) * t->factor);
}
#endif

static inline void dsvi_tile_product(const DsvTileProduct *t)
{
#if defined(__AMX_BF16__)
    if (t->pairs) {
        dsvi_tile_product_amx(t);
        return;
    }
#endif
    if (DSVI_HAS_PAIRS && t->pairs)
        dsvi_tile_blocks(t, true);
    else
        dsvi_tile_blocks(t, false);
}

/* Around products of pairs, once for each piece of work of a thread. */
static inline void dsvi_tile_products_begin(void)
{
#if defined(__AMX_BF16__)
    dsvi_amx_begin();
#endif
}

static inline void dsvi_tile_products_end(void)
{
#if defined(__AMX_BF16__)
    _tile_release();
#endif
}

#ifdef __cplusplus
}
#endif
#endif
