/* Copies between a latent video and rows of tokens, in any token order.
 *
 * Token s is the patch at raster position order[s] (frame-major, then row, then column, in units of patches).
 * patch_gather copies each patch into its token's row; patch_scatter copies rows back into patches. Each of
 * the two ops is the gradient of the other. `order` may name only some of the patches. Inside a row the
 * elements are ordered (channel, pt, ph, pw) for the patch embedding and (pt, ph, pw, channel) for the output
 * head, as in Wan 2.1; channel_last selects the second order. */
#ifndef DSVI_PATCH_H
#define DSVI_PATCH_H

#include <stdbool.h>

#include "base/dtype.h"
#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviPatchArgs {
    int64_t batch, channels;       /* B, C */
    int64_t frames, height, width; /* F, H, W of the latent: multiples of the patch */
    int64_t patch[3];              /* pt, ph, pw */
    bool channel_last;
    int64_t tokens;       /* S, at most F/pt * H/ph * W/pw */
    const int32_t *order; /* (S) device memory; no position occurs twice */
    DsviDtype latent_dtype, row_dtype;
    void *latent; /* (B, C, F, H, W); scatter writes only the patches in `order` */
    void *rows;   /* (B, S, C*pt*ph*pw); written by gather, read by scatter */
} DsviPatchArgs;

typedef DsvStatus dsvi_patch_fn(DsviStream *stream, const DsviPatchArgs *args);

dsvi_patch_fn dsvi_patch_gather_ref, dsvi_patch_scatter_ref;

#ifdef __cplusplus
}
#endif
#endif
