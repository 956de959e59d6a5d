/* Shared by the per-level sources (simd.h) of row-wise and elementwise ops: access to F32 and BF16 elements
 * as floats, and how work is divided.
 *
 * The loops are plain C under `#pragma omp simd`. The pragma asserts that iterations are independent (buffers
 * may be identical, but must not overlap otherwise) and allows partial sums per lane. The order of lanes is
 * fixed in the binary, so results depend neither on the number of threads nor on addresses. */
#ifndef DSVI_SIMD_ROWS_H
#define DSVI_SIMD_ROWS_H

#include "base/threads.h"
#include "cpu/simd.h"
#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Declares a function that is inlined with constant arguments, such as a dtype, so that a version is compiled
 * for each constant. */
#define DSVI_SPECIALISED static inline __attribute__((always_inline))

enum {
    DSVI_PIECE = 16384, /* elements of a piece of work: some microseconds; a multiple of the lanes of all
                         * levels */
    DSVI_COLUMNS = 128, /* columns of a piece of work that sums over rows */
    DSVI_ROWS = 64      /* rows summed before their sum is added to the total, because rounding errors grow
                         * with the length of a chain of additions */
};

DSVI_SPECIALISED float dsvi_get(DsviDtype dtype, const void *row, int64_t i)
{
    return dtype == DSVI_BF16 ? dsvi_bf16_to_f32(((const uint16_t *)row)[i]) : ((const float *)row)[i];
}

DSVI_SPECIALISED void dsvi_put(DsviDtype dtype, void *row, int64_t i, float value)
{
    if (dtype == DSVI_BF16)
        ((uint16_t *)row)[i] = dsvi_f32_to_bf16(value);
    else
        ((float *)row)[i] = value;
}

/* Address of element i. */
DSVI_SPECIALISED void *dsvi_at(DsviDtype dtype, const void *array, int64_t i)
{
    return (unsigned char *)array + i * (dtype == DSVI_BF16 ? 2 : 4);
}

/* Returns how many rows of `row` elements each form one piece of work. */
static inline int64_t dsvi_rows_per_piece(int64_t row)
{
    return row >= DSVI_PIECE ? 1 : DSVI_PIECE / (row > 0 ? row : 1);
}

static inline int64_t dsvi_pieces(int64_t n, int64_t piece)
{
    return (n + piece - 1) / piece;
}

static inline int64_t dsvi_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline DsvStatus dsvi_simd_check(const char *op, DsviDtype act, DsviDtype acc)
{
    if ((act == DSVI_F32 || act == DSVI_BF16) && acc == DSVI_F32)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_UNSUPPORTED,
                     "%s: variant " DSVI_SIMD_NAME " takes F32 and BF16 with F32, not %s with %s", op,
                     dsvi_dtype_name(act), dsvi_dtype_name(acc));
}

/* These ops are also called by other SIMD sources, whose own ops end with a column sum or a gated
 * residual. */
dsvi_col_sum_fn DSVI_SIMD(col_sum);
dsvi_gate_residual_fn DSVI_SIMD(gate_residual_bwd);

#ifdef __cplusplus
}
#endif
#endif
