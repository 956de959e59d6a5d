/* The latent cache: resuming, refusing other options, detecting damage. */
#include "data/latent_cache.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/utf8.h"
#include "data/latent_file.h"
#include "latent_cache_case.h"

static void what_was_put_is_read_back(void **state)
{
    (void)state;
    DsvConfig settings = make_settings();
    DsviLatentCache *cache;
    const char *folder = scratch_path("made/here");
    float latent[NUMBERS], wanted[NUMBERS];
    assert_false(dsvi_latent_cache_is(folder));
    assert_ok(dsvi_latent_cache_create(folder, &settings, NULL, &cache));
    assert_true(dsvi_latent_cache_is(folder));
    assert_false(has(cache, "clips/b \"q\".mp4", 0.1));
    assert_ok(put(cache, "clips/b \"q\".mp4", "caption\nwith \"quotes\" and \xc3\xa9",
                  0.1)); /* 0.1: no short binary */
    assert_ok(put(cache, "../../a.mp4", NULL, 1.0 / 3));
    assert_ok(put(cache, "../../a.mp4", NULL, 0));
    assert_true(has(cache, "clips/b \"q\".mp4", 0.1));
    assert_false(has(cache, "clips/b \"q\".mp4", 0.2));
    assert_false(has(cache, "clips/b.mp4", 0.1));
    dsvi_latent_cache_close(&cache);
    assert_null(cache);

    assert_ok(dsvi_latent_cache_open(folder, &settings, &cache));
    assert_int_equal(dsvi_latent_cache_count(cache), 3);
    for (int64_t i = 0; i < 3; i++) { /* in order of source and start, whatever the order they came in */
        static const double STARTS[] = {0, 1.0 / 3, 0.1};
        assert_ok(dsvi_latent_cache_check(cache, i));
        assert_ok(dsvi_latent_read(dsvi_latent_cache_file(cache, i), NUMBERS, latent));
        fill(wanted, STARTS[i]);
        assert_memory_equal(latent, wanted, sizeof latent);
        assert_int_equal(strncmp(dsvi_latent_cache_file(cache, i), folder, strlen(folder)), 0);
        assert_null(strchr(dsvi_latent_cache_file(cache, i) + strlen(folder) + 1, '/'));
    }
    assert_null(text_of(cache, 0));
    assert_string_equal(text_of(cache, 2), "caption\nwith \"quotes\" and \xc3\xa9");
    assert_true(has(cache, "../../a.mp4", 1.0 / 3));
    assert_fails(DSV_E_SHAPE, "120 numbers, expected 119",
                 dsvi_latent_read(dsvi_latent_cache_file(cache, 0), NUMBERS - 1, latent));
    dsvi_latent_cache_close(&cache);
    dsvi_latent_cache_close(&cache);
}

/* A cache that was not closed has the flushed windows; others are encoded again, and the index becomes the
 * same. */
static void an_interrupted_encoding_goes_on(void **state)
{
    (void)state;
    DsvConfig settings = make_settings();
    DsviLatentCache *cache, *again;
    enum { WINDOWS = 80 }; /* more than a list's initial capacity, 64 */
    char *straight, *resumed;
    size_t straight_bytes, resumed_bytes;
    assert_ok(dsvi_latent_cache_create(scratch_path("straight"), &settings, NULL, &cache));
    for (int i = 0; i < WINDOWS; i++)
        assert_ok(put(cache, "c.mp4", "t", i));
    dsvi_latent_cache_close(&cache);

    pid_t child = fork();
    if (child == 0) {
        bool good = dsvi_latent_cache_create(scratch_path("resumed"), &settings, NULL, &cache) == DSV_OK;
        for (int i = WINDOWS - 1; good && i >= WINDOWS / 2; i--)
            good = put(cache, "c.mp4", "t", i) == DSV_OK;
        good = good && dsvi_latent_cache_flush(cache) == DSV_OK;
        good = good && put(cache, "c.mp4", "t", 0) == DSV_OK; /* its entry is lost with the process */
        _exit(good ? 0 : 1);
    }
    int ended = -1;
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_int_equal(ended, 0);
    assert_ok(dsvi_latent_cache_create(scratch_path("resumed"), &settings, NULL, &again));
    assert_int_equal(dsvi_latent_cache_count(again), WINDOWS / 2);
    assert_true(has(again, "c.mp4", WINDOWS / 2));
    assert_false(has(again, "c.mp4", 0));
    for (int i = 0; i < WINDOWS; i++)
        if (!has(again, "c.mp4", i))
            assert_ok(put(again, "c.mp4", "t", i));
    assert_int_equal(dsvi_latent_cache_count(again), WINDOWS);
    assert_ok(put(again, "c.mp4", "t", 5)); /* a second time replaces the first */
    assert_int_equal(dsvi_latent_cache_count(again), WINDOWS);
    dsvi_latent_cache_close(&again);
    assert_ok(dsvi_file_read(scratch_path("straight/index.json"), 1 << 20, &straight, &straight_bytes));
    assert_ok(dsvi_file_read(scratch_path("resumed/index.json"), 1 << 20, &resumed, &resumed_bytes));
    assert_int_equal(straight_bytes, resumed_bytes);
    assert_memory_equal(straight, resumed, straight_bytes);
    free(straight);
    free(resumed);
}

/* A second writer is refused, since each would write the index without the other's windows. */
static void a_second_writer_is_refused(void **state)
{
    (void)state;
    DsvConfig settings = make_settings();
    DsviLatentCache *cache, *second;
    assert_ok(dsvi_latent_cache_create(scratch_path("locked"), &settings, NULL, &cache));
    assert_fails(DSV_E_USAGE, "locked: another process encodes into it",
                 dsvi_latent_cache_create(scratch_path("locked"), &settings, NULL, &second));
    assert_null(second);
    assert_ok(put(cache, "c.mp4", NULL, 0));
    assert_ok(dsvi_latent_cache_flush(cache));
    assert_ok(dsvi_latent_cache_open(scratch_path("locked"), &settings, &second)); /* readers may come */
    assert_int_equal(dsvi_latent_cache_count(second), 1);
    dsvi_latent_cache_close(&second);
    dsvi_latent_cache_close(&cache);
    assert_ok(dsvi_latent_cache_create(scratch_path("locked"), &settings, NULL, &cache));
    dsvi_latent_cache_close(&cache);
}

/* Returns whether the cache has the windows that change_of_the_index_is_noticed wrote. */
static bool as_it_was(const char *folder)
{
    static const char *const SOURCES[] = {"clips/a.mp4", "clips/b.mp4"}, *const TEXTS[] = {"a dog", "a cat"};
    DsviLatentCache *cache;
    if (dsvi_latent_cache_open(folder, NULL, &cache) != DSV_OK)
        return false;
    bool same = dsvi_latent_cache_count(cache) == 2;
    for (int i = 0; same && i < 2; i++)
        same = strcmp(dsvi_latent_cache_source(cache, i), SOURCES[i]) == 0 && text_of(cache, i) &&
               strcmp(text_of(cache, i), TEXTS[i]) == 0 && dsvi_latent_cache_check(cache, i) == DSV_OK;
    dsvi_latent_cache_close(&cache);
    return same;
}

/* A flipped bit in the items is detected or changes nothing; an index without a checksum is read. */
static void a_change_of_the_index_is_noticed(void **state)
{
    (void)state;
    DsvConfig settings = make_settings();
    DsviLatentCache *cache;
    char folder[DSVI_PATH_MAX], index[DSVI_PATH_MAX], *text;
    size_t bytes;
    snprintf(folder, sizeof folder, "%s", scratch_path("index"));
    snprintf(index, sizeof index, "%s", scratch_path("index/index.json"));
    assert_ok(dsvi_latent_cache_create(folder, &settings, NULL, &cache));
    assert_ok(put(cache, "clips/a.mp4", "a dog", 0));
    assert_ok(put(cache, "clips/b.mp4", "a cat", 0));
    dsvi_latent_cache_close(&cache);
    assert_true(as_it_was(folder));
    assert_ok(dsvi_file_read(index, 1 << 20, &text, &bytes));
    for (size_t i = (size_t)(strstr(text, "\"items\"") - text); i < bytes; i++) {
        text[i] ^= 2;
        FILE *file = fopen(index, "wb"); /* not synced: there are hundreds */
        assert_int_equal(fwrite(text, 1, bytes, file), bytes);
        assert_int_equal(fclose(file), 0);
        DsvStatus status = dsvi_latent_cache_open(folder, NULL, &cache);
        dsvi_latent_cache_close(&cache);
        if (status == DSV_OK && !as_it_was(folder))
            fail_msg("byte %d: %s", (int)i, text);
        text[i] ^= 2;
    }
    char *tail = strrchr(text, ',');
    assert_int_equal(strncmp(tail, ",\"xxh3\":\"", 9), 0);
    strcpy(tail, "}");
    assert_ok(dsvi_file_write(index, text, strlen(text)));
    assert_true(as_it_was(folder));
    text[strstr(text, "a.mp4") - text] = 'x';
    assert_ok(dsvi_file_write(index, text, strlen(text)));
    assert_ok(dsvi_latent_cache_open(folder, NULL, &cache));
    dsvi_latent_cache_close(&cache);
    free(text);
}

/* The index stays valid JSON in UTF-8, and names are unchanged. */
static void names_of_any_bytes_survive(void **state)
{
    (void)state;
    static const char *const NAMES[] = {"100%25.mp4", "caf\xc3\xa9.mp4", "caf\xe9 100%41.mp4",
                                        "\xff\xfe\n.mkv"};
    DsvConfig settings = make_settings();
    DsviLatentCache *cache;
    char *text;
    size_t bytes;
    assert_ok(dsvi_latent_cache_create(scratch_path("bytes"), &settings, NULL, &cache));
    for (int i = 0; i < 4; i++)
        assert_ok(put(cache, NAMES[i], NAMES[i], 0));
    dsvi_latent_cache_close(&cache);
    assert_ok(dsvi_file_read(scratch_path("bytes/index.json"), 1 << 20, &text, &bytes));
    assert_true(dsvi_utf8_valid(text, bytes));
    assert_non_null(strstr(text, "\"100%25.mp4\""));
    free(text);
    assert_ok(dsvi_latent_cache_create(scratch_path("bytes"), &settings, NULL, &cache));
    for (int i = 0; i < 4; i++) { /* they are sorted by their bytes */
        assert_string_equal(dsvi_latent_cache_source(cache, i), NAMES[i]);
        assert_string_equal(text_of(cache, i), NAMES[i]);
        assert_true(has(cache, NAMES[i], 0));
    }
    dsvi_latent_cache_close(&cache);
}

static void other_settings_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *assignment, *words;
    } CHANGES[] = {
        {"num_frames=9", "num_frames 17, expected 9"},
        {"height=64", "height 128, expected 64"},
        {"width=64", "width 128, expected 64"},
        {"fps=16", "fps 29.97, expected 16"},
        {"codec.spatial_levels=3", "codec.spatial_levels 2, expected 3"},
        {"codec.temporal_levels=0", "codec.temporal_levels 1, expected 0"},
    };
    DsvConfig settings = make_settings();
    DsviLatentCache *cache;
    const char *folder = scratch_path("settings");
    assert_ok(dsvi_latent_cache_create(folder, &settings, NULL, &cache));
    dsvi_latent_cache_close(&cache);
    for (size_t i = 0; i < sizeof CHANGES / sizeof *CHANGES; i++) {
        DsvConfig other = settings;
        assert_ok(dsv_config_set(&other, CHANGES[i].assignment));
        assert_fails(DSV_E_USAGE, CHANGES[i].words, dsvi_latent_cache_create(folder, &other, NULL, &cache));
        assert_null(cache);
        assert_fails(DSV_E_USAGE, CHANGES[i].words, dsvi_latent_cache_open(folder, &other, &cache));
    }
    strcpy(settings.codec_name, "else");
    assert_fails(DSV_E_USAGE, "codec.name haar, expected else",
                 dsvi_latent_cache_open(folder, &settings, &cache));
    assert_ok(dsvi_latent_cache_open(folder, NULL, &cache));
    dsvi_latent_cache_close(&cache);
}

static void flip_byte(const char *path, long offset_from_end)
{
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, -offset_from_end, SEEK_END), 0);
    int byte = fgetc(file);
    assert_int_equal(fseek(file, -offset_from_end, SEEK_END), 0);
    fputc(byte ^ 1, file);
    assert_int_equal(fclose(file), 0);
}

static void damage_is_noticed(void **state)
{
    (void)state;
    DsvConfig settings = make_settings();
    DsviLatentCache *cache;
    float latent[NUMBERS];
    const char *folder = scratch_path("damage");
    assert_ok(dsvi_latent_cache_create(folder, &settings, NULL, &cache));
    for (int i = 0; i < 3; i++)
        assert_ok(put(cache, "c.mp4", NULL, i));
    flip_byte(dsvi_latent_cache_file(cache, 0), 1);
    assert_false(has(cache, "c.mp4", 0));
    assert_fails(DSV_E_FORMAT, "damaged: checksum", dsvi_latent_cache_check(cache, 0));
    assert_fails(DSV_E_FORMAT, "damaged: checksum",
                 dsvi_latent_read(dsvi_latent_cache_file(cache, 0), NUMBERS, latent));
    /* An intact file of another window has this window's name. */
    char *data;
    size_t bytes;
    assert_ok(dsvi_file_read(dsvi_latent_cache_file(cache, 2), 1 << 20, &data, &bytes));
    assert_ok(dsvi_file_write(dsvi_latent_cache_file(cache, 1), data, bytes));
    free(data);
    assert_false(has(cache, "c.mp4", 1));
    assert_fails(DSV_E_FORMAT, "as in the index", dsvi_latent_cache_check(cache, 1));
    assert_ok(put(cache, "c.mp4", NULL, 0));
    assert_true(has(cache, "c.mp4", 0));
    assert_fails(DSV_E_DIVERGED, "c.mp4: the latent of its window at inf s is not finite",
                 put(cache, "c.mp4", NULL, INFINITY));
    dsvi_latent_cache_close(&cache);
}

typedef struct Rewriter {
    const char *path, *data;
    size_t bytes;
    atomic_bool stop;
} Rewriter;

/* Truncates the file and writes it again in place, as cp does. */
static void *rewrite(void *context)
{
    Rewriter *r = context;
    int file = open(r->path, O_RDWR);
    while (file >= 0 && !atomic_load(&r->stop)) {
        if (ftruncate(file, 512) != 0 || pwrite(file, r->data, r->bytes, 0) != (ssize_t)r->bytes)
            break;
        usleep(100);
    }
    close(file);
    return NULL;
}

/* Access to a page that was truncated from a mapped file would end the process. */
static void a_file_that_is_rewritten_is_no_crash(void **state)
{
    (void)state;
    enum { COUNT = 1 << 20, READS = 300 };
    const int64_t shape[4] = {1, 1, 1 << 10, 1 << 10};
    float *latent = calloc(COUNT, sizeof *latent);
    char path[DSVI_PATH_MAX], *data;
    uint64_t checksum;
    Rewriter rewriter = {.path = path};
    pthread_t thread;
    int whole = 0;
    snprintf(path, sizeof path, "%s", scratch_path("rewritten.safetensors"));
    assert_ok(dsvi_latent_write(path, shape, (DsviImageStates){0}, latent, &checksum));
    assert_ok(dsvi_file_read(path, (size_t)1 << 24, &data, &rewriter.bytes));
    rewriter.data = data;
    assert_int_equal(pthread_create(&thread, NULL, rewrite, &rewriter), 0);
    for (int i = 0; i < READS; i++) {
        DsvStatus status = i % 2 ? dsvi_latent_read(path, COUNT, latent)
                                 : dsvi_latent_verify(path, &checksum);
        assert_true(status == DSV_OK || status == DSV_E_FORMAT);
        assert_true(status == DSV_OK || strstr(dsv_error_message(), path));
        whole += status == DSV_OK;
    }
    atomic_store(&rewriter.stop, true);
    pthread_join(thread, NULL);
    assert_ok(dsvi_latent_read(path, COUNT, latent));
    assert_true(whole < READS);
    free(latent);
    free(data);
}

static void an_index_that_is_none_is_refused(void **state)
{
    (void)state;
    static const char HEAD[] =
        "{\"format\":\"dsv-latent-cache\",\"version\":1,\"settings\":{\"codec.name\":\"haar\","
        "\"num_frames\":17,\"height\":128,\"width\":128,\"fps\":29.97,\"codec.spatial_levels\":2,"
        "\"codec.temporal_levels\":1},\"items\":";
    static const struct {
        bool headed;
        const char *text, *words;
    } BAD[] = {
        {false, "", "not JSON"},
        {false, "[1,2", "not JSON"},
        {false, "{\"format\":\"other\"}", "another format"},
        {false, "{\"format\":\"dsv-latent-cache\",\"version\":5}", "another version"},
        {false, "{\"format\":\"dsv-latent-cache\",\"version\":1}", "codec.name"},
        {true, "7}", "no items"},
        {true, "[7]}", "incomplete"},
        {true,
         "[{\"source\":\"a\",\"start\":0,\"crop_x\":0,\"crop_y\":0,\"file\":\"../x\",\"xxh3\":"
         "\"0123456789abcdef\",\"shape\":[1,1,1,1]}]}",
         "incomplete"},
        {true,
         "[{\"source\":\"a\",\"start\":0,\"crop_x\":0,\"crop_y\":0,\"file\":\"x\",\"xxh3\":"
         "\"0123456789abcdeX\",\"shape\":[1,1,1,1]}]}",
         "incomplete"},
        {true,
         "[{\"source\":\"a\",\"start\":0,\"crop_x\":0,\"crop_y\":0,\"file\":\"x\",\"xxh3\":"
         "\"0123456789abcdef\",\"shape\":[1,1,-1,1]}]}",
         "incomplete"},
        {true,
         "[{\"source\":\"a\",\"source_bytes\":-55736,\"source_modified\":1,\"start\":0,\"crop_x\":0,"
         "\"crop_y\":0,\"file\":\"x\",\"xxh3\":\"0123456789abcdef\",\"shape\":[1,1,1,1]}]}",
         "incomplete"},
        {true,
         "[{\"source\":\"a%4\",\"escaped\":true,\"start\":0,\"crop_x\":0,\"crop_y\":0,\"file\":\"x\","
         "\"xxh3\":\"0123456789abcdef\",\"shape\":[1,1,1,1]}]}",
         "incomplete"},
        {true,
         "[{\"source\":\"a\",\"start\":0,\"crop_x\":0,\"crop_y\":0,\"file\":\"x\",\"repeats\":0,"
         "\"xxh3\":\"0123456789abcdef\",\"shape\":[1,1,1,1]}]}",
         "incomplete"},
        {true, "[],\"xxh3\":7}", "its xxh3 is no checksum"},
        {true, "[],\"xxh3\":\"0123456789abcdef\"}", "damaged, or edited"},
    };
    DsvConfig settings = make_settings();
    DsviLatentCache *cache;
    char folder[DSVI_PATH_MAX];
    snprintf(folder, sizeof folder, "%s", scratch_path("bad")); /* scratch_path remembers four */
    assert_ok(dsvi_folder_make(folder));
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        char text[1024];
        snprintf(text, sizeof text, "%s%s", BAD[i].headed ? HEAD : "", BAD[i].text);
        assert_ok(dsvi_file_write(scratch_path("bad/index.json"), text, strlen(text)));
        assert_fails(DSV_E_FORMAT, BAD[i].words, dsvi_latent_cache_open(folder, &settings, &cache));
        assert_non_null(strstr(dsv_error_message(), "bad/index.json"));
        assert_fails(DSV_E_FORMAT, BAD[i].words, dsvi_latent_cache_create(folder, &settings, NULL, &cache));
    }
    assert_fails(DSV_E_NOT_FOUND, "index.json",
                 dsvi_latent_cache_open(scratch_path("none"), &settings, &cache));
}

static void a_folder_that_cannot_be_written_fails_at_once(void **state)
{
    (void)state;
    DsvConfig settings = make_settings();
    DsviLatentCache *cache;
    assert_ok(dsvi_file_write(scratch_path("file"), "x", 1));
    assert_fails(DSV_E_IO, "file",
                 dsvi_latent_cache_create(scratch_path("file/cache"), &settings, NULL, &cache));
    assert_ok(dsvi_latent_cache_create(scratch_path("gone"), &settings, NULL, &cache));
    assert_ok(dsvi_folder_remove(scratch_path("gone")));
    assert_fails(DSV_E_NOT_FOUND, "gone", put(cache, "c.mp4", NULL, 0));
    assert_int_equal(dsvi_latent_cache_count(cache), 0);
    dsvi_latent_cache_close(&cache);
}

/* An index that would be too long to be read is not written. */
static void a_full_index_takes_no_more(void **state)
{
    (void)state;
    enum { ESCAPED = 6 };
    DsvConfig settings = make_settings();
    DsviLatentCache *cache;
    size_t length = ((size_t)1 << 31) / ESCAPED;
    char *text = malloc(length + 1);
    assert_non_null(text);
    memset(text, '\n', length);
    text[length] = 0;
    assert_ok(dsvi_latent_cache_create(scratch_path("full"), &settings, NULL, &cache));
    assert_ok(put(cache, "c.mp4", "short", 0));
    assert_fails(DSV_E_USAGE, "full: with 1 windows its index is full", put(cache, "c.mp4", text, 1));
    dsvi_latent_cache_close(&cache);
    assert_ok(dsvi_latent_cache_open(scratch_path("full"), &settings, &cache));
    assert_int_equal(dsvi_latent_cache_count(cache), 1);
    dsvi_latent_cache_close(&cache);
    free(text);
}

enum { THREADS = 4, EACH = 20 };

typedef struct Putter {
    DsviLatentCache *cache;
    int number, failures;
} Putter;

static void *put_many(void *context)
{
    Putter *p = context;
    for (int i = 0; i < EACH; i++) {
        double start = p->number * EACH + i;
        p->failures += has(p->cache, "c.mp4", start) || put(p->cache, "c.mp4", NULL, start) != DSV_OK ||
                       !has(p->cache, "c.mp4", start) ||
                       (i % 10 == 0 && dsvi_latent_cache_flush(p->cache) != DSV_OK);
    }
    return NULL;
}

static void threads_may_put_at_once(void **state)
{
    (void)state;
    DsvConfig settings = make_settings();
    DsviLatentCache *cache;
    pthread_t threads[THREADS];
    Putter putters[THREADS];
    assert_ok(dsvi_latent_cache_create(scratch_path("threads"), &settings, NULL, &cache));
    for (int i = 0; i < THREADS; i++) {
        putters[i] = (Putter){cache, i, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, put_many, &putters[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(putters[i].failures, 0);
    }
    dsvi_latent_cache_close(&cache);
    assert_ok(dsvi_latent_cache_open(scratch_path("threads"), &settings, &cache));
    assert_int_equal(dsvi_latent_cache_count(cache), THREADS * EACH);
    for (int i = 0; i < THREADS * EACH; i++)
        assert_true(has(cache, "c.mp4", i));
    dsvi_latent_cache_close(&cache);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_put_is_read_back),
        cmocka_unit_test(an_interrupted_encoding_goes_on),
        cmocka_unit_test(a_second_writer_is_refused),
        cmocka_unit_test(a_change_of_the_index_is_noticed),
        cmocka_unit_test(names_of_any_bytes_survive),
        cmocka_unit_test(other_settings_are_refused_by_name),
        cmocka_unit_test(damage_is_noticed),
        cmocka_unit_test(a_file_that_is_rewritten_is_no_crash),
        cmocka_unit_test(an_index_that_is_none_is_refused),
        cmocka_unit_test(a_folder_that_cannot_be_written_fails_at_once),
        cmocka_unit_test(a_full_index_takes_no_more),
        cmocka_unit_test(threads_may_put_at_once),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
