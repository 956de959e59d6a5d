/* Clips that are encoded: contents, copies, windows, and the list in which every clip has a row. */
#include "encode/encode_clips.h"

#include "base/scratch.h"
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

static void every_clip_has_a_row(void **state)
{
    (void)state;
    DsviDataset *dataset;
    DsviEncodeClips clips;
    DsviLatentCache *cache;
    const DsvEvents none = {0};
    char *list, line[512], expected[512];
    size_t bytes;
    assert_ok(dsvi_dataset_open(scratch_path("clips"), &settings, &dataset));
    assert_ok(dsvi_latent_cache_create(scratch_path("cache"), &settings, NULL, &cache));
    assert_ok(dsvi_encode_clips_list(dataset, &settings, &clips));
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
             "clip,bucket,windows,frames,frames_used,captions,note\n\"%s\",5x32x32,2,12,10,0,",
             scratch_path("clips/waves-0.mp4"));
    assert_int_equal(strncmp(list, expected, strlen(expected)), 0);
    assert_non_null(strstr(list, "waves-1.mp4\",5x32x32,2,12,10,1,\"2 frames are in no window\"\n"));
    assert_non_null(
        strstr(list, "waves-2.mp4\",5x32x32,1,12,5,0,\"1 unreadable windows: bad, \"\"very\"\"\"\n"));
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_clip_has_a_row),
    };
    return cmocka_run_group_tests(tests, make_clips, scratch_remove);
}
