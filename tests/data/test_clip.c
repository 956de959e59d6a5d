/* Reading windows of clips: frame times, scaling, cropping, rotation. */
#include "data/clip.h"

#include "base/fs.h"
#include "base/scratch.h"
#include "clip_maker.h"

enum { SIDE = 40, FRAMES = 75 };
static const double FPS = 30;

/* Tolerated error of a colour ramp at a pixel: 8 bits and quantisation, at most 0.03 where chroma is smooth.
 * At the borders chroma of half the resolution and the scaler lack a neighbour, so the tolerance is the
 * ramp's rise in 1.5 source pixels. The mean over all pixels is much smaller, less than a shift by half a
 * pixel would cause. */
static double ramp_tolerance(int64_t height, int64_t width)
{
    return 0.03 + 1.5 * 1.6 / (double)(height < width ? height : width);
}

typedef struct Kind {
    const char *name, *encoder, *container, *codec;
} Kind;

/* In all these formats frames are stored out of display order. In avi frames after a key frame may be shown
 * before the key frame, so that the first seek ends too late; the last format has no index, and several
 * packets have the same time. */

static const Kind KINDS[] = {
    {"a.mp4", "libx264", "mov", "h264"},
    {"b.mkv", "libx264", "matroska", "h264"},
    {"c.mov", "mpeg4", "mov", "mpeg4"},
    {"d.avi", "mpeg4", "avi", "mpeg4"},
    {"e.mpg", "mpeg2video", "mpeg", "mpeg2video"},
};
enum { KIND_COUNT = sizeof KINDS / sizeof *KINDS };

static int make_clips(void **state)
{
    if (scratch_make(state) != 0)
        return 1;
    for (int k = 0; k < KIND_COUNT; k++)
        make_stamped(KINDS[k].encoder, scratch_path(KINDS[k].name), 0, FRAMES, FPS);
    return 0;
}

static DsviClipWindow window_of(double start, double fps, int64_t frames)
{
    return (DsviClipWindow){.start = start,
                            .fps = fps,
                            .frames = frames,
                            .height = SIDE,
                            .width = SIDE,
                            .crop_x = 0.5,
                            .crop_y = 0.5};
}

/* The frame shown at the time, up to a millisecond early. */
static int64_t shown_at(double time)
{
    int64_t frame = (int64_t)floor((time + 0.00101) * FPS);
    return frame < FRAMES ? frame : FRAMES - 1;
}

static void check_picks(const char *path, double start, double fps, int64_t frames)
{
    DsviClipWindow window = window_of(start, fps, frames);
    float *pixels = video_alloc(frames, SIDE, SIDE);
    assert_ok(dsvi_clip_read(path, &window, pixels));
    for (int64_t i = 0; i < frames; i++) {
        int64_t got = read_stamp(pixels, i, frames, SIDE, SIDE), wanted = shown_at(start + (double)i / fps);
        if (got != wanted)
            fail_msg("%s from %g s at %g: frame %d is %d, expected %d", path, start, fps, (int)i, (int)got,
                     (int)wanted);
    }
    free(pixels);
}

static void frames_are_picked_by_their_times(void **state)
{
    (void)state;
    static const double RATES[] = {30, 15, 10, 60, 24, 16, 7.5, 25.6, 1};
    for (int k = 0; k < KIND_COUNT; k++) {
        for (size_t r = 0; r < sizeof RATES / sizeof *RATES; r++) {
            check_picks(scratch_path(KINDS[k].name), 0, RATES[r], 9);
            check_picks(scratch_path(KINDS[k].name), 5 / RATES[r] < 2 ? 5 / RATES[r] : 1, RATES[r], 5);
        }
    }
}

/* There is a key frame each second; windows start at, before and after key frames. */
static void every_start_finds_its_frame(void **state)
{
    (void)state;
    for (int k = 0; k < KIND_COUNT; k++)
        for (int64_t first = 0; first < FRAMES; first++)
            check_picks(scratch_path(KINDS[k].name), (double)first / FPS, FPS, 2);
}

/* A program stream has no index, and only few frames have a time. */
static void no_index_is_needed(void **state)
{
    (void)state;
    enum { LONG = 240 };
    const char *path = scratch_path("long.mpg");
    float *pixels = video_alloc(1, SIDE, SIDE);
    make_stamped("mpeg2video", path, 0, LONG, FPS);
    for (int64_t first = 0; first < LONG; first += 7) {
        DsviClipWindow window = window_of((double)first / FPS, FPS, 1);
        assert_ok(dsvi_clip_read(path, &window, pixels));
        assert_int_equal(read_stamp(pixels, 0, 1, SIDE, SIDE), first);
    }
    free(pixels);
}

/* Any frame rate, in containers that count microseconds and in containers that round both ends to
 * milliseconds. */
static void a_clip_has_as_many_places_as_frames(void **state)
{
    (void)state;
    static const double RATES[] = {1, 7.5, 12, 23.976, 24, 25, 29.97, 30, 50, 59.94, 60, 120, 1000};
    static const double SLACK[] = {0, 0.5e-6, -0.5e-6, 0.9e-3, -0.9e-3};
    for (size_t r = 0; r < sizeof RATES / sizeof *RATES; r++) {
        for (size_t s = 0; s < sizeof SLACK / sizeof *SLACK; s++) {
            for (int64_t frames = 1; frames < 3000 && fabs(SLACK[s]) < 0.4 / RATES[r]; frames++) {
                DsviClipInfo info = {.seconds = rint(((double)frames / RATES[r] + SLACK[s]) * 1e6) * 1e-6};
                if (dsvi_clip_frame_times(&info, RATES[r]) != frames)
                    fail_msg("%d frames at %g: %d", (int)frames, RATES[r],
                             (int)dsvi_clip_frame_times(&info, RATES[r]));
            }
        }
    }
}

/* A recording that was cut may begin with packets that cannot be decoded. Times and length count from the
 * first frame that can be decoded. */
static void a_clip_begins_with_its_first_key_frame(void **state)
{
    (void)state;
    enum { KEY = 25, SHOWN = FRAMES - KEY };
    static const char *const CODECS[] = {
        "libx264 -sc_threshold 0 -g 25",
        "libx265 -x265-params log-level=none:scenecut=0:keyint=25:min-keyint=25",
        "libx265 -x265-params log-level=none:scenecut=0:keyint=25:min-keyint=25:open-gop=0",
        "mpeg2video -b:v 2M -sc_threshold 1000000000 -g 25 -bf 2 -flags +cgop"};
    static const char *const NAMES[] = {"late.ts", "late.mkv"};
    float *pixels = video_alloc(5, SIDE, SIDE);
    for (size_t k = 0; k < 2 * (sizeof CODECS / sizeof *CODECS); k++) {
        char arguments[512];
        DsviClipInfo info;
        const char *name = NAMES[k % 2];
        snprintf(arguments, sizeof arguments, "-i b.mkv -vf scale=80:80:flags=neighbor -c:v %s early.%s",
                 CODECS[k / 2], name + 5);
        run_ffmpeg(arguments);
        snprintf(arguments, sizeof arguments, "-i early.%s -c copy -bsf:v 'noise=drop=lt(n\\,9)' %s",
                 name + 5, name);
        run_ffmpeg(arguments);
        assert_ok(dsvi_clip_probe(scratch_path(name), &info));
        assert_error_below(fabs(info.seconds - SHOWN / FPS), 0.0021, "%s: %s", CODECS[k / 2], name);
        assert_int_equal(dsvi_clip_frame_times(&info, FPS), SHOWN);
        for (int64_t first = 0; first + 5 <= SHOWN; first += 15) {
            DsviClipWindow window = window_of((double)first / FPS, FPS, 5);
            assert_ok(dsvi_clip_read(scratch_path(name), &window, pixels));
            for (int64_t i = 0; i < 5; i++)
                assert_int_equal(read_stamp(pixels, i, 5, SIDE, SIDE), KEY + first + i);
        }
    }
    free(pixels);
}

/* Frames shown before a key frame may refer to earlier frames. They are no damage if a window begins at this
 * key frame. */
static void open_groups_of_pictures_are_entered(void **state)
{
    (void)state;
    static const char *const CODECS[] = {
        "libx264 -sc_threshold 0 -x264-params open-gop=1:keyint=12:bframes=3",
        "libx265 -x265-params log-level=none:open-gop=1:keyint=12:bframes=4"};
    for (size_t c = 0; c < sizeof CODECS / sizeof *CODECS; c++) {
        char arguments[512];
        snprintf(arguments, sizeof arguments, "-i b.mkv -vf scale=80:80:flags=neighbor -c:v %s open.mkv",
                 CODECS[c]);
        run_ffmpeg(arguments);
        for (int64_t first = 0; first < FRAMES; first++)
            check_picks(scratch_path("open.mkv"), (double)first / FPS, FPS, 2);
    }
}

static void a_window_past_the_end_repeats_the_last_frame(void **state)
{
    (void)state;
    for (int k = 0; k < KIND_COUNT; k++) {
        check_picks(scratch_path(KINDS[k].name), 2.2, 30, 40);
        check_picks(scratch_path(KINDS[k].name), 2.2, 3, 5);
    }
}

static void a_window_behind_the_end_fails(void **state)
{
    (void)state;
    float *pixels = video_alloc(2, SIDE, SIDE);
    for (int k = 0; k < KIND_COUNT; k++) {
        DsviClipWindow window = window_of(4, 30, 2);
        assert_fails(DSV_E_FORMAT, "end before 4.00 s",
                     dsvi_clip_read(scratch_path(KINDS[k].name), &window, pixels));
    }
    free(pixels);
}

static void probing_tells_what_was_written(void **state)
{
    (void)state;
    for (int k = 0; k < KIND_COUNT; k++) {
        DsviClipInfo info;
        assert_ok(dsvi_clip_probe(scratch_path(KINDS[k].name), &info));
        assert_int_equal(info.width, SIDE);
        assert_int_equal(info.height, SIDE);
        assert_string_equal(info.codec, KINDS[k].codec);
        assert_string_equal(info.container, KINDS[k].container);
        assert_error_below(fabs(info.fps - FPS), 1e-6, "%s", KINDS[k].name);
        if (k == KIND_COUNT - 1)
            continue; /* its last frames have no time stamp */
        assert_int_equal(info.frames, FRAMES);
        /* Matroska's milliseconds round each end. */
        assert_error_below(fabs(info.seconds - FRAMES / FPS), 0.0011, "%s", KINDS[k].name);
        assert_int_equal(dsvi_clip_frame_times(&info, 16), 40);
        assert_int_equal(dsvi_clip_frame_times(&info, 30), FRAMES);
        assert_int_equal(dsvi_clip_frame_times(&info, 0.1), 1);
    }
}

/* Reads a ramp clip of one size at another size: each pixel has the value at its position in the uncropped
 * frame. turn: the rotation of the frame, as in clip_stream.h. */
static void check_ramp(const char *path, const DsviClipWindow *w, double shown_height, double shown_width,
                       const int turn[4], double tolerance)
{
    float *pixels = video_alloc(w->frames, w->height, w->width);
    assert_ok(dsvi_clip_read(path, w, pixels));
    double scale = fmax((double)w->height / shown_height, (double)w->width / shown_width);
    double cover_height = shown_height * scale, cover_width = shown_width * scale;
    double top = floor(w->crop_y * (round(cover_height) - (double)w->height + (w->crop_y < 1)));
    double left = floor(w->crop_x * (round(cover_width) - (double)w->width + (w->crop_x < 1)));
    for (int64_t c = 0; c < 3; c++) {
        double shift = 0;
        for (int64_t i = 0; i < w->frames; i++)
            for (int64_t y = 0; y < w->height; y++)
                for (int64_t x = 0; x < w->width; x++) {
                    /* Centred at 0, the inverse of a turn is its transpose. */
                    double v = (top + (double)y + 0.5) / cover_height - 0.5;
                    double u = (left + (double)x + 0.5) / cover_width - 0.5;
                    double from_x = u * turn[0] + v * turn[1], from_y = u * turn[2] + v * turn[3];
                    double wanted = ramp(c, i, w->frames, from_y + 0.5, from_x + 0.5);
                    double got = pixels[((c * w->frames + i) * w->height + y) * w->width + x];
                    assert_error_below(fabs(got - wanted), tolerance, "%s: channel %d of %d, %d, %d", path,
                                       (int)c, (int)i, (int)y, (int)x);
                    shift += (got - wanted) / (double)(w->frames * w->height * w->width);
                }
        assert_error_below(fabs(shift), 0.5 * 1.6 / fmax(cover_height, cover_width), "%s: channel %d", path,
                           (int)c);
    }
    free(pixels);
}

static const int UPRIGHT[4] = {1, 0, 0, 1};

static void pictures_are_scaled_to_cover_and_cropped(void **state)
{
    (void)state;
    static const int64_t FROM[][2] = {{64, 96}, {96, 64}, {50, 38}, {16, 16}, {120, 122}, {2, 2}};
    static const int64_t TO[][2] = {{32, 32}, {24, 40}, {33, 17}, {64, 64}};
    for (size_t f = 0; f < sizeof FROM / sizeof *FROM; f++) {
        const char *path = scratch_path("ramp.mp4");
        int64_t height = FROM[f][0], width = FROM[f][1];
        make_ramp(path, 5, height, width, 8);
        for (size_t t = 0; t < sizeof TO / sizeof *TO && height > 2; t++) {
            for (int crop = 0; crop <= 4; crop++) {
                DsviClipWindow w = {.fps = 8,
                                    .frames = 5,
                                    .height = TO[t][0],
                                    .width = TO[t][1],
                                    .crop_x = crop / 4.0,
                                    .crop_y = 1 - crop / 4.0};
                check_ramp(path, &w, (double)height, (double)width, UPRIGHT, ramp_tolerance(height, width));
            }
        }
        DsviClipInfo info;
        assert_ok(dsvi_clip_probe(path, &info));
        assert_int_equal(info.height, height);
        assert_int_equal(info.width, width);
    }
}

/* Overwrites the display matrix in the track header of an mp4 (ISO/IEC 14496-12, 8.3.2). */
static void patch_matrix(const char *path, int32_t a, int32_t b, int32_t c, int32_t d)
{
    char *data;
    size_t bytes;
    assert_ok(dsvi_file_read(path, (size_t)1 << 24, &data, &bytes));
    char *box = memmem(data, bytes, "tkhd", 4);
    assert_non_null(box);
    const int32_t linear[5] = {a, b, 0, c, d}; /* the third is the projective column */
    for (int i = 0; i < 5; i++)
        for (int byte = 0; byte < 4; byte++)
            box[4 + 40 + 4 * i + byte] = (char)((uint32_t)linear[i] >> (24 - 8 * byte));
    write_bytes(path, data, bytes);
    free(data);
}

static void turned_pictures_are_put_upright(void **state)
{
    (void)state;
    static const int TURNS[][4] = {{1, 0, 0, 1},  {0, 1, -1, 0}, {-1, 0, 0, -1}, {0, -1, 1, 0},
                                   {-1, 0, 0, 1}, {1, 0, 0, -1}, {0, 1, 1, 0},   {0, -1, -1, 0}};
    const char *path = scratch_path("turned.mp4");
    for (size_t t = 0; t < sizeof TURNS / sizeof *TURNS; t++) {
        const int *m = TURNS[t];
        bool upright = m[0] != 0;
        DsviClipInfo info;
        DsviClipWindow w = {.fps = 8, .frames = 3, .height = 32, .width = 36, .crop_x = 0.25, .crop_y = 1};
        make_ramp(path, 3, 48, 80, 8);
        patch_matrix(path, m[0] * 65536, m[1] * 65536, m[2] * 65536, m[3] * 65536);
        assert_ok(dsvi_clip_probe(path, &info));
        assert_int_equal(info.height, upright ? 48 : 80);
        assert_int_equal(info.width, upright ? 80 : 48);
        check_ramp(path, &w, (double)info.height, (double)info.width, m, ramp_tolerance(48, 80));
    }
}

static void pixels_that_are_not_square_are_stretched(void **state)
{
    (void)state;
    const char *path = scratch_path("wide.mp4");
    DsviClipInfo info;
    DsviClipWindow w = {.fps = 8, .frames = 3, .height = 32, .width = 48, .crop_x = 0.5, .crop_y = 0.5};
    make_ramp(path, 3, 48, 48, 8);
    patch_matrix(path, 2 * 65536, 0, 0, 65536);
    assert_ok(dsvi_clip_probe(path, &info));
    assert_int_equal(info.height, 48);
    assert_int_equal(info.width, 96);
    check_ramp(path, &w, 48, 96, UPRIGHT, ramp_tolerance(48, 48));
}

static void the_same_window_gives_the_same_bytes(void **state)
{
    (void)state;
    enum { WANT = 2, HEIGHT = 24, WIDTH = 20, ALL = 60 };
    size_t bytes = sizeof(float) * 3 * WANT * HEIGHT * WIDTH;
    for (int k = 0; k < KIND_COUNT; k++) {
        const char *path = scratch_path(KINDS[k].name);
        int64_t height, width, covered;
        DsviClipWindow whole = {.fps = 24, .frames = ALL, .height = HEIGHT, .width = WIDTH};
        float *once = video_alloc(WANT, HEIGHT, WIDTH), *again = video_alloc(WANT, HEIGHT, WIDTH);
        assert_ok(dsvi_clip_cover(path, SIDE, SIDE, HEIGHT, WIDTH, &height, &width));
        uint8_t *rgb = malloc((size_t)(ALL * 3 * height * width));
        assert_ok(dsvi_clip_read_rgb(path, &whole, height, width, rgb, &covered));
        assert_int_equal(covered, ALL);
        for (int64_t first = 0; first + WANT <= ALL; first++) {
            DsviClipWindow w = whole;
            w.start = (double)first / w.fps;
            w.frames = WANT;
            w.crop_x = 0.9;
            assert_ok(dsvi_clip_read(path, &w, once));
            assert_ok(dsvi_clip_read(path, &w, again));
            assert_memory_equal(once, again, bytes);
            for (int64_t i = 0; i < WANT; i++)
                dsvi_clip_crop(&w, rgb + (first + i) * 3 * height * width, height, width, i, again);
            assert_memory_equal(once, again, bytes);
        }
        free(rgb);
        free(once);
        free(again);
    }
}

/* Frames without a colour matrix: BT.709 from 1280 columns or above 576 rows. */
static void colours_that_are_not_told_go_by_the_size(void **state)
{
    (void)state;
    static const struct {
        int width, height;
        bool hd;
    } SIZES[] = {
        {1280, 536, true}, {1278, 576, false}, {720, 578, true}, {1280, 704, true}, {720, 480, false}};
    float *found = video_alloc(1, SIDE, SIDE), *bt709 = video_alloc(1, SIDE, SIDE),
          *bt601 = video_alloc(1, SIDE, SIDE);
    size_t bytes = sizeof(float) * 3 * SIDE * SIDE;
    DsviClipWindow w = window_of(0, 10, 1);
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++) {
        char arguments[256];
        snprintf(arguments, sizeof arguments,
                 "-f lavfi -i testsrc2=s=%dx%d:r=10:d=0.2 -pix_fmt yuv420p -c:v libx264 "
                 "untold.mkv",
                 SIZES[i].width, SIZES[i].height);
        run_ffmpeg(arguments);
        run_ffmpeg("-i untold.mkv -c copy -bsf:v h264_metadata=matrix_coefficients=1 bt709.mkv");
        run_ffmpeg("-i untold.mkv -c copy -bsf:v h264_metadata=matrix_coefficients=6 bt601.mkv");
        assert_ok(dsvi_clip_read(scratch_path("untold.mkv"), &w, found));
        assert_ok(dsvi_clip_read(scratch_path("bt709.mkv"), &w, bt709));
        assert_ok(dsvi_clip_read(scratch_path("bt601.mkv"), &w, bt601));
        assert_memory_not_equal(bt709, bt601, bytes);
        assert_memory_equal(found, SIZES[i].hd ? bt709 : bt601, bytes);
    }
    free(found);
    free(bt709);
    free(bt601);
}

static void a_size_other_than_promised_is_refused(void **state)
{
    (void)state;
    DsviClipWindow w = window_of(0, 30, 1);
    uint8_t rgb[3 * SIDE * SIDE];
    int64_t covered, height, width;
    assert_fails(DSV_E_FORMAT, "changed since it was listed",
                 dsvi_clip_read_rgb(scratch_path("a.mp4"), &w, SIDE, SIDE - 1, rgb, &covered));
    assert_fails(DSV_E_FORMAT, "too narrow", dsvi_clip_cover("x", 2, 16384, 128, 128, &height, &width));
    w.fps = NAN;
    assert_fails(DSV_E_USAGE, "nan",
                 dsvi_clip_read_rgb(scratch_path("a.mp4"), &w, SIDE, SIDE, rgb, &covered));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_are_picked_by_their_times),
        cmocka_unit_test(every_start_finds_its_frame),
        cmocka_unit_test(no_index_is_needed),
        cmocka_unit_test(a_clip_has_as_many_places_as_frames),
        cmocka_unit_test(a_clip_begins_with_its_first_key_frame),
        cmocka_unit_test(open_groups_of_pictures_are_entered),
        cmocka_unit_test(a_window_past_the_end_repeats_the_last_frame),
        cmocka_unit_test(a_window_behind_the_end_fails),
        cmocka_unit_test(probing_tells_what_was_written),
        cmocka_unit_test(pictures_are_scaled_to_cover_and_cropped),
        cmocka_unit_test(turned_pictures_are_put_upright),
        cmocka_unit_test(pixels_that_are_not_square_are_stretched),
        cmocka_unit_test(the_same_window_gives_the_same_bytes),
        cmocka_unit_test(colours_that_are_not_told_go_by_the_size),
        cmocka_unit_test(a_size_other_than_promised_is_refused),
    };
    return cmocka_run_group_tests(tests, make_clips, scratch_remove);
}
