/* Decoding a window of a clip with FFmpeg's libraries.
 *
 * Frames are picked at the times first / fps, (first + 1) / fps, ... from the first frame on, scaled to cover
 * the wanted size as 8-bit RGB, then cropped and widened to F32. The steps are separate functions, so that
 * a cache can keep what lies between them and give the same bytes (clip_cache.h). */
#ifndef DSVI_CLIP_H
#define DSVI_CLIP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvClipInfo {
    int64_t width, height; /* as displayed: rotation and pixel aspect applied */
    double fps, seconds;
    int64_t frames; /* estimated where the container does not say */
    char codec[32], container[32];
    unsigned oddities; /* what of the picture is not converted: a sum of DsvClipOddity */
} DsvClipInfo;

/* How frames may be stored that are then read as if they were not. */
typedef enum DsvClipOddity {
    DSVI_CLIP_INTERLACED = 1, /* two fields of different times in a frame */
    DSVI_CLIP_HDR = 2,        /* the transfer curve of PQ or HLG */
    DSVI_CLIP_WIDE = 4,       /* the primaries of BT.2020, DCI-P3 or others wider than BT.709's */
    DSVI_CLIP_ALPHA = 8
} DsvClipOddity;

/* "path: interlaced: ...": what is not converted and how its pictures look then. Returns false, and an
 * empty text, for a clip without oddities. */
bool dsvi_clip_remark(const char *path, const DsvClipInfo *info, char *text, size_t room);

/* Opens, finds the first video stream, decodes its first frame and looks up its end. DSV_E_NOT_FOUND,
 * DSV_E_FORMAT (not a video, broken at its head, truncated), DSV_E_UNSUPPORTED (no decoder; colours stored
 * in a way that is not converted at all). */
DsvStatus dsvi_clip_probe(const char *path, DsvClipInfo *info);

typedef struct DsvClipWindow {
    double start; /* seconds */
    double fps;   /* frame i is the one shown at start + i / fps */
    int64_t frames, height, width;
    double crop_x, crop_y; /* 0 to 1: where in the slack the crop lies; 0.5: the middle */
} DsvClipWindow;

/* Fills pixels (3, frames, height, width), F32 in [-1, 1], RGB: scaled to cover, cropped. A clip that ends
 * inside the window repeats its last frame; one that ends before it, or is damaged inside it, is
 * DSV_E_FORMAT. Same file and window give the same bytes. */
DsvStatus dsvi_clip_read(const char *path, const DsvClipWindow *window, float *pixels);

/* The smallest size of the clip's shape that covers height x width. DSV_E_FORMAT when the clip is so narrow
 * that this is absurdly long. */
DsvStatus dsvi_clip_cover(const char *path, int64_t shown_height, int64_t shown_width, int64_t height,
                          int64_t width, int64_t *cover_height, int64_t *cover_width);

/* The frames of the window, scaled to the covering size, which must be as given: rgb (frames, cover_height,
 * cover_width, 3). *covered: so many of them lie inside the clip; the others repeat its last. */
DsvStatus dsvi_clip_read_rgb(const char *path, const DsvClipWindow *window, int64_t cover_height,
                             int64_t cover_width, uint8_t *rgb, int64_t *covered);

/* The crop of one scaled frame, rgb (cover_height, cover_width, 3), as frame i of pixels (3, frames,
 * height, width). */
void dsvi_clip_crop(const DsvClipWindow *window, const uint8_t *rgb, int64_t cover_height,
                    int64_t cover_width, int64_t i, float *pixels);

/* How many of the times 0, 1 / fps, 2 / fps, ... are inside the clip; at least 1. A clip whose length is n
 * / fps, up to what containers round by, has n of them. */
int64_t dsvi_clip_grid(const DsvClipInfo *info, double fps);

#ifdef __cplusplus
}
#endif
#endif
