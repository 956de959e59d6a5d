/* Thumbnails of a clip: number and size of frames, and the content of the PNG files. */
#include "test.h"

#include <libavcodec/avcodec.h>

#include "base/fs.h"
#include "data/clip_frames.h"
#include "sample/video_writer.h"

enum { FRAMES = 12, HEIGHT = 40, WIDTH = 60, FPS = 6 };

static char folder[] = "/tmp/dsv-clip-frames-XXXXXX";
static char path[DSVI_PATH_MAX];

/* A clip whose brightness increases from frame to frame. */
static int make_clip(void **unused)
{
    (void)unused;
    static float pixels[3 * FRAMES * HEIGHT * WIDTH];
    for (int i = 0; i < 3 * FRAMES * HEIGHT * WIDTH; i++)
        pixels[i] = -0.9f + 0.15f * (float)(i / (HEIGHT * WIDTH) % FRAMES);
    if (!mkdtemp(folder) || dsvi_path_join(path, folder, "clip.mp4") != DSV_OK)
        return -1;
    return dsvi_video_write(path, pixels, FRAMES, HEIGHT, WIDTH, FPS) == DSV_OK ? 0 : -1;
}

static int remove_clip(void **unused)
{
    (void)unused;
    return dsvi_folder_remove(folder) == DSV_OK ? 0 : -1;
}

static void all_frames_of_a_small_clip(void **unused)
{
    (void)unused;
    DsviClipFrames frames;
    assert_ok(dsvi_clip_frames_read(path, 100, 100, &frames));
    assert_true(frames.frames == FRAMES && frames.height == HEIGHT && frames.width == WIDTH);
    assert_error_below(fabs(frames.fps - FPS), 1e-6, "frames a second");
    for (int f = 1; f < FRAMES; f++)
        assert_true(frames.rgb[f * HEIGHT * WIDTH * 3] > frames.rgb[(f - 1) * HEIGHT * WIDTH * 3]);
    dsvi_clip_frames_free(&frames);
    assert_null(frames.rgb);
}

/* Four of twelve frames at a third of the rate and half of the size, so that the duration is the same. */
static void some_frames_of_a_larger_one(void **unused)
{
    (void)unused;
    DsviClipFrames frames;
    assert_ok(dsvi_clip_frames_read(path, 4, 20, &frames));
    assert_true(frames.frames == 4 && frames.height == 20 && frames.width == 30);
    assert_error_below(fabs(frames.fps - 2), 1e-6, "frames a second");
    dsvi_clip_frames_free(&frames);
}

static int chunks_of(const uint8_t *png, size_t bytes, const char *name)
{
    int count = 0;
    for (size_t at = 8; at + 12 <= bytes;) {
        size_t length = (size_t)png[at] << 24 | (size_t)png[at + 1] << 16 | (size_t)png[at + 2] << 8 |
                        (size_t)png[at + 3];
        count += memcmp(png + at + 4, name, 4) == 0;
        at += 12 + length;
    }
    return count;
}

/* The pixels of a PNG file of one frame, by FFmpeg's decoder of plain PNG. */
static void assert_pixels(uint8_t *png, size_t bytes, const uint8_t *rgb)
{
    AVCodecContext *decoder = avcodec_alloc_context3(avcodec_find_decoder(AV_CODEC_ID_PNG));
    AVFrame *frame = av_frame_alloc();
    AVPacket *packet = av_packet_alloc();
    assert_true(avcodec_open2(decoder, NULL, NULL) >= 0);
    assert_true(av_new_packet(packet, (int)bytes) >= 0);
    memcpy(packet->data, png, bytes);
    assert_true(avcodec_send_packet(decoder, packet) >= 0);
    assert_true(avcodec_receive_frame(decoder, frame) >= 0);
    assert_true(frame->format == AV_PIX_FMT_RGB24 && frame->width == WIDTH && frame->height == HEIGHT);
    for (int y = 0; y < HEIGHT; y++)
        assert_memory_equal(frame->data[0] + y * frame->linesize[0], rgb + y * WIDTH * 3, WIDTH * 3);
    av_packet_free(&packet);
    av_frame_free(&frame);
    avcodec_free_context(&decoder);
}

/* One frame is a plain PNG of the same pixels; several are one file of as many frames, repeated for ever. */
static void png_files_hold_the_frames(void **unused)
{
    (void)unused;
    DsviClipFrames frames;
    uint8_t *png;
    size_t bytes;
    assert_ok(dsvi_clip_frames_read(path, 100, 100, &frames));
    assert_ok(dsvi_clip_frames_png("clip", &frames, 7, 1, &png, &bytes));
    assert_memory_equal(png, "\x89PNG\r\n\x1a\n", 8);
    assert_int_equal(chunks_of(png, bytes, "fcTL"), 0);
    assert_pixels(png, bytes, frames.rgb + 7 * HEIGHT * WIDTH * 3);
    free(png);
    assert_ok(dsvi_clip_frames_png("clip", &frames, 0, FRAMES, &png, &bytes));
    assert_memory_equal(png, "\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\0\x3c\0\0\0\x28", 24);
    assert_int_equal(chunks_of(png, bytes, "fcTL"), FRAMES);
    const uint8_t *animation = memmem(png, bytes, "acTL", 4);
    assert_non_null(animation);
    assert_memory_equal(animation + 4, "\0\0\0\x0c\0\0\0\0", 8); /* number of frames; endless */
    free(png);
    dsvi_clip_frames_free(&frames);
}

static void what_is_no_clip_is_named(void **unused)
{
    (void)unused;
    DsviClipFrames frames;
    assert_fails(DSV_E_NOT_FOUND, "nowhere.mp4", dsvi_clip_frames_read("nowhere.mp4", 8, 96, &frames));
    assert_null(frames.rgb);
    dsvi_clip_frames_free(&frames);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_frames_of_a_small_clip),
        cmocka_unit_test(some_frames_of_a_larger_one),
        cmocka_unit_test(png_files_hold_the_frames),
        cmocka_unit_test(what_is_no_clip_is_named),
    };
    return cmocka_run_group_tests(tests, make_clip, remove_clip);
}
