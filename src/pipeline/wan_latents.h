/* Files of noise and latents. */
#ifndef DSVI_WAN_LATENTS_H
#define DSVI_WAN_LATENTS_H

#include "model/codec/codec.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Reads tensor `name`, (1, C, F, H, W) or (C, F, H, W) in a floating dtype, with the C, F, H and W of
 * `shape`. The caller frees *out, F32. DSV_E_SHAPE if the shape differs, DSV_E_FORMAT if an element is not
 * finite. */
DsvStatus dsvi_wan_latents_read(const char *path, const char *name, DsviVideoShape shape, float **out);
/* Writes tensor `latents` (1, C, F, H, W) F32, under a temporary name that is then renamed. */
DsvStatus dsvi_wan_latents_write(const char *path, DsviVideoShape shape, const float *latents);

#ifdef __cplusplus
}
#endif
#endif
