/* Normalisations of a Wan 2.1 block and of the output head, forward and backward.
 *
 * layer_norm: y = (x - mean) * rstd * (one_plus + scale) + shift over the C channels of a token,
 *     rstd = 1 / sqrt(variance + eps), biased variance.
 *     one_plus = 1 with a scale and shift for each sample is AdaLN modulation; one_plus = 0 with a scale and
 *     shift shared by all samples is the affine norm before cross-attention. Optionally, forward first
 *     computes x as a gated residual sum (`sum`), and backward then propagates dx through such a sum
 *     (`then`).
 * rms_norm_rope: u = x * rstd * weight with rstd = 1 / sqrt(mean(x^2) + eps); the mean is over the channels
 *     of ALL heads together. Then, if tables are given, each adjacent pair (2p, 2p+1) of each head of token
 *     s is rotated by the angle of (s, p): (a, b) -> (a cos - b sin, a sin + b cos). Optionally, backward
 *     adds to dx_sum the sum of dx over samples and tokens, which is the gradient of a bias added last to x.
 * A variant may round dx to act before summing.
 *
 * "act" is the compute dtype (F32 or BF16), "acc" is F32; the reference implementation also takes F64 for
 * both. All arithmetic is in acc, and results are rounded once when stored. Each named tensor is read or
 * written once. */
#ifndef DSVI_NORM_H
#define DSVI_NORM_H

#include "base/dtype.h"
#include "device/device.h"
#include "ops/pointwise.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviLayerNormArgs {
    int64_t batch, tokens, channels; /* B, S, C */
    DsviTokenList only;
    double eps;
    double one_plus; /* the 1 or 0 that is added to `scale`: 1 for AdaLN modulation, 0 for an affine norm */
    int64_t sample_stride; /* elements from one sample's scale (or shift) to the next sample's; 0: all samples
                            * share one scale and one shift */
    DsviDtype act, acc;    /* activation dtype, accumulation dtype */
    const void *x;         /* (B, S, C) acc */
    const void *scale;     /* (B or 1, C) acc, rows sample_stride apart */
    const void *shift;     /* (B or 1, C) acc, rows sample_stride apart */
    void *y;               /* (B, S, C) act; forward only */
    void *mean, *rstd;     /* (B, S) acc: written by forward, read by backward */
    const DsviGateResidualArgs
        *sum; /* Forward only, or NULL. A gate_residual_fwd of the same sizes,
               * tokens and dtypes, which layer_norm_fwd executes before the norm; sum->out must
               * be the same memory as `x`, and sum->y may be the same as `y`. */
    /* backward only */
    const void *dy;        /* (B, S, C) act */
    void *dx;              /* (B, S, C) acc, added to */
    void *dscale, *dshift; /* shaped like scale and shift, same sample_stride; the gradients are added to
                            * them */
    const DsviGateResidualArgs
        *then; /* Backward only, or NULL. A gate_residual_bwd of the same sizes,
                * tokens and dtypes, which layer_norm_bwd executes after the norm; then->dout must
                * be the same memory as `dx`, and then->dy may be the same as `dy`. */
} DsviLayerNormArgs;

typedef DsvStatus dsvi_layer_norm_fn(DsviStream *stream, const DsviLayerNormArgs *args);

typedef struct DsviRmsNormRopeArgs {
    int64_t batch, tokens, heads, head_dim; /* B, S, N, D */
    double eps;
    DsviDtype act, acc;    /* activation dtype, accumulation dtype */
    const void *x;         /* (B, S, N, D) act */
    const void *weight;    /* (N * D) acc */
    const void *cos, *sin; /* (S, D / 2) acc, or both NULL: no rotation */
    void *y;               /* (B, S, N, D) act; forward only */
    void *rstd;            /* (B, S) acc: written by forward, read by backward */
    /* backward only */
    const void *dy; /* (B, S, N, D) act */
    void *dx;       /* (B, S, N, D) act, overwritten; may be dy itself */
    void *dweight;  /* (N * D) acc, added to */
    void *dx_sum;   /* (N * D) acc, added to, or NULL */
} DsviRmsNormRopeArgs;

typedef DsvStatus dsvi_rms_norm_rope_fn(DsviStream *stream, const DsviRmsNormRopeArgs *args);

dsvi_layer_norm_fn dsvi_layer_norm_fwd_ref, dsvi_layer_norm_bwd_ref;
dsvi_rms_norm_rope_fn dsvi_rms_norm_rope_fwd_ref, dsvi_rms_norm_rope_bwd_ref;

#ifdef __cplusplus
}
#endif
#endif
