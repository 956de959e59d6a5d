/* Ops on arrays of frames, rows, columns and channels, other than the convolution (conv.h): the norm of the
 * Wan VAE, and strided copies.
 *
 * channel_norm: y = x / max(|x|, 1e-12) * sqrt(C) * gamma for each pixel, where |x| is the L2 norm over its C
 *     channels; with `silu`, y = s / (1 + exp(-s)) of this value s. There is no eps inside the root.
 * frames_move: y[t, h u + i, w u + j, c] = f(x[t, h, w, c]) for 0 <= i, j < u, with u = `upscale` and
 *     f(x) = scale[c] x + shift[c], limited to [-limit, limit] if limit > 0. A copy, a conversion of dtype or
 *     layout, the nearest-neighbour enlargement and the normalisation of latents are all this op.
 *
 * All arithmetic is in acc, and results are rounded once when stored. "act" is F32 or BF16, "acc" F32; the
 * reference implementation also takes F64 for both. */
#ifndef DSVI_FRAMES_H
#define DSVI_FRAMES_H

#include <stdbool.h>

#include "base/dtype.h"
#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviChannelNormArgs {
    int64_t frames, height, width, channels; /* T, H, W, C */
    bool silu;
    DsviDtype act, acc;
    const void *gamma; /* (C) acc */
    const void *x;     /* (T, H, W, C) act; frames x_frame elements apart, rows x_row apart, pixels dense */
    int64_t x_frame, x_row;
    void *y; /* (T, H, W, C) act; frames y_frame elements apart, rows y_row apart; may be x with the same
              * strides */
    int64_t y_frame, y_row;
} DsviChannelNormArgs;
typedef DsvStatus dsvi_channel_norm_fn(DsviStream *stream, const DsviChannelNormArgs *args);

/* A strided array (T, H, W, C): the element (t, h, w, c) is at
 * data + (t * frame + h * row + w * pixel + c * channel) elements. */
typedef struct DsviFrames {
    void *data;
    DsviDtype dtype; /* F32 or BF16; the reference implementation also takes F64 */
    int64_t frame, row, pixel, channel;
} DsviFrames;

typedef struct DsviFramesMoveArgs {
    int64_t frames, height, width, channels; /* T, H, W, C: sizes of x; y is (T, H u, W u, C) */
    int64_t upscale;                         /* u, 1 or 2 */
    DsviDtype acc;
    const void *scale, *shift; /* (C) acc, each may be NULL: 1 and 0 */
    double limit;              /* 0: no limit */
    DsviFrames x, y;           /* must not overlap */
} DsviFramesMoveArgs;
typedef DsvStatus dsvi_frames_move_fn(DsviStream *stream, const DsviFramesMoveArgs *args);

dsvi_channel_norm_fn dsvi_channel_norm_ref;
dsvi_frames_move_fn dsvi_frames_move_ref;

#ifdef __cplusplus
}
#endif
#endif
