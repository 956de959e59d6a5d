/* Decoding a window of a clip with FFmpeg's libraries. */
#ifndef DSVI_CLIP_H
#define DSVI_CLIP_H

#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvClipInfo {
    int64_t width, height;  /* as displayed: rotation and pixel aspect applied */
    double fps, seconds;
    int64_t frames;         /* estimated where the container does not say */
    char codec[32], container[32];
} DsvClipInfo;

/* Opens, finds the first video stream and decodes its first frame, so that a file that passes can be
 * decoded. DSV_E_NOT_FOUND, DSV_E_FORMAT (not a video, broken). */
DsvStatus dsvi_clip_probe(const char *path, DsvClipInfo *info);

typedef struct DsvClipWindow {
    double start;                  /* seconds */
    double fps;                    /* frame i is the one shown at start + i / fps */
    int64_t frames, height, width;
    double crop_x, crop_y;         /* 0 to 1: where in the slack the crop lies; 0.5: the middle */
} DsvClipWindow;

/* Fills pixels (3, frames, height, width), F32 in [-1, 1], RGB: scaled to cover, cropped. A clip that ends
 * inside the window repeats its last frame. Same file and window give the same bytes. */
DsvStatus dsvi_clip_read(const char *path, const DsvClipWindow *window, float *pixels);

#ifdef __cplusplus
}
#endif
#endif
