/* Files that are not videos, or are damaged: each gives one message, never a crash and never invented
 * frames. */
#include <sys/stat.h>

#include "base/fs.h"
#include "base/scratch.h"
#include "clip_maker.h"

enum { SIDE = 40, FRAMES = 90, WINDOW = 4, MUTANTS = 300 };

static char *good;
static size_t good_bytes;

static int make_good(void **state)
{
    if (scratch_make(state) != 0)
        return 1;
    make_stamped("libx264", scratch_path("good.mp4"), 0, FRAMES, 30);
    return dsvi_file_read(scratch_path("good.mp4"), (size_t)1 << 24, &good, &good_bytes) != DSV_OK;
}

static int remove_good(void **state)
{
    free(good);
    return scratch_remove(state);
}

static const DsviClipWindow FIRST = {.start = 0, .fps = 30, .frames = WINDOW, .height = SIDE, .width = SIDE};

static void check_refused(const char *path, DsvStatus status, const char *words)
{
    DsviClipInfo info;
    float pixels[3 * WINDOW * SIDE * SIDE];
    assert_fails(status, words, dsvi_clip_probe(path, &info));
    assert_non_null(strstr(dsv_error_message(), path));
    assert_null(strchr(dsv_error_message(), '\n'));
    assert_fails(status, words, dsvi_clip_read(path, &FIRST, pixels));
}

static void what_is_no_video_file_is_refused(void **state)
{
    (void)state;
    static const char PLAYLIST[] = "#EXTM3U\n#EXT-X-TARGETDURATION:3\n#EXTINF:3,\ngood.mp4\n#EXT-X-ENDLIST\n";
    static const unsigned char PICTURE[] = {
        /* a whole PNG of one white pixel */
        0x89, 'P',  'N',  'G',  '\r', '\n', 0x1a, '\n', 0,    0,    0,    13,   'I',  'H',  'D',  'R',  0,
        0,    0,    1,    0,    0,    0,    1,    8,    0,    0,    0,    0,    0x3a, 0x7e, 0x9b, 0x55, 0,
        0,    0,    10,   'I',  'D',  'A',  'T',  0x78, 0x9c, 0x63, 0xf8, 0x0f, 0,    1,    1,    1,    0,
        0x1b, 0xb6, 0xee, 0x56, 0,    0,    0,    0,    'I',  'E',  'N',  'D',  0xae, 0x42, 0x60, 0x82};
    write_text(scratch_path("text.mp4"), "This is a letter and not a film.\n");
    check_refused(scratch_path("text.mp4"), DSV_E_FORMAT, "not a video file");
    write_text(scratch_path("list.mp4"), PLAYLIST);
    check_refused(scratch_path("list.mp4"), DSV_E_FORMAT, "not a video file");
    write_text(scratch_path("concat.mp4"), "ffconcat version 1.0\nfile good.mp4\n");
    check_refused(scratch_path("concat.mp4"), DSV_E_FORMAT, "not a video file");
    write_bytes(scratch_path("picture.mp4"), PICTURE, sizeof PICTURE);
    check_refused(scratch_path("picture.mp4"), DSV_E_FORMAT, "not a video file");
    write_noise(scratch_path("noise.mp4"), 100000);
    check_refused(scratch_path("noise.mp4"), DSV_E_FORMAT, "");
    write_text(scratch_path("empty.mp4"), "");
    check_refused(scratch_path("empty.mp4"), DSV_E_FORMAT, "empty");
    check_refused(scratch_path("nowhere.mp4"), DSV_E_NOT_FOUND, "No such file");
    check_refused(scratch_folder, DSV_E_FORMAT, "a folder");
    assert_int_equal(mkfifo(scratch_path("pipe.mp4"), 0600), 0);
    check_refused(scratch_path("pipe.mp4"), DSV_E_FORMAT,
                  "not a regular file"); /* and opening does not wait for a writer */
}

/* The index is at the head of the file, so a truncated file opens and its missing part is known; shorter
 * files do not open. */
static void a_truncated_file_is_refused(void **state)
{
    (void)state;
    const char *path = scratch_path("cut.mp4");
    DsviClipInfo info;
    for (size_t tenths = 1; tenths <= 8; tenths++) {
        write_bytes(path, good, good_bytes * tenths / 10);
        DsvStatus status = dsvi_clip_probe(path, &info);
        assert_int_equal(status, DSV_E_FORMAT);
        assert_non_null(strstr(dsv_error_message(), path));
    }
    assert_non_null(strstr(dsv_error_message(), "truncated: its head promises 3.0 s of video"));
}

/* A truncated Matroska file is valid: its remaining frames count. */
static void a_truncated_mkv_is_as_long_as_it_is(void **state)
{
    (void)state;
    char *data;
    size_t bytes;
    DsviClipInfo info;
    float *pixels = video_alloc(WINDOW, SIDE, SIDE);
    make_stamped("libx264", scratch_path("whole.mkv"), 0, FRAMES, 30);
    assert_ok(dsvi_file_read(scratch_path("whole.mkv"), (size_t)1 << 24, &data, &bytes));
    write_bytes(scratch_path("cut.mkv"), data, bytes * 7 / 10);
    assert_ok(dsvi_clip_probe(scratch_path("cut.mkv"), &info));
    assert_true(info.seconds > 1 && info.seconds < 2.9);
    DsviClipWindow window = FIRST;
    assert_ok(dsvi_clip_read(scratch_path("cut.mkv"), &window, pixels));
    assert_int_equal(read_stamp(pixels, WINDOW - 1, WINDOW, SIDE, SIDE), WINDOW - 1);
    window.start = info.seconds + 0.2;
    assert_fails(DSV_E_FORMAT, "its frames end before",
                 dsvi_clip_read(scratch_path("cut.mkv"), &window, pixels));
    free(data);
    free(pixels);
}

static void damage_inside_spoils_its_windows_alone(void **state)
{
    (void)state;
    const char *path = scratch_path("damaged.mp4");
    float *pixels = video_alloc(WINDOW, SIDE, SIDE);
    char *data = malloc(good_bytes);
    assert_non_null(data);
    memcpy(data, good, good_bytes);
    DsviRng rng = {5, DSVI_RNG_TEST, 0};
    for (size_t i = good_bytes * 8 / 10; i < good_bytes * 9 / 10; i++)
        data[i] = (char)dsvi_rng_below(rng, i, 256);
    write_bytes(path, data, good_bytes);
    DsviClipWindow window = FIRST;
    assert_ok(dsvi_clip_read(path, &window, pixels));
    for (int64_t i = 0; i < WINDOW; i++)
        assert_int_equal(read_stamp(pixels, i, WINDOW, SIDE, SIDE), i);
    window.start = 2.0;
    window.fps = 4;
    assert_fails(DSV_E_FORMAT, "damaged after", dsvi_clip_read(path, &window, pixels));
    free(data);
    free(pixels);
}

/* Frames are lost between intact packets: the decoder invents the frames that referred to them and reports
 * success. Windows before the gap are read, windows after the gap up to the next key frame are refused. */
static void pictures_that_refer_to_lost_ones_are_refused(void **state)
{
    (void)state;
    static const char *const CODECS[] = {
        "libx264 -sc_threshold 0 -g 90",
        "libx264 -sc_threshold 0 -g 90 -bf 0",
        "libx264 -sc_threshold 0 -g 90 -flags +ilme+ildct",
        "libx265 -x265-params log-level=none:scenecut=0:keyint=90",
        "libx265 -x265-params log-level=none:scenecut=0:keyint=90:bframes=0",
    };
    float *pixels = video_alloc(WINDOW, SIDE, SIDE);
    for (size_t c = 0; c < sizeof CODECS / sizeof *CODECS; c++) {
        char arguments[512];
        DsviClipWindow window = FIRST;
        snprintf(arguments, sizeof arguments, "-i good.mp4 -vf scale=80:80:flags=neighbor -c:v %s whole.mkv",
                 CODECS[c]);
        run_ffmpeg(arguments);
        run_ffmpeg("-i whole.mkv -c copy -bsf:v 'noise=drop=between(n\\,20\\,24)' gap.mkv");
        assert_ok(dsvi_clip_read(scratch_path("gap.mkv"), &window, pixels));
        assert_int_equal(read_stamp(pixels, WINDOW - 1, WINDOW, SIDE, SIDE), WINDOW - 1);
        window.start = 1.5;
        assert_ok(dsvi_clip_read(scratch_path("whole.mkv"), &window, pixels));
        DsvStatus status = dsvi_clip_read(scratch_path("gap.mkv"), &window, pixels);
        if (status != DSV_E_FORMAT || !strstr(dsv_error_message(), "gap.mkv: damaged after"))
            fail_msg("%s: %s: %s", CODECS[c], dsv_status_text(status), status ? dsv_error_message() : "");
    }
    free(pixels);
}

/* Files with bytes changed at random: the result may be success or failure, but must be the same twice. */
static void mutants_are_read_or_refused(void **state)
{
    (void)state;
    const char *path = scratch_path("mutant.mp4");
    size_t bytes = sizeof(float) * 3 * WINDOW * SIDE * SIDE;
    float *once = video_alloc(WINDOW, SIDE, SIDE), *again = video_alloc(WINDOW, SIDE, SIDE);
    char *data = malloc(good_bytes);
    assert_non_null(data);
    int refused = 0;
    for (uint32_t m = 0; m < MUTANTS; m++) {
        DsviRng rng = {17, DSVI_RNG_TEST, m};
        DsviClipWindow window = FIRST;
        DsviClipInfo info;
        memcpy(data, good, good_bytes);
        for (uint64_t n = 0; n < 1 + m % 20; n++) /* half of them in the head, where structure is */
            data[dsvi_rng_below(rng, 2 * n,
                                n % 2               ? good_bytes
                                : 3000 < good_bytes ? 3000
                                                    : good_bytes)] = (char)dsvi_rng_below(rng, 2 * n + 1,
                                                                                          256);
        write_bytes(path, data, good_bytes);
        window.start = (double)(m % 3);
        DsvStatus probed = dsvi_clip_probe(path, &info), read = dsvi_clip_read(path, &window, once);
        assert_int_equal(dsvi_clip_probe(path, &info), probed);
        assert_int_equal(dsvi_clip_read(path, &window, again), read);
        refused += read != DSV_OK;
        for (size_t i = 0; read == DSV_OK && i < bytes / sizeof *once; i++)
            assert_true(once[i] >= -1 && once[i] <= 1 && once[i] == again[i]);
    }
    assert_true(refused > MUTANTS / 20 && refused < MUTANTS);
    free(data);
    free(once);
    free(again);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_no_video_file_is_refused),
        cmocka_unit_test(a_truncated_file_is_refused),
        cmocka_unit_test(a_truncated_mkv_is_as_long_as_it_is),
        cmocka_unit_test(damage_inside_spoils_its_windows_alone),
        cmocka_unit_test(pictures_that_refer_to_lost_ones_are_refused),
        cmocka_unit_test(mutants_are_read_or_refused),
    };
    return cmocka_run_group_tests(tests, make_good, remove_good);
}
