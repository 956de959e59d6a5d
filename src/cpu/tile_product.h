/* Products of small matrices that fit in cache, the building block of attention.
 *
 *     C = factor A B   or   C += A B        A (m, k), B (k, n), C (m, n) F32
 *
 * A and B consist of 32-bit words (tile_words.h): a word is one F32 or, with `pairs`, two BF16 that are
 * consecutive along k; k counts words. Word (i, p) of A is a[i * a_row + p * a_col], so A may be stored
 * transposed. B and C are row-major with distances ldb and ldc between rows. m is a multiple of
 * DSVI_TILE_ROWS, n of DSVI_LANES, k is any. With pairs, m is a multiple of 16 (AMX), k of DSVI_WORDS_UNIT,
 * and a transposed A has at most 64 words of k and DSVI_HEAD_DIM_MAX rows.
 *
 * A block of DSVI_TILE_ROWS x (2 vectors) of C stays in registers during the loop over k: 16 accumulators of
 * 32 registers with AVX-512, 8 of 16 with AVX2, enough to hide the latency of two fused multiply-adds per
 * cycle. Words of A are broadcast from memory, so A needs no packing. */
#ifndef DSVI_TILE_PRODUCT_H
#define DSVI_TILE_PRODUCT_H

#include "cpu/tile_amx.h"
#include "cpu/tile_words.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviTileProduct {
    int64_t m, n, k;
    const float *a;
    int64_t a_row, a_col;
    const float *b;
    int64_t ldb;
    float *c;
    int64_t ldc;
    float factor; /* multiplies the sum, with its own rounding; must be 1 if `add` */
    bool add;
    bool pairs;
    int64_t piece; /* 0, or C is the sum of sums over so many words of k, which rounds less than one long sum;
                    * then neither `add` nor `pairs` */
} DsviTileProduct;

/* The functions below compute a block of DSVI_TILE_ROWS rows and `vectors` vectors of C. They are inlined
 * with constant `vectors` and `pairs`. This one adds the products of words [from, to) of k to `sum`. */
static inline __attribute__((always_inline)) void dsvi_tile_sum(const DsviTileProduct *t, const float *a,
                                                                const float *b, int64_t from, int64_t to,
                                                                int vectors, bool pairs,
                                                                DsviVec sum[DSVI_TILE_ROWS][2])
{
    for (int64_t p = from; p < to; p++) {
        DsviVec row[2];
        for (int j = 0; j < vectors; j++)
            row[j] = dsvi_vec_load(b + p * t->ldb + j * DSVI_LANES);
        for (int i = 0; i < DSVI_TILE_ROWS; i++) {
            DsviVec word = dsvi_vec_all(a[i * t->a_row + p * t->a_col]);
            for (int j = 0; j < vectors; j++)
                sum[i][j] = dsvi_words_add(pairs, sum[i][j], word, row[j]);
        }
    }
}

static inline __attribute__((always_inline)) void dsvi_tile_block(const DsviTileProduct *t, const float *a,
                                                                  const float *b, float *c, int vectors,
                                                                  bool pairs)
{
    DsviVec sum[DSVI_TILE_ROWS][2];
    for (int i = 0; i < DSVI_TILE_ROWS; i++)
        for (int j = 0; j < vectors; j++)
            sum[i][j] = t->add ? dsvi_vec_load(c + i * t->ldc + j * DSVI_LANES) : dsvi_vec_all(0);
    dsvi_tile_sum(t, a, b, 0, t->k, vectors, pairs, sum);
    for (int i = 0; i < DSVI_TILE_ROWS; i++)
        for (int j = 0; j < vectors; j++)
            dsvi_vec_store(c + i * t->ldc + j * DSVI_LANES, t->add ? sum[i][j] : sum[i][j] * t->factor);
}

/* The same with `piece`. */
static inline __attribute__((always_inline)) void dsvi_tile_pieces(const DsviTileProduct *t, const float *a,
                                                                   const float *b, float *c, int vectors)
{
    for (int64_t from = 0, to; from < t->k; from = to) {
        DsviVec sum[DSVI_TILE_ROWS][2] = {0};
        to = t->k - from <= t->piece ? t->k : from + t->piece;
        dsvi_tile_sum(t, a, b, from, to, vectors, false, sum);
        for (int i = 0; i < DSVI_TILE_ROWS; i++)
            for (int j = 0; j < vectors; j++) {
                float *at = c + i * t->ldc + j * DSVI_LANES;
                DsviVec total = from > 0 ? dsvi_vec_load(at) + sum[i][j] : sum[i][j];
                dsvi_vec_store(at, to == t->k ? total * t->factor : total);
            }
    }
}

/* Computes all blocks of the columns [j, j + vectors * DSVI_LANES). */
static inline __attribute__((always_inline)) void dsvi_tile_columns(const DsviTileProduct *t, int64_t j,
                                                                    int vectors, bool pairs, bool pieces)
{
    for (int64_t i = 0; i < t->m; i += DSVI_TILE_ROWS) {
        if (pieces)
            dsvi_tile_pieces(t, t->a + i * t->a_row, t->b + j, t->c + i * t->ldc + j, vectors);
        else
            dsvi_tile_block(t, t->a + i * t->a_row, t->b + j, t->c + i * t->ldc + j, vectors, pairs);
    }
}

static inline __attribute__((always_inline)) void dsvi_tile_blocks(const DsviTileProduct *t, bool pairs,
                                                                   bool pieces)
{
    int64_t j = 0;
    for (; j + 2 * DSVI_LANES <= t->n; j += 2 * DSVI_LANES)
        dsvi_tile_columns(t, j, 2, pairs, pieces);
    for (; j < t->n; j += DSVI_LANES)
        dsvi_tile_columns(t, j, 1, pairs, pieces);
}

#if defined(__AMX_BF16__)
/* Computes the product with the AMX matrix unit, which requires a row-major A; a transposed A is copied
 * to `row_major` first. */
static inline void dsvi_tile_product_amx(const DsviTileProduct *t)
{
    _Alignas(64) float row_major[DSVI_AMX_M_MAX * DSVI_AMX_K_MAX];
    const float *a = t->a;
    int64_t lda = t->a_row;
    if (t->a_col != 1) {
        dsvi_rows_transpose((float *)a, t->a_col, t->m, t->k, row_major, t->k);
        a = row_major;
        lda = t->k;
    }
    dsvi_amx_product(&(DsviAmxProduct){.m = t->m,
                                       .n = t->n,
                                       .k = t->k,
                                       .a = a,
                                       .b = t->b,
                                       .c = t->c,
                                       .lda = lda,
                                       .ldb = t->ldb,
                                       .ldc = t->ldc,
                                       .add = t->add});
    if (t->add || t->factor == 1)
        return;
    for (int64_t i = 0; i < t->m; i++)
        for (int64_t j = 0; j < t->n; j += DSVI_LANES)
            dsvi_vec_store(t->c + i * t->ldc + j, dsvi_vec_load(t->c + i * t->ldc + j) * t->factor);
}
#endif

static inline void dsvi_tile_product(const DsviTileProduct *t)
{
#if defined(__AMX_BF16__)
    if (t->pairs) {
        dsvi_tile_product_amx(t);
        return;
    }
#endif
    if (DSVI_HAS_PAIRS && t->pairs)
        dsvi_tile_blocks(t, true, false);
    else if (t->piece)
        dsvi_tile_blocks(t, false, true);
    else
        dsvi_tile_blocks(t, false, false);
}

/* A thread calls dsvi_tile_products_begin before and dsvi_tile_products_end after the products of a piece of
 * work. They set up and release the AMX tiles at the AMX level, and do nothing at other levels. */
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
