/* What an image-to-video transformer of Wan 2.2 (I2V-A14B) takes in channels after those of the latent: a
 * mask, and the latent of a video that consists of the first picture, grey frames (zeros) and, if there is
 * one, the last picture.
 *
 * The mask has a channel for each frame of the video that a frame of the latent stands for: 1 for a picture,
 * 0 for a grey frame. The first frame of the latent stands for the first frame of the video alone, so that
 * all its mask channels are those of this frame. */
#ifndef DSVI_PIPELINE_WAN_CONDITION_H
#define DSVI_PIPELINE_WAN_CONDITION_H

#include "model/codec/codec.h"
#include "model/dit/dit_config.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviWanCondition {
    DsviVideoShape video, latent;
    int64_t temporal; /* frames of the video for which a frame of the latent stands */
} DsviWanCondition;

/* Fails with DSV_E_SHAPE if the transformer at `path` takes other channels beside the latent's. */
DsvStatus dsvi_wan_condition_check(const DsviWanCondition *c, const DsviDitConfig *config, const char *path);
/* Returns the number of elements of the mask. */
int64_t dsvi_wan_condition_mask_elements(const DsviWanCondition *c);
/* Writes the mask (temporal, F, H, W). `last`: there is a last picture. */
void dsvi_wan_condition_mask(const DsviWanCondition *c, bool last, float *mask);
/* Returns the video (3, T, H, W) that is encoded, which the caller frees; NULL if memory is lacking. The
 * channels of the picture `first` begin `stride` elements apart. `last` (3, H, W) may be NULL. */
float *dsvi_wan_condition_video(const DsviWanCondition *c, const float *first, int64_t stride,
                                const float *last);

#ifdef __cplusplus
}
#endif
#endif
