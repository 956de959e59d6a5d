/* Clips in all forms of clip_writer.h: names, contents and the stored comment, read back with FFmpeg. */
#include "test.h"

#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>

#include "base/safetensors.h"
#include "base/scratch.h"
#include "data/clip.h"
#include "sample/clip_writer.h"
#include "sample/png_writer.h"

enum { FRAMES = 3, HEIGHT = 6, WIDTH = 8, PIXELS = 3 * FRAMES * HEIGHT * WIDTH };

static const char COMMENT[] = "{\"prompt\":\"\\u732b\"}";

/* Values of bytes, so that a PNG keeps them exactly; one value lies outside [-1, 1]. */
static void fill(float *pixels)
{
    for (int i = 0; i < PIXELS; i++)
        pixels[i] = (float)(i % 256) / 127.5f - 1;
    pixels[0] = -3;
}

static DsvStatus write_frames(const char *path, const float *pixels, int64_t frames)
{
    DsviVideoFrames all = {pixels, frames, HEIGHT, WIDTH, 16, COMMENT};
    return dsvi_clip_write(path, &all);
}

/* Decodes the first frame of a file as RGB24 into `rgb` (HEIGHT, WIDTH, 3). */
static void decode_png(const char *path, uint8_t *rgb)
{
    AVFormatContext *format = NULL;
    AVPacket *packet = av_packet_alloc();
    AVFrame *frame = av_frame_alloc();
    assert_int_equal(avformat_open_input(&format, path, NULL, NULL), 0);
    assert_true(avformat_find_stream_info(format, NULL) >= 0);
    const AVCodecParameters *parameters = format->streams[0]->codecpar;
    AVCodecContext *decoder = avcodec_alloc_context3(avcodec_find_decoder(parameters->codec_id));
    assert_true(avcodec_parameters_to_context(decoder, parameters) >= 0);
    assert_int_equal(avcodec_open2(decoder, NULL, NULL), 0);
    assert_int_equal(av_read_frame(format, packet), 0);
    assert_int_equal(avcodec_send_packet(decoder, packet), 0);
    (void)avcodec_send_packet(decoder, NULL);
    assert_int_equal(avcodec_receive_frame(decoder, frame), 0);
    assert_int_equal(frame->format, AV_PIX_FMT_RGB24);
    assert_int_equal(frame->width, WIDTH);
    assert_int_equal(frame->height, HEIGHT);
    for (int y = 0; y < HEIGHT; y++)
        memcpy(rgb + y * WIDTH * 3, frame->data[0] + y * frame->linesize[0], WIDTH * 3);
    const AVDictionaryEntry *comment = av_dict_get(frame->metadata, "Comment", NULL, 0);
    assert_non_null(comment); /* FFmpeg checks the chunk's checksum */
    assert_string_equal(comment->value, COMMENT);
    avcodec_free_context(&decoder);
    av_frame_free(&frame);
    av_packet_free(&packet);
    avformat_close_input(&format);
}

static void pictures(void **state)
{
    float pixels[PIXELS];
    uint8_t rgb[3 * HEIGHT * WIDTH];
    char name[64];
    (void)state;
    fill(pixels);
    assert_ok(dsvi_clip_check_path(scratch_path("f-%03d.png"), FRAMES));
    assert_ok(write_frames(scratch_path("f-%03d.png"), pixels, FRAMES));
    for (int t = 0; t < FRAMES; t++) {
        snprintf(name, sizeof name, "f-%03d.png", t);
        decode_png(scratch_path(name), rgb);
        for (int i = 0; i < HEIGHT * WIDTH; i++)
            for (int c = 0; c < 3; c++) {
                int from = (c * FRAMES + t) * HEIGHT * WIDTH + i;
                assert_int_equal(rgb[3 * i + c], from == 0 ? 0 : from % 256);
            }
    }
    assert_ok(write_frames(scratch_path("one.png"), pixels, 1));
    decode_png(scratch_path("one.png"), rgb);
}

static void video_with_comment(void **state)
{
    float pixels[PIXELS];
    AVFormatContext *format = NULL;
    DsviClipInfo info;
    (void)state;
    fill(pixels);
    assert_ok(write_frames(scratch_path("c.mp4"), pixels, FRAMES));
    assert_ok(dsvi_clip_probe(scratch_path("c.mp4"), &info));
    assert_int_equal(info.width, WIDTH);
    assert_int_equal(avformat_open_input(&format, scratch_path("c.mp4"), NULL, NULL), 0);
    const AVDictionaryEntry *comment = av_dict_get(format->metadata, "comment", NULL, 0);
    assert_non_null(comment);
    assert_string_equal(comment->value, COMMENT);
    avformat_close_input(&format);
}

static void tensor(void **state)
{
    float pixels[PIXELS];
    DsviSafetensors *file;
    const DsviStoredTensor *video;
    const int64_t shape[] = {1, FRAMES, 3, HEIGHT, WIDTH};
    (void)state;
    fill(pixels);
    assert_ok(write_frames(scratch_path("c.safetensors"), pixels, FRAMES));
    assert_ok(dsvi_safetensors_open(scratch_path("c.safetensors"), &file));
    assert_ok(dsvi_safetensors_require(file, "video", 5, shape, &video));
    assert_string_equal(dsvi_safetensors_metadata(file, "comment"), COMMENT);
    const float *values = video->data;
    for (int t = 0; t < FRAMES; t++)
        for (int c = 0; c < 3; c++)
            for (int i = 0; i < HEIGHT * WIDTH; i++) {
                double pixel = pixels[(c * FRAMES + t) * HEIGHT * WIDTH + i];
                double wanted = pixel < -1 ? 0 : pixel / 2 + 0.5;
                assert_error_below(fabs(values[(t * 3 + c) * HEIGHT * WIDTH + i] - wanted), 1e-7, "pixel");
            }
    dsvi_safetensors_close(&file);
}

static void names(void **state)
{
    char path[DSVI_PATH_MAX];
    (void)state;
    assert_true(dsvi_clip_path_is("a/b.MP4"));
    assert_false(dsvi_clip_path_is("a.b/c"));
    assert_fails(DSV_E_USAGE, "expected a name that ends with", dsvi_clip_check_path("x.gif", 1));
    assert_fails(DSV_E_USAGE, "holds one frame of the clip's 5", dsvi_clip_check_path("x.png", 5));
    assert_fails(DSV_E_USAGE, "frame-%04d.png", dsvi_clip_check_path("x-%s.png", 5));
    assert_ok(dsvi_clip_check_path(scratch_path("x.png"), 1));
    assert_fails(DSV_E_NOT_FOUND, "nowhere", dsvi_clip_check_path(scratch_path("nowhere/x.mp4"), 1));
    assert_ok(dsvi_clip_numbered_path(path, "a.b/c.mp4", 12));
    assert_string_equal(path, "a.b/c-0012.mp4");
    assert_ok(dsvi_clip_numbered_path(path, "f/%04d.png", 3));
    assert_string_equal(path, "f/0003-%04d.png");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pictures),
        cmocka_unit_test(video_with_comment),
        cmocka_unit_test(tensor),
        cmocka_unit_test(names),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
