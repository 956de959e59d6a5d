/* Matrix products, and the column sum that gives the gradient of a bias.
 *
 * gemm:    C = Z = op(A) op(B) (+ bias on every row) (+ C when accumulate)
 *          op(A) is (M, K), op(B) is (K, N), C is (M, N); all are row-major.
 *          A linear layer y = x W^T + b with W (out, in) uses trans_b = true. Its gradients are
 *          dx = dy W and dW += dy^T x (trans_a = true, accumulate).
 *          FLOPs 2 M N K. Products are summed in F32 or wider; the result is rounded once.
 *          Three optional fields fuse neighbouring operations of a linear layer into the product:
 *          gelu_input    a GELU after the layer: C = gelu_tanh(Z), and Z is kept for the backward pass
 *          gelu_backward the gradient of a GELU before the layer: C = Z gelu_tanh'(gelu_backward)
 *          a_sum         the gradient of the bias, together with the gradient of the weight
 *          pointwise.h defines gelu_tanh.
 * col_sum: y[n] += sum over m of x[m, n]: the gradient of a bias.
 *
 * No buffer may overlap C or gelu_input. Nothing outside the given rows and columns is read or written. */
#ifndef DSVI_GEMM_H
#define DSVI_GEMM_H

#include <stdbool.h>

#include "base/dtype.h"
#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviGemmArgs {
    int64_t m, n, k;    /* each >= 0; with k == 0 the product is 0, and bias, accumulate and the optional
                         * fields still apply */
    DsviDtype ab_dtype; /* dtype of A and B: F32 or BF16; the reference implementation also takes F64 */
    DsviDtype c_dtype;  /* dtype of C: the dtype of A and B, or F32 */
    const void *a;      /* trans_a ? (K, M) : (M, K), rows lda elements apart */
    int64_t lda;
    bool trans_a;
    const void *b; /* trans_b ? (N, K) : (K, N), rows ldb elements apart */
    int64_t ldb;
    bool trans_b;
    void *c; /* (M, N), rows ldc elements apart */
    int64_t ldc;
    DsviDtype bias_dtype; /* dtype of bias and a_sum: F32; the reference implementation also takes F64 */
    const void *bias;     /* (N) or NULL; may be rounded to the dtype of C before it is added */
    bool accumulate;      /* true: the product is added to C; must be false if there is a bias */
    /* Optional outputs and inputs, NULL if not needed. gelu_input and gelu_backward have the layout and dtype
     * of C. A variant may round Z to the dtype of C before it applies GELU or multiplies by its
     * derivative. */
    void *gelu_input;          /* (M, N), written: Z, and C = gelu_tanh(Z); not with accumulate */
    const void *gelu_backward; /* (M, N), read: C = Z gelu_tanh'(gelu_backward), element by element; not with
                                * bias, accumulate or gelu_input */
    void *a_sum;               /* (M) bias_dtype: a_sum[m] += sum over k of op(A)[m, k]; only with trans_a */
} DsviGemmArgs;

typedef DsvStatus dsvi_gemm_fn(DsviStream *stream, const DsviGemmArgs *args);

typedef struct DsviColSumArgs {
    int64_t m, n;
    DsviDtype x_dtype;
    const void *x; /* (M, N), rows ldx elements apart */
    int64_t ldx;
    DsviDtype y_dtype; /* F32; the reference implementation also takes F64 */
    void *y;           /* (N), added to */
} DsviColSumArgs;

typedef DsvStatus dsvi_col_sum_fn(DsviStream *stream, const DsviColSumArgs *args);

dsvi_gemm_fn dsvi_gemm_ref;
dsvi_col_sum_fn dsvi_col_sum_ref;

#ifdef __cplusplus
}
#endif
#endif
