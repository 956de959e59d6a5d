/* Opens the codec (pixels to latents and back) that the option codec.name names. */
#include "model/codec/codec.h"

#include <string.h>

DsvStatus dsvi_codec_open(const DsvConfig *settings, DsviCodec **out)
{
    if (strcmp(settings->codec_name, "haar") == 0)
        return dsvi_codec_haar_open(settings, out);
    *out = NULL;
    if (strcmp(settings->codec_name, "wan") == 0)
        return dsvi_codec_wan_folder_open(settings, out);
    return DSVI_FAIL(DSV_E_USAGE, "codec.name: there is no codec %s", settings->codec_name);
}

DsvStatus dsvi_codec_steps(const DsviCodec *codec, int64_t *frame_step, int64_t *pixel_step)
{
    /* a power of two that every codec's factors divide */
    const DsviVideoShape video = {3, 1 + 1024, 1024, 1024};
    DsviVideoShape latent;
    DSVI_TRY(codec->latent_shape(codec, video, &latent));
    *frame_step = (video.frames - 1) / (latent.frames - 1);
    *pixel_step = video.height / latent.height;
    return DSV_OK;
}
