/* Reads pictures, PNG or JPEG, with FFmpeg's libraries. */
#ifndef DSVI_PICTURE_H
#define DSVI_PICTURE_H

#include "base/status.h"
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Reads a picture into pixels (3, height, width), F32 in [-1, 1], RGB. The picture is scaled to cover this
 * size, and its middle is cropped; a PNG of 8 bits with exactly this size keeps its values. *shown_height and
 * *shown_width receive the picture's own size. Fails with DSV_E_NOT_FOUND, DSV_E_FORMAT (empty, damaged, no
 * PNG or JPEG) or DSV_E_UNSUPPORTED (transparent pixels, or colours that cannot be converted). */
DsvStatus dsvi_picture_read(const char *path, int64_t height, int64_t width, float *pixels,
                            int64_t *shown_height, int64_t *shown_width);

/* Reads a picture in its own size. *rgb receives its bytes (height, width, 3), which the caller frees; NULL
 * after a failure. Fails as dsvi_picture_read. */
DsvStatus dsvi_picture_read_rgb(const char *path, uint8_t **rgb, int64_t *height, int64_t *width);

#ifdef __cplusplus
}
#endif
#endif
