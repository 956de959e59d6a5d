/* Text states: what is written is read, one file for each key, damage, and their use by a data set. */
#include "data/text_states.h"

#include <unistd.h>

#include "base/scratch.h"
#include "data/dataset.h"
#include "data/latent_cache.h"

enum { DIM = 6, ROWS = 3 };

static void fill_rows(float *rows, int64_t count, float first)
{
    for (int64_t i = 0; i < count * DIM; i++)
        rows[i] = first + (float)i / 3;
}

static DsviTextStore make_store(const char *name, DsviDtype dtype)
{
    DsviTextStore store = {.encoder = dsvi_hash_key_of("encoder", 7), .dtype = dtype, .dim = DIM};
    snprintf(store.folder, sizeof store.folder, "%s", scratch_path(name));
    assert_ok(dsvi_folder_make(store.folder));
    return store;
}

/* F32 rows are kept to the bit, BF16 rows to half a unit in the last of 8 bits. */
static void states_are_read_as_written(void **state)
{
    (void)state;
    float rows[ROWS * DIM], read[ROWS * DIM];
    int64_t count = 0;
    fill_rows(rows, ROWS, 1);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        DsviTextStore store = make_store(bf16 ? "bf16" : "f32", bf16 ? DSVI_BF16 : DSVI_F32);
        DsviHashKey key = dsvi_text_states_key(&store, (const int32_t[]){5, 6, 1}, 3);
        assert_false(dsvi_text_states_has(&store, &key));
        assert_fails(DSV_E_NOT_FOUND, key.hex, dsvi_text_states_read(&store, &key, ROWS, read, &count));
        assert_ok(dsvi_text_states_write(&store, &key, ROWS, rows));
        assert_true(dsvi_text_states_has(&store, &key));
        assert_ok(dsvi_text_states_read(&store, &key, ROWS, read, &count));
        assert_int_equal(count, ROWS);
        for (int i = 0; i < ROWS * DIM; i++)
            assert_error_below(fabs(read[i] - rows[i]), bf16 ? rows[i] / 256 : 1e-30, "element %d", i);
        assert_fails(DSV_E_SHAPE, "3 rows, expected 2 at most",
                     dsvi_text_states_read(&store, &key, ROWS - 1, read, &count));
        store.dim++;
        assert_fails(DSV_E_SHAPE, "expected rows of 7",
                     dsvi_text_states_read(&store, &key, ROWS, read, &count));
    }
}

/* The key depends on ids, encoder and dtype. */
static void keys_tell_texts_encoders_and_types_apart(void **state)
{
    (void)state;
    DsviTextStore store = make_store("keys", DSVI_F32), other = store, narrow = store;
    other.encoder = dsvi_hash_key_of("other", 5);
    narrow.dtype = DSVI_BF16;
    const int32_t ids[] = {5, 6, 1};
    const DsviHashKey keys[] = {dsvi_text_states_key(&store, ids, 3), dsvi_text_states_key(&store, ids, 2),
                                dsvi_text_states_key(&store, ids + 1, 2),
                                dsvi_text_states_key(&other, ids, 3), dsvi_text_states_key(&narrow, ids, 3)};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        for (size_t j = 0; j < i; j++)
            assert_false(dsvi_hash_key_same(&keys[i], &keys[j]));
}

static void damaged_and_exchanged_files_are_refused(void **state)
{
    (void)state;
    float rows[ROWS * DIM], read[ROWS * DIM];
    int64_t count;
    char from[DSVI_PATH_MAX + 64], to[DSVI_PATH_MAX + 64], *data;
    size_t bytes;
    DsviTextStore store = make_store("damaged", DSVI_F32);
    DsviHashKey a = dsvi_text_states_key(&store, (const int32_t[]){5}, 1);
    DsviHashKey b = dsvi_text_states_key(&store, (const int32_t[]){6}, 1);
    fill_rows(rows, ROWS, 1);
    rows[ROWS * DIM - 1] = NAN;
    assert_fails(DSV_E_DIVERGED, "states of a caption are not finite",
                 dsvi_text_states_write(&store, &a, ROWS, rows));
    assert_false(dsvi_text_states_has(&store, &a));
    fill_rows(rows, ROWS, 1);
    assert_ok(dsvi_text_states_write(&store, &a, ROWS, rows));
    snprintf(from, sizeof from, "%s/%s.safetensors", store.folder, a.hex);
    snprintf(to, sizeof to, "%s/%s.safetensors", store.folder, b.hex);
    assert_ok(dsvi_file_read(from, 1 << 16, &data, &bytes));
    assert_ok(dsvi_file_write(to, data, bytes));
    assert_false(dsvi_text_states_has(&store, &b));
    assert_fails(DSV_E_FORMAT, "the states of another text",
                 dsvi_text_states_read(&store, &b, ROWS, read, &count));
    data[bytes - 1] ^= 1;
    assert_ok(dsvi_file_write(from, data, bytes));
    assert_false(dsvi_text_states_has(&store, &a));
    assert_fails(DSV_E_FORMAT, "damaged", dsvi_text_states_read(&store, &a, ROWS, read, &count));
    store.dtype = DSVI_BF16;
    assert_fails(DSV_E_FORMAT, "expected states as BF16",
                 dsvi_text_states_read(&store, &a, ROWS, read, &count));
    free(data);
}

/* A data set of cached windows gives the states of each caption, and of the empty prompt. */
static void a_data_set_reads_the_states_of_its_captions(void **state)
{
    (void)state;
    float rows[ROWS * DIM], read[ROWS * DIM], latent = 1;
    int64_t count;
    DsvConfig settings;
    DsviLatentCache *cache;
    DsviDataset *d;
    dsv_config_defaults(&settings);
    DsviLatentModel model = {.text = make_store("unused", DSVI_F32)};
    const int32_t ids[3][2] = {{1}, {7, 1}, {8, 1}};
    model.text.empty = dsvi_text_states_key(&model.text, ids[0], 1);
    assert_ok(dsvi_latent_cache_create(scratch_path("cache"), &settings, &model, &cache));
    const DsviTextStore *store = &dsvi_latent_cache_model(cache)->text;
    DsviCaption texts[2] = {{"a dog", dsvi_text_states_key(store, ids[1], 2)},
                            {"a cat", dsvi_text_states_key(store, ids[2], 2)}};
    const DsviCaptions captions = {texts, 2};
    for (int i = 0; i < 3; i++) {
        fill_rows(rows, i + 1, (float)i);
        assert_ok(dsvi_text_states_write(store, i ? &texts[i - 1].states : &store->empty, i + 1, rows));
    }
    DsviClipWindow window = {.fps = 16, .frames = 17, .height = 128, .width = 128};
    const DsviLatentSource clip[] = {{.path = "a.mp4", .captions = &captions}, {.path = "b.mp4"}};
    for (int i = 0; i < 2; i++)
        assert_ok(dsvi_latent_cache_put(cache, &clip[i], &window, (const int64_t[]){1, 1, 1, 1}, &latent));
    dsvi_latent_cache_close(&cache);
    assert_ok(dsvi_dataset_open(scratch_path("cache"), &settings, &d));
    assert_int_equal(d->text.dim, DIM);
    for (int64_t caption = -1; caption < 2; caption++) {
        fill_rows(rows, caption + 2, (float)(caption + 1));
        assert_ok(dsvi_dataset_text_states(d, 0, caption, ROWS, read, &count));
        assert_int_equal(count, caption + 2);
        assert_memory_equal(read, rows, (size_t)(count * DIM) * sizeof *rows);
    }
    assert_int_equal(dsvi_dataset_sample_in(d, &settings, 0, 1).caption, -1);
    assert_ok(dsvi_dataset_text_states(d, 1, -1, ROWS, read, &count));
    assert_int_equal(count, 1);
    d->sources[0].text.folder[0] = 0;
    assert_fails(DSV_E_NOT_FOUND, "no text states", dsvi_dataset_text_states(d, 0, 0, ROWS, read, &count));
    dsvi_dataset_close(&d);
}

/* Cuts the second half off a file of the data set that the last test has made, and opens the data set. */
static DsvStatus open_without_half(const DsvConfig *settings, const char *path, DsviDataset **d)
{
    char *data;
    size_t bytes;
    assert_ok(dsvi_file_read(path, 1 << 16, &data, &bytes));
    assert_int_equal(truncate(path, (off_t)bytes / 2), 0);
    DsvStatus status = dsvi_dataset_open(scratch_path("cache"), settings, d);
    assert_ok(dsvi_file_write(path, data, bytes));
    free(data);
    return status;
}

/* Truncated entries are named and left out before anything is trained; without the empty prompt, which stands
 * in for dropped captions, the data set cannot be used. */
static void truncated_entries_are_left_out(void **state)
{
    (void)state;
    DsvConfig settings;
    DsviDataset *d, *part;
    char states[DSVI_PATH_MAX + 64];
    dsv_config_defaults(&settings);
    settings.caption_dropout = 0.25;
    assert_ok(dsvi_dataset_open(scratch_path("cache"), &settings, &d));
    assert_int_equal(d->count, 2);
    assert_ok(open_without_half(&settings, d->items[1].path, &part));
    assert_int_equal(part->count, 1);
    assert_int_equal(part->left_out_count, 1);
    assert_non_null(strstr(part->left_out[0].reason, d->items[1].path));
    dsvi_dataset_close(&part);
    snprintf(states, sizeof states, "%s/%s.safetensors", d->text.folder,
             d->items[0].captions.at[1].states.hex);
    assert_ok(open_without_half(&settings, states, &part));
    assert_int_equal(part->left_out_count, 1);
    assert_non_null(strstr(part->left_out[0].reason, d->items[0].path));
    assert_non_null(strstr(part->left_out[0].reason, states));
    dsvi_dataset_close(&part);
    snprintf(states, sizeof states, "%s/%s.safetensors", d->text.folder, d->text.empty.hex);
    assert_fails(DSV_E_FORMAT, "caption_dropout=0.25 needs the states of the empty prompt",
                 open_without_half(&settings, states, &part));
    dsvi_dataset_close(&d);
    assert_ok(dsvi_file_write(scratch_path("cache/hashes"), "", 0));
    assert_int_equal(unlink(scratch_path("cache/index.json")), 0);
    assert_fails(DSV_E_NOT_FOUND, "a latent cache without a usable index.json",
                 dsvi_dataset_open(scratch_path("cache"), &settings, &d));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_are_read_as_written),
        cmocka_unit_test(keys_tell_texts_encoders_and_types_apart),
        cmocka_unit_test(damaged_and_exchanged_files_are_refused),
        cmocka_unit_test(a_data_set_reads_the_states_of_its_captions),
        cmocka_unit_test(truncated_entries_are_left_out),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
