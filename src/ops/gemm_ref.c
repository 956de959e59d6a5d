/* Reference implementation of matrix products: sums in double, one rounding on store. See gemm.h. */
#include "ops/gemm.h"

#include "ops/pointwise.h"

static double gemm_product(const DsviGemmArgs *args, int64_t row, int64_t col)
{
    int64_t a_start = args->trans_a ? row : row * args->lda, a_step = args->trans_a ? args->lda : 1;
    int64_t b_start = args->trans_b ? col * args->ldb : col, b_step = args->trans_b ? 1 : args->ldb;
    double sum = 0;
    for (int64_t i = 0; i < args->k; i++)
        sum += dsvi_load(args->ab_dtype, args->a, a_start + i * a_step) *
               dsvi_load(args->ab_dtype, args->b, b_start + i * b_step);
    return sum;
}

static void *gemm_element(DsviDtype dtype, const void *array, int64_t i)
{
    return (unsigned char *)array + i * (int64_t)dsvi_dtype_size(dtype);
}

/* Applies the GELU, or multiplies by its derivative, in one row of C. The row of Z, the matrix product before
 * the GELU, is already stored: in gelu_input if given, else in C. */
static DsvStatus gemm_apply_gelu(DsviStream *stream, const DsviGemmArgs *args, int64_t row)
{
    int64_t at = row * args->ldc;
    void *c = gemm_element(args->c_dtype, args->c, at);
    DsviActivationArgs gelu = {.activation = DSVI_GELU_TANH, .n = args->n, .dtype = args->c_dtype};
    if (args->gelu_input) {
        gelu.x = gemm_element(args->c_dtype, args->gelu_input, at);
        gelu.y = c;
        return dsvi_activation_fwd_ref(stream, &gelu);
    }
    gelu.x = gemm_element(args->c_dtype, args->gelu_backward, at);
    gelu.dy = gelu.dx = c;
    return dsvi_activation_bwd_ref(stream, &gelu);
}

static void gemm_add_a_sum(const DsviGemmArgs *args, int64_t row)
{
    double sum = dsvi_load(args->bias_dtype, args->a_sum, row);
    for (int64_t i = 0; i < args->k; i++)
        sum += dsvi_load(args->ab_dtype, args->a, i * args->lda + row);
    dsvi_store(args->bias_dtype, args->a_sum, row, sum);
}

DsvStatus dsvi_gemm_ref(DsviStream *stream, const DsviGemmArgs *args)
{
    void *z = args->gelu_input ? args->gelu_input : args->c;
    for (int64_t row = 0; row < args->m; row++) {
        for (int64_t col = 0; col < args->n; col++) {
            int64_t at = row * args->ldc + col;
            double sum = gemm_product(args, row, col);
            if (args->bias)
                sum += dsvi_load(args->bias_dtype, args->bias, col);
            if (args->accumulate)
                sum += dsvi_load(args->c_dtype, args->c, at);
            dsvi_store(args->c_dtype, z, at, sum);
        }
        if (args->gelu_input || args->gelu_backward)
            DSVI_TRY(gemm_apply_gelu(stream, args, row));
        if (args->a_sum)
            gemm_add_a_sum(args, row);
    }
    return DSV_OK;
}

DsvStatus dsvi_col_sum_ref(DsviStream *stream, const DsviColSumArgs *args)
{
    (void)stream;
    for (int64_t col = 0; col < args->n; col++) {
        double sum = dsvi_load(args->y_dtype, args->y, col);
        for (int64_t row = 0; row < args->m; row++)
            sum += dsvi_load(args->x_dtype, args->x, row * args->ldx + col);
        dsvi_store(args->y_dtype, args->y, col, sum);
    }
    return DSV_OK;
}
