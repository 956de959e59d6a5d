/* Small pictures of a clip's frames, for the report and TensorBoard. */
#ifndef DSVI_CLIP_FRAMES_H
#define DSVI_CLIP_FRAMES_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviClipFrames {
    int64_t frames, height, width;
    double fps;   /* frame rate at which these frames last as long as the clip */
    uint8_t *rgb; /* (frames, height, width, 3) */
} DsviClipFrames;

/* Reads at most `frames_max` frames, spread evenly over the clip, and scales them down to about `rows_max`
 * rows if they have more. Fails like dsvi_clip_probe. On success the caller must free `frames` with
 * dsvi_clip_frames_free. */
DsvStatus dsvi_clip_frames_read(const char *path, int64_t frames_max, int64_t rows_max,
                                DsviClipFrames *frames);
/* Frees the frames. Accepts a zero-initialised struct. */
void dsvi_clip_frames_free(DsviClipFrames *frames);

/* Encodes `count` frames, starting at `first`, as a PNG file in memory, which the caller frees. Several
 * frames make an animated PNG that repeats endlessly; programs that only know PNG show its first frame.
 * `name` appears in error messages. Fails with DSV_E_UNSUPPORTED if FFmpeg lacks the encoder. */
DsvStatus dsvi_clip_frames_png(const char *name, const DsviClipFrames *frames, int64_t first, int64_t count,
                               uint8_t **png, size_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
