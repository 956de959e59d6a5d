/* Data sets of several sizes: which size each input gets, and the order of the samples. */
#include "data/dataset_sizes.h"
#include "data/list_weights.h"

#include "base/scratch.h"
#include "clip_maker.h"
#include "data/clip_frames.h"
#include "data/latent_cache.h"

static const DsviClipSteps STEPS = {2, 8};

/* Writes a picture with the stamp 5. */
static void make_picture(const char *path, int64_t height, int64_t width)
{
    float *pixels = video_alloc(1, height, width);
    DsviClipFrames frames = {1, height, width, 1, malloc((size_t)(3 * height * width))};
    uint8_t *png;
    size_t bytes;
    stamp_clip(pixels, 5, 1, height, width);
    for (int64_t i = 0; i < height * width; i++)
        memset(frames.rgb + 3 * i, pixels[i] > 0 ? 255 : 0, 3);
    assert_ok(dsvi_clip_frames_png("picture", &frames, 0, 1, &png, &bytes));
    write_bytes(path, png, bytes);
    free(png);
    free(pixels);
    dsvi_clip_frames_free(&frames);
}

static int make_inputs(void **state)
{
    if (scratch_make(state) != 0)
        return 1;
    assert_ok(dsvi_folder_make(scratch_path("clips")));
    make_stamped("libx264", scratch_path("clips/long.mp4"), 0, 30, 16);
    make_stamped("libx264", scratch_path("clips/short.mp4"), 0, 9, 16);
    make_stamped("libx264", scratch_path("clips/stub.mp4"), 0, 3, 16);
    make_ramp(scratch_path("clips/wide.mp4"), 20, 40, 80, 16);
    make_ramp(scratch_path("clips/small.mp4"), 20, 16, 16, 16);
    make_picture(scratch_path("clips/photo.png"), 40, 40);
    write_text(scratch_path("clips/photo.txt"), "a photo");
    write_text(scratch_path("clips/broken.png"), "no picture");
    return 0;
}

static DsvConfig config_of(const char *buckets, const char *windows)
{
    DsvConfig config;
    dsv_config_defaults(&config);
    snprintf(config.data_buckets, sizeof config.data_buckets, "%s", buckets);
    snprintf(config.data_windows, sizeof config.data_windows, "%s", windows);
    return config;
}

static DsviDataset *open_inputs(const DsvConfig *config)
{
    DsviDataset *d;
    assert_ok(dsvi_dataset_open(scratch_path("clips"), config, &d));
    assert_ok(dsvi_dataset_assign(d, config, &STEPS, true));
    return d;
}

/* Returns the size of the input, or "" if it is left out. */
static const char *size_of(const DsviDataset *d, const char *name)
{
    static char text[DSVI_CLIP_SIZE_BYTES];
    for (int64_t i = 0; i < d->count; i++)
        if (strstr(d->items[i].path, name))
            return dsvi_clip_size_text(&d->sizes.at[d->items[i].size], text);
    return "";
}

static void check_list(const DsviDataset *d, const DsvConfig *config, const char *row)
{
    char *list;
    size_t bytes;
    assert_ok(dsvi_dataset_write_list(d, config, scratch_path("inputs.csv")));
    assert_ok(dsvi_file_read(scratch_path("inputs.csv"), 1 << 20, &list, &bytes));
    if (!strstr(list, row))
        fail_msg("no row %s in\n%s", row, list);
    int rows = 0;
    for (const char *at = list; (at = strchr(at, '\n')); at++)
        rows++;
    assert_int_equal(rows, 1 + 7); /* a head, and every input once */
    free(list);
}

static void every_input_has_a_size_or_a_reason(void **state)
{
    (void)state;
    DsvConfig config = config_of("17x32x64,17x32x32,9x32x32,1x32x32", "auto");
    DsviDataset *d = open_inputs(&config);
    assert_int_equal(d->sizes.count, 4);
    assert_string_equal(size_of(d, "long"), "17x32x32");
    assert_string_equal(size_of(d, "short"), "9x32x32");
    assert_string_equal(size_of(d, "stub"), "1x32x32");
    assert_string_equal(size_of(d, "wide"), "17x32x64");
    assert_string_equal(size_of(d, "photo"), "1x32x32");
    assert_int_equal(d->count, 5);
    assert_int_equal(d->left_out_count, 2);
    check_list(d, &config, "long.mp4\",17x32x32,1,30,30,,1\n");
    check_list(d, &config, "small.mp4: 20 frames of 16 x 16 (height x width) fill no bucket");
    check_list(d, &config, "broken.png\",,0,,0,\"");
    dsvi_dataset_close(&d);

    config = config_of("auto", "head");
    config.num_frames = 17;
    config.height = config.width = 32;
    d = open_inputs(&config);
    assert_string_equal(size_of(d, "long"), "17x32x32");
    assert_string_equal(size_of(d, "short"), "9x32x32");
    assert_string_equal(size_of(d, "stub"), "3x32x32");
    assert_string_equal(size_of(d, "small"), "17x16x16");
    assert_string_equal(size_of(d, "photo"), "1x32x32");
    check_list(d, &config, "long.mp4\",17x32x32,1,30,17,,1\n");
    dsvi_dataset_close(&d);
}

static void a_size_without_clips_is_refused(void **state)
{
    (void)state;
    DsvConfig config = config_of("17x32x32,1x32x32,81x32x32", "auto");
    DsviDataset *d;
    assert_ok(dsvi_dataset_open(scratch_path("clips"), &config, &d));
    assert_fails(DSV_E_USAGE, "data.buckets: no clip goes to 81x32x32, expected at least one",
                 dsvi_dataset_assign(d, &config, &STEPS, true));
    dsvi_dataset_close(&d);
    config = config_of("81x320x320", "auto");
    assert_ok(dsvi_dataset_open(scratch_path("clips"), &config, &d));
    assert_fails(DSV_E_NOT_FOUND, "data.buckets=81x320x320 leaves no clip of 7, the first: ",
                 dsvi_dataset_assign(d, &config, &STEPS, true));
    dsvi_dataset_close(&d);
}

/* An epoch uses items in proportion to their weights: 0.7 / 0.3 is 2 1/3, so three epochs of the item with
 * the smallest weight have seven of the others. Odd weights are rounded to their proportions. */
static void epochs_use_items_in_proportion_to_weights(void **state)
{
    static const int64_t USED[] = {7, 3, 14};
    static const double ODD[] = {1, 3.14159, 0.777, 250.5, 17.3};
    int64_t repeats[5], used[3] = {0};
    DsvConfig config = config_of("", "auto");
    DsviDataset *d;
    (void)state;
    config.num_frames = 1;
    write_text(scratch_path("list.csv"), "path,weight,repeats\nclips/long.mp4,0.7,\nclips/short.mp4,0.3,\n"
                                         "clips/wide.mp4,0.7,2\n");
    assert_ok(dsvi_dataset_open(scratch_path("list.csv"), &config, &d));
    assert_ok(dsvi_dataset_assign(d, &config, &STEPS, true));
    assert_int_equal(dsvi_dataset_epoch_batches(d, &config), 24);
    for (uint64_t i = 24; i < 48; i++)
        used[dsvi_dataset_sample(d, &config, i).item]++;
    assert_memory_equal(used, USED, sizeof used);
    dsvi_dataset_close(&d);
    assert_ok(dsvi_list_weights_apply(ODD, 5, repeats));
    for (int i = 0; i < 5; i++)
        assert_true(fabs((double)repeats[i] / (double)repeats[3] / (ODD[i] / ODD[3]) - 1) <= 0.003);
    assert_ok(
        dsvi_list_weights_apply((const double[]){1e-310, 3e-310}, 2, repeats)); /* 1 / 1e-310 overflows */
    assert_true(repeats[0] == 1 && repeats[1] == 3);
    write_text(scratch_path("list.csv"), "path,weight\nclips/long.mp4,1e-6\nclips/short.mp4,5\n");
    assert_ok(dsvi_dataset_open(scratch_path("list.csv"), &config, &d));
    assert_fails(DSV_E_USAGE,
                 "list.csv: weights of single clips from 1e-06 to 5, expected at most 1000000 times",
                 dsvi_dataset_assign(d, &config, &STEPS, true));
    dsvi_dataset_close(&d);
}

/* An epoch uses each item as often as it repeats, with several sizes and with one. The same seed gives the
 * same samples. An item that cannot be read is replaced by another one, however often it repeats. */
static void epochs_use_items_as_often_as_they_repeat(void **state)
{
    static const char LIST[] = "path,repeats\nclips/long.mp4,40\nclips/short.mp4,\nclips/wide.mp4, 3\n"
                               "clips/photo.png,1\nclips/stub.mp4,2\n";
    static const int64_t REPEATS[] = {40, 1, 3, 1, 2};
    (void)state;
    write_text(scratch_path("list.csv"), LIST);
    for (int several = 0; several < 2; several++) {
        DsvConfig config = config_of(several ? "17x32x64,9x32x32,1x32x32" : "", "auto");
        DsviDataset *d, *again;
        config.num_frames = several ? 17 : 1;
        assert_ok(dsvi_dataset_open(scratch_path("list.csv"), &config, &d));
        assert_ok(dsvi_dataset_assign(d, &config, &STEPS, true));
        assert_ok(dsvi_dataset_open(scratch_path("list.csv"), &config, &again));
        assert_ok(dsvi_dataset_assign(again, &config, &STEPS, true));
        assert_int_equal(dsvi_dataset_epoch_batches(d, &config), 47);
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            int64_t used[5] = {0};
            for (uint64_t i = 47 * epoch; i < 47 * epoch + 47; i++) {
                DsviSampleRef ref = dsvi_dataset_sample(d, &config, i);
                DsviSampleRef other = dsvi_dataset_sample_again(d, &config, i, 1);
                used[ref.item]++;
                assert_int_equal(dsvi_dataset_sample(again, &config, i).item, ref.item);
                assert_int_equal(d->items[other.item].size, d->items[ref.item].size);
                int64_t size = d->items[ref.item].size;
                assert_true(other.item != ref.item || d->first_of[size + 1] - d->first_of[size] == 1);
            }
            assert_memory_equal(used, REPEATS, sizeof used);
        }
        assert_int_equal(dsvi_dataset_size_count(d, d->items[0].size).samples, several ? 41 : 47);
        dsvi_dataset_close(&d);
        dsvi_dataset_close(&again);
    }
}

/* A clip may repeat 1,000,000 times: an epoch stores no list of its samples. */
static void a_clip_may_repeat_very_often(void **state)
{
    enum { OFTEN = 1000000 };
    (void)state;
    DsvConfig config = config_of("", "auto");
    DsviDataset *d;
    int64_t used[3] = {0};
    config.num_frames = 1;
    write_text(scratch_path("list.csv"),
               "path,repeats\nclips/long.mp4,1\nclips/short.mp4,1000000\nclips/wide.mp4,2\n");
    assert_ok(dsvi_dataset_open(scratch_path("list.csv"), &config, &d));
    assert_ok(dsvi_dataset_assign(d, &config, &STEPS, true));
    assert_int_equal(dsvi_dataset_epoch_batches(d, &config), OFTEN + 3);
    for (uint64_t i = 0; i < OFTEN + 3; i++)
        used[dsvi_dataset_sample(d, &config, i).item]++;
    assert_true(used[0] == 1 && used[1] == OFTEN && used[2] == 2);
    dsvi_dataset_close(&d);
}

/* Without data.buckets pictures are no clips, as ever. */
static void pictures_need_buckets(void **state)
{
    (void)state;
    DsvConfig config = config_of("", "auto");
    DsviDataset *d = open_inputs(&config);
    assert_int_equal(d->count, 5);
    assert_null(d->order);
    dsvi_dataset_close(&d);
}

static void a_picture_is_a_clip_of_one_frame(void **state)
{
    (void)state;
    DsvConfig config = config_of("9x32x32,1x40x40", "auto");
    DsviDataset *d = open_inputs(&config);
    float *pixels = video_alloc(1, 40, 40);
    int64_t item = 0;
    while (!strstr(d->items[item].path, "photo"))
        item++;
    assert_int_equal(dsvi_clip_frame_times(&d->items[item].info, 16), 1);
    assert_string_equal(d->items[item].captions.at[0].text, "a photo");
    const DsviClipWindow whole = {0, 16, 1, 40, 40, 0.5, 0.5};
    assert_ok(dsvi_clip_read(d->items[item].path, &whole, pixels));
    assert_int_equal(read_stamp(pixels, 0, 1, 40, 40), 5);
    free(pixels);
    dsvi_dataset_close(&d);
}

static void windows_are_taken_as_the_policy_says(void **state)
{
    (void)state;
    static const struct {
        const char *policy;
        int64_t count, starts[4];
    } CASES[] = {
        {"head", 1, {0}},
        {"middle", 1, {10}},
        {"uniform", 3, {0, 10, 21}},
        {"all", 3, {0, 9, 18}},
    };
    for (size_t c = 0; c < sizeof CASES / sizeof *CASES; c++) {
        DsvConfig config = config_of("9x32x32", CASES[c].policy);
        config.data_windows_max = 3;
        DsviDataset *d = open_inputs(&config);
        int64_t found = 0;
        for (int64_t i = 0; i < d->count; i++) {
            if (!strstr(d->items[i].path, "long"))
                continue;
            assert_int_equal(d->items[i].start, CASES[c].starts[found++]);
            DsviSampleRef ref = dsvi_dataset_sample_in(d, &config, 77, i);
            assert_true(ref.window.start == (double)d->items[i].start / 16);
        }
        assert_int_equal(found, CASES[c].count);
        dsvi_dataset_close(&d);
    }
}

/* In an epoch every item comes once, batches have one size, and only the last batch of a size is filled up.
 */
static void an_epoch_has_every_item_in_batches_of_one_size(void **state)
{
    (void)state;
    enum { ITEMS = 23, SIZES = 3 };
    static DsviDatasetItem items[ITEMS];
    static int64_t order[ITEMS], places_end[ITEMS];
    static const int64_t COUNTS[SIZES] = {11, 10, 2};
    DsviDataset d = {
        .items = items, .count = ITEMS, .latents = true, .order = order, .places_end = places_end};
    DsvConfig config;
    dsv_config_defaults(&config);
    d.sizes.count = SIZES;
    for (int64_t size = 0, next = 0; size < SIZES; size++) {
        d.first_of[size] = next;
        for (int64_t i = 0; i < COUNTS[size]; i++, next++) {
            order[next] = ITEMS - d.first_of[size] - COUNTS[size] + i; /* ascending for each size */
            items[order[next]].size = size;
            places_end[next] = i + 1;
        }
        d.first_of[size + 1] = next;
    }
    /* an unreadable window is replaced by those of its size, each of them once */
    for (int64_t size = 0; size < SIZES; size++)
        assert_int_equal(dsvi_dataset_tries(&d, order[d.first_of[size]]), COUNTS[size]);
    for (int64_t batch = 1; batch <= 4; batch++) {
        config.train_batch_size = batch;
        uint64_t n = dsvi_dataset_epoch_batches(&d, &config), different = 0;
        uint64_t expected = 0;
        for (int size = 0; size < SIZES; size++)
            expected += (uint64_t)((COUNTS[size] + batch - 1) / batch);
        assert_int_equal(n, expected);
        for (uint64_t epoch = 0; epoch < 50; epoch++) {
            int seen[ITEMS] = {0};
            for (uint64_t j = epoch * n; j < (epoch + 1) * n; j++) {
                int64_t size = dsvi_dataset_batch_size(&d, &config, j);
                different += size != dsvi_dataset_batch_size(&d, &config, j - epoch * n);
                for (uint64_t i = j * (uint64_t)batch; i < (j + 1) * (uint64_t)batch; i++) {
                    int64_t item = dsvi_dataset_sample(&d, &config, i).item;
                    assert_int_equal(items[item].size, size);
                    assert_int_equal(items[dsvi_dataset_sample_again(&d, &config, i, 5).item].size, size);
                    seen[item]++;
                }
            }
            int64_t more = 0;
            for (int64_t i = 0; i < ITEMS; i++) {
                assert_true(seen[i] >= 1);
                more += seen[i] - 1;
            }
            assert_int_equal(more, (int64_t)n * batch - ITEMS);
        }
        assert_true(different > 0); /* epochs have different orders */
    }
}

static DsvStatus put_window(DsviLatentCache *cache, const char *clip, int64_t frames, int64_t side)
{
    const DsviLatentSource source = {.path = clip, .stamp = {1, 2}};
    const DsviClipWindow window = {0, 16, frames, side, side, 0.5, 0.5};
    const int64_t shape[4] = {2, frames, 1, 1};
    const float latent[128] = {0};
    return dsvi_latent_cache_put(cache, &source, &window, shape, latent);
}

/* One folder has latents of one clip at several sizes; each run takes those that it asks for. */
static void a_cache_has_several_sizes(void **state)
{
    (void)state;
    DsvConfig config = config_of("", "auto"), buckets = config_of("auto", "auto");
    DsviLatentCache *cache;
    DsviDataset *d;
    const char *folder = scratch_path("cache");
    config.num_frames = 17;
    config.height = config.width = 32;
    assert_ok(dsvi_latent_cache_create(folder, &config, NULL, &cache));
    assert_ok(put_window(cache, "a.mp4", 17, 32));
    dsvi_latent_cache_close(&cache);
    buckets.num_frames = 99; /* with buckets the one size does not matter */
    assert_ok(dsvi_latent_cache_create(folder, &buckets, NULL, &cache));
    assert_ok(put_window(cache, "a.mp4", 9, 32));
    assert_ok(put_window(cache, "a.mp4", 1, 64));
    assert_ok(put_window(cache, "b.mp4", 9, 32));
    dsvi_latent_cache_close(&cache);

    assert_ok(dsvi_dataset_open(folder, &config, &d));
    assert_int_equal(d->count, 1);
    assert_int_equal(d->left_out_count, 3);
    assert_non_null(strstr(d->left_out[0].reason, "a window of "));
    dsvi_dataset_close(&d);

    assert_ok(dsvi_dataset_open(folder, &buckets, &d));
    assert_ok(dsvi_dataset_assign(d, &buckets, &STEPS, true));
    assert_int_equal(d->count, 4);
    assert_int_equal(d->sizes.count, 3);
    assert_int_equal(dsvi_dataset_size_count(d, 1).windows, 2);
    dsvi_dataset_close(&d);

    buckets = config_of("9x32x32", "auto");
    assert_ok(dsvi_dataset_open(folder, &buckets, &d));
    assert_ok(dsvi_dataset_assign(d, &buckets, &STEPS, true));
    assert_int_equal(d->count, 2);
    assert_int_equal(d->left_out_count, 2);
    dsvi_dataset_close(&d);
    config.num_frames = 5;
    assert_fails(DSV_E_NOT_FOUND, "a window of", dsvi_dataset_open(folder, &config, &d));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_input_has_a_size_or_a_reason),
        cmocka_unit_test(a_size_without_clips_is_refused),
        cmocka_unit_test(epochs_use_items_as_often_as_they_repeat),
        cmocka_unit_test(a_clip_may_repeat_very_often),
        cmocka_unit_test(epochs_use_items_in_proportion_to_weights),
        cmocka_unit_test(pictures_need_buckets),
        cmocka_unit_test(a_picture_is_a_clip_of_one_frame),
        cmocka_unit_test(windows_are_taken_as_the_policy_says),
        cmocka_unit_test(an_epoch_has_every_item_in_batches_of_one_size),
        cmocka_unit_test(a_cache_has_several_sizes),
    };
    return cmocka_run_group_tests(tests, make_inputs, scratch_remove);
}
