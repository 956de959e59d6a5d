/* Moving between a latent video and rows of tokens, in any token order.
 *
 * Token s stands for the patch at raster position order[s] (frame-major, then row, then column, in
 * units of patches). patch_gather copies each patch into its token's row, patch_scatter does the
 * reverse; each is the other's gradient. The tokens may be some of the latent's alone.
 * Inside a row the elements are (channel, pt, ph, pw) for the patch embedding and (pt, ph, pw,
 * channel) for the head, as in Wan 2.1: channel_last tells which. */
#ifndef DSVI_PATCH_H
#define DSVI_PATCH_H

#include <stdbool.h>

#include "base/dtype.h"
#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvPatchArgs {
    int64_t batch, channels;         /* B, C */
    int64_t frames, height, width;   /* F, H, W of the latent: multiples of the patch */
    int64_t patch[3];                /* pt, ph, pw */
    bool channel_last;
    int64_t tokens;                  /* S, at most F/pt * H/ph * W/pw */
    const int32_t *order;            /* (S) device memory, each place once at most */
    DsvDtype latent_dtype, row_dtype;
    void *latent;                    /* (B, C, F, H, W); scatter writes the tokens' patches alone */
    void *rows;                      /* (B, S, C*pt*ph*pw); written by gather */
} DsvPatchArgs;

typedef DsvStatus dsvi_patch_fn(DsvStream *stream, const DsvPatchArgs *args);

dsvi_patch_fn dsvi_patch_gather_ref, dsvi_patch_scatter_ref;

#ifdef __cplusplus
}
#endif
#endif
