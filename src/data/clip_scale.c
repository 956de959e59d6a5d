/* Implements clip_scale.h: converts decoded frames to upright RGB. libswscale scales and converts colours;
 * this file rotates the result. */
#include "data/clip_scale.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <libavutil/frame.h>
#include <libavutil/pixdesc.h>
#include <libavutil/pixfmt.h>
#include <libswscale/swscale.h>

#include "data/clip.h"

enum {
    /* Options of swscale: a bicubic filter, which swscale widens when it shrinks a picture, so that
     * pixels are averaged; chroma at full width; only code whose result does not depend on the processor. */
    SCALE_FLAGS = SWS_BICUBIC | SWS_FULL_CHR_H_INT | SWS_FULL_CHR_H_INP | SWS_ACCURATE_RND | SWS_BITEXACT,
    HD_COLUMNS = 1280,
    SD_ROWS_MAX = 576,
    ROW_ALIGN = 64 /* swscale stores whole vectors and may write past the end of a row */
};

DsvStatus dsvi_clip_scaler_open(const DsviClipStream *stream, int64_t height, int64_t width,
                                DsviClipScaler *scaler)
{
    memset(scaler, 0, sizeof *scaler);
    memcpy(scaler->turn, stream->turn, sizeof scaler->turn);
    bool upright = scaler->turn[0] != 0;
    scaler->height = height;
    scaler->width = width;
    scaler->flat_height = upright ? height : width;
    scaler->flat_width = upright ? width : height;
    scaler->stride = (3 * scaler->flat_width + 2 * ROW_ALIGN) / ROW_ALIGN * ROW_ALIGN;
    scaler->flat = aligned_alloc(ROW_ALIGN, (size_t)(scaler->stride * scaler->flat_height));
    if (!scaler->flat)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for a frame of %lld x %lld", stream->path,
                         (long long)width, (long long)height);
    return DSV_OK;
}

void dsvi_clip_scaler_close(DsviClipScaler *scaler)
{
    sws_freeContext(scaler->sws);
    free(scaler->flat);
    memset(scaler, 0, sizeof *scaler);
}

/* Returns the plain format of a "J" format, whose name implies full range; swscale needs the range as a
 * parameter. */
static int clip_scale_plain_format(int format, int *full_range)
{
    static const int PAIRS[][2] = {
        {AV_PIX_FMT_YUVJ420P, AV_PIX_FMT_YUV420P}, {AV_PIX_FMT_YUVJ422P, AV_PIX_FMT_YUV422P},
        {AV_PIX_FMT_YUVJ444P, AV_PIX_FMT_YUV444P}, {AV_PIX_FMT_YUVJ440P, AV_PIX_FMT_YUV440P},
        {AV_PIX_FMT_YUVJ411P, AV_PIX_FMT_YUV411P},
    };
    for (size_t i = 0; i < sizeof PAIRS / sizeof PAIRS[0]; i++) {
        if (format == PAIRS[i][0]) {
            *full_range = 1;
            return PAIRS[i][1];
        }
    }
    return format;
}

/* Returns the colour matrix to assume if a frame does not state one: the guess of mpv and libplacebo.
 * FFmpeg's tools assume BT.601. */
static int guess_matrix(const AVFrame *frame)
{
    bool hd = frame->width >= HD_COLUMNS || frame->height > SD_ROWS_MAX;
    return hd ? AVCOL_SPC_BT709 : AVCOL_SPC_SMPTE170M;
}

static bool is_rgb(const AVPixFmtDescriptor *format)
{
    return format && format->flags & (AV_PIX_FMT_FLAG_RGB | AV_PIX_FMT_FLAG_PAL);
}

/* Returns whether swscale has coefficients for the frame's matrix. For other matrices it silently uses
 * BT.601's. */
static bool clip_scale_has_matrix(const AVFrame *frame)
{
    switch (frame->colorspace) {
    case AVCOL_SPC_BT709:
    case AVCOL_SPC_UNSPECIFIED:
    case AVCOL_SPC_RESERVED:
    case AVCOL_SPC_FCC:
    case AVCOL_SPC_BT470BG:
    case AVCOL_SPC_SMPTE170M:
    case AVCOL_SPC_SMPTE240M:
    case AVCOL_SPC_BT2020_NCL: return true;
    default: return false;
    }
}

static bool is_wide(enum AVColorPrimaries primaries)
{
    return primaries == AVCOL_PRI_BT2020 || primaries == AVCOL_PRI_SMPTE431 ||
           primaries == AVCOL_PRI_SMPTE432 || primaries == AVCOL_PRI_SMPTE428;
}

DsvStatus dsvi_clip_colours(const AVFrame *frame, const char *path, unsigned *oddities)
{
    const AVPixFmtDescriptor *format = av_pix_fmt_desc_get(frame->format);
    const char *name = av_color_space_name(frame->colorspace);
    if (!is_rgb(format) && !clip_scale_has_matrix(frame) && frame->colorspace != AVCOL_SPC_RGB)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: colours stored as %s, which cannot be converted to RGB",
                         path, name ? name : "an unknown matrix");
    *oddities = (frame->interlaced_frame ? DSVI_CLIP_INTERLACED : 0) |
                (frame->color_trc == AVCOL_TRC_SMPTE2084 || frame->color_trc == AVCOL_TRC_ARIB_STD_B67
                     ? DSVI_CLIP_HDR
                     : 0) |
                (is_wide(frame->color_primaries) ? DSVI_CLIP_WIDE : 0) |
                (format && format->flags & AV_PIX_FMT_FLAG_ALPHA ? DSVI_CLIP_ALPHA : 0);
    return DSV_OK;
}

/* Creates the swscale context s->sws for frames with the size, format and colours of this one, unless it
 * exists. Size and format may change inside a stream. */
static DsvStatus clip_scale_prepare(DsviClipScaler *s, const AVFrame *frame, const char *path)
{
    int full_range = frame->color_range == AVCOL_RANGE_JPEG;
    int format = clip_scale_plain_format(frame->format, &full_range);
    int colours = frame->colorspace;
    if (colours == AVCOL_SPC_UNSPECIFIED || colours == AVCOL_SPC_RESERVED || colours == AVCOL_SPC_RGB)
        colours = guess_matrix(frame);
    const int source[5] = {frame->width, frame->height, format, colours, full_range};
    if (s->sws && memcmp(source, s->source, sizeof source) == 0)
        return DSV_OK;
    sws_freeContext(s->sws);
    s->sws = sws_getContext(frame->width, frame->height, format, (int)s->flat_width, (int)s->flat_height,
                            AV_PIX_FMT_RGB24, SCALE_FLAGS, NULL, NULL, NULL);
    if (!s->sws)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: frames of %d x %d cannot be scaled to %lld x %lld", path,
                         frame->width, frame->height, (long long)s->flat_width, (long long)s->flat_height);
    /* swscale rejects this call for RGB sources, which do not need it. */
    const int *coefficients = sws_getCoefficients(colours);
    sws_setColorspaceDetails(s->sws, coefficients, full_range, coefficients, 1, 0, 1 << 16, 1 << 16);
    memcpy(s->source, source, sizeof source);
    return DSV_OK;
}

/* Copies the scaled frame s->flat to `rgb` without rotation. */
static void clip_scale_copy_rows(const DsviClipScaler *s, uint8_t *rgb)
{
    size_t row = (size_t)(3 * s->width);
    for (int64_t y = 0; y < s->height; y++)
        memcpy(rgb + (size_t)y * row, s->flat + y * s->stride, row);
}

/* Copies the scaled frame s->flat to `rgb` with the rotation and mirroring that s->turn describes. */
static void rotate_pixels(const DsviClipScaler *s, uint8_t *rgb)
{
    const int *t = s->turn;
    int64_t left = t[0] < 0 || t[2] < 0 ? s->width - 1 : 0, top = t[1] < 0 || t[3] < 0 ? s->height - 1 : 0;
    for (int64_t y = 0; y < s->flat_height; y++) {
        const uint8_t *from = s->flat + y * s->stride;
        for (int64_t x = 0; x < s->flat_width; x++) {
            int64_t to_x = left + x * t[0] + y * t[2], to_y = top + x * t[1] + y * t[3];
            memcpy(rgb + 3 * (to_y * s->width + to_x), from + 3 * x, 3);
        }
    }
}

DsvStatus dsvi_clip_scale(DsviClipScaler *s, const AVFrame *frame, const char *path, uint8_t *rgb)
{
    DSVI_TRY(clip_scale_prepare(s, frame, path));
    uint8_t *planes[4] = {s->flat, NULL, NULL, NULL};
    int strides[4] = {(int)s->stride, 0, 0, 0};
    if (sws_scale(s->sws, (const uint8_t *const *)frame->data, frame->linesize, 0, frame->height, planes,
                  strides) != s->flat_height)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: a frame of %d x %d cannot be converted to RGB", path,
                         frame->width, frame->height);
    if (s->turn[0] == 1 && s->turn[3] == 1)
        clip_scale_copy_rows(s, rgb);
    else
        rotate_pixels(s, rgb);
    return DSV_OK;
}
