/* The tier of latents in memory has as many hits as any choice of what to keep, and never changes what is
 * read. */
#include "data/latent_tier.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/rng.h"
#include "data/prefetch.h"
#include "latent_cache_case.h"

enum { ITEMS = 6, LENGTH = 24 };

static int64_t trace[LENGTH];

static int64_t item_of_trace(void *context, uint64_t index)
{
    (void)context;
    return index < LENGTH ? trace[index] : ITEMS;
}

static int64_t one_window(void *context, int64_t item)
{
    (void)context;
    (void)item;
    return NUMBERS;
}

static DsviLatentTier *tier_of(int64_t room, int64_t ahead)
{
    DsviLatentTier *tier;
    assert_ok(
        dsvi_latent_tier_create(&(DsviLatentTierArgs){.bytes_max = (size_t)room * NUMBERS * sizeof(float),
                                                      .items = ITEMS + 1,
                                                      .ahead = ahead,
                                                      .item_of = item_of_trace,
                                                      .elements_of = one_window},
                                &tier));
    return tier;
}

static DsviDataset *open_cache(DsvConfig *config)
{
    DsviDataset *dataset;
    DsviLatentCache *cache;
    *config = make_settings();
    assert_ok(dsvi_latent_cache_create(scratch_path("cache"), config, NULL, &cache));
    for (int i = 0; i < ITEMS; i++)
        assert_ok(put(cache, "clip.mp4", "words", 0.5 * i));
    assert_ok(dsvi_latent_cache_flush(cache));
    dsvi_latent_cache_close(&cache);
    assert_ok(dsvi_dataset_open(scratch_path("cache"), config, &dataset));
    assert_int_equal(dataset->count, ITEMS);
    return dataset;
}

/* Returns the largest number of hits from sample `at` on, if the latents of the bits `kept` are in memory: a
 * latent that is not may be left out, added, or take the place of any other. */
static int best_hits(int at, unsigned kept, int room, int known[LENGTH][1 << ITEMS])
{
    if (at == LENGTH)
        return 0;
    int *best = &known[at][kept];
    unsigned bit = 1u << trace[at];
    if (*best >= 0)
        return *best;
    if (kept & bit)
        return *best = 1 + best_hits(at + 1, kept, room, known);
    *best = best_hits(at + 1, kept, room, known);
    if (__builtin_popcount(kept) < room) {
        int with = best_hits(at + 1, kept | bit, room, known);
        *best = with > *best ? with : *best;
    }
    for (int i = 0; i < ITEMS; i++)
        if (kept >> i & 1) {
            int with = best_hits(at + 1, (kept & ~(1u << i)) | bit, room, known);
            *best = with > *best ? with : *best;
        }
    return *best;
}

static void hits_are_as_many_as_possible(void **state)
{
    static int known[LENGTH][1 << ITEMS];
    int64_t all = 0;
    (void)state;
    DsvConfig config;
    DsviDataset *dataset = open_cache(&config);

    for (uint64_t run = 0; run < 500; run++) {
        int64_t room = 1 + (int64_t)(run % 4);
        float latent[NUMBERS];
        for (uint64_t i = 0; i < LENGTH; i++)
            trace[i] = (int64_t)dsvi_rng_below((DsviRng){run, DSVI_RNG_DATA, 0}, i, ITEMS);
        DsviLatentTier *tier = tier_of(room, LENGTH);
        for (int i = 0; i < LENGTH; i++)
            (void)dsvi_latent_tier_read(tier, dsvi_latent_tier_plan(tier), dataset->items[0].path, NUMBERS,
                                        latent);
        memset(known, -1, sizeof known);
        assert_int_equal(dsvi_latent_tier_hits(tier), best_hits(0, 0, (int)room, known));
        all += dsvi_latent_tier_hits(tier);
        dsvi_latent_tier_free(&tier);
    }
    assert_true(all > 500);
    dsvi_dataset_close(&dataset);
}

/* ---- Many latents ---- */

enum { MANY = 2000, EPOCHS = 4 };

static int64_t asked; /* calls of item_of_epochs */

/* Each epoch has all latents in another order: the multiples of a number without a common divisor. */
static int64_t item_of_epochs(void *context, uint64_t index)
{
    static const uint64_t FACTOR[EPOCHS + 2] = {1, 3, 7, 9, 11, 13};
    (void)context;
    asked++;
    return (int64_t)(index % MANY * FACTOR[index / MANY] % MANY);
}

/* No decision looks far ahead at once, and yet a third of the latents, for which there is room, is in memory
 * in every epoch but the first. */
static void a_decision_looks_at_few_samples(void **state)
{
    (void)state;
    enum { ROOM = MANY / 3, AT_ONCE = 64 };
    DsviLatentTier *tier;
    DsvConfig config;
    DsviDataset *dataset = open_cache(&config);
    int64_t before = 0;
    assert_ok(
        dsvi_latent_tier_create(&(DsviLatentTierArgs){.bytes_max = (size_t)ROOM * NUMBERS * sizeof(float),
                                                      .items = MANY,
                                                      .ahead = 2 * MANY,
                                                      .item_of = item_of_epochs,
                                                      .elements_of = one_window},
                                &tier));
    for (int64_t i = 0; i < EPOCHS * MANY; i++) {
        float latent[NUMBERS];
        asked = 0;
        assert_ok(dsvi_latent_tier_read(tier, dsvi_latent_tier_plan(tier), dataset->items[0].path, NUMBERS,
                                        latent));
        assert_true(asked <= AT_ONCE);
        if ((i + 1) % MANY == 0) {
            assert_true(i < MANY || dsvi_latent_tier_hits(tier) - before >= ROOM);
            before = dsvi_latent_tier_hits(tier);
        }
    }
    assert_int_equal(asked, 1); /* in the end the tier knows all samples */
    dsvi_latent_tier_free(&tier);
    dsvi_dataset_close(&dataset);
}

/* ---- Threads ---- */

typedef struct Reader {
    DsviLatentTier *tier;
    DsviDataset *dataset;
    pthread_mutex_t lock;
    int planned;
    atomic_int wrong;
} Reader;

static void *read_trace(void *context)
{
    Reader *r = context;
    for (;;) {
        float latent[NUMBERS], wanted[NUMBERS];
        pthread_mutex_lock(&r->lock);
        bool more = r->planned < LENGTH;
        DsviLatentPlace place = {0};
        if (more) {
            r->planned++;
            place = dsvi_latent_tier_plan(r->tier);
        }
        pthread_mutex_unlock(&r->lock);
        if (!more)
            return NULL;
        const char *file = r->dataset->items[place.item].path;
        r->wrong += dsvi_latent_tier_read(r->tier, place, file, NUMBERS, latent) != DSV_OK ||
                    dsvi_latent_read(file, NUMBERS, wanted) != DSV_OK ||
                    memcmp(latent, wanted, sizeof latent) != 0;
    }
}

static void threads_read_what_the_files_hold(void **state)
{
    (void)state;
    DsvConfig config;
    DsviDataset *dataset = open_cache(&config);
    for (uint64_t run = 0; run < 20; run++) {
        enum { THREADS = 4 };
        pthread_t threads[THREADS];
        Reader reader = {.tier = tier_of(2, 5), .dataset = dataset, .lock = PTHREAD_MUTEX_INITIALIZER};
        for (uint64_t i = 0; i < LENGTH; i++)
            trace[i] = (int64_t)dsvi_rng_below((DsviRng){run, DSVI_RNG_DATA, 1}, i, ITEMS);
        for (int i = 0; i < THREADS; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, read_trace, &reader), 0);
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
        assert_int_equal(reader.wrong, 0);
        dsvi_latent_tier_free(&reader.tier);
    }
    dsvi_dataset_close(&dataset);
}

/* The prefetch gives the same samples with and without the tier, also if a file is damaged while it runs, and
 * reads nothing again of what is kept: the files may be gone after an epoch. */
static void a_run_reads_kept_latents_from_memory(void **state)
{
    (void)state;
    DsvConfig config;
    DsviDataset *dataset = open_cache(&config);
    DsviPrefetch *prefetch;
    float latent[NUMBERS], wanted[ITEMS][NUMBERS];
    config.data_cache_mb = 1;
    for (int i = 0; i < ITEMS; i++)
        assert_ok(dsvi_latent_read(dataset->items[i].path, NUMBERS, wanted[i]));
    assert_ok(dsvi_prefetch_start(&(DsviPrefetchArgs){.dataset = dataset,
                                                      .config = &config,
                                                      .series = {0, 1, 1},
                                                      .workers = 2,
                                                      .slots = 2,
                                                      .latent_elements = NUMBERS},
                                  &prefetch));
    for (uint64_t i = 0; i < 5 * ITEMS; i++) {
        DsviSample sample = {.latent = latent};
        if (i == 2 * ITEMS)
            for (int item = 0; item < ITEMS; item++)
                assert_int_equal(remove(dataset->items[item].path), 0);
        assert_ok(dsvi_prefetch_next(prefetch, &sample));
        assert_memory_equal(latent, wanted[dsvi_dataset_sample(dataset, &config, i).item], sizeof latent);
    }
    assert_int_equal(dsvi_prefetch_replaced(prefetch), 0);
    dsvi_prefetch_stop(&prefetch);
    dsvi_dataset_close(&dataset);
}

/* A latent whose file could not be read once is kept as soon as the file can be read. */
static void a_latent_is_kept_after_a_failure(void **state)
{
    (void)state;
    DsvConfig config;
    DsviDataset *dataset = open_cache(&config);
    const char *file = dataset->items[0].path;
    float latent[NUMBERS], wanted[NUMBERS];
    memset(trace, 0, sizeof trace);
    DsviLatentTier *tier = tier_of(1, LENGTH);
    assert_ok(dsvi_latent_read(file, NUMBERS, wanted));
    for (int i = 0; i < 2; i++)
        assert_int_not_equal(
            dsvi_latent_tier_read(tier, dsvi_latent_tier_plan(tier), "missing", NUMBERS, latent), DSV_OK);
    assert_ok(dsvi_latent_tier_read(tier, dsvi_latent_tier_plan(tier), file, NUMBERS, latent));
    assert_memory_equal(latent, wanted, sizeof latent);
    memset(latent, 0, sizeof latent);
    assert_ok(dsvi_latent_tier_read(tier, dsvi_latent_tier_plan(tier), "missing", NUMBERS, latent));
    assert_memory_equal(latent, wanted, sizeof latent);
    dsvi_latent_tier_free(&tier);
    dsvi_dataset_close(&dataset);
}

/* A latent that could not be read takes no memory from others. */
static void a_failure_leaves_its_place_to_others(void **state)
{
    (void)state;
    DsvConfig config;
    DsviDataset *dataset = open_cache(&config);
    const char *file = dataset->items[0].path;
    float latent[NUMBERS];
    for (int i = 0; i < LENGTH; i++)
        trace[i] = i % 2;
    DsviLatentTier *tier = tier_of(1, LENGTH);
    assert_int_not_equal(dsvi_latent_tier_read(tier, dsvi_latent_tier_plan(tier), "missing", NUMBERS, latent),
                         DSV_OK);
    for (int i = 1; i < 8; i++) {
        DsviLatentPlace place = dsvi_latent_tier_plan(tier);
        assert_int_equal(place.way, i == 1 ? DSVI_LATENT_LOAD : i % 2 ? DSVI_LATENT_HIT : DSVI_LATENT_DIRECT);
        assert_ok(dsvi_latent_tier_read(tier, place, file, NUMBERS, latent));
    }
    dsvi_latent_tier_free(&tier);
    dsvi_dataset_close(&dataset);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_latent_is_kept_after_a_failure),
        cmocka_unit_test(a_failure_leaves_its_place_to_others),
        cmocka_unit_test(hits_are_as_many_as_possible),
        cmocka_unit_test(a_decision_looks_at_few_samples),
        cmocka_unit_test(threads_read_what_the_files_hold),
        cmocka_unit_test(a_run_reads_kept_latents_from_memory),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
