/* Frames to a video file with FFmpeg's libraries. */
#ifndef DSVI_VIDEO_WRITER_H
#define DSVI_VIDEO_WRITER_H

#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* pixels (3, frames, height, width), F32, RGB in [-1, 1], clamped. The name's ending chooses mkv, mov, avi or
 * mpg; all others are mp4. H.264 where this FFmpeg has an encoder for it, else MPEG-4, a key frame each
 * second. Odd sizes are padded by repeating the last row or column. Written under a temporary name beside
 * `path` and renamed. The same frames give the same bytes. */
DsvStatus dsvi_video_write(const char *path, const float *pixels, int64_t frames, int64_t height,
                           int64_t width, double fps);

/* As above with the encoder of that name in FFmpeg, such as "libx264", "mpeg4" or "mpeg2video". */
DsvStatus dsvi_video_write_as(const char *encoder, const char *path, const float *pixels, int64_t frames,
                              int64_t height, int64_t width, double fps);

#ifdef __cplusplus
}
#endif
#endif
