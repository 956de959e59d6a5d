/* Tile products of bf16 pairs by the matrix unit of Intel processors (AMX): 16 x 16 results, 16 words of k at
 * a time. Empty for sources that are not compiled for AMX. */
#ifndef DSVI_TILE_AMX_H
#define DSVI_TILE_AMX_H

#include "cpu/tile_words.h"

#if defined(__AMX_BF16__)
#ifdef __cplusplus
extern "C" {
#endif

enum { DSVI_AMX_SIDE = 16, DSVI_AMX_K_MOST = 64, DSVI_AMX_M_MOST = DSV_HEAD_DIM_MAX };

/* The shape of all eight tile registers: 16 rows of 64 bytes. A thread says so before it uses them; libraries
 * it calls in between may say something else. */
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

/* Strides in bytes, as the instructions want them. */
typedef struct DsvAmxOperands {
    const float *a, *b;
    float *c;
    int64_t k;
    size_t a_row, b_row, c_row;
    bool add;
} DsvAmxOperands;

/* Up to 32 x 32 of C: tiles 0 1 over 2 3, A in 4 and 5, B in 6 and 7. */
static inline __attribute__((always_inline)) void dsvi_amx_block(const DsvAmxOperands *o, bool two_rows,
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

/* C = A B, or added to C, for whole tiles; A row-major. Strides in words. */
static inline void dsvi_amx_product(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda,
                                    const float *b, int64_t ldb, float *c, int64_t ldc, bool add)
{
    enum { SIDE = DSVI_AMX_SIDE };
    for (int64_t j = 0; j < n; j += 2 * SIDE) {
        for (int64_t i = 0; i < m; i += 2 * SIDE) {
            DsvAmxOperands o = {.a = a + i * lda, .b = b + j, .c = c + i * ldc + j, .k = k,
                                .a_row = (size_t)lda * sizeof *a, .b_row = (size_t)ldb * sizeof *b,
                                .c_row = (size_t)ldc * sizeof *c, .add = add};
            bool two_rows = m - i > SIDE, two_columns = n - j > SIDE;
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
