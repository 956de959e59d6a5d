/* What the per-level sources (simd.h) of row-wise and elementwise ops share: elements of F32 or BF16 as
 * floats, and how work is cut.
 *
 * Their loops are plain C under `#pragma omp simd`, which tells the compiler that iterations are independent
 * (buffers may be the same, but not shifted against each other) and that a sum may be kept in lanes. The
 * lanes' order is fixed by the binary: results depend neither on threads nor on addresses. */
#ifndef DSVI_SIMD_ROWS_H
#define DSVI_SIMD_ROWS_H

#include "base/threads.h"
#include "cpu/simd.h"
#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* For functions that must be specialised by constant arguments, a dtype above all. */
#define DSVI_SPECIALISED static inline __attribute__((always_inline))

enum {
    DSVI_PIECE = 16384, /* elements of a piece of work: some microseconds, a multiple of all lanes */
    DSVI_COLUMNS = 128, /* columns of a piece that sums over rows */
    DSVI_ROWS = 64      /* rows summed before their sum is added to the total: rounding errors grow with the
                           length of such a chain */
};

DSVI_SPECIALISED float dsvi_get(DsvDtype dtype, const void *row, int64_t i)
{
    return dtype == DSV_BF16 ? dsvi_bf16_to_f32(((const uint16_t *)row)[i]) : ((const float *)row)[i];
}

DSVI_SPECIALISED void dsvi_put(DsvDtype dtype, void *row, int64_t i, float value)
{
    if (dtype == DSV_BF16)
        ((uint16_t *)row)[i] = dsvi_f32_to_bf16(value);
    else
        ((float *)row)[i] = value;
}

/* Address of element i. */
DSVI_SPECIALISED void *dsvi_at(DsvDtype dtype, const void *array, int64_t i)
{
    return (unsigned char *)array + i * (dtype == DSV_BF16 ? 2 : 4);
}

/* Rows of `row` elements that make a piece. */
static inline int64_t dsvi_rows_per_piece(int64_t row)
{
    return row >= DSVI_PIECE ? 1 : DSVI_PIECE / (row > 0 ? row : 1);
}

static inline int64_t dsvi_pieces(int64_t n, int64_t piece)
{
    return (n + piece - 1) / piece;
}

static inline int64_t dsvi_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline DsvStatus dsvi_simd_takes(const char *op, DsvDtype act, DsvDtype acc)
{
    if ((act == DSV_F32 || act == DSV_BF16) && acc == DSV_F32)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_UNSUPPORTED,
                     "%s: variant " DSVI_SIMD_NAME " takes F32 and BF16 with F32, not %s with %s", op,
                     dsvi_dtype_name(act), dsvi_dtype_name(acc));
}

/* For ops that do these behind something of their own. */
dsvi_col_sum_fn DSVI_SIMD(col_sum);
dsvi_gate_residual_fn DSVI_SIMD(gate_residual_bwd);

#ifdef __cplusplus
}
#endif
#endif
