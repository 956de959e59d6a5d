/* Matrix products and their small companion, the column sum.
 *
 * gemm:    C = op(A) op(B) (+ bias on every row) (+ C when accumulate)
 *          op(A) is (M, K), op(B) is (K, N), C is (M, N); all row-major.
 *          A linear layer y = x W^T + b with W (out, in) is trans_b = true, its gradients are
 *          dx = dy W and dW += dy^T x (trans_a = true, accumulate).
 *          FLOPs 2 M N K. Products are summed in F32 or wider; the result is rounded once.
 *          Z stands for the right-hand side. What a layer does to it at once can be asked for: gelu_input for
 *          a GELU after the layer, gelu_backward for the gradient of one before it, a_sum for the gradient
 *          of the bias beside that of the weight. gelu_tanh is that of pointwise.h.
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

typedef struct DsvGemmArgs {
    int64_t m, n, k;      /* each >= 0; k == 0 gives zeros (or bias, or C unchanged) */
    DsvDtype ab_dtype;    /* of A and B: F32 or BF16 (F64 in the truth) */
    DsvDtype c_dtype;     /* of C: that of A and B, or F32 */
    const void *a;        /* trans_a ? (K, M) : (M, K), rows lda elements apart */
    int64_t lda;
    bool trans_a;
    const void *b;        /* trans_b ? (N, K) : (K, N), rows ldb elements apart */
    int64_t ldb;
    bool trans_b;
    void *c;              /* (M, N), rows ldc elements apart */
    int64_t ldc;
    DsvDtype bias_dtype;  /* of bias and a_sum: F32 (F64 in the truth) */
    const void *bias;     /* (N) or NULL; may be rounded to the dtype of C before it is added */
    bool accumulate;      /* not together with bias */
    /* Each NULL where it is not asked for. The first two lie as C does and have its dtype, to which a variant
     * may round Z before it takes the function. */
    void *gelu_input;          /* (M, N): Z goes here, and C = gelu_tanh(Z); not with accumulate */
    const void *gelu_backward; /* (M, N): C = Z gelu_tanh'(gelu_backward), element by element; not with bias,
                                * accumulate or gelu_input */
    void *a_sum;               /* (M): a_sum[m] += sum over k of op(A)[m, k]; only with trans_a */
} DsvGemmArgs;

typedef DsvStatus dsvi_gemm_fn(DsvStream *stream, const DsvGemmArgs *args);

typedef struct DsvColSumArgs {
    int64_t m, n;
    DsvDtype x_dtype;
    const void *x;        /* (M, N), rows ldx elements apart */
    int64_t ldx;
    DsvDtype y_dtype;     /* F32 (F64 in the truth) */
    void *y;              /* (N), added to */
} DsvColSumArgs;

typedef DsvStatus dsvi_col_sum_fn(DsvStream *stream, const DsvColSumArgs *args);

dsvi_gemm_fn dsvi_gemm_ref;
dsvi_col_sum_fn dsvi_col_sum_ref;

#ifdef __cplusplus
}
#endif
#endif
