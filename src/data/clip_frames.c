/* Implements clip_frames.h: reads small pictures of a clip and encodes them as PNG. */
#include "data/clip_frames.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>

#include "data/clip.h"
#include "data/ffmpeg_support.h"

enum { TICKS_MAX = 10000 }; /* an animated PNG stores frame times in 16 bits */

DsvStatus dsvi_clip_frames_read(const char *path, int64_t frames_max, int64_t rows_max, DsviClipFrames *f)
{
    DsviClipInfo info;
    int64_t covered;
    *f = (DsviClipFrames){0};
    DSVI_TRY(dsvi_clip_probe(path, &info));
    int64_t height = info.height < rows_max ? info.height : rows_max;
    int64_t width = height * info.width / info.height;
    f->frames = info.frames < 1 ? 1 : info.frames < frames_max ? info.frames : frames_max;
    f->fps = info.seconds > 0 ? (double)f->frames / info.seconds : 1;
    DsviClipWindow window = {
        .fps = f->fps,
        .frames = f->frames,
        .height = height,
        .width = width > 0 ? width : 1,
    };
    DSVI_TRY(
        dsvi_clip_cover(path, info.height, info.width, window.height, window.width, &f->height, &f->width));
    f->rgb = malloc((size_t)(f->frames * f->height * f->width * 3));
    if (!f->rgb)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for its frames", path);
    DsvStatus status = dsvi_clip_read_rgb(path, &window, f->height, f->width, f->rgb, &covered);
    if (status != DSV_OK)
        dsvi_clip_frames_free(f);
    return status;
}

void dsvi_clip_frames_free(DsviClipFrames *f)
{
    free(f->rgb);
    *f = (DsviClipFrames){0};
}

typedef struct Writer {
    AVFormatContext *format;
    AVCodecContext *encoder;
    AVFrame *frame;
    AVPacket *packet;
} Writer;

/* Opens an encoder that writes to memory. Returns an FFmpeg code, negative on failure. */
static int open_writer(Writer *w, const AVCodec *codec, const DsviClipFrames *f)
{
    AVDictionary *options = NULL;
    int code = avformat_alloc_output_context2(&w->format, NULL, "apng", NULL);
    AVStream *stream = code < 0 ? NULL : avformat_new_stream(w->format, NULL);
    w->encoder = avcodec_alloc_context3(codec);
    w->frame = av_frame_alloc();
    w->packet = av_packet_alloc();
    if (!stream || !w->encoder || !w->frame || !w->packet)
        return code < 0 ? code : AVERROR(ENOMEM);
    w->frame->width = w->encoder->width = (int)f->width;
    w->frame->height = w->encoder->height = (int)f->height;
    w->frame->format = w->encoder->pix_fmt = AV_PIX_FMT_RGB24;
    stream->time_base = w->encoder->time_base = av_inv_q(av_d2q(fmax(f->fps, 0.1), TICKS_MAX));
    w->encoder->thread_count = 1;
    w->encoder->flags |= AV_CODEC_FLAG_BITEXACT;
    code = avcodec_open2(w->encoder, codec, NULL);
    if (code >= 0)
        code = avcodec_parameters_from_context(stream->codecpar, w->encoder);
    if (code >= 0)
        code = av_frame_get_buffer(w->frame, 0);
    if (code >= 0)
        code = avio_open_dyn_buf(&w->format->pb);
    av_dict_set(&options, "plays", "0", 0); /* repeat endlessly */
    if (code >= 0)
        code = avformat_write_header(w->format, &options);
    av_dict_free(&options);
    return code;
}

/* Encodes a frame, or NULL at the end, and writes the resulting packets. */
static int clip_frames_encode(Writer *w, const AVFrame *frame)
{
    int code = avcodec_send_frame(w->encoder, frame);
    while (code >= 0) {
        code = avcodec_receive_packet(w->encoder, w->packet);
        if (code == AVERROR(EAGAIN) || code == AVERROR_EOF)
            return 0;
        if (code >= 0) {
            w->packet->duration = 1;
            av_packet_rescale_ts(w->packet, w->encoder->time_base, w->format->streams[0]->time_base);
            code = av_write_frame(w->format, w->packet);
        }
    }
    return code;
}

static int clip_write_frames(Writer *w, const DsviClipFrames *f, int64_t first, int64_t count)
{
    int code = 0;
    size_t row = (size_t)f->width * 3;
    for (int64_t i = 0; i < count && code >= 0; i++) {
        code = av_frame_make_writable(w->frame);
        for (int64_t y = 0; y < f->height && code >= 0; y++)
            memcpy(w->frame->data[0] + y * w->frame->linesize[0],
                   f->rgb + (size_t)((first + i) * f->height + y) * row, row);
        w->frame->pts = i;
        if (code >= 0)
            code = clip_frames_encode(w, w->frame);
    }
    if (code >= 0)
        code = clip_frames_encode(w, NULL);
    return code < 0 ? code : av_write_trailer(w->format);
}

/* Stores the finished PNG file in *png, or discards it if `code` is a failure. The file is copied before
 * closing, because closing writes padding at the writer's last position, which is inside the file. */
static DsvStatus clip_frames_close_writer(Writer *w, const char *name, int code, uint8_t **png, size_t *bytes)
{
    uint8_t *file = NULL;
    AVIOContext *memory = w->format ? w->format->pb : NULL;
    int length = memory ? avio_get_dyn_buf(memory, &file) : 0;
    *png = code >= 0 ? malloc((size_t)length) : NULL;
    *bytes = *png ? (size_t)length : 0;
    if (*png)
        memcpy(*png, file, *bytes);
    if (memory) {
        avio_close_dyn_buf(memory, &file);
        av_free(file);
    }
    avformat_free_context(w->format);
    avcodec_free_context(&w->encoder);
    av_frame_free(&w->frame);
    av_packet_free(&w->packet);
    if (code < 0)
        return dsvi_ffmpeg_fail(DSV_E_UNSUPPORTED, name, "its frames make no picture", code);
    return *png ? DSV_OK : DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for a picture of its frames", name);
}

DsvStatus dsvi_clip_frames_png(const char *name, const DsviClipFrames *f, int64_t first, int64_t count,
                               uint8_t **png, size_t *bytes)
{
    Writer writer = {0};
    dsvi_ffmpeg_capture_log();
    const AVCodec *codec = avcodec_find_encoder(AV_CODEC_ID_APNG);
    DSVI_ASSERT(first >= 0 && count >= 1 && first + count <= f->frames);
    *png = NULL;
    *bytes = 0;
    if (!codec)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: FFmpeg has no encoder for PNG here", name);
    int code = open_writer(&writer, codec, f);
    if (code >= 0)
        code = clip_write_frames(&writer, f, first, count);
    return clip_frames_close_writer(&writer, name, code, png, bytes);
}
