/* Decodes a window of a clip with FFmpeg's libraries.
 *
 * Frames are taken at the times first / fps, (first + 1) / fps, ..., measured from the clip's first frame.
 * Each frame is scaled to cover the requested size as 8-bit RGB, then cropped and converted to F32. Scaling
 * and cropping are separate functions, so that a cache can keep the scaled frames and return the same bytes
 * (clip_cache.h). */
#ifndef DSVI_CLIP_H
#define DSVI_CLIP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviClipInfo {
    int64_t width, height; /* size as displayed, after rotation and with square pixels */
    double fps, seconds;
    int64_t frames; /* estimated if the container does not state the number */
    char codec[32], container[32];
    unsigned oddities; /* properties of the picture that are not converted: a sum of DsviClipOddity values */
} DsviClipInfo;

/* Properties of stored frames that the reader ignores, so that the pictures look different from what was
 * intended. */
typedef enum DsviClipOddity {
    DSVI_CLIP_INTERLACED = 1, /* a frame consists of two fields taken at different times */
    DSVI_CLIP_HDR = 2,        /* the transfer function is PQ or HLG */
    DSVI_CLIP_WIDE = 4,       /* the colour primaries are wider than BT.709's, such as BT.2020 or DCI-P3 */
    DSVI_CLIP_ALPHA = 8
} DsviClipOddity;

/* Writes a line into `text` (room bytes): the path, what is not converted, and how the pictures then look.
 * Returns false, and an empty text, for a clip without oddities. */
bool dsvi_clip_oddities_text(const char *path, const DsviClipInfo *info, char *text, size_t room);

/* Fills `info`: opens the file, finds the first video stream, decodes its first frame and determines its end.
 * Fails with DSV_E_NOT_FOUND, DSV_E_FORMAT (no video, damaged header, truncated) or DSV_E_UNSUPPORTED (no
 * decoder, or colours that cannot be converted). */
DsvStatus dsvi_clip_probe(const char *path, DsviClipInfo *info);

typedef struct DsviClipWindow {
    double start; /* start of the window in seconds */
    double fps;   /* frame i is the frame shown at start + i / fps seconds */
    int64_t frames, height, width;
    double crop_x, crop_y; /* position of the crop within the covering frame, 0 to 1; 0.5: the middle */
} DsviClipWindow;

/* Reads a window into pixels (3, frames, height, width), F32 in [-1, 1], RGB, scaled to cover and cropped. If
 * the clip ends inside the window, its last frame is repeated. Fails with DSV_E_FORMAT if the clip ends
 * before the window or is damaged inside the window. Equal files and windows give equal bytes. */
DsvStatus dsvi_clip_read(const char *path, const DsviClipWindow *window, float *pixels);

/* Computes the smallest size with the clip's aspect ratio that covers height x width. Fails with DSV_E_FORMAT
 * if the clip is so narrow that this size is too large. */
DsvStatus dsvi_clip_cover(const char *path, int64_t shown_height, int64_t shown_width, int64_t height,
                          int64_t width, int64_t *cover_height, int64_t *cover_width);

/* Reads the frames of the window, scaled to the covering size, into rgb (frames, cover_height, cover_width,
 * 3). cover_height and cover_width must be the result of dsvi_clip_cover; they are checked. Stores in
 * *covered the number of frames inside the clip; the other frames repeat the last one. */
DsvStatus dsvi_clip_read_rgb(const char *path, const DsviClipWindow *window, int64_t cover_height,
                             int64_t cover_width, uint8_t *rgb, int64_t *covered);

/* Crops a scaled frame rgb (cover_height, cover_width, 3) and writes it as frame i of pixels (3, frames,
 * height, width). */
void dsvi_clip_crop(const DsviClipWindow *window, const uint8_t *rgb, int64_t cover_height,
                    int64_t cover_width, int64_t i, float *pixels);

/* Returns how many of the times 0, 1 / fps, 2 / fps, ... are inside the clip; at least 1. A clip of length
 * n / fps, up to the rounding of containers, has n of them. */
int64_t dsvi_clip_frame_times(const DsviClipInfo *info, double fps);

#ifdef __cplusplus
}
#endif
#endif
