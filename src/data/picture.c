/* Implements picture.h: a picture is a clip of one frame (clip.h) without transparent pixels. */
#include "data/picture.h"

#include <stdbool.h>
#include <stdlib.h>

#include <libavutil/frame.h>
#include <libavutil/pixdesc.h>

#include "data/clip.h"
#include "data/clip_scale.h"
#include "data/clip_stream.h"

enum { OPAQUE = 255 };

/* Finds whether a pixel of row y is transparent, by the first 8 bits of its alpha: not all programs that make
 * 16 bits of 8 set the others. `row` has space for the row's values. */
static bool row_is_transparent(const AVFrame *frame, const AVPixFmtDescriptor *format, int y, uint16_t *row)
{
    int component = format->nb_components - 1, shift = 0; /* alpha is the last component */
    if (format->flags & AV_PIX_FMT_FLAG_PAL) { /* a palette of 256 words: alpha, red, green, blue */
        const uint8_t *index = frame->data[0] + (ptrdiff_t)y * frame->linesize[0];
        const uint32_t *palette = (const uint32_t *)(const void *)frame->data[1];
        for (int x = 0; x < frame->width; x++)
            row[x] = (uint16_t)(palette[index[x]] >> 24);
    } else {
        shift = format->comp[component].depth - 8;
        av_read_image_line2(row, (const uint8_t **)frame->data, frame->linesize, format, 0, y, component,
                            frame->width, 0, sizeof *row);
    }
    for (int x = 0; x < frame->width; x++)
        if (row[x] >> shift != OPAQUE)
            return true;
    return false;
}

/* Fails if a pixel is transparent, because its background is unknown. Many opaque pictures have an alpha
 * channel. */
static DsvStatus check_opaque(const AVFrame *frame, const char *path)
{
    const AVPixFmtDescriptor *format = av_pix_fmt_desc_get(frame->format);
    bool transparent = false;
    if (!format || !(format->flags & AV_PIX_FMT_FLAG_ALPHA))
        return DSV_OK;
    uint16_t *row = malloc((size_t)frame->width * sizeof *row);
    if (!row)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for a row of the picture", path);
    for (int y = 0; y < frame->height && !transparent; y++)
        transparent = row_is_transparent(frame, format, y, row);
    free(row);
    return transparent ? DSVI_FAIL(DSV_E_UNSUPPORTED,
                                   "%s: some of its pixels are transparent, expected a picture without "
                                   "transparency",
                                   path)
                       : DSV_OK;
}

/* Checks that the file is an opaque picture, and finds its size. */
static DsvStatus check_picture(const char *path, int64_t *height, int64_t *width)
{
    DsvStatus status;
    DsviClipStream stream = {0};
    unsigned oddities;
    if (!dsvi_clip_is_picture(path))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: expected a picture whose name ends with .png, .jpg or .jpeg",
                         path);
    DSVI_TRY_GOTO(status, dsvi_clip_stream_open(path, &stream), done);
    *height = stream.height;
    *width = stream.width;
    DSVI_TRY_GOTO(status, dsvi_clip_colours(stream.frame, path, &oddities), done);
    DSVI_TRY_GOTO(status, check_opaque(stream.frame, path), done);
done:
    dsvi_clip_stream_close(&stream);
    return status;
}

/* The only frame of a picture, in this size. */
static DsviClipWindow window_of(int64_t height, int64_t width)
{
    return (DsviClipWindow){
        .fps = 1, .frames = 1, .height = height, .width = width, .crop_x = 0.5, .crop_y = 0.5};
}

DsvStatus dsvi_picture_read(const char *path, int64_t height, int64_t width, float *pixels,
                            int64_t *shown_height, int64_t *shown_width)
{
    const DsviClipWindow window = window_of(height, width);
    DSVI_TRY(check_picture(path, shown_height, shown_width));
    return dsvi_clip_read(path, &window, pixels);
}

DsvStatus dsvi_picture_read_rgb(const char *path, uint8_t **rgb, int64_t *height, int64_t *width)
{
    int64_t covered;
    *rgb = NULL;
    DSVI_TRY(check_picture(path, height, width));
    const DsviClipWindow window = window_of(*height, *width);
    uint8_t *bytes = malloc((size_t)(*height * *width * 3));
    if (!bytes)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for %lld x %lld pixels", path, (long long)*width,
                         (long long)*height);
    DsvStatus status = dsvi_clip_read_rgb(path, &window, *height, *width, bytes, &covered);
    if (status == DSV_OK)
        *rgb = bytes;
    else
        free(bytes);
    return status;
}
