/* dsv_encode: clips listed twice, different spellings of paths, a second call. */
#include "test.h"

#include <unistd.h>

#include "base/scratch.h"
#include "data/latent_cache.h"
#include "dsv/dsv.h"
#include "train/tiny.h"

enum { CLIPS = 3, WINDOWS_EACH = 2 }; /* 12 frames in windows of 5 */

typedef struct Heard {
    int warnings;
    char warning[1024];
} Heard;

static void hear_line(void *context, DsvLogLevel level, const char *line)
{
    Heard *heard = context;
    if (level != DSV_LOG_WARNING)
        return;
    heard->warnings++;
    snprintf(heard->warning, sizeof heard->warning, "%s", line);
}

static int make_clips(void **state)
{
    if (scratch_make(state) != 0 || dsvi_folder_make(scratch_path("clips")) != DSV_OK)
        return 1;
    tiny_clips(scratch_path("clips"), CLIPS);
    return 0;
}

static void encode(const char *data, const char *out, int64_t threads, Heard *heard)
{
    DsvConfig settings;
    DsvEvents events = {.context = heard, .log = hear_line};
    *heard = (Heard){0};
    tiny_settings(&settings);
    snprintf(settings.data_path, sizeof settings.data_path, "%s", data);
    settings.threads = threads;
    assert_ok(dsv_encode(out, NULL, &settings, &events));
}

static int64_t count_of(const char *folder)
{
    DsviLatentCache *cache;
    assert_ok(dsvi_latent_cache_open(folder, NULL, &cache));
    int64_t count = dsvi_latent_cache_count(cache);
    for (int64_t i = 0; i < count; i++)
        assert_ok(dsvi_latent_cache_check(cache, i));
    dsvi_latent_cache_close(&cache);
    return count;
}

/* A clip listed under several names is encoded at its first place; the others are reported. */
static void a_clip_listed_twice_is_encoded_once(void **state)
{
    static const char LIST[] = "path,text\nclips/waves-0.mp4,the first\nclips/waves-1.mp4,another\n"
                               "clips/../clips/waves-0.mp4,the second\n";
    Heard heard;
    (void)state;
    assert_ok(dsvi_file_write(scratch_path("list.csv"), LIST, sizeof LIST - 1));
    for (int64_t threads = 1; threads <= 4; threads += 3) {
        DsviLatentCache *cache;
        char out[32];
        snprintf(out, sizeof out, "listed-%d", (int)threads);
        encode(scratch_path("list.csv"), scratch_path(out), threads, &heard);
        assert_int_equal(heard.warnings, 1);
        assert_non_null(strstr(heard.warning, "waves-0.mp4 is listed more than once"));
        assert_int_equal(count_of(scratch_path(out)), 2 * WINDOWS_EACH);
        assert_ok(dsvi_latent_cache_open(scratch_path(out), NULL, &cache));
        assert_string_equal(dsvi_latent_cache_captions(cache, 0)->at[0].text, "the first");
        dsvi_latent_cache_close(&cache);
    }
}

static void latents_are_not_put_among_clips(void **state)
{
    static const char LIST[] = "path\nclips/waves-1.mp4\n";
    DsvConfig settings;
    char folder[DSVI_PATH_MAX], list[DSVI_PATH_MAX];
    (void)state;
    tiny_settings(&settings);
    snprintf(folder, sizeof folder, "%s", scratch_path("clips/../clips"));
    snprintf(settings.data_path, sizeof settings.data_path, "%s", scratch_path("clips"));
    assert_fails(DSV_E_USAGE, "clips holds the clips: latents need a folder of their own",
                 dsv_encode(folder, NULL, &settings, NULL));
    snprintf(list, sizeof list, "%s", scratch_path("one.csv"));
    assert_ok(dsvi_file_write(list, LIST, sizeof LIST - 1));
    snprintf(settings.data_path, sizeof settings.data_path, "%s", list);
    assert_fails(DSV_E_USAGE, "holds a clip, waves-1.mp4: latents",
                 dsv_encode(folder, NULL, &settings, NULL));
    assert_false(dsvi_latent_cache_is(folder));
    assert_ok(dsv_encode(scratch_path("clips/latents"), NULL, &settings, NULL));
    assert_ok(dsvi_folder_remove(scratch_path("clips/latents")));
}

enum { MANY = 8 }; /* clips, of which the last is far behind the first in the queue of windows */

static void take_clip(void *context, const DsvProgress *progress)
{
    (void)context;
    if (progress->done == 1)
        rename(scratch_path("going/waves-7.mp4"), scratch_path("gone.mp4"));
}

/* A clip that can no longer be read, because of removal or a disk error, costs only its own windows. */
static void a_clip_that_goes_away_is_left_out(void **state)
{
    Heard heard = {0};
    DsvConfig settings;
    DsvEvents events = {.context = &heard, .log = hear_line, .progress = take_clip};
    char out[DSVI_PATH_MAX];
    (void)state;
    assert_ok(dsvi_folder_make(scratch_path("going")));
    tiny_clips(scratch_path("going"), MANY);
    tiny_settings(&settings);
    snprintf(settings.data_path, sizeof settings.data_path, "%s", scratch_path("going"));
    snprintf(out, sizeof out, "%s", scratch_path("went"));
    settings.threads = 1;
    assert_ok(dsv_encode(out, NULL, &settings, &events));
    assert_int_equal(count_of(out), (MANY - 1) * WINDOWS_EACH);
    assert_int_equal(heard.warnings, 1);
    assert_non_null(strstr(heard.warning, "left out: "));
    assert_non_null(strstr(heard.warning, "waves-7.mp4: No such file"));
}

static void write_clip(const char *path, int64_t frames, double fps)
{
    enum { SIDE = 40 };
    float *pixels = calloc((size_t)(3 * frames * SIDE * SIDE), sizeof *pixels);
    assert_non_null(pixels);
    assert_ok(dsvi_video_write(path, pixels, frames, SIDE, SIDE, fps));
    free(pixels);
}

/* A clip's length is rounded to microseconds: 10 frames at 12 frames/s count as 9.999996 frames. */
static void every_whole_window_is_encoded(void **state)
{
    static const struct {
        const char *name;
        int64_t frames;
        double fps;
        int64_t windows; /* windows of 5 frames */
    } CLIPS_OF[] = {{"a.mp4", 10, 12, 2},  {"b.mp4", 100, 30, 20}, {"c.mkv", 65, 30, 13},
                    {"d.mp4", 64, 30, 12}, {"e.mp4", 4, 12, 1},    {"f.mkv", 25, 24, 5},
                    {"g.mkv", 24, 24, 4}};
    (void)state;
    for (size_t i = 0; i < sizeof CLIPS_OF / sizeof *CLIPS_OF; i++) {
        char folder[64], clip[80];
        DsvConfig settings;
        snprintf(folder, sizeof folder, "whole-%d", (int)i);
        snprintf(clip, sizeof clip, "%s/%s", folder, CLIPS_OF[i].name);
        assert_ok(dsvi_folder_make(scratch_path(folder)));
        write_clip(scratch_path(clip), CLIPS_OF[i].frames, CLIPS_OF[i].fps);
        tiny_settings(&settings);
        snprintf(settings.data_path, sizeof settings.data_path, "%s", scratch_path(folder));
        settings.fps = CLIPS_OF[i].fps;
        snprintf(clip, sizeof clip, "%s-latents", folder);
        assert_ok(dsv_encode(scratch_path(clip), NULL, &settings, NULL));
        assert_int_equal(count_of(scratch_path(clip)), CLIPS_OF[i].windows);
    }
}

/* Removes every `what` from the text. */
static void take_out(char *text, const char *what)
{
    for (char *at = strstr(text, what); at; at = strstr(at, what))
        memmove(at, at + strlen(what), strlen(at + strlen(what)) + 1);
}

/* Relative paths, absolute paths, a link, and a cache with paths as typed all name the same clips. */
static void paths_typed_otherwise_are_the_same_clips(void **state)
{
    Heard heard;
    char before[DSVI_PATH_MAX], prefix[DSVI_PATH_MAX], *index;
    size_t bytes;
    (void)state;
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(scratch_folder), 0);
    assert_int_equal(symlink("clips", "link"), 0);
    encode("clips", "cache", 2, &heard);
    assert_int_equal(count_of("cache"), CLIPS * WINDOWS_EACH);
    assert_non_null(realpath(".", prefix));
    strcat(prefix, "/");
    assert_ok(dsvi_file_read("cache/index.json", 1 << 20, &index, &bytes));
    assert_non_null(strstr(index, prefix));
    take_out(index, prefix);
    strcpy(strrchr(index, ','), "}"); /* an older index has no checksum either */
    assert_ok(dsvi_file_write("cache/index.json", index, strlen(index)));
    free(index);
    const char *const typed[] = {scratch_path("clips"), "link", "./clips"};
    for (int i = 0; i < 3; i++) {
        encode(typed[i], "cache", 2, &heard);
        assert_int_equal(heard.warnings, 0);
        assert_int_equal(count_of("cache"), CLIPS * WINDOWS_EACH);
    }
    assert_int_equal(chdir(before), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_clip_listed_twice_is_encoded_once),
        cmocka_unit_test(every_whole_window_is_encoded),
        cmocka_unit_test(latents_are_not_put_among_clips),
        cmocka_unit_test(a_clip_that_goes_away_is_left_out),
        cmocka_unit_test(paths_typed_otherwise_are_the_same_clips),
    };
    return cmocka_run_group_tests(tests, make_clips, scratch_remove);
}
