/* Writes frames to a video file with FFmpeg's libraries. */
#ifndef DSVI_VIDEO_WRITER_H
#define DSVI_VIDEO_WRITER_H

#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes pixels (3, frames, height, width), F32 RGB, clamped to [-1, 1]. The ending of `path` selects the
 * container mkv, mov, avi or mpg; all other names are mp4. The codec is H.264 if this FFmpeg has libx264,
 * otherwise MPEG-4, with one key frame per second. Odd sizes are padded by repeating the last row or column.
 * The file is written under a temporary name in the same folder and then renamed. The same frames give the
 * same bytes. */
DsvStatus dsvi_video_write(const char *path, const float *pixels, int64_t frames, int64_t height,
                           int64_t width, double fps);

/* Writes a video file as dsvi_video_write does, but with the FFmpeg encoder named `encoder`, such as
 * "libx264", "mpeg4" or "mpeg2video". */
DsvStatus dsvi_video_write_as(const char *encoder, const char *path, const float *pixels, int64_t frames,
                              int64_t height, int64_t width, double fps);

#ifdef __cplusplus
}
#endif
#endif
