/* Declares the functions of the sources that are compiled per level (simd.h). Each function puts its variants
 * into a table of operations. */
#ifndef DSVI_SIMD_FILL_H
#define DSVI_SIMD_FILL_H

#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Expands to X(name, level) for each <name>_simd.c. */
#define DSVI_SIMD_FILLS(X, level) \
    X(activation, level)          \
    X(attention_bwd, level)       \
    X(attention_error, level)     \
    X(attention_fwd, level)       \
    X(attention_merge, level)     \
    X(attention_tail_bwd, level)  \
    X(attention_tail_fwd, level)  \
    X(bias_attention, level)      \
    X(col_sum, level)             \
    X(encoder, level)             \
    X(flow, level)                \
    X(frames, level)              \
    X(heads_move, level)          \
    X(layer_norm, level)          \
    X(optim, level)               \
    X(patch, level)               \
    X(pointwise, level)           \
    X(predictor_loss, level)      \
    X(profile, level)             \
    X(quant, level)               \
    X(rms_norm_rope, level)       \
    X(select, level)              \
    X(select_features, level)

/* The sources that are also compiled for the levels with products of BF16 pairs. */
#define DSVI_SIMD_PAIR_FILLS(X, level) \
    X(attention_bwd, level)            \
    X(attention_fwd, level)            \
    X(attention_tail_bwd, level)       \
    X(attention_tail_fwd, level)       \
    X(bias_attention, level)

#define DSVI_SIMD_FILL_DECLARE(name, level) void dsvi_fill_##name##_##level(DsviOps *ops);
DSVI_SIMD_FILLS(DSVI_SIMD_FILL_DECLARE, base)
#if defined(__x86_64__) && !defined(DSVI_BASE_ISA)
DSVI_SIMD_FILLS(DSVI_SIMD_FILL_DECLARE, avx2)
DSVI_SIMD_FILLS(DSVI_SIMD_FILL_DECLARE, avx512)
DSVI_SIMD_PAIR_FILLS(DSVI_SIMD_FILL_DECLARE, avx512_bf16)
DSVI_SIMD_PAIR_FILLS(DSVI_SIMD_FILL_DECLARE, amx)
#endif

#ifdef __cplusplus
}
#endif
#endif
