/* A clip's frames in small, for people to look at: in the report and in TensorBoard. */
#ifndef DSVI_CLIP_FRAMES_H
#define DSVI_CLIP_FRAMES_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvClipFrames {
    int64_t frames, height, width;
    double fps;   /* at which these frames take as long as the clip */
    uint8_t *rgb; /* (frames, height, width, 3) */
} DsvClipFrames;

/* At most `frames_max` frames spread evenly over the clip, scaled down to about `rows_max` rows where the
 * clip has more. Fails as dsvi_clip_probe does. On success the caller frees `frames` with
 * dsvi_clip_frames_free. */
DsvStatus dsvi_clip_frames_read(const char *path, int64_t frames_max, int64_t rows_max,
                                DsvClipFrames *frames);
/* A zeroed one may be freed. */
void dsvi_clip_frames_free(DsvClipFrames *frames);

/* `count` frames from `first` on as a PNG file in memory, which the caller frees. Several make an animated
 * PNG that repeats without end; programs that know only PNG show its first frame. `name` is for the error:
 * DSV_E_UNSUPPORTED where FFmpeg lacks the encoder. */
DsvStatus dsvi_clip_frames_png(const char *name, const DsvClipFrames *frames, int64_t first, int64_t count,
                               uint8_t **png, size_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
