/* Writes frames to a video file with FFmpeg's libraries. */
#ifndef DSVI_VIDEO_WRITER_H
#define DSVI_VIDEO_WRITER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Frames to be written. */
typedef struct DsviVideoFrames {
    const float *pixels; /* (3, frames, height, width) RGB, clamped to [-1, 1] */
    int64_t frames, height, width;
    double fps;
    const char *comment; /* text stored in the file, as the entry "comment" of its metadata; NULL: none */
} DsviVideoFrames;

/* Writes a video file. The ending of `path` selects the container mkv, mov, avi or mpg; all other names are
 * mp4. The codec is H.264 if this FFmpeg has libx264, otherwise MPEG-4, with one key frame per second. Odd
 * sizes are padded by repeating the last row or column. The file is written under a temporary name in the
 * same folder and then renamed. The same frames give the same bytes. */
DsvStatus dsvi_video_save(const char *path, const DsviVideoFrames *frames);
/* As dsvi_video_save, without a comment. */
DsvStatus dsvi_video_write(const char *path, const float *pixels, int64_t frames, int64_t height,
                           int64_t width, double fps);
/* As dsvi_video_write, with the FFmpeg encoder named `encoder`, such as "libx264", "mpeg4" or "mpeg2video".
 */
DsvStatus dsvi_video_write_as(const char *encoder, const char *path, const float *pixels, int64_t frames,
                              int64_t height, int64_t width, double fps);

/* Returns the byte, 0 to 255, that stands for a pixel value in [-1, 1]. */
uint8_t dsvi_video_byte(float value);

#ifdef __cplusplus
}
#endif
#endif
