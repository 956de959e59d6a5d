/* Writes frames to a video file: conversion to YUV 4:2:0, encoding, muxing (video_writer.h). */
#include "sample/video_writer.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/opt.h>
#include <libswscale/swscale.h>

#include "base/fs.h"
#include "data/ffmpeg_support.h"

enum {
    SIDE_MAX = 16384,
    TICKS_MAX = 65535, /* largest frame rate of MPEG-4: ticks of its clock per second */
    MPEG4_QUALITY = 3, /* quantiser, 1 (best) to 31 */
    STRIDE_SLACK = 64  /* bytes added to rows: swscale reads whole vectors */
};
static const char X264_QUALITY[] = "17"; /* constant rate factor: differences are not visible */

typedef struct Video {
    const float *pixels; /* (3, frames, height, width) */
    const char *comment; /* or NULL */
    int64_t frames, height, width;
    int64_t even_height, even_width; /* encoded size: rounded up to even numbers */
} Video;

typedef struct Writer {
    const char *path;
    char url[DSVI_PATH_MAX + 16]; /* "file:" and the temporary name */
    AVFormatContext *format;
    AVCodecContext *encoder;
    AVStream *stream;
    AVFrame *frame;
    AVPacket *packet;
    struct SwsContext *sws;
    uint8_t *rgb;   /* (even_height, stride) */
    int64_t stride; /* bytes */
} Writer;

static DsvStatus video_writer_fail(const Writer *w, int code)
{
    return dsvi_ffmpeg_fail(DSV_E_IO, w->path, "cannot write the video", code);
}

static const char *container_of(const char *path)
{
    static const char *const BY_ENDING[][2] = {
        {".mkv", "matroska"}, {".mov", "mov"}, {".avi", "avi"}, {".mpg", "mpeg"}};
    const char *dot = strrchr(path, '.');
    for (size_t i = 0; dot && i < sizeof BY_ENDING / sizeof BY_ENDING[0]; i++)
        if (strcasecmp(dot, BY_ENDING[i][0]) == 0)
            return BY_ENDING[i][1];
    return "mp4";
}

static DsvStatus open_encoder(Writer *w, const char *name, const Video *video, double fps)
{
    const AVCodec *codec = avcodec_find_encoder_by_name(name);
    if (!codec)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: FFmpeg has no encoder %s here", w->path, name);
    AVCodecContext *e = w->encoder = avcodec_alloc_context3(codec);
    if (!e)
        return video_writer_fail(w, AVERROR(ENOMEM));
    e->width = (int)video->even_width;
    e->height = (int)video->even_height;
    e->pix_fmt = AV_PIX_FMT_YUV420P;
    e->framerate = av_d2q(fps, TICKS_MAX);
    e->time_base = av_inv_q(e->framerate);
    e->gop_size = fps > 1 ? (int)lround(fps) : 1;
    e->color_range = AVCOL_RANGE_MPEG;
    e->colorspace = AVCOL_SPC_BT709;
    e->color_primaries = AVCOL_PRI_BT709;
    e->color_trc = AVCOL_TRC_BT709;
    e->thread_count = 1;
    e->flags |= AV_CODEC_FLAG_BITEXACT;
    if (w->format->oformat->flags & AVFMT_GLOBALHEADER)
        e->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
    if (strcmp(name, "libx264") == 0) {
        av_opt_set(e->priv_data, "crf", X264_QUALITY, 0);
        /* The macroblock tree of libx264 0.164 depends on what new memory holds, so that equal frames would
         * not always give equal files. Files are about 14 % larger without the tree. */
        av_opt_set(e->priv_data, "mbtree", "0", 0);
    } else {
        e->flags |= AV_CODEC_FLAG_QSCALE;
        e->global_quality = FF_QP2LAMBDA * MPEG4_QUALITY;
        e->max_b_frames = 2; /* as many B-frames as libx264 uses by default */
    }
    int code = avcodec_open2(e, codec, NULL);
    if (code < 0)
        return dsvi_ffmpeg_fail(DSV_E_UNSUPPORTED, w->path, "the encoder does not start", code);
    return DSV_OK;
}

static DsvStatus video_writer_open_file(Writer *w, const char *encoder, const Video *video, double fps)
{
    int code = avformat_alloc_output_context2(&w->format, NULL, container_of(w->path), w->url);
    if (code < 0)
        return video_writer_fail(w, code);
    w->format->flags |= AVFMT_FLAG_BITEXACT;
    w->stream = avformat_new_stream(w->format, NULL);
    w->packet = av_packet_alloc();
    if (!w->stream || !w->packet)
        return video_writer_fail(w, AVERROR(ENOMEM));
    DSVI_TRY(open_encoder(w, encoder, video, fps));
    w->stream->time_base = w->encoder->time_base;
    w->stream->avg_frame_rate = w->encoder->framerate;
    code = avcodec_parameters_from_context(w->stream->codecpar, w->encoder);
    if (code >= 0)
        code = avio_open(&w->format->pb, w->url, AVIO_FLAG_WRITE);
    if (code >= 0) {
        /* Puts the index before the frames, so that players can start at once. mkv and avi ignore the
         * option. */
        AVDictionary *options = NULL;
        av_dict_set(&options, "movflags", "+faststart", 0);
        if (video->comment)
            av_dict_set(&w->format->metadata, "comment", video->comment, 0);
        code = avformat_write_header(w->format, &options);
        av_dict_free(&options);
    }
    return code < 0 ? video_writer_fail(w, code) : DSV_OK;
}

static DsvStatus prepare_frames(Writer *w, const Video *video)
{
    w->stride = (3 * video->even_width + 2 * STRIDE_SLACK) / STRIDE_SLACK * STRIDE_SLACK;
    w->rgb = calloc((size_t)video->even_height, (size_t)w->stride);
    w->frame = av_frame_alloc();
    if (!w->rgb || !w->frame)
        return video_writer_fail(w, AVERROR(ENOMEM));
    w->frame->format = AV_PIX_FMT_YUV420P;
    w->frame->width = (int)video->even_width;
    w->frame->height = (int)video->even_height;
    w->frame->color_range = AVCOL_RANGE_MPEG;
    w->frame->colorspace = AVCOL_SPC_BT709;
    int code = av_frame_get_buffer(w->frame, 0);
    if (code < 0)
        return video_writer_fail(w, code);
    w->sws = sws_getContext(w->frame->width, w->frame->height, AV_PIX_FMT_RGB24, w->frame->width,
                            w->frame->height, AV_PIX_FMT_YUV420P,
                            SWS_BICUBIC | SWS_FULL_CHR_H_INP | SWS_ACCURATE_RND | SWS_BITEXACT, NULL, NULL,
                            NULL);
    if (!w->sws)
        return video_writer_fail(w, AVERROR(EINVAL));
    const int *bt709 = sws_getCoefficients(SWS_CS_ITU709);
    sws_setColorspaceDetails(w->sws, bt709, 1, bt709, 0, 0, 1 << 16, 1 << 16);
    return DSV_OK;
}

uint8_t dsvi_video_byte(float value)
{
    float scaled = (value + 1) * 127.5f;
    if (!(scaled > 0)) /* this condition is also true if `scaled` is NaN */
        return 0;
    return scaled < 255 ? (uint8_t)(scaled + 0.5f) : 255;
}

/* Converts frame i to RGB bytes, and pads it to even height and width. */
static void fill_rgb(const Writer *w, const Video *video, int64_t i)
{
    for (int64_t y = 0; y < video->even_height; y++) {
        int64_t from_y = y < video->height ? y : video->height - 1;
        for (int64_t x = 0; x < video->even_width; x++) {
            int64_t from_x = x < video->width ? x : video->width - 1;
            for (int64_t c = 0; c < 3; c++) {
                int64_t row = (c * video->frames + i) * video->height + from_y;
                w->rgb[y * w->stride + 3 * x + c] = dsvi_video_byte(
                    video->pixels[row * video->width + from_x]);
            }
        }
    }
}

/* Sends a frame to the encoder, or NULL at the end, and writes all packets that it returns. */
static DsvStatus video_writer_encode(Writer *w, const AVFrame *frame)
{
    int code = avcodec_send_frame(w->encoder, frame);
    while (code >= 0) {
        code = avcodec_receive_packet(w->encoder, w->packet);
        if (code == AVERROR(EAGAIN) || code == AVERROR_EOF)
            return DSV_OK;
        if (code >= 0) {
            w->packet->duration = 1; /* the encoder does not set the duration */
            av_packet_rescale_ts(w->packet, w->encoder->time_base, w->stream->time_base);
            code = av_interleaved_write_frame(w->format, w->packet);
        }
    }
    return video_writer_fail(w, code);
}

static DsvStatus video_writer_write_frames(Writer *w, const Video *video)
{
    for (int64_t i = 0; i < video->frames; i++) {
        int code = av_frame_make_writable(w->frame);
        if (code < 0)
            return video_writer_fail(w, code);
        fill_rgb(w, video, i);
        const uint8_t *planes[4] = {w->rgb, NULL, NULL, NULL};
        int strides[4] = {(int)w->stride, 0, 0, 0};
        sws_scale(w->sws, planes, strides, 0, w->frame->height, w->frame->data, w->frame->linesize);
        w->frame->pts = i;
        DSVI_TRY(video_writer_encode(w, w->frame));
    }
    DSVI_TRY(video_writer_encode(w, NULL));
    int code = av_write_trailer(w->format);
    int closing = avio_closep(&w->format->pb); /* a full disk may be reported only here */
    if (code >= 0)
        code = closing;
    return code < 0 ? video_writer_fail(w, code) : DSV_OK;
}

static void video_close_writer(Writer *w)
{
    if (w->format)
        avio_closep(&w->format->pb);
    avformat_free_context(w->format);
    avcodec_free_context(&w->encoder);
    av_frame_free(&w->frame);
    av_packet_free(&w->packet);
    sws_freeContext(w->sws);
    free(w->rgb);
}

static DsvStatus save_as(const char *encoder, const char *path, const DsviVideoFrames *f)
{
    DsvStatus status;
    Video video = {
        f->pixels,
        f->comment,
        f->frames,
        f->height,
        f->width,
        f->height + f->height % 2,
        f->width + f->width % 2,
    };
    Writer writer = {.path = path};
    if (f->frames < 1 || f->height < 1 || f->width < 1 || f->height > SIDE_MAX || f->width > SIDE_MAX ||
        !(f->fps > 0) || f->fps > TICKS_MAX)
        return DSVI_FAIL(DSV_E_USAGE, "%s: no video of %lld frames of %lld x %lld at %g frames/s", path,
                         (long long)f->frames, (long long)f->width, (long long)f->height, f->fps);
    if (snprintf(writer.url, sizeof writer.url, "file:%s.tmp", path) >= DSVI_PATH_MAX)
        return DSVI_FAIL(DSV_E_USAGE, "%.64s...: path longer than %d bytes", path, DSVI_PATH_MAX - 10);
    const char *temporary = strchr(writer.url, ':') + 1;
    dsvi_ffmpeg_capture_log();
    DSVI_TRY_GOTO(status, video_writer_open_file(&writer, encoder, &video, f->fps), done);
    DSVI_TRY_GOTO(status, prepare_frames(&writer, &video), done);
    DSVI_TRY_GOTO(status, video_writer_write_frames(&writer, &video), done);
    DSVI_TRY_GOTO(status, dsvi_path_rename(temporary, path), done);
done:
    video_close_writer(&writer);
    if (status != DSV_OK)
        unlink(temporary);
    return status;
}

DsvStatus dsvi_video_save(const char *path, const DsviVideoFrames *frames)
{
    dsvi_ffmpeg_capture_log();
    return save_as(avcodec_find_encoder_by_name("libx264") ? "libx264" : "mpeg4", path, frames);
}

DsvStatus dsvi_video_write_as(const char *encoder, const char *path, const float *pixels, int64_t frames,
                              int64_t height, int64_t width, double fps)
{
    DsviVideoFrames all = {.pixels = pixels, .frames = frames, .height = height, .width = width, .fps = fps};
    return save_as(encoder, path, &all);
}

DsvStatus dsvi_video_write(const char *path, const float *pixels, int64_t frames, int64_t height,
                           int64_t width, double fps)
{
    DsviVideoFrames all = {.pixels = pixels, .frames = frames, .height = height, .width = width, .fps = fps};
    return dsvi_video_save(path, &all);
}
