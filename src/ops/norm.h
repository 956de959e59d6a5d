/* Normalisations of a Wan 2.1 block and of the head, forward and backward.
 *
 * layer_norm: y = (x - mean) * rstd * (one_plus + scale) + shift over the C channels of a token,
 *     rstd = 1 / sqrt(variance + eps), biased variance.
 *     one_plus = 1 with a scale and shift per sample is AdaLN modulation; one_plus = 0 with shared
 *     ones is the affine norm before cross-attention. The residual sum that x is can be asked for at once,
 *     and backward what the gradient of x goes through next.
 * rms_norm_rope: u = x * rstd * weight with rstd = 1 / sqrt(mean(x^2) + eps) over ALL heads' channels
 *     jointly; then, where tables are given, each head's adjacent pairs (2p, 2p+1) of token s are
 *     turned by the angle of (s, p): (a, b) -> (a cos - b sin, a sin + b cos). Backward the gradient of a
 *     bias that x ends with can be asked for at once: dx_sum += sum over samples and tokens of dx, which a
 *     variant may round to act before it is added.
 *
 * "act" is the compute dtype (F32 or BF16), "acc" is F32; the truth takes F64 for both. Inside, all
 * arithmetic is in acc and rounded once on store. Bytes: each named tensor once. */
#ifndef DSVI_NORM_H
#define DSVI_NORM_H

#include "base/dtype.h"
#include "device/device.h"
#include "ops/pointwise.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvLayerNormArgs {
    int64_t batch, tokens, channels; /* B, S, C */
    double eps;
    double one_plus;        /* 1 or 0, see above */
    int64_t sample_stride;  /* elements from one sample's scale (shift) to the next; 0: shared */
    DsvDtype act, acc;
    const void *x;          /* (B, S, C) acc */
    const void *scale;      /* (B or 1, C) acc, rows sample_stride apart */
    const void *shift;      /* likewise */
    void *y;                /* (B, S, C) act; forward only */
    void *mean, *rstd;      /* (B, S) acc: written by forward, read by backward */
    const DsvGateResidualArgs *sum; /* forward only, or NULL. Done first: a gate_residual_fwd of the same
                                     * sizes and dtypes whose out is x. Its y may be this y */
    /* backward only */
    const void *dy;         /* (B, S, C) act */
    void *dx;               /* (B, S, C) acc, added to */
    void *dscale, *dshift;  /* as scale and shift, same sample_stride, added to */
    const DsvGateResidualArgs *then; /* backward only, or NULL. Done last: a gate_residual_bwd of the same
                                      * sizes and dtypes whose dout is dx. Its dy may be this dy */
} DsvLayerNormArgs;

typedef DsvStatus dsvi_layer_norm_fn(DsvStream *stream, const DsvLayerNormArgs *args);

typedef struct DsvRmsNormRopeArgs {
    int64_t batch, tokens, heads, head_dim; /* B, S, N, D */
    double eps;
    DsvDtype act, acc;
    const void *x;          /* (B, S, N, D) act */
    const void *weight;     /* (N * D) acc */
    const void *cos, *sin;  /* (S, D / 2) acc, or both NULL: no rotation */
    void *y;                /* (B, S, N, D) act; forward only */
    void *rstd;             /* (B, S) acc: written by forward, read by backward */
    /* backward only */
    const void *dy;         /* (B, S, N, D) act */
    void *dx;               /* (B, S, N, D) act, overwritten; may be dy itself */
    void *dweight;          /* (N * D) acc, added to */
    void *dx_sum;           /* (N * D) acc, added to, or NULL */
} DsvRmsNormRopeArgs;

typedef DsvStatus dsvi_rms_norm_rope_fn(DsvStream *stream, const DsvRmsNormRopeArgs *args);

dsvi_layer_norm_fn dsvi_layer_norm_fwd_ref, dsvi_layer_norm_bwd_ref;
dsvi_rms_norm_rope_fn dsvi_rms_norm_rope_fwd_ref, dsvi_rms_norm_rope_bwd_ref;

#ifdef __cplusplus
}
#endif
#endif
