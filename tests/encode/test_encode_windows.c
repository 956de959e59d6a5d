/* The queue of windows: every window once, in order, with both kinds of encoder; stopping, failures, and the
 * share of time in which the encoder works. */
#include "encode/encode_windows.h"

#include <pthread.h>
#include <time.h>

#include "base/scratch.h"
#include "base/thread_start.h"
#include "train/tiny.h"

enum {
    CLIPS = 4,
    EACH = 5,
    WINDOWS = CLIPS * EACH,
    FRAMES = 2,
    SIDE = 16,
    PIXELS = 3 * FRAMES * SIDE * SIDE
};

static DsvConfig settings;
static DsviLatentSource sources[CLIPS + 1];
static DsviEncodeWindow windows[WINDOWS + 1];

static const int64_t SHAPES[1][4] = {{1, 1, 1, SIDE}};

static int make_windows(void **state)
{
    static char path[CLIPS + 1][DSVI_PATH_MAX];
    if (scratch_make(state) != 0)
        return 1;
    tiny_clips(scratch_folder, CLIPS);
    tiny_settings(&settings);
    settings.num_frames = FRAMES;
    settings.height = settings.width = SIDE;
    for (int i = 0; i <= CLIPS; i++) {
        snprintf(path[i], sizeof path[i], "%s/waves-%d.mp4", scratch_folder, i); /* the last is missing */
        sources[i].path = path[i];
    }
    for (int i = 0; i <= WINDOWS; i++)
        windows[i] = (DsviEncodeWindow){
            &sources[i / EACH], {i % EACH * FRAMES / 8.0, 8, FRAMES, SIDE, SIDE, 0.5, 0.5}, 0};
    return 0;
}

typedef struct Fake {
    pthread_t caller;
    pthread_mutex_t lock;
    bool parallel;
    int calls, fail_at; /* the call that fails; 0: none */
    double seconds;     /* that a call takes */
    bool tells;         /* a device of its own tells how long it worked: 5 s a call */
    /* outcomes */
    int64_t next, counts[3];
    char message[512];
} Fake;

/* The latent of a window is its first row of pixels. */
static DsvStatus take_row(void *context, int64_t size, const float *pixels, float *latent)
{
    assert_int_equal(size, 0);
    Fake *fake = context;
    const struct timespec wait = {0, (long)(1e9 * fake->seconds)};
    pthread_mutex_lock(&fake->lock);
    int call = ++fake->calls;
    pthread_mutex_unlock(&fake->lock);
    if (!fake->parallel)
        assert_true(pthread_equal(pthread_self(), fake->caller));
    if (fake->seconds > 0)
        nanosleep(&wait, NULL);
    memcpy(latent, pixels, SIDE * sizeof *latent);
    return call == fake->fail_at ? DSVI_FAIL(DSV_E_INTERNAL, "the device is gone") : DSV_OK;
}

static double worked(void *context)
{
    return 5 + 5.0 * ((const Fake *)context)->calls; /* 5 s before the first window */
}

static void take_outcome(void *context, int64_t window, DsviWindowOutcome outcome, const char *message)
{
    Fake *fake = context;
    assert_int_equal(window, fake->next++);
    fake->counts[outcome]++;
    assert_true((message != NULL) == (outcome == DSVI_WINDOW_UNREADABLE));
    if (message)
        snprintf(fake->message, sizeof fake->message, "%s", message);
}

static DsvStatus run_into(const char *folder, Fake *fake, int threads, int64_t ahead, int64_t count,
                          const DsvEvents *events, DsviEncodeTimes *times)
{
    static const DsvEvents NONE;
    DsviLatentCache *cache;
    const DsviWindowEncoder encoder = {
        fake, take_row, fake->parallel, false, 0, PIXELS, SHAPES, 1, fake->tells ? worked : NULL};
    fake->caller = pthread_self();
    pthread_mutex_init(&fake->lock, NULL);
    assert_ok(dsvi_latent_cache_create(folder, &settings, NULL, &cache));
    const DsviEncodeWindowsArgs args = {.cache = cache,
                                        .windows = windows,
                                        .count = count,
                                        .encoder = &encoder,
                                        .threads = threads,
                                        .ahead = ahead,
                                        .outcome = take_outcome,
                                        .context = fake,
                                        .events = events ? events : &NONE};
    DsvStatus status = dsvi_encode_windows(&args, times);
    dsvi_latent_cache_close(&cache);
    pthread_mutex_destroy(&fake->lock);
    return status;
}

/* Returns the number of windows in the cache. If these are all, each must be what its clip gives. */
static int64_t check_cache(const char *folder)
{
    DsviLatentCache *cache;
    float latent[SIDE], pixels[PIXELS];
    assert_ok(dsvi_latent_cache_open(folder, &settings, &cache));
    int64_t count = dsvi_latent_cache_count(cache);
    for (int64_t w = 0; w < WINDOWS && count == WINDOWS; w++) { /* both are sorted by source and start */
        assert_ok(dsvi_clip_read(windows[w].source->path, &windows[w].window, pixels));
        assert_ok(dsvi_latent_read(dsvi_latent_cache_file(cache, w), SIDE, latent));
        assert_memory_equal(latent, pixels, sizeof latent);
    }
    dsvi_latent_cache_close(&cache);
    return count;
}

static void every_window_is_encoded_once(void **state)
{
    (void)state;
    char folder[DSVI_PATH_MAX];
    for (int kind = 0; kind < 8; kind++) {
        static const int THREADS[] = {1, 4, 2, 7};
        static const int64_t AHEAD[] = {1, 6, 1, 3};
        Fake fake = {.parallel = kind >= 4}, again = {.parallel = kind >= 4};
        DsviEncodeTimes times;
        snprintf(folder, sizeof folder, "%s/once-%d", scratch_folder, kind);
        assert_ok(run_into(folder, &fake, THREADS[kind % 4], AHEAD[kind % 4], WINDOWS, NULL, &times));
        assert_int_equal(fake.calls, WINDOWS);
        assert_int_equal(fake.counts[DSVI_WINDOW_ENCODED], WINDOWS);
        assert_int_equal(times.encoded, WINDOWS);
        assert_int_equal(check_cache(folder), WINDOWS);
        assert_ok(run_into(folder, &again, 3, 3, WINDOWS, NULL, &times));
        assert_int_equal(again.calls, 0);
        assert_int_equal(again.counts[DSVI_WINDOW_KEPT], WINDOWS);
        assert_int_equal(times.encoded, 0);
    }
}

static void an_unreadable_window_is_passed_over(void **state)
{
    (void)state;
    Fake fake = {0};
    DsviEncodeTimes times;
    char folder[DSVI_PATH_MAX];
    snprintf(folder, sizeof folder, "%s", scratch_path("unreadable"));
    assert_ok(run_into(folder, &fake, 2, 4, WINDOWS + 1, NULL, &times));
    assert_int_equal(fake.counts[DSVI_WINDOW_ENCODED], WINDOWS);
    assert_int_equal(fake.counts[DSVI_WINDOW_UNREADABLE], 1);
    assert_non_null(strstr(fake.message, "waves-4.mp4: No such file"));
}

/* Windows whose latents were written before the failure are in the cache. */
static void a_failure_ends_the_call(void **state)
{
    (void)state;
    char folder[DSVI_PATH_MAX];
    for (int parallel = 0; parallel < 2; parallel++) {
        Fake fake = {.parallel = parallel, .fail_at = 8}, again = {.parallel = parallel};
        DsviEncodeTimes times;
        snprintf(folder, sizeof folder, "%s/failing-%d", scratch_folder, parallel);
        assert_fails(DSV_E_INTERNAL, "the device is gone",
                     run_into(folder, &fake, 3, 3, WINDOWS, NULL, &times));
        int64_t stored = check_cache(folder);
        assert_true(stored >= fake.next && stored < WINDOWS);
        assert_ok(run_into(folder, &again, 3, 3, WINDOWS, NULL, &times));
        assert_int_equal(again.calls, WINDOWS - stored);
        assert_int_equal(check_cache(folder), WINDOWS);
    }
}

static bool stop_after_four(void *context)
{
    return ((Fake *)context)->next >= 4;
}

static void a_stop_keeps_what_is_encoded(void **state)
{
    (void)state;
    Fake fake = {0}, again = {0};
    const DsvEvents events = {.context = &fake, .stop = stop_after_four};
    DsviEncodeTimes times;
    char folder[DSVI_PATH_MAX];
    snprintf(folder, sizeof folder, "%s", scratch_path("stopped"));
    assert_fails(DSV_E_INTERRUPTED, "stopped after 4 of 20 windows",
                 run_into(folder, &fake, 3, 5, WINDOWS, &events, &times));
    assert_int_equal(check_cache(folder), fake.calls);
    assert_ok(run_into(folder, &again, 3, 5, WINDOWS, NULL, &times));
    assert_int_equal(again.calls + fake.calls, WINDOWS);
}

/* Writing fails, as on a full disk: one sentence, and what was written stays. */
static void a_full_disk_ends_the_call(void **state)
{
    (void)state;
    Fake fake = {0};
    DsviEncodeTimes times;
    DsviLatentCache *cache;
    const DsviWindowEncoder encoder = {&fake, take_row, false, false, 0, PIXELS, SHAPES, 1, NULL};
    const DsvEvents none = {0};
    fake.caller = pthread_self();
    pthread_mutex_init(&fake.lock, NULL);
    assert_ok(dsvi_latent_cache_create(scratch_path("full"), &settings, NULL, &cache));
    assert_ok(dsvi_folder_remove(scratch_path("full")));
    const DsviEncodeWindowsArgs args = {cache, windows, WINDOWS, &encoder, 2, 4, take_outcome, &fake, &none};
    assert_fails(DSV_E_NOT_FOUND, "full/waves_0", dsvi_encode_windows(&args, &times));
    dsvi_latent_cache_close(&cache);
    pthread_mutex_destroy(&fake.lock);
}

/* The encoder takes 20 ms a window, decoding and writing less, so that decoding threads can keep it busy. On
 * an idle machine it works for nine tenths of the time; one half leaves room for other work on the machine.
 */
static void the_encoder_does_not_wait_for_decoding(void **state)
{
    (void)state;
    Fake fake = {.seconds = 0.02};
    DsviEncodeTimes times;
    char folder[DSVI_PATH_MAX];
    snprintf(folder, sizeof folder, "%s", scratch_path("busy"));
    assert_ok(run_into(folder, &fake, 3, 5, WINDOWS, NULL, &times));
    assert_true(times.busy >= 0.02 * WINDOWS);
    assert_true(times.busy / times.seconds > 0.5);
}

static void a_device_tells_how_long_it_worked(void **state)
{
    (void)state;
    Fake fake = {.tells = true};
    DsviEncodeTimes times;
    char folder[DSVI_PATH_MAX];
    snprintf(folder, sizeof folder, "%s", scratch_path("worked"));
    assert_ok(run_into(folder, &fake, 3, 5, WINDOWS, NULL, &times));
    assert_true(times.busy == 5.0 * WINDOWS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_window_is_encoded_once),
        cmocka_unit_test(an_unreadable_window_is_passed_over),
        cmocka_unit_test(a_failure_ends_the_call),
        cmocka_unit_test(a_stop_keeps_what_is_encoded),
        cmocka_unit_test(a_full_disk_ends_the_call),
        cmocka_unit_test(the_encoder_does_not_wait_for_decoding),
        cmocka_unit_test(a_device_tells_how_long_it_worked),
    };
    return cmocka_run_group_tests(tests, make_windows, scratch_remove);
}
