/* Tile products of BF16 pairs by the matrix unit of Intel processors (AMX): 16 x 16 results, 16 words of k at
 * a time. Empty in sources that are not compiled for AMX. */
#ifndef DSVI_TILE_AMX_H
#define DSVI_TILE_AMX_H

#include "cpu/tile_words.h"

#if defined(__AMX_BF16__)
#ifdef __cplusplus
extern "C" {
#endif

enum { DSVI_AMX_SIDE = 16, DSVI_AMX_K_MAX = 64, DSVI_AMX_M_MAX = DSVI_HEAD_DIM_MAX };

/* Configures all eight tile registers as 16 rows of 64 bytes. A thread calls this before it uses tiles, and
 * again after calls to libraries, which may change the configuration. */
static inline void dsvi_amx_begin(void)
{
    _Alignas(64) uint8_t config[64] = {1};
    for (int i = 0; i < 8; i++) {
        uint16_t row_bytes = 64;
        memcpy(config + 16 + 2 * i, &row_bytes, sizeof row_bytes);
        config[48 + i] = DSVI_AMX_SIDE;
    }
    _tile_loadconfig(config);
}

/* Operands of one block of a matrix product. a_row, b_row and c_row are strides in bytes, as the tile
 * instructions take them. */
typedef struct DsviAmxOperands {
    const float *a, *b;
    float *c;
    int64_t k;
    size_t a_row, b_row, c_row;
    bool add;
} DsviAmxOperands;

/* Computes up to 32 x 32 elements of C, in tiles 0 1 (upper half) and 2 3 (lower half). Tiles 4 and 5 hold A,
 * 6 and 7 hold B. */
static inline __attribute__((always_inline)) void dsvi_amx_block(const DsviAmxOperands *o, bool two_rows,
                                                                 bool two_columns)
{
    enum { SIDE = DSVI_AMX_SIDE };
    const float *a = o->a, *b = o->b;
    const float *lower_a = a + SIDE * (o->a_row / sizeof *a);
    float *c = o->c, *lower_c = c + SIDE * (o->c_row / sizeof *c);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    if (o->add) {
        _tile_loadd(0, c, o->c_row);
        if (two_columns)
            _tile_loadd(1, c + SIDE, o->c_row);
        if (two_rows)
            _tile_loadd(2, lower_c, o->c_row);
        if (two_rows && two_columns)
            _tile_loadd(3, lower_c + SIDE, o->c_row);
    }
    for (int64_t p = 0; p < o->k; p += SIDE, a += SIDE, lower_a += SIDE, b += SIDE * (o->b_row / sizeof *b)) {
        _tile_loadd(4, a, o->a_row);
        _tile_loadd(6, b, o->b_row);
        _tile_dpbf16ps(0, 4, 6);
        if (two_columns) {
            _tile_loadd(7, b + SIDE, o->b_row);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (two_rows) {
            _tile_loadd(5, lower_a, o->a_row);
            _tile_dpbf16ps(2, 5, 6);
        }
        if (two_rows && two_columns)
            _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, o->c_row);
    if (two_columns)
        _tile_stored(1, c + SIDE, o->c_row);
    if (two_rows)
        _tile_stored(2, lower_c, o->c_row);
    if (two_rows && two_columns)
        _tile_stored(3, lower_c + SIDE, o->c_row);
}

/* A product of matrices that consist of complete tiles, all row-major: A (m, k), B (k, n), C (m, n). */
typedef struct DsviAmxProduct {
    int64_t m, n, k; /* k in words */
    const float *a, *b;
    float *c;
    int64_t lda, ldb, ldc; /* words from one row to the next */
    bool add;              /* C += A B instead of C = A B */
} DsviAmxProduct;

static inline void dsvi_amx_product(const DsviAmxProduct *t)
{
    enum { SIDE = DSVI_AMX_SIDE };
    for (int64_t j = 0; j < t->n; j += 2 * SIDE) {
        for (int64_t i = 0; i < t->m; i += 2 * SIDE) {
            DsviAmxOperands o = {.a = t->a + i * t->lda,
                                 .b = t->b + j,
                                 .c = t->c + i * t->ldc + j,
                                 .k = t->k,
                                 .a_row = (size_t)t->lda * sizeof *t->a,
                                 .b_row = (size_t)t->ldb * sizeof *t->b,
                                 .c_row = (size_t)t->ldc * sizeof *t->c,
                                 .add = t->add};
            bool two_rows = t->m - i > SIDE, two_columns = t->n - j > SIDE;
            if (two_rows && two_columns)
                dsvi_amx_block(&o, true, true);
            else
                dsvi_amx_block(&o, two_rows, two_columns);
        }
    }
}

#ifdef __cplusplus
}
#endif
#endif
#endif
