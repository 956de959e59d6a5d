/* Videos written and read back. */
#include "sample/video_writer.h"

#include <malloc.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/scratch.h"
#include "data/clip_maker.h"

/* Every size is written as even, with the content in place, and padding that repeats the last row or column.
 */
static void every_size_is_written(void **state)
{
    (void)state;
    static const int64_t SIZES[][3] = {{1, 1, 1},   {3, 2, 2},     {2, 7, 5},
                                       {5, 16, 33}, {4, 128, 130}, {1, 45, 64}};
    for (int e = 0; e < 2; e++) {
        const char *encoder = e ? "mpeg4" : "libx264";
        for (size_t s = 0; s < sizeof SIZES / sizeof *SIZES; s++) {
            int64_t frames = SIZES[s][0], height = SIZES[s][1], width = SIZES[s][2];
            int64_t even_height = height + height % 2, even_width = width + width % 2;
            float *pixels = video_alloc(frames, height, width),
                  *back = video_alloc(frames, even_height, even_width);
            DsviClipWindow w = {.fps = 16, .frames = frames, .height = even_height, .width = even_width};
            DsviClipInfo info;
            ramp_clip(pixels, frames, height, width);
            assert_ok(dsvi_video_write_as(encoder, scratch_path("v.mp4"), pixels, frames, height, width, 16));
            assert_ok(dsvi_clip_probe(scratch_path("v.mp4"), &info));
            assert_int_equal(info.frames, frames);
            assert_int_equal(info.height, even_height);
            assert_int_equal(info.width, even_width);
            assert_ok(dsvi_clip_read(scratch_path("v.mp4"), &w, back));
            /* 0.04 of quantisation, and chroma at half the resolution may be off by what two pixels differ.
             */
            double tolerance = 0.04 + 2 * 1.6 / (double)(height < width ? height : width);
            for (int64_t c = 0; c < 3; c++)
                for (int64_t i = 0; i < frames; i++)
                    for (int64_t y = 0; y < even_height; y++)
                        for (int64_t x = 0; x < even_width; x++) {
                            int64_t from_y = y < height ? y : height - 1, from_x = x < width ? x : width - 1;
                            double wanted = pixels[((c * frames + i) * height + from_y) * width + from_x];
                            double got = back[((c * frames + i) * even_height + y) * even_width + x];
                            assert_error_below(fabs(got - wanted), tolerance, "%s %dx%d", encoder, (int)width,
                                               (int)height);
                        }
            free(pixels);
            free(back);
        }
    }
}

/* The same frames give the same bytes, whatever new memory holds. */
static void equal_frames_give_equal_files(void **state)
{
    enum { FRAMES = 13, HEIGHT = 64, WIDTH = 96, FILES = 12 };
    uint64_t first = 0, checksum;
    float *pixels = video_alloc(FRAMES, HEIGHT, WIDTH);
    (void)state;
    for (int i = 0; i < 3 * FRAMES * HEIGHT * WIDTH; i++)
        pixels[i] = (float)sin(0.3 * (i % WIDTH) + 0.01 * i + 0.7 * sin(i * 12.9898));
    for (int file = 0; file < FILES; file++) {
        mallopt(M_PERTURB, 37 * file); /* new memory is filled with a byte made of this number */
        assert_ok(dsvi_video_write(scratch_path("equal.mp4"), pixels, FRAMES, HEIGHT, WIDTH, 8));
        assert_ok(dsvi_file_checksum(scratch_path("equal.mp4"), &checksum));
        first = file > 0 ? first : checksum;
        assert_true(checksum == first);
    }
    mallopt(M_PERTURB, 0);
    free(pixels);
}

/* Uniform colours, which compression does not change, are read back within the steps of 8 bits in YUV and
 * RGB. */
static void colours_come_back(void **state)
{
    (void)state;
    static const float COLOURS[][3] = {{-1, -1, -1},         {1, 1, 1},
                                       {0.8f, -0.6f, -0.6f}, {-0.5f, 0.5f, -0.5f},
                                       {-0.7f, -0.7f, 0.7f}, {0.1f, 0.2f, -0.3f},
                                       {3, -7, NAN}};
    enum { SIDE = 32 };
    float *pixels = video_alloc(1, SIDE, SIDE), *back = video_alloc(1, SIDE, SIDE);
    for (size_t k = 0; k < sizeof COLOURS / sizeof *COLOURS; k++) {
        DsviClipWindow w = {.fps = 16, .frames = 1, .height = SIDE, .width = SIDE};
        for (int64_t i = 0; i < 3 * SIDE * SIDE; i++)
            pixels[i] = COLOURS[k][i / (SIDE * SIDE)];
        assert_ok(dsvi_video_write(scratch_path("c.mp4"), pixels, 1, SIDE, SIDE, 16));
        assert_ok(dsvi_clip_read(scratch_path("c.mp4"), &w, back));
        for (int64_t i = 0; i < 3 * SIDE * SIDE; i++) {
            float wanted = pixels[i];
            wanted = !(wanted > -1) ? -1 : wanted > 1 ? 1 : wanted; /* clamped; NaN is black */
            assert_error_below(fabs(back[i] - wanted), 3 / 127.5, "colour %d", (int)k);
        }
    }
    free(pixels);
    free(back);
}

static void rates_and_containers_are_as_asked(void **state)
{
    (void)state;
    static const double RATES[] = {1, 8, 16, 23.976, 29.97, 60, 0.5};
    static const char *const NAMES[][2] = {
        {"v.mp4", "mov"}, {"v.MKV", "matroska"}, {"v.mov", "mov"}, {"v", "mov"}};
    for (size_t r = 0; r < sizeof RATES / sizeof *RATES; r++) {
        DsviClipInfo info;
        make_stamped("libx264", scratch_path("r.mp4"), 0, 20, RATES[r]);
        assert_ok(dsvi_clip_probe(scratch_path("r.mp4"), &info));
        assert_error_below(fabs(info.fps / RATES[r] - 1), 1e-4, "%g", RATES[r]);
        assert_error_below(fabs(info.seconds * RATES[r] / 20 - 1), 1e-3, "%g", RATES[r]);
    }
    for (size_t n = 0; n < sizeof NAMES / sizeof *NAMES; n++) {
        DsviClipInfo info;
        make_stamped("libx264", scratch_path(NAMES[n][0]), 0, 3, 16);
        assert_ok(dsvi_clip_probe(scratch_path(NAMES[n][0]), &info));
        assert_string_equal(info.container, NAMES[n][1]);
    }
}

static void the_same_frames_give_the_same_bytes(void **state)
{
    (void)state;
    char *once, *again;
    size_t once_bytes, again_bytes;
    for (int e = 0; e < 2; e++) {
        make_stamped(e ? "mpeg4" : "libx264", scratch_path("1.mp4"), 0, 40, 16);
        make_stamped(e ? "mpeg4" : "libx264", scratch_path("2.mp4"), 0, 40, 16);
        assert_ok(dsvi_file_read(scratch_path("1.mp4"), 1 << 24, &once, &once_bytes));
        assert_ok(dsvi_file_read(scratch_path("2.mp4"), 1 << 24, &again, &again_bytes));
        assert_int_equal(once_bytes, again_bytes);
        assert_memory_equal(once, again, once_bytes);
        free(once);
        free(again);
    }
}

static void check_clean(const char *path)
{
    char temporary[DSVI_PATH_MAX + 8];
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    assert_false(dsvi_path_exists(temporary));
}

static void failures_are_one_sentence_and_leave_nothing(void **state)
{
    (void)state;
    float *pixels = video_alloc(30, 64, 64);
    ramp_clip(pixels, 30, 64, 64);
    assert_fails(DSV_E_IO, "no/folder/v.mp4: cannot write the video",
                 dsvi_video_write(scratch_path("no/folder/v.mp4"), pixels, 30, 64, 64, 16));
    assert_fails(DSV_E_USAGE, "0 frames", dsvi_video_write(scratch_path("v.mp4"), pixels, 0, 64, 64, 16));
    assert_fails(DSV_E_USAGE, "nan", dsvi_video_write(scratch_path("v.mp4"), pixels, 1, 64, 64, NAN));
    assert_fails(DSV_E_UNSUPPORTED, "no encoder",
                 dsvi_video_write_as("nonesuch", scratch_path("v.mp4"), pixels, 1, 64, 64, 16));
    /* A full disk, simulated by a limit of a few bytes per file. The previous file is unchanged. */
    const char *path = scratch_path("full.mp4");
    char *data;
    size_t bytes;
    write_text(path, "before");
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 600;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    DsvStatus status = dsvi_video_write(path, pixels, 30, 64, 64, 16);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(status, DSV_E_IO);
    assert_non_null(strstr(dsv_error_message(), "full.mp4: cannot write the video: File too large"));
    check_clean(path);
    assert_ok(dsvi_file_read(path, 100, &data, &bytes));
    assert_string_equal(data, "before");
    free(data);
    /* A folder has the final name. */
    assert_ok(dsvi_folder_make(scratch_path("taken.mp4")));
    assert_fails(DSV_E_IO, "taken.mp4", dsvi_video_write(scratch_path("taken.mp4"), pixels, 30, 64, 64, 16));
    check_clean(scratch_path("taken.mp4"));
    free(pixels);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_size_is_written),
        cmocka_unit_test(equal_frames_give_equal_files),
        cmocka_unit_test(colours_come_back),
        cmocka_unit_test(rates_and_containers_are_as_asked),
        cmocka_unit_test(the_same_frames_give_the_same_bytes),
        cmocka_unit_test(failures_are_one_sentence_and_leave_nothing),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
