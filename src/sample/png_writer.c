/* Implements png_writer.h: FFmpeg encodes the picture, and the comment is inserted as a chunk after the first
 * one, because FFmpeg's encoder stores no text. */
#include "sample/png_writer.h"

#include <stdlib.h>
#include <string.h>

#include <libavcodec/avcodec.h>
#include <libavutil/crc.h>

#include "base/fs.h"
#include "data/ffmpeg_support.h"

/* Bytes of the signature and the chunk IHDR, with which every PNG begins, and of a chunk without its data:
 * length, type and checksum. */
enum { PNG_HEAD = 8 + 25, PNG_CHUNK = 12, SIDE_MAX = 16384 };
static const char PNG_KEYWORD[] = "Comment";

static DsvStatus png_fail(const char *path, int code)
{
    return dsvi_ffmpeg_fail(DSV_E_IO, path, "cannot write the picture", code);
}

static void put_be32(uint8_t *to, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        to[i] = (uint8_t)(value >> (24 - 8 * i));
}

/* Makes the chunk tEXt of a comment; the caller frees *out. */
static DsvStatus make_text_chunk(const char *path, const char *comment, uint8_t **out, size_t *bytes)
{
    size_t length = sizeof PNG_KEYWORD +
                    strlen(comment); /* the keyword ends with a zero, the text does not */
    uint8_t *chunk = length <= INT32_MAX ? malloc(length + PNG_CHUNK) : NULL;
    if (!chunk)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for the text stored in it", path);
    put_be32(chunk, (uint32_t)length);
    memcpy(chunk + 4, "tEXt", 4);
    memcpy(chunk + 8, PNG_KEYWORD, sizeof PNG_KEYWORD);
    memcpy(chunk + 8 + sizeof PNG_KEYWORD, comment, strlen(comment));
    uint32_t crc = av_crc(av_crc_get_table(AV_CRC_32_IEEE_LE), UINT32_MAX, chunk + 4, length + 4);
    put_be32(chunk + 8 + length, ~crc);
    *out = chunk;
    *bytes = length + PNG_CHUNK;
    return DSV_OK;
}

static void fill_frame(AVFrame *frame, const DsviVideoFrames *f, int64_t index)
{
    for (int64_t y = 0; y < f->height; y++)
        for (int64_t x = 0; x < f->width; x++)
            for (int64_t c = 0; c < 3; c++)
                frame->data[0][y * frame->linesize[0] + 3 * x + c] = dsvi_video_byte(
                    f->pixels[((c * f->frames + index) * f->height + y) * f->width + x]);
}

static DsvStatus png_encode(const char *path, const DsviVideoFrames *f, int64_t index,
                            AVCodecContext *encoder, AVFrame *frame, AVPacket *packet)
{
    encoder->width = frame->width = (int)f->width;
    encoder->height = frame->height = (int)f->height;
    encoder->pix_fmt = AV_PIX_FMT_RGB24;
    frame->format = AV_PIX_FMT_RGB24;
    encoder->time_base = (AVRational){1, 1};
    encoder->thread_count = 1;
    encoder->flags |= AV_CODEC_FLAG_BITEXACT;
    int code = avcodec_open2(encoder, NULL, NULL);
    if (code >= 0)
        code = av_frame_get_buffer(frame, 0);
    if (code < 0)
        return png_fail(path, code);
    fill_frame(frame, f, index);
    code = avcodec_send_frame(encoder, frame);
    if (code >= 0)
        code = avcodec_send_frame(encoder, NULL);
    if (code >= 0)
        code = avcodec_receive_packet(encoder, packet);
    if (code >= 0 && packet->size < PNG_HEAD)
        code = AVERROR_BUG;
    return code < 0 ? png_fail(path, code) : DSV_OK;
}

static DsvStatus png_replace(const char *path, const AVPacket *packet, const char *comment)
{
    uint8_t *text = NULL;
    size_t text_bytes = 0, bytes = (size_t)packet->size;
    if (comment)
        DSVI_TRY(make_text_chunk(path, comment, &text, &text_bytes));
    uint8_t *whole = malloc(bytes + text_bytes);
    DsvStatus status = whole ? DSV_OK : DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory to write it", path);
    if (whole) {
        memcpy(whole, packet->data, PNG_HEAD);
        if (text)
            memcpy(whole + PNG_HEAD, text, text_bytes);
        memcpy(whole + PNG_HEAD + text_bytes, packet->data + PNG_HEAD, bytes - PNG_HEAD);
        status = dsvi_file_replace(path, whole, bytes + text_bytes);
    }
    free(text);
    free(whole);
    return status;
}

DsvStatus dsvi_png_write(const char *path, const DsviVideoFrames *frames, int64_t index)
{
    DsvStatus status;
    if (frames->height < 1 || frames->width < 1 || frames->height > SIDE_MAX || frames->width > SIDE_MAX)
        return DSVI_FAIL(DSV_E_USAGE, "%s: no picture of %lld x %lld", path, (long long)frames->width,
                         (long long)frames->height);
    dsvi_ffmpeg_capture_log();
    const AVCodec *codec = avcodec_find_encoder_by_name("png");
    if (!codec)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: FFmpeg has no encoder png here", path);
    AVCodecContext *encoder = avcodec_alloc_context3(codec);
    AVFrame *frame = av_frame_alloc();
    AVPacket *packet = av_packet_alloc();
    if (!encoder || !frame || !packet) {
        status = png_fail(path, AVERROR(ENOMEM));
        goto done;
    }
    DSVI_TRY_GOTO(status, png_encode(path, frames, index, encoder, frame, packet), done);
    DSVI_TRY_GOTO(status, png_replace(path, packet, frames->comment), done);
done:
    avcodec_free_context(&encoder);
    av_frame_free(&frame);
    av_packet_free(&packet);
    return status;
}
