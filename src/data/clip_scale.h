/* Converts decoded frames to upright RGB frames of one size. */
#ifndef DSVI_CLIP_SCALE_H
#define DSVI_CLIP_SCALE_H

#include <stdint.h>

#include "data/clip_stream.h"

#ifdef __cplusplus
extern "C" {
#endif

struct SwsContext;

typedef struct DsviClipScaler {
    int64_t height, width;           /* size of the result */
    int turn[4];                     /* orientation, as in DsviClipStream */
    int64_t flat_height, flat_width; /* size of the scaled frame before rotation */
    int64_t stride;                  /* bytes of a row of `flat` */
    uint8_t *flat;
    struct SwsContext *sws;
    int source[5]; /* properties of the frames that sws was created for: width, height, format, colour space,
                    * range */
} DsviClipScaler;

/* Creates a scaler for frames of `stream`. A zero-initialised scaler may be closed. */
DsvStatus dsvi_clip_scaler_open(const DsviClipStream *stream, int64_t height, int64_t width,
                                DsviClipScaler *scaler);

/* Converts a frame to rgb (height, width, 3), full-range RGB. The same frame gives the same bytes on any
 * processor. */
DsvStatus dsvi_clip_scale(DsviClipScaler *scaler, const struct AVFrame *frame, const char *path,
                          uint8_t *rgb);

void dsvi_clip_scaler_close(DsviClipScaler *scaler);

/* Fails with DSV_E_UNSUPPORTED if the colours of frames like this one cannot be converted, because
 * libswscale lacks their matrix (YCgCo, ICtCp, constant luminance). Stores in *oddities what is not
 * converted, as in DsviClipInfo. */
DsvStatus dsvi_clip_colours(const struct AVFrame *frame, const char *path, unsigned *oddities);

#ifdef __cplusplus
}
#endif
#endif
