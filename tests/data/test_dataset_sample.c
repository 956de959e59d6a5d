/* The clip and the window of the i-th sample. */
#include "data/dataset.h"

#include "test.h"

/* Twelve clips of 1 s, 2 s, ... */
enum { ITEMS = 12 };
static DsviDatasetItem items[ITEMS];
static DsviDataset clips = {.items = items, .count = ITEMS};

static DsvConfig make_settings(void)
{
    DsvConfig settings;
    dsv_config_defaults(&settings);
    settings.caption_dropout = 0;
    settings.seed = 3;
    for (int i = 0; i < ITEMS; i++)
        items[i].info = (DsviClipInfo){.width = 64, .height = 64, .fps = 30, .seconds = i + 1};
    return settings;
}

static void each_epoch_is_a_permutation(void **state)
{
    (void)state;
    DsvConfig settings = make_settings();
    static const int64_t COUNTS[] = {1, 2, 3, 4, 5, 12, 64, 65, 1000};
    static int seen[1000];
    static DsviDatasetItem windows[1000];
    DsviDataset latents = {.items = windows, .latents = true};
    for (size_t c = 0; c < sizeof COUNTS / sizeof *COUNTS; c++) {
        latents.count = COUNTS[c];
        for (uint64_t epoch = 0; epoch < 20; epoch++) {
            memset(seen, 0, sizeof seen);
            for (int64_t i = 0; i < latents.count; i++) {
                uint64_t index = epoch * (uint64_t)latents.count + (uint64_t)i;
                int64_t item = dsvi_dataset_sample(&latents, &settings, index).item;
                assert_true(item >= 0 && item < latents.count && !seen[item]++);
            }
        }
    }
}

/* Over many epochs each item comes at each place equally often, and each order of four equally often. The
 * counts are binomial; five standard deviations pass by chance once in a million comparisons. */
static void every_order_is_as_likely(void **state)
{
    (void)state;
    enum { EPOCHS = 6000, FEW = 4 };
    DsvConfig settings = make_settings();
    static int at[ITEMS][ITEMS], orders[256];
    int found = 0;
    for (uint64_t epoch = 0; epoch < EPOCHS; epoch++) {
        DsviDataset few = {.items = items, .latents = true, .count = FEW};
        DsviDataset many = {.items = items, .latents = true, .count = ITEMS};
        int order = 0;
        for (uint64_t i = 0; i < ITEMS; i++)
            at[i][dsvi_dataset_sample(&many, &settings, epoch * ITEMS + i).item]++;
        for (uint64_t i = 0; i < FEW; i++)
            order = 4 * order + (int)dsvi_dataset_sample(&few, &settings, epoch * FEW + i).item;
        orders[order]++;
    }
    double mean = EPOCHS / (double)ITEMS;
    for (int i = 0; i < ITEMS; i++)
        for (int j = 0; j < ITEMS; j++)
            assert_error_below(fabs(at[i][j] - mean), 5 * sqrt(mean), "item %d at %d", j, i);
    mean = EPOCHS / 24.0;
    for (int order = 0; order < 256; order++) {
        found += orders[order] > 0;
        if (orders[order] > 0)
            assert_error_below(fabs(orders[order] - mean), 5 * sqrt(mean), "order %d", order);
    }
    assert_int_equal(found, 24);
}

static void windows_lie_on_the_grid_inside_the_clip(void **state)
{
    (void)state;
    DsvConfig settings = make_settings();
    bool first[ITEMS] = {false}, last[ITEMS] = {false};
    double low = 1, high = 0;
    for (uint64_t i = 0; i < 20000; i++) {
        DsviSampleRef ref = dsvi_dataset_sample(&clips, &settings, i);
        const DsviClipWindow *w = &ref.window;
        /* 17 frames at 16 frames/s: a clip of s seconds has 16 s times, the last window starts at 16 s - 17.
         */
        int64_t most = 16 * (ref.item + 1) - 17;
        double start = w->start * 16;
        assert_true(start == floor(start) && start >= 0 && start <= (double)(most > 0 ? most : 0));
        assert_true(w->frames == 17 && w->fps == 16 && w->height == 128 && w->width == 128);
        assert_true(w->crop_x >= 0 && w->crop_x < 1 && w->crop_y >= 0 && w->crop_y < 1);
        first[ref.item] |= start == 0;
        last[ref.item] |= start == (double)(most > 0 ? most : 0);
        low = fmin(low, fmin(w->crop_x, w->crop_y));
        high = fmax(high, fmax(w->crop_x, w->crop_y));
    }
    for (int i = 0; i < ITEMS; i++)
        assert_true(first[i] && last[i]);
    assert_true(low < 0.01 && high > 0.99);
}

static void a_sample_depends_on_seed_and_number_alone(void **state)
{
    (void)state;
    DsvConfig settings = make_settings(), other = settings;
    int equal_items = 0, equal_starts = 0;
    other.seed = 4;
    for (uint64_t i = 0; i < 1200; i++) {
        DsviSampleRef a = dsvi_dataset_sample(&clips, &settings, i),
                      b = dsvi_dataset_sample(&clips, &settings, i);
        DsviSampleRef c = dsvi_dataset_sample(&clips, &other, i);
        assert_memory_equal(&a, &b, sizeof a);
        equal_items += a.item == c.item;
        equal_starts += a.window.start == c.window.start;
    }
    assert_true(equal_items < 200 && equal_starts < 300); /* about 100 are equal by chance */
}

static void crops_are_central_when_asked(void **state)
{
    (void)state;
    DsvConfig settings = make_settings();
    settings.data_random_crop = false;
    for (uint64_t i = 0; i < 50; i++) {
        DsviSampleRef ref = dsvi_dataset_sample(&clips, &settings, i);
        assert_true(ref.window.crop_x == 0.5 && ref.window.crop_y == 0.5);
    }
}

static void a_sample_can_move_to_another_item(void **state)
{
    (void)state;
    DsvConfig settings = make_settings();
    for (uint64_t i = 0; i < 200; i++) {
        DsviSampleRef ref = dsvi_dataset_sample(&clips, &settings, i);
        DsviSampleRef same = dsvi_dataset_sample_in(&clips, &settings, i, ref.item);
        DsviSampleRef shortest = dsvi_dataset_sample_in(&clips, &settings, i, 0);
        assert_memory_equal(&ref, &same, sizeof ref);
        assert_true(shortest.item == 0 && shortest.window.start == 0);
        assert_true(shortest.window.crop_x == ref.window.crop_x);
    }
}

/* 30 windows of twelve clips: three of each of the first six, two of others, in the middles of equal parts.
 */
static void windows_are_spread_evenly(void **state)
{
    (void)state;
    enum { COUNT = 30 };
    DsvConfig settings = make_settings();
    int windows[ITEMS] = {0};
    double last[ITEMS] = {0};
    settings.seed = 4; /* the windows do not depend on the seed */
    for (int64_t k = 0; k < COUNT; k++) {
        DsviSampleRef ref = dsvi_dataset_spread(&clips, &settings, k, COUNT);
        double slack = (double)(dsvi_clip_frame_times(&clips.items[ref.item].info, settings.fps) -
                                settings.num_frames);
        double part = (2 * windows[ref.item] + 1) / (ref.item < 6 ? 6.0 : 4.0);
        double start = fmax(0, floor(part * (fmax(slack, 0) + 1)));
        assert_true(ref.window.crop_x == 0.5 && ref.window.crop_y == 0.5);
        assert_true(ref.window.frames == settings.num_frames && ref.window.fps == settings.fps);
        assert_true(ref.window.start == start / settings.fps);
        assert_true(windows[ref.item] == 0 || slack <= 3 || ref.window.start > last[ref.item]);
        last[ref.item] = ref.window.start;
        windows[ref.item]++;
    }
    for (int i = 0; i < ITEMS; i++)
        assert_int_equal(windows[i], i < 6 ? 3 : 2);
}

/* The same with cached windows: nine of one clip, one of another. */
static void cached_windows_are_spread_over_their_clips(void **state)
{
    (void)state;
    static const int64_t wanted[5] = {1, 9, 4, 9, 7};
    static DsviDatasetItem cached[10];
    DsvConfig settings = make_settings();
    DsviDataset latents = {.items = cached, .count = 10, .latents = true};
    for (int i = 0; i < 10; i++)
        cached[i].source = i < 9 ? "long.mp4" : "short.mp4";
    for (int64_t k = 0; k < 5; k++)
        assert_int_equal(dsvi_dataset_spread(&latents, &settings, k, 5).item, wanted[k]);
}

/* A sample draws one of its item's captions; the window does not depend on their number. */
static void captions_are_drawn_evenly(void **state)
{
    (void)state;
    enum { EPOCHS = 3000, CAPTIONS = 3 };
    DsvConfig settings = make_settings();
    DsviCaption texts[CAPTIONS] = {{.text = "a"}, {.text = "b"}, {.text = "c"}};
    int64_t drawn[CAPTIONS] = {0};
    DsviSampleRef before = dsvi_dataset_sample(&clips, &settings, 5);
    assert_int_equal(before.caption, -1);
    for (int i = 0; i < ITEMS; i++)
        items[i].captions = (DsviCaptions){texts, i % 4};
    for (uint64_t i = 0; i < (uint64_t)EPOCHS * ITEMS; i++) {
        DsviSampleRef ref = dsvi_dataset_sample(&clips, &settings, i);
        int64_t count = items[ref.item].captions.count;
        assert_true(count == 0 ? ref.caption == -1 : ref.caption >= 0 && ref.caption < count);
        if (count == CAPTIONS)
            drawn[ref.caption]++;
    }
    double mean = EPOCHS * (ITEMS / 4.0) / CAPTIONS; /* of a binomial count: five standard deviations */
    for (int i = 0; i < CAPTIONS; i++)
        assert_error_below(fabs((double)drawn[i] - mean), 5 * sqrt(mean), "caption %d", i);
    DsviSampleRef after = dsvi_dataset_sample(&clips, &settings, 5);
    assert_memory_equal(&after.window, &before.window, sizeof after.window);
    assert_int_equal(dsvi_dataset_spread(&clips, &settings, 0, ITEMS).caption, -1);
    assert_int_equal(dsvi_dataset_spread(&clips, &settings, 3, ITEMS).caption, 0);
    for (int i = 0; i < ITEMS; i++)
        items[i].captions = (DsviCaptions){0};
}

/* caption_dropout of the samples have no caption; the others, and all windows, are as without dropout. */
static void captions_are_dropped_at_the_given_rate(void **state)
{
    enum { SAMPLES = 20000 };
    static DsviCaption text;
    DsvConfig settings = make_settings(), dropping = settings;
    int dropped = 0;
    (void)state;
    dropping.caption_dropout = 0.2;
    for (int i = 0; i < ITEMS; i++)
        items[i].captions = (DsviCaptions){&text, 1};
    for (uint64_t i = 0; i < SAMPLES; i++) {
        DsviSampleRef with = dsvi_dataset_sample(&clips, &settings, i);
        DsviSampleRef without = dsvi_dataset_sample(&clips, &dropping, i);
        dropped += without.caption == -1;
        assert_true(without.caption == -1 || without.caption == with.caption);
        assert_memory_equal(&without.window, &with.window, sizeof with.window);
    }
    double mean = 0.2 * SAMPLES; /* of a binomial count: five standard deviations */
    assert_error_below(fabs(dropped - mean), 5 * sqrt(0.8 * mean), "dropped captions");
    for (int i = 0; i < ITEMS; i++)
        items[i].captions = (DsviCaptions){0};
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_epoch_is_a_permutation),
        cmocka_unit_test(every_order_is_as_likely),
        cmocka_unit_test(windows_lie_on_the_grid_inside_the_clip),
        cmocka_unit_test(a_sample_depends_on_seed_and_number_alone),
        cmocka_unit_test(crops_are_central_when_asked),
        cmocka_unit_test(a_sample_can_move_to_another_item),
        cmocka_unit_test(captions_are_drawn_evenly),
        cmocka_unit_test(captions_are_dropped_at_the_given_rate),
        cmocka_unit_test(windows_are_spread_evenly),
        cmocka_unit_test(cached_windows_are_spread_over_their_clips),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
