/* Clips that are encoded: contents, copies, windows, and the list in which every clip has a row. */
#include "encode/encode_clips.h"

#include "base/scratch.h"
#include "base/threads.h"
#include "data/dataset_sizes.h"
#include "train/tiny.h"

static DsvConfig settings;

static int make_clips(void **state)
{
    char *data;
    size_t bytes;
    if (scratch_make(state) != 0 || dsvi_folder_make(scratch_path("clips")) != DSV_OK)
        return 1;
    tiny_clips(scratch_path("clips"), 3);
    tiny_settings(&settings); /* windows of 5 of the 12 frames */
    assert_ok(dsvi_file_read(scratch_path("clips/waves-0.mp4"), 1 << 20, &data, &bytes));
    assert_ok(dsvi_file_write(scratch_path("clips/zcopy \"a\".mp4"), data, bytes));
    assert_ok(dsvi_file_write(scratch_path("clips/broken.mp4"), data, bytes / 3));
    assert_ok(dsvi_file_write(scratch_path("clips/waves-1.txt"), "a dog, running", 14));
    free(data);
    return 0;
}

static DsviDataset *open_clips(const char *folder)
{
    static const DsviClipSteps NONE;
    DsviDataset *dataset;
    assert_ok(dsvi_dataset_open(folder, &settings, &dataset));
    assert_ok(dsvi_dataset_assign(dataset, &settings, &NONE, false));
    return dataset;
}

static void every_clip_has_a_row(void **state)
{
    (void)state;
    DsviDataset *dataset;
    DsviEncodeClips clips;
    DsviLatentCache *cache;
    const DsvEvents none = {0};
    char *list, line[512], expected[512];
    size_t bytes;
    dataset = open_clips(scratch_path("clips"));
    assert_ok(dsvi_latent_cache_create(scratch_path("cache"), &settings, NULL, &cache));
    assert_ok(dsvi_encode_clips_list(dataset, &settings, false, &clips));
    assert_ok(dsvi_encode_clips_hash(&clips, cache, &none));
    assert_ok(dsvi_encode_clips_windows(&clips));
    assert_int_equal(clips.count, 4);
    assert_int_equal(clips.window_count, 6);
    assert_int_equal(clips.at[3].copy_of, 0);
    assert_int_equal(clips.clip_of[5], 2);
    assert_true(clips.windows[3].source == &clips.sources[1] && clips.windows[3].window.start == 5.0 / 8);
    for (int i = 0; i < 6; i++)
        dsvi_encode_clips_outcome(&clips, i,
                                  i == 4   ? DSVI_WINDOW_UNREADABLE
                                  : i == 5 ? DSVI_WINDOW_KEPT
                                           : DSVI_WINDOW_ENCODED,
                                  i == 4 ? "bad, \"very\"" : NULL);
    assert_ok(dsvi_encode_clips_write(&clips, scratch_path("clips.csv")));
    assert_ok(dsvi_file_read(scratch_path("clips.csv"), 1 << 20, &list, &bytes));
    snprintf(expected, sizeof expected,
             "clip,bucket,windows,frames,frames_used,captions,note,repeats\n\"%s\",5x32x32,2,12,10,0,",
             scratch_path("clips/waves-0.mp4"));
    assert_int_equal(strncmp(list, expected, strlen(expected)), 0);
    assert_non_null(strstr(list, "waves-1.mp4\",5x32x32,2,12,10,1,\"2 frames are in no window\",1\n"));
    assert_non_null(
        strstr(list, "waves-2.mp4\",5x32x32,1,12,5,0,\"1 unreadable windows: bad, \"\"very\"\"\",1\n"));
    assert_non_null(strstr(list, "zcopy \"\"a\"\".mp4\",5x32x32,2,12,10,0,\"has the contents of "));
    assert_non_null(strstr(list, "broken.mp4\",,0,0,0,0,\""));
    dsvi_encode_clips_summary(&clips, line, sizeof line);
    assert_string_equal(line, "5 clips: 4 used, 1 left out; 6 windows: 4 encoded, 1 kept, 1 unreadable; "
                              "1 captions for 1 clips, 3 clips without");
    free(list);
    dsvi_encode_clips_free(&clips);
    dsvi_latent_cache_close(&cache);
    dsvi_dataset_close(&dataset);
}

static bool stop(void *context)
{
    (void)context;
    return true;
}

/* Opens the clips in `folder` and hashes them; `events` may stop this. Returns how many are known before. */
static int64_t hash_again(const char *folder, const DsvEvents *events, DsvStatus expected)
{
    int64_t known = 0;
    DsviDataset *dataset;
    DsviEncodeClips clips;
    DsviLatentCache *cache;
    dataset = open_clips(folder);
    assert_ok(dsvi_latent_cache_create(scratch_path("hashed"), &settings, NULL, &cache));
    assert_ok(dsvi_encode_clips_list(dataset, &settings, false, &clips));
    assert_ok(dsvi_latent_cache_recall(cache, clips.sources, clips.count));
    for (int64_t i = 0; i < clips.count; i++) {
        DsviHashKey key;
        assert_ok(dsvi_file_hash_key(clips.sources[i].path, &key));
        known += clips.sources[i].content.hex[0] != 0;
        assert_true(!clips.sources[i].content.hex[0] || dsvi_hash_key_same(&clips.sources[i].content, &key));
    }
    assert_int_equal(dsvi_encode_clips_hash(&clips, cache, events), expected);
    dsvi_encode_clips_free(&clips);
    dsvi_latent_cache_close(&cache);
    dsvi_dataset_close(&dataset);
    return known;
}

/* With one thread a wave has 16 clips. */
static void hashes_survive_a_stop(void **state)
{
    (void)state;
    enum { MANY = 20, WAVE = 16 };
    char folder[DSVI_PATH_MAX], hashes[DSVI_PATH_MAX], clip[DSVI_PATH_MAX], *lines, *damaged;
    size_t bytes;
    const DsvEvents none = {0}, stopping = {.stop = stop};
    snprintf(folder, sizeof folder, "%s", scratch_path("many"));
    snprintf(hashes, sizeof hashes, "%s", scratch_path("hashed/hashes"));
    snprintf(clip, sizeof clip, "%s", scratch_path("many/waves-0.mp4"));
    assert_ok(dsvi_folder_make(folder));
    tiny_clips(folder, MANY);
    dsvi_threads_set(1);
    assert_int_equal(hash_again(folder, &stopping, DSV_E_INTERRUPTED), 0);
    assert_int_equal(hash_again(folder, &none, DSV_OK), WAVE);
    assert_int_equal(hash_again(folder, &none, DSV_OK), MANY);
    /* a line cut short, as by the end of the process, and a changed digit */
    assert_ok(dsvi_file_read(hashes, 1 << 20, &lines, &bytes));
    damaged = strstr(lines, "\n") + 1 + DSVI_HASH_KEY_DIGITS + 3;
    *damaged = *damaged == '0' ? '1' : '0';
    assert_ok(dsvi_file_write(hashes, lines, bytes - 20));
    assert_int_equal(hash_again(folder, &none, DSV_OK), MANY - 2);
    free(lines);
    /* another clip under the name of the first */
    assert_ok(dsvi_file_read(scratch_path("many/waves-1.mp4"), 1 << 20, &lines, &bytes));
    assert_ok(dsvi_file_write(clip, lines, bytes - 1));
    free(lines);
    assert_int_equal(hash_again(folder, &none, DSV_OK), MANY - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_clip_has_a_row),
        cmocka_unit_test(hashes_survive_a_stop),
    };
    return cmocka_run_group_tests(tests, make_clips, scratch_remove);
}
