/* Samples arrive in order and with the same bytes for any number of threads and any first sample, with and
 * without clips kept in memory. */
#include "data/prefetch.h"

#include <pthread.h>

#include "base/scratch.h"
#include "clip_maker.h"
#include "data/clip_cache.h"
#include "data/latent_cache.h"

enum { CLIPS = 5, SIDE = 40, FRAMES = 4, ELEMENTS = 3 * FRAMES * SIDE * SIDE, SAMPLES = 23 };

static DsvConfig settings;
static DsviDataset *dataset;
static float *straight; /* (SAMPLES, ELEMENTS), read one after another */

static DsvStatus copy_pixels(void *context, int64_t size, const float *pixels, float *latent)
{
    (void)size;
    (void)context;
    memcpy(latent, pixels, ELEMENTS * sizeof *latent);
    return DSV_OK;
}

static int make_data(void **state)
{
    if (scratch_make(state) != 0 || dsvi_folder_make(scratch_path("clips")) != DSV_OK)
        return 1;
    for (int i = 0; i < CLIPS; i++) {
        char name[64];
        snprintf(name, sizeof name, "clips/%d.%s", i, i % 2 ? "mp4" : "avi");
        /* Clip i holds numbers from 100 i; the last is shorter than a window. */
        make_stamped(i % 2 ? "libx264" : "mpeg4", scratch_path(name), 100 * i,
                     i == CLIPS - 1 ? 2 : 30 + 10 * i, 24);
        if (i == 1)
            write_text(scratch_path("clips/1.txt"), "the one with words");
    }
    dsv_config_defaults(&settings);
    settings.caption_dropout = 0;
    settings.num_frames = FRAMES;
    settings.height = settings.width = SIDE;
    settings.fps = 12;
    settings.seed = 8;
    if (dsvi_dataset_open(scratch_path("clips"), &settings, &dataset) != DSV_OK)
        return 1;
    straight = malloc(sizeof(float) * SAMPLES * ELEMENTS);
    for (int i = 0; i < SAMPLES; i++) {
        DsviSampleRef ref = dsvi_dataset_sample(dataset, &settings, (uint64_t)i);
        if (dsvi_clip_read(dataset->items[ref.item].path, &ref.window, straight + i * ELEMENTS) != DSV_OK)
            return 1;
    }
    return 0;
}

static int remove_data(void **state)
{
    free(straight);
    dsvi_dataset_close(&dataset);
    return scratch_remove(state);
}

static DsviSampleSeries all_from(uint64_t first)
{
    return (DsviSampleSeries){first, 1, 1};
}

static DsvStatus take_next(DsviPrefetch *prefetch, float *latent, const char **caption, int64_t *passed_over)
{
    DsviSample sample = {.latent = latent, .passed_over = -1};
    DsvStatus status = dsvi_prefetch_next(prefetch, &sample);
    *caption = sample.caption;
    *passed_over = sample.passed_over;
    assert_int_equal(sample.text_rows, 0);
    return status;
}

static void check_samples(int64_t workers, int64_t cache_mb, int64_t slots, uint64_t first)
{
    DsvConfig s = settings;
    DsviPrefetch *prefetch;
    float *latent = video_alloc(FRAMES, SIDE, SIDE);
    s.data_cache_mb = cache_mb;
    assert_ok(dsvi_prefetch_start(&(DsviPrefetchArgs){.dataset = dataset,
                                                      .config = &s,
                                                      .series = all_from(first),
                                                      .workers = workers,
                                                      .slots = slots,
                                                      .latent_elements = ELEMENTS,
                                                      .encode = copy_pixels},
                                  &prefetch));
    int64_t at_work = workers < slots ? workers : slots;
    assert_true(dsvi_prefetch_bytes(prefetch) >= (size_t)(slots + at_work) * ELEMENTS * sizeof(float));
    for (uint64_t i = first; i < SAMPLES; i++) {
        const char *text = "untouched";
        int64_t passed_over = -1;
        assert_ok(take_next(prefetch, latent, &text, &passed_over));
        if (memcmp(latent, straight + i * ELEMENTS, ELEMENTS * sizeof *latent) != 0)
            fail_msg("sample %d differs: %d workers, %d MiB, %d slots, from %d", (int)i, (int)workers,
                     (int)cache_mb, (int)slots, (int)first);
        int64_t item = dsvi_dataset_sample(dataset, &settings, i).item;
        const DsviCaptions *captions = &dataset->items[item].captions;
        assert_ptr_equal(text, captions->count ? captions->at[0].text : NULL);
        assert_int_equal(passed_over, 0);
    }
    dsvi_prefetch_stop(&prefetch);
    assert_null(prefetch);
    dsvi_prefetch_stop(&prefetch);
    free(latent);
}

static void samples_do_not_depend_on_threads_slots_or_memory(void **state)
{
    (void)state;
    static const int64_t WORKERS[] = {1, 3}, MEMORY[] = {0, 256}, SLOTS[] = {1, 2, 7};
    for (size_t w = 0; w < 2; w++)
        for (size_t m = 0; m < 2; m++)
            for (size_t s = 0; s < 3; s++)
                check_samples(WORKERS[w], MEMORY[m], SLOTS[s], 0);
}

static size_t bytes_of(int64_t workers, int64_t slots)
{
    DsviPrefetch *prefetch;
    assert_ok(dsvi_prefetch_start(&(DsviPrefetchArgs){.dataset = dataset,
                                                      .config = &settings,
                                                      .series = all_from(0),
                                                      .workers = workers,
                                                      .slots = slots,
                                                      .latent_elements = ELEMENTS,
                                                      .encode = copy_pixels},
                                  &prefetch));
    size_t bytes = dsvi_prefetch_bytes(prefetch);
    dsvi_prefetch_stop(&prefetch);
    return bytes;
}

static void workers_without_a_slot_hold_nothing(void **state)
{
    (void)state;
    assert_true(bytes_of(7, 2) == bytes_of(2, 2));
    assert_true(bytes_of(2, 7) > bytes_of(1, 7));
}

static int64_t workers_with(DsviPrefetchResources share, int64_t wanted, int64_t slots)
{
    DsvConfig s = settings;
    s.data_workers = wanted;
    return dsvi_prefetch_workers(dataset, &s, slots, ELEMENTS, &share);
}

static void workers_are_as_many_as_a_machine_can_spare(void **state)
{
    const uint64_t sample = ELEMENTS * sizeof(float);
    (void)state;
    assert_int_equal(workers_with((DsviPrefetchResources){.cores = 16, .ranks = 1}, 0, 32), 8);
    assert_int_equal(workers_with((DsviPrefetchResources){.cores = 16, .ranks = 1}, 0, 4), 4);
    assert_int_equal(workers_with((DsviPrefetchResources){.cores = 16, .ranks = 4}, 0, 32), 3);
    assert_int_equal(workers_with((DsviPrefetchResources){.cores = 16, .ranks = 16}, 0, 32), 1);
    assert_int_equal(workers_with((DsviPrefetchResources){.cores = 2, .ranks = 4}, 0, 32), 1);
    assert_int_equal(workers_with((DsviPrefetchResources){.computes = true, .cores = 16, .ranks = 1}, 0, 32),
                     1);
    /* 6 samples ahead on each of 2 ranks, and 3 threads each, in half of the memory */
    DsviPrefetchResources tight = {.cores = 16, .ranks = 2, .memory = 2 * 2 * (6 + 3) * sample};
    assert_int_equal(workers_with(tight, 0, 6), 3);
    tight.memory -= 1;
    assert_int_equal(workers_with(tight, 0, 6), 2);
    tight.memory = 1;
    assert_int_equal(workers_with(tight, 0, 6), 1);
    /* the request equals the available number */
    assert_int_equal(workers_with(tight, 5, 6), 5);
    assert_int_equal(workers_with(tight, 7, 6), 6);
}

static void one_can_begin_anywhere(void **state)
{
    (void)state;
    for (uint64_t first = 1; first < SAMPLES; first += 7)
        check_samples(2, 256, 3, first);
}

/* Three ranks with two samples each per batch together get the samples that one rank gets. */
static void ranks_share_the_samples(void **state)
{
    enum { RANKS = 3, RUN = 2, FIRST = 4 };
    float *latent = video_alloc(FRAMES, SIDE, SIDE);
    const char *text;
    int64_t passed_over;
    (void)state;
    for (uint64_t rank = 0; rank < RANKS; rank++) {
        DsviPrefetch *prefetch;
        DsviSampleSeries series = {FIRST + rank * RUN, RUN, RANKS * RUN};
        assert_ok(dsvi_prefetch_start(&(DsviPrefetchArgs){.dataset = dataset,
                                                          .config = &settings,
                                                          .series = series,
                                                          .workers = 1,
                                                          .slots = 4,
                                                          .latent_elements = ELEMENTS,
                                                          .encode = copy_pixels},
                                      &prefetch));
        for (uint64_t i = FIRST; i < SAMPLES; i++) {
            if ((i - FIRST) / RUN % RANKS != rank)
                continue;
            assert_ok(take_next(prefetch, latent, &text, &passed_over));
            assert_memory_equal(latent, straight + i * ELEMENTS, ELEMENTS * sizeof *latent);
        }
        dsvi_prefetch_stop(&prefetch);
    }
    free(latent);
}

static void the_stamps_are_those_of_the_draw(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < SAMPLES; i++) {
        DsviSampleRef ref = dsvi_dataset_sample(dataset, &settings, i);
        int64_t last = dataset->items[ref.item].info.frames - 1;
        for (int64_t f = 0; f < FRAMES; f++) {
            int64_t frame = llround(ref.window.start * 24) + 2 * f; /* 24 frames/s read at 12 */
            assert_int_equal(read_stamp(straight + i * ELEMENTS, f, FRAMES, SIDE, SIDE),
                             100 * ref.item + (frame < last ? frame : last));
        }
    }
}

/* The cache has room for the shortest clips only: it stays within its size and gives the same bytes. */
static void a_small_cache_keeps_the_shortest(void **state)
{
    (void)state;
    DsviClipCache *cache;
    DsvConfig s = settings;
    float *pixels = video_alloc(FRAMES, SIDE, SIDE);
    /* 15, 20, 25, 30 and 4 frames of 4800 bytes at 12 frames/s */
    s.data_cache_mb = 256;
    assert_ok(dsvi_clip_cache_create(dataset, &s, &cache));
    assert_int_equal(dsvi_clip_cache_bytes(cache), (15 + 20 + 25 + 30 + 4) * 3 * SIDE * SIDE);
    dsvi_clip_cache_free(&cache);
    s.data_cache_mb = 1;
    s.height = s.width = 10 * SIDE; /* 480000 bytes a frame: only the 4 frames would go near it */
    assert_ok(dsvi_clip_cache_create(dataset, &s, &cache));
    assert_int_equal(dsvi_clip_cache_bytes(cache), 0);
    dsvi_clip_cache_free(&cache);
    s.height = s.width = 3 * SIDE; /* 43200 bytes a frame: 4 + 15 frames fit into a MiB, 20 more do not */
    assert_ok(dsvi_clip_cache_create(dataset, &s, &cache));
    assert_int_equal(dsvi_clip_cache_bytes(cache), (4 + 15) * 43200);
    dsvi_clip_cache_free(&cache);
    dsvi_clip_cache_free(&cache);
    free(pixels);
}

typedef struct Warnings {
    int count;
    char last[1024];
} Warnings;

static void note_warning(void *context, const char *line)
{
    Warnings *w = context;
    w->count++;
    snprintf(w->last, sizeof w->last, "%s", line);
}

/* A clip is removed after the data set was opened: the next clip of the list replaces it, always the same
 * way. */
static void a_broken_item_is_replaced_and_told_once(void **state)
{
    (void)state;
    float *latent = video_alloc(FRAMES, SIDE, SIDE), *wanted = video_alloc(FRAMES, SIDE, SIDE);
    assert_int_equal(rename(scratch_path("clips/2.avi"), scratch_path("away")), 0);
    for (int64_t workers = 1; workers <= 3; workers += 2) {
        DsvConfig s = settings;
        DsviPrefetch *prefetch;
        Warnings warnings = {0};
        int64_t replaced = 0;
        assert_ok(dsvi_prefetch_start(&(DsviPrefetchArgs){.dataset = dataset,
                                                          .config = &s,
                                                          .series = all_from(0),
                                                          .workers = workers,
                                                          .slots = 4,
                                                          .latent_elements = ELEMENTS,
                                                          .encode = copy_pixels,
                                                          .warn = note_warning,
                                                          .warn_context = &warnings},
                                      &prefetch));
        for (uint64_t i = 0; i < SAMPLES; i++) {
            const char *text;
            int64_t passed_over;
            DsviSampleRef ref = dsvi_dataset_sample(dataset, &settings, i);
            bool broken = ref.item == 2;
            if (broken) {
                ref = dsvi_dataset_sample_again(dataset, &settings, i, 1);
                assert_int_equal(ref.item, 3);
            }
            assert_ok(dsvi_clip_read(dataset->items[ref.item].path, &ref.window, wanted));
            assert_ok(take_next(prefetch, latent, &text, &passed_over));
            assert_memory_equal(latent, wanted, ELEMENTS * sizeof *latent);
            assert_int_equal(passed_over, broken);
            replaced += broken;
        }
        assert_true(replaced > 0);
        assert_int_equal(dsvi_prefetch_replaced(prefetch), replaced);
        assert_int_equal(warnings.count, 1);
        assert_non_null(strstr(warnings.last, "2.avi: No such file"));
        dsvi_prefetch_stop(&prefetch);
    }
    assert_int_equal(rename(scratch_path("away"), scratch_path("clips/2.avi")), 0);
    free(latent);
    free(wanted);
}

/* One clip is damaged at one place: a window that contains the place is replaced by another, always the same
 * one. */
static void a_damaged_spot_of_the_only_clip_is_avoided(void **state)
{
    (void)state;
    enum { LONG = 240 };
    float *latent = video_alloc(FRAMES, SIDE, SIDE), *first = malloc(sizeof(float) * SAMPLES * ELEMENTS);
    DsviDataset *one;
    int64_t redrawn[SAMPLES];
    make_stamped("libx264", scratch_path("long.mkv"), 0, LONG, 24);
    run_ffmpeg("-i long.mkv -c:v libx264 -sc_threshold 0 -g 60 groups.mkv");
    run_ffmpeg("-i groups.mkv -c copy -bsf:v 'noise=drop=between(n\\,63\\,110)' spot.mkv");
    assert_ok(dsvi_dataset_open(scratch_path("spot.mkv"), &settings, &one));
    for (int64_t workers = 1; workers <= 3; workers += 2) {
        DsvConfig s = settings;
        DsviPrefetch *prefetch;
        Warnings warnings = {0};
        int64_t avoided = 0;
        s.data_cache_mb = workers == 1 ? 0 : 256;
        assert_ok(dsvi_prefetch_start(&(DsviPrefetchArgs){.dataset = one,
                                                          .config = &s,
                                                          .series = all_from(0),
                                                          .workers = workers,
                                                          .slots = 4,
                                                          .latent_elements = ELEMENTS,
                                                          .encode = copy_pixels,
                                                          .warn = note_warning,
                                                          .warn_context = &warnings},
                                      &prefetch));
        for (uint64_t i = 0; i < SAMPLES; i++) {
            const char *text;
            int64_t passed_over;
            assert_ok(take_next(prefetch, latent, &text, &passed_over));
            if (workers == 1) {
                memcpy(first + i * ELEMENTS, latent, ELEMENTS * sizeof *latent);
                redrawn[i] = passed_over;
            }
            assert_memory_equal(latent, first + i * ELEMENTS, ELEMENTS * sizeof *latent);
            assert_int_equal(passed_over, redrawn[i]);
            avoided += passed_over > 0;
        }
        assert_true(avoided > 0 && avoided < SAMPLES / 2);
        assert_int_equal(warnings.count, 1);
        assert_non_null(strstr(warnings.last, "spot.mkv: damaged after"));
        dsvi_prefetch_stop(&prefetch);
    }
    dsvi_dataset_close(&one);
    free(first);
    free(latent);
}

static void no_item_left_is_a_failure_that_lasts(void **state)
{
    (void)state;
    float *latent = video_alloc(FRAMES, SIDE, SIDE);
    const char *text;
    int64_t passed_over;
    DsviPrefetch *prefetch;
    Warnings warnings = {0};
    assert_int_equal(rename(scratch_path("clips"), scratch_path("moved")), 0);
    assert_ok(dsvi_prefetch_start(&(DsviPrefetchArgs){.dataset = dataset,
                                                      .config = &settings,
                                                      .series = all_from(0),
                                                      .workers = 1,
                                                      .slots = 2,
                                                      .latent_elements = ELEMENTS,
                                                      .encode = copy_pixels,
                                                      .warn = note_warning,
                                                      .warn_context = &warnings},
                                  &prefetch));
    for (int i = 0; i < 2; i++)
        assert_fails(DSV_E_NOT_FOUND, "16 windows in a row cannot be read, the last: ",
                     take_next(prefetch, latent, &text, &passed_over));
    assert_int_equal(warnings.count, CLIPS);
    dsvi_prefetch_stop(&prefetch);
    assert_int_equal(rename(scratch_path("moved"), scratch_path("clips")), 0);
    free(latent);
}

static DsvStatus use_stack(void *context, int64_t size, const float *pixels, float *latent)
{
    (void)size;
    volatile char room[1 << 20];
    for (size_t byte = 0; byte < sizeof room; byte += 512)
        room[byte] = 1;
    return room[512] ? copy_pixels(context, size, pixels, latent) : DSV_E_INTERNAL;
}

/* As with `ulimit -s 64`. */
static void workers_have_a_stack_of_their_own(void **state)
{
    (void)state;
    float *latent = video_alloc(FRAMES, SIDE, SIDE);
    const char *text;
    int64_t passed_over;
    DsviPrefetch *prefetch;
    pthread_attr_t attributes, before;
    assert_int_equal(pthread_getattr_default_np(&before), 0);
    assert_int_equal(pthread_attr_init(&attributes), 0);
    assert_int_equal(pthread_attr_setstacksize(&attributes, 64 << 10), 0);
    assert_int_equal(pthread_setattr_default_np(&attributes), 0);
    assert_ok(dsvi_prefetch_start(&(DsviPrefetchArgs){.dataset = dataset,
                                                      .config = &settings,
                                                      .series = all_from(0),
                                                      .workers = 2,
                                                      .slots = 2,
                                                      .latent_elements = ELEMENTS,
                                                      .encode = use_stack},
                                  &prefetch));
    assert_ok(take_next(prefetch, latent, &text, &passed_over));
    dsvi_prefetch_stop(&prefetch);
    assert_int_equal(pthread_setattr_default_np(&before), 0);
    pthread_attr_destroy(&attributes);
    pthread_attr_destroy(&before);
    free(latent);
}

static DsvStatus refuse(void *context, int64_t size, const float *pixels, float *latent)
{
    (void)size;
    (void)context, (void)pixels, (void)latent;
    return DSVI_FAIL(DSV_E_SHAPE, "the codec will not have it");
}

static void a_failing_codec_is_heard(void **state)
{
    (void)state;
    float *latent = video_alloc(FRAMES, SIDE, SIDE);
    const char *text;
    int64_t passed_over;
    DsviPrefetch *prefetch;
    assert_ok(dsvi_prefetch_start(&(DsviPrefetchArgs){.dataset = dataset,
                                                      .config = &settings,
                                                      .series = all_from(0),
                                                      .workers = 1,
                                                      .slots = 2,
                                                      .latent_elements = ELEMENTS,
                                                      .encode = refuse},
                                  &prefetch));
    assert_fails(DSV_E_SHAPE, "the codec will not have it", take_next(prefetch, latent, &text, &passed_over));
    dsvi_prefetch_stop(&prefetch);
    free(latent);
}

static void stopping_does_not_wait_for_samples(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        DsviPrefetch *prefetch;
        assert_ok(dsvi_prefetch_start(&(DsviPrefetchArgs){.dataset = dataset,
                                                          .config = &settings,
                                                          .series = all_from((uint64_t)i),
                                                          .workers = 1 + i % 4,
                                                          .slots = 1 + i % 3,
                                                          .latent_elements = ELEMENTS,
                                                          .encode = copy_pixels},
                                      &prefetch));
        dsvi_prefetch_stop(&prefetch);
    }
}

static void cached_latents_come_the_same_way(void **state)
{
    (void)state;
    enum { ITEMS = 6, NUMBERS = 12 };
    const int64_t shape[4] = {1, 3, 2, 2};
    float latent[NUMBERS];
    DsviLatentCache *cache;
    DsviDataset *cached;
    DsviPrefetch *prefetch;
    const char *text;
    int64_t passed_over;
    Warnings warnings = {0};
    assert_ok(dsvi_latent_cache_create(scratch_path("cache"), &settings, NULL, &cache));
    for (int i = 0; i < ITEMS; i++) {
        char name[2] = {(char)('a' + i), 0};
        DsviClipWindow window = {.fps = 12, .frames = FRAMES, .height = SIDE, .width = SIDE};
        for (int k = 0; k < NUMBERS; k++)
            latent[k] = (float)(100 * i + k);
        DsviCaption caption = {.text = name};
        const DsviCaptions captions = {&caption, 1};
        DsviLatentSource source = {.path = name, .captions = &captions};
        assert_ok(dsvi_latent_cache_put(cache, &source, &window, shape, latent));
    }
    dsvi_latent_cache_close(&cache);
    assert_ok(dsvi_dataset_open(scratch_path("cache"), &settings, &cached));
    assert_int_equal(cached->count, ITEMS);
    write_text(cached->items[4].path, "spoilt");
    assert_ok(dsvi_prefetch_start(&(DsviPrefetchArgs){.dataset = cached,
                                                      .config = &settings,
                                                      .series = all_from(5),
                                                      .workers = 1,
                                                      .slots = 3,
                                                      .latent_elements = NUMBERS,
                                                      .warn = note_warning,
                                                      .warn_context = &warnings},
                                  &prefetch));
    for (uint64_t i = 5; i < 30; i++) {
        int64_t item = dsvi_dataset_sample(cached, &settings, i).item;
        item = item == 4 ? 5 : item;
        assert_ok(take_next(prefetch, latent, &text, &passed_over));
        for (int k = 0; k < NUMBERS; k++)
            assert_true(latent[k] == (float)(100 * item + k));
        assert_int_equal(text[0], 'a' + item);
    }
    assert_int_equal(warnings.count, 1);
    dsvi_prefetch_stop(&prefetch);
    dsvi_dataset_close(&cached);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_stamps_are_those_of_the_draw),
        cmocka_unit_test(samples_do_not_depend_on_threads_slots_or_memory),
        cmocka_unit_test(workers_without_a_slot_hold_nothing),
        cmocka_unit_test(workers_are_as_many_as_a_machine_can_spare),
        cmocka_unit_test(one_can_begin_anywhere),
        cmocka_unit_test(ranks_share_the_samples),
        cmocka_unit_test(a_small_cache_keeps_the_shortest),
        cmocka_unit_test(a_broken_item_is_replaced_and_told_once),
        cmocka_unit_test(a_damaged_spot_of_the_only_clip_is_avoided),
        cmocka_unit_test(no_item_left_is_a_failure_that_lasts),
        cmocka_unit_test(a_failing_codec_is_heard),
        cmocka_unit_test(workers_have_a_stack_of_their_own),
        cmocka_unit_test(stopping_does_not_wait_for_samples),
        cmocka_unit_test(cached_latents_come_the_same_way),
    };
    return cmocka_run_group_tests(tests, make_data, remove_data);
}
