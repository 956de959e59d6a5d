/* Implements wan_condition.h. */
#include "pipeline/wan_condition.h"

#include <stdlib.h>
#include <string.h>

DsvStatus dsvi_wan_condition_check(const DsviWanCondition *c, const DsviDitConfig *config, const char *path)
{
    int64_t needed = 2 * c->latent.channels + c->temporal;
    if (config->in_channels == needed)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_SHAPE,
                     "%s: in_channels is %lld, expected %lld: twice the VAE's %lld latent channels, and a "
                     "mask of %lld",
                     path, (long long)config->in_channels, (long long)needed, (long long)c->latent.channels,
                     (long long)c->temporal);
}

int64_t dsvi_wan_condition_mask_elements(const DsviWanCondition *c)
{
    return c->temporal * c->latent.frames * c->latent.height * c->latent.width;
}

void dsvi_wan_condition_mask(const DsviWanCondition *c, bool last, float *mask)
{
    DsviVideoShape latent = c->latent;
    int64_t places = latent.height * latent.width, end = c->video.frames - 1;
    for (int64_t m = 0; m < c->temporal; m++)
        for (int64_t f = 0; f < latent.frames; f++) {
            int64_t frame = f == 0 ? 0 : (f - 1) * c->temporal + m + 1;
            bool picture = frame == 0 || (frame == end && last);
            for (int64_t i = 0; i < places; i++)
                mask[(m * latent.frames + f) * places + i] = picture ? 1 : 0;
        }
}

float *dsvi_wan_condition_video(const DsviWanCondition *c, const float *first, int64_t stride,
                                const float *last)
{
    DsviVideoShape video = c->video;
    size_t frame = (size_t)(video.height * video.width), frames = (size_t)video.frames;
    float *out = calloc((size_t)video.channels * frames * frame, sizeof *out);
    for (size_t ch = 0; out && ch < (size_t)video.channels; ch++) {
        memcpy(out + ch * frames * frame, first + ch * (size_t)stride, frame * sizeof *out);
        if (last)
            memcpy(out + (ch * frames + frames - 1) * frame, last + ch * frame, frame * sizeof *out);
    }
    return out;
}
