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
