/* Frames to an mp4 file with FFmpeg's libraries. */
#ifndef DSVI_VIDEO_WRITER_H
#define DSVI_VIDEO_WRITER_H

#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* pixels (3, frames, height, width), F32, RGB in [-1, 1], clamped. H.264 where this FFmpeg has an encoder
 * for it, else MPEG-4. Odd sizes are padded by repeating the last row or column. Written under a
 * temporary name beside `path` and renamed. */
DsvStatus dsvi_video_write(const char *path, const float *pixels, int64_t frames, int64_t height,
                           int64_t width, double fps);

#ifdef __cplusplus
}
#endif
#endif
