/* Convolution over frames, rows and columns, with channels last: the convolutions of the Wan VAE.
 *
 *     y[t, h, w, o] = bias[o] + add[t, h, w, o]
 *                   + sum over a, b, c, i of
 *                     x[t st + a - pt, h sh + b - ph, w sw + c - pw, i] weight[o, a, b, c, i]
 *
 * with stride (st, sh, sw) and pad (pt, ph, pw). Elements of x outside its frames, rows and columns count as
 * zero, also those after the last ones, which the size of y implies. FLOPs: 2 per product. Products are
 * summed in F32 or wider, and the result is rounded once when it is stored.
 *
 * On a device whose field `deterministic` is true the bits of y[t, h, w, :] depend only on the values that
 * the sum reads, on the number of columns, on the channels, kernel and strides, and on whether x, its frames
 * and rows, and the weight begin at multiples of 16 bytes: a GPU's kernels for aligned and for other tensors
 * sum in different orders. They do not depend on the number of frames or rows of x and y, nor on whether a
 * zero lies inside x or in the padding. A video that is processed in pieces of frames and rows thus gives the
 * bits of the whole, if all pieces are aligned alike. In the VAE they are: its tensors begin at multiples of
 * 64 bytes, and a layer's pixels are either a multiple of 16 bytes in all pieces, or in none (3 channels). */
#ifndef DSVI_CONV_H
#define DSVI_CONV_H

#include "base/dtype.h"
#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviConvArgs {
    int64_t frames, height, width;             /* T, H, W: sizes of x */
    int64_t out_frames, out_height, out_width; /* T', H', W': sizes of y */
    int64_t channels, out_channels;            /* I, O */
    int64_t kernel[3], stride[3], pad[3];      /* in frames, rows, columns; pad: before the first element */
    DsviDtype act;                             /* F32 or BF16; the reference implementation also takes F64 */
    DsviDtype acc;                             /* of bias: F32, or F64 with act F64 */
    const void *x; /* (T, H, W, I) act; frames x_frame elements apart, rows x_row apart, pixels dense */
    int64_t x_frame, x_row;
    const void *weight; /* (O, kernel[0], kernel[1], kernel[2], I) act */
    const void *bias;   /* (O) acc, or NULL */
    const void *add;    /* shaped like y with the same strides, or NULL; may be y */
    void *y;            /* (T', H', W', O) act; frames y_frame elements apart, rows y_row apart; must not
                         * overlap x */
    int64_t y_frame, y_row;
    void *workspace; /* 64-byte aligned device memory, at least as large as the op's workspace function
                      * returns for these arguments */
    size_t workspace_bytes;
} DsviConvArgs;

typedef DsvStatus dsvi_conv_fn(DsviStream *stream, const DsviConvArgs *args);
/* Returns the bytes of workspace for these sizes and strides. The data pointers are not read, except that
 * bias and add may be NULL or not. */
typedef size_t dsvi_conv_workspace_fn(DsviStream *stream, const DsviConvArgs *args);

dsvi_conv_fn dsvi_conv_ref; /* needs no workspace */

#ifdef __cplusplus
}
#endif
#endif
