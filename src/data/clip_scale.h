/* Decoded frames to upright RGB of one size. */
#ifndef DSVI_CLIP_SCALE_H
#define DSVI_CLIP_SCALE_H

#include <stdint.h>

#include "data/clip_stream.h"

#ifdef __cplusplus
extern "C" {
#endif

struct SwsContext;

typedef struct DsvClipScaler {
    int64_t height, width;           /* of the result */
    int turn[4];                     /* as in DsvClipStream */
    int64_t flat_height, flat_width; /* of the scaled frame before it is turned */
    int64_t stride;                  /* bytes of a row of `flat` */
    uint8_t *flat;
    struct SwsContext *sws;
    int source[5]; /* width, height, format, colour space, range that sws was made for */
} DsvClipScaler;

/* For frames of `stream`. A zeroed scaler may be closed. */
DsvStatus dsvi_clip_scaler_open(const DsvClipStream *stream, int64_t height, int64_t width,
                                DsvClipScaler *scaler);

/* rgb (height, width, 3): the frame, full-range RGB. The same frame gives the same bytes on any processor. */
DsvStatus dsvi_clip_scale(DsvClipScaler *scaler, const struct AVFrame *frame, const char *path, uint8_t *rgb);

void dsvi_clip_scaler_close(DsvClipScaler *scaler);

/* Whether colours of such frames can be converted: a matrix that libswscale lacks (YCgCo, ICtCp, constant
 * luminance) is DSV_E_UNSUPPORTED. *oddities: what is not converted, as in DsvClipInfo. */
DsvStatus dsvi_clip_colours(const struct AVFrame *frame, const char *path, unsigned *oddities);

#ifdef __cplusplus
}
#endif
#endif
