/* SIMD variant of col_sum, which sums each column of a matrix over all rows. A piece of work is a few
 * columns with all their rows, so that no two pieces share a sum. */
#include "cpu/simd_fill.h"
#include "cpu/simd_rows.h"

DSVI_SPECIALISED void col_sum_columns(DsviDtype dtype, const DsviColSumArgs *args, int64_t first,
                                      int64_t columns)
{
    float total[DSVI_COLUMNS] = {0};
    for (int64_t begin = 0; begin < args->m; begin += DSVI_ROWS) {
        float part[DSVI_COLUMNS] = {0};
        for (int64_t row = begin; row < dsvi_min(begin + DSVI_ROWS, args->m); row++) {
            const void *x = dsvi_at(dtype, args->x, row * args->ldx + first);
#pragma omp simd
            for (int64_t c = 0; c < columns; c++)
                part[c] += dsvi_get(dtype, x, c);
        }
        for (int64_t c = 0; c < columns; c++)
            total[c] += part[c];
    }
    for (int64_t c = 0; c < columns; c++)
        ((float *)args->y)[first + c] += total[c];
}

static void col_sum_piece(void *context, int64_t begin, int64_t end, int worker)
{
    const DsviColSumArgs *args = context;
    (void)worker;
    if (args->x_dtype == DSVI_BF16)
        col_sum_columns(DSVI_BF16, args, begin, end - begin);
    else
        col_sum_columns(DSVI_F32, args, begin, end - begin);
}

DsvStatus DSVI_SIMD(col_sum)(DsviStream *stream, const DsviColSumArgs *args)
{
    (void)stream;
    DSVI_TRY(dsvi_simd_check("col_sum", args->x_dtype, args->y_dtype));
    dsvi_parallel_for(args->n, DSVI_COLUMNS, col_sum_piece, (void *)args);
    return DSV_OK;
}

void DSVI_SIMD(fill_col_sum)(DsviOps *ops)
{
    DSVI_OPS_SET(ops, col_sum, DSVI_SIMD(col_sum), DSVI_SIMD_NAME);
}
