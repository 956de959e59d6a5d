/* Ops of the text encoder (UMT5) and of the attention in the middle of the Wan VAE.
 *
 * rms_norm: y = x * rstd * weight with rstd = 1 / sqrt(mean(x^2) + eps) for each row.
 * gelu_product: y = gelu_tanh(gate) * x, element by element (pointwise.h defines gelu_tanh).
 * softmax: y = exp(scale x - m) / sum exp(scale x - m) for each row, m the largest scale x of the row.
 * bias_attention: attention inside each segment of rows (the rows of one prompt), with a bias that depends on
 *     the distance of query and key:
 *         s_ij = scale q_i . k_j + bias[h, R + min(max(j - i, -R), R)]      out_i = sum_j softmax_j(s_ij) v_j
 *     FLOPs: 4 N D times the sum of squared segment lengths.
 *
 * All arithmetic is in acc, and results are rounded once when stored; a variant of bias_attention may round
 * the exponentials to act when they are operands of a matrix product. "act" is F32 or BF16, "acc" F32; the
 * reference implementation also takes F64 for both. */
#ifndef DSVI_ENCODER_H
#define DSVI_ENCODER_H

#include "base/dtype.h"
#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviRmsNormArgs {
    int64_t rows, channels; /* R, C */
    double eps;
    DsviDtype act, acc;
    const void *x;      /* (R, C) acc */
    const void *weight; /* (C) acc */
    void *y;            /* (R, C) act; may be x if act equals acc */
} DsviRmsNormArgs;
typedef DsvStatus dsvi_rms_norm_fn(DsviStream *stream, const DsviRmsNormArgs *args);

typedef struct DsviGeluProductArgs {
    int64_t n;
    DsviDtype dtype;
    const void *gate, *x; /* (n) */
    void *y;              /* (n); may be gate or x */
} DsviGeluProductArgs;
typedef DsvStatus dsvi_gelu_product_fn(DsviStream *stream, const DsviGeluProductArgs *args);

typedef struct DsviSoftmaxArgs {
    int64_t rows, cols;
    double scale;
    DsviDtype act, acc;
    const void *x; /* (rows, cols) acc, dense */
    void *y;       /* (rows, cols) act, dense; may be x if act equals acc */
} DsviSoftmaxArgs;
typedef DsvStatus dsvi_softmax_fn(DsviStream *stream, const DsviSoftmaxArgs *args);

typedef struct DsviBiasAttentionArgs {
    int64_t segments, rows;  /* G, S: the segments together have S rows */
    int64_t longest;         /* rows of the longest segment, or more */
    int64_t heads, head_dim; /* N, D; D is a multiple of 8, at most 128 */
    int64_t reach;           /* R: larger distances have the bias of distance R */
    double scale;
    DsviDtype act, acc;
    const int32_t *starts; /* (G + 1) device memory: first row of each segment, ascending; the last is S */
    const void *bias;      /* (N, 2 R + 1) acc */
    const void *q, *k, *v; /* (S, N, D) act, rows `stride` elements apart, so that the three may be parts of
                            * one array (S, 3, N, D) */
    int64_t stride;
    void *out; /* (S, N, D) act, dense */
} DsviBiasAttentionArgs;
typedef DsvStatus dsvi_bias_attention_fn(DsviStream *stream, const DsviBiasAttentionArgs *args);

dsvi_rms_norm_fn dsvi_rms_norm_ref;
dsvi_gelu_product_fn dsvi_gelu_product_ref;
dsvi_softmax_fn dsvi_softmax_ref;
dsvi_bias_attention_fn dsvi_bias_attention_ref;

#ifdef __cplusplus
}
#endif
#endif
