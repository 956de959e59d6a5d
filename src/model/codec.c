/* Chooses a codec by name. */
#include "model/codec.h"

#include <string.h>

DsvStatus dsvi_codec_open(const DsvConfig *settings, DsvCodec **out)
{
    if (strcmp(settings->codec_name, "haar") == 0)
        return dsvi_codec_haar_open(settings, out);
    *out = NULL;
    return DSVI_FAIL(DSV_E_USAGE, "codec.name: there is no codec %s", settings->codec_name);
}
