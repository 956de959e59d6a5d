/* The latent cache and its clips: what happens when clips change, are renamed or copied, or get other
 * captions, and when another model encodes. */
#include "data/latent_cache.h"

#include "data/latent_file.h"
#include "latent_cache_case.h"

/* How many windows an update has changed, by kind. */
typedef struct Changes {
    int64_t windows[DSVI_LATENT_SHARED + 1];
} Changes;

static void hear(void *context, const char *path, DsviLatentChange change, int64_t windows)
{
    assert_non_null(strstr(path, ".mp4"));
    ((Changes *)context)->windows[change] += windows;
}

static int64_t drop_changed(DsviLatentCache *cache, const char *path, DsviFileStamp stamp)
{
    Changes changes = {0};
    const DsviLatentSource sources[2] = {{.path = path, .stamp = stamp}, {.path = "0.mp4"}};
    assert_ok(dsvi_latent_cache_update(cache, sources, 2, hear, &changes));
    return changes.windows[DSVI_LATENT_DROPPED];
}

/* If a clip's size or modification time changed, none of its windows is used; the index keeps both values. */
static void windows_of_a_changed_file_are_dropped(void **state)
{
    (void)state;
    DsvConfig settings = make_settings();
    DsviLatentCache *cache;
    char file[DSVI_PATH_MAX];
    const DsviFileStamp same = {1000, 1.7e9 + 0.1}, longer = {1001, 1.7e9 + 0.1}, later = {1000, 1.7e9 + 0.2};
    assert_ok(dsvi_latent_cache_create(scratch_path("changed"), &settings, NULL, &cache));
    for (int i = 0; i < 100; i++)
        assert_ok(put(cache, i % 2 ? "a.mp4" : "b.mp4", NULL, i));
    dsvi_latent_cache_close(&cache);
    assert_ok(dsvi_latent_cache_create(scratch_path("changed"), &settings, NULL, &cache));
    assert_int_equal(drop_changed(cache, "a.mp4", same), 0);
    assert_int_equal(drop_changed(cache, "c.mp4", later), 0);
    assert_int_equal(dsvi_latent_cache_count(cache), 100);
    snprintf(file, sizeof file, "%s", dsvi_latent_cache_file(cache, 0));
    assert_int_equal(drop_changed(cache, "a.mp4", later), 50);
    assert_int_equal(dsvi_latent_cache_count(cache), 50);
    assert_int_not_equal(access(file, F_OK), 0);
    for (int i = 0; i < 100; i++)
        assert_true(has(cache, i % 2 ? "a.mp4" : "b.mp4", i) == (i % 2 == 0));
    dsvi_latent_cache_close(&cache);
    assert_ok(dsvi_latent_cache_create(scratch_path("changed"), &settings, NULL, &cache));
    assert_int_equal(dsvi_latent_cache_count(cache), 50);
    assert_int_equal(drop_changed(cache, "b.mp4", longer), 50);
    assert_ok(put(cache, "b.mp4", NULL, 0));
    assert_int_equal(drop_changed(cache, "b.mp4", same), 0);
    dsvi_latent_cache_close(&cache);
}

/* How often a clip repeats is brought up to date without encoding, and is what the index says later. */
static void repeats_are_brought_up_to_date(void **state)
{
    static const int64_t REPEATS[] = {3, 1000, 1};
    (void)state;
    DsvConfig settings = make_settings();
    DsviLatentCache *cache;
    Changes changes = {0};
    DsviLatentSource sources[2] = {{.path = "a.mp4"}, {.path = "b.mp4", .repeats = 2}};
    sources[0].stamp = sources[1].stamp = (DsviFileStamp){1000, 1.7e9 + 0.1};
    assert_ok(dsvi_latent_cache_create(scratch_path("repeats"), &settings, NULL, &cache));
    assert_ok(put(cache, "a.mp4", "x", 0));
    assert_ok(put(cache, "b.mp4", "y", 1));
    for (int i = 0; i < 3; i++) {
        sources[0].repeats = REPEATS[i];
        assert_ok(dsvi_latent_cache_update(cache, sources, 2, hear, &changes));
        dsvi_latent_cache_close(&cache);
        assert_ok(dsvi_latent_cache_create(scratch_path("repeats"), &settings, NULL, &cache));
        assert_int_equal(dsvi_latent_cache_count(cache), 2);
        assert_int_equal(dsvi_latent_cache_repeats(cache, 0), REPEATS[i]);
        assert_int_equal(dsvi_latent_cache_repeats(cache, 1), 2);
    }
    assert_true(has(cache, "a.mp4", 0) && has(cache, "b.mp4", 1));
    dsvi_latent_cache_close(&cache);
}

enum { EVERY = 4 }; /* windows of a clip in the tests of contents */

static DsviHashKey content_of(const char *bytes)
{
    return dsvi_hash_key_of(bytes, strlen(bytes));
}

/* Encodes what is missing of a clip with these bytes, after an update. Returns the number of windows that
 * were encoded. */
static int encode_clip(DsviLatentCache *cache, DsviLatentSource source, Changes *changes)
{
    float latent[NUMBERS];
    int encoded = 0;
    *changes = (Changes){0};
    assert_ok(dsvi_latent_cache_update(cache, &source, 1, hear, changes));
    for (int i = 0; i < EVERY; i++) {
        DsviClipWindow window = window_at(i);
        if (dsvi_latent_cache_has(cache, source.path, &window))
            continue;
        fill(latent, i + source.content.hex[0]); /* other contents have other latents */
        assert_ok(dsvi_latent_cache_put(cache, &source, &window, SHAPE, latent));
        encoded++;
    }
    return encoded;
}

static void windows_follow_the_contents_of_clips(void **state)
{
    (void)state;
    DsvConfig settings = make_settings();
    DsviLatentCache *cache;
    Changes changes;
    const DsviFileStamp stamp = {10, 1}, later = {10, 2};
    const DsviHashKey one = content_of("one"), two = content_of("two");
    DsviLatentSource again[2] = {{.path = "a.mp4", .stamp = later}, {.path = "b.mp4", .stamp = stamp}};
    assert_ok(dsvi_latent_cache_create(scratch_path("contents"), &settings, NULL, &cache));
    assert_int_equal(encode_clip(cache, (DsviLatentSource){"a.mp4", NULL, NULL, stamp, one, 1}, &changes),
                     EVERY);
    /* the same bytes with another time are not encoded again, and the index learns the time */
    assert_int_equal(encode_clip(cache, (DsviLatentSource){"a.mp4", NULL, NULL, later, one, 1}, &changes), 0);
    dsvi_latent_cache_close(&cache);
    assert_ok(dsvi_latent_cache_create(scratch_path("contents"), &settings, NULL, &cache));
    assert_ok(dsvi_latent_cache_recall(cache, again, 2));
    assert_true(dsvi_hash_key_same(&again[0].content, &one));
    assert_string_equal(again[1].content.hex, "");
    /* a.mp4 is gone (it never existed) and b.mp4 has its bytes */
    assert_int_equal(encode_clip(cache, (DsviLatentSource){"b.mp4", NULL, NULL, stamp, one, 1}, &changes), 0);
    assert_int_equal(changes.windows[DSVI_LATENT_MOVED], EVERY);
    assert_int_equal(dsvi_latent_cache_count(cache), EVERY);
    /* another clip takes the first name, and does not overwrite the windows of the moved clip */
    assert_int_equal(encode_clip(cache, (DsviLatentSource){"a.mp4", NULL, NULL, stamp, two, 1}, &changes),
                     EVERY);
    assert_int_equal(dsvi_latent_cache_count(cache), 2 * EVERY);
    for (int64_t i = 0; i < 2 * EVERY; i++)
        assert_ok(dsvi_latent_cache_check(cache, i));
    /* a clip changes under its name */
    assert_int_equal(encode_clip(cache, (DsviLatentSource){"b.mp4", NULL, NULL, stamp, content_of("3"), 1},
                                 &changes),
                     EVERY);
    assert_int_equal(changes.windows[DSVI_LATENT_DROPPED], EVERY);
    for (int64_t i = 0; i < 2 * EVERY; i++)
        assert_ok(dsvi_latent_cache_check(cache, i));
    dsvi_latent_cache_close(&cache);
}

/* Windows that were written, but not entered into the index, are found again; not those of other options. */
static void a_lost_index_loses_no_windows(void **state)
{
    (void)state;
    DsvConfig settings = make_settings();
    DsviLatentCache *cache;
    Changes changes;
    const DsviLatentSource clip = {"a.mp4", NULL, NULL, {10, 1}, content_of("one"), 1};
    const int64_t other[4] = {1, 6, 4, 5};
    DsviClipWindow window = window_at(0), faster = window_at(0);
    faster.fps = 60;
    assert_ok(dsvi_latent_cache_create(scratch_path("lost"), &settings, NULL, &cache));
    assert_int_equal(encode_clip(cache, clip, &changes), EVERY);
    dsvi_latent_cache_close(&cache);
    assert_int_equal(remove(scratch_path("lost/index.json")), 0);
    assert_ok(dsvi_latent_cache_create(scratch_path("lost"), &settings, NULL, &cache));
    assert_false(dsvi_latent_cache_recover(cache, &clip, &faster, SHAPE));
    assert_false(dsvi_latent_cache_recover(cache, &clip, &window, other));
    assert_false(dsvi_latent_cache_recover(
        cache, &(DsviLatentSource){"a.mp4", NULL, NULL, {10, 1}, content_of("two"), 1}, &window, SHAPE));
    for (int i = 0; i < EVERY; i++) {
        window = window_at(i);
        assert_true(dsvi_latent_cache_recover(cache, &clip, &window, SHAPE));
    }
    dsvi_latent_cache_close(&cache);
    assert_ok(dsvi_latent_cache_create(scratch_path("lost"), &settings, NULL, &cache));
    assert_int_equal(encode_clip(cache, clip, &changes), 0);
    dsvi_latent_cache_close(&cache);
    assert_int_equal(remove(scratch_path("lost/index.json")), 0);
    settings.codec_temporal_levels++;
    assert_ok(dsvi_latent_cache_create(scratch_path("lost"), &settings, NULL, &cache));
    assert_false(dsvi_latent_cache_recover(cache, &clip, &window, SHAPE));
    dsvi_latent_cache_close(&cache);
}

/* Two clips exchange their names in one update, and a third is a copy. */
static void renamed_and_copied_clips_keep_their_windows(void **state)
{
    (void)state;
    DsvConfig settings = make_settings();
    DsviLatentCache *cache;
    Changes changes = {0};
    char first[DSVI_PATH_MAX], *file;
    const DsviFileStamp stamp = {10, 1};
    const DsviHashKey one = content_of("one"), two = content_of("two");
    const DsviLatentSource swapped[] = {{"a.mp4", NULL, NULL, stamp, two, 1},
                                        {"b.mp4", NULL, NULL, stamp, one, 1},
                                        {"c.mp4", NULL, NULL, stamp, two, 1}};
    assert_ok(dsvi_latent_cache_create(scratch_path("swapped"), &settings, NULL, &cache));
    assert_int_equal(encode_clip(cache, (DsviLatentSource){"a.mp4", NULL, NULL, stamp, one, 1}, &changes),
                     EVERY);
    assert_int_equal(encode_clip(cache, (DsviLatentSource){"b.mp4", NULL, NULL, stamp, two, 1}, &changes),
                     EVERY);
    dsvi_latent_cache_close(&cache);
    assert_ok(dsvi_latent_cache_create(scratch_path("swapped"), &settings, NULL, &cache));
    snprintf(first, sizeof first, "%s", dsvi_latent_cache_file(cache, 0));
    changes = (Changes){0};
    assert_ok(dsvi_latent_cache_update(cache, swapped, 3, hear, &changes));
    assert_int_equal(changes.windows[DSVI_LATENT_DROPPED], 0);
    assert_int_equal(changes.windows[DSVI_LATENT_MOVED], 2 * EVERY);
    assert_int_equal(changes.windows[DSVI_LATENT_SHARED], EVERY);
    assert_int_equal(dsvi_latent_cache_count(cache), 3 * EVERY);
    assert_string_equal(dsvi_latent_cache_source(cache, EVERY), "b.mp4");
    assert_string_equal(dsvi_latent_cache_file(cache, EVERY), first);
    /* the copy changes: the files that it shared stay */
    file = strdup(dsvi_latent_cache_file(cache, 0));
    assert_string_equal(dsvi_latent_cache_file(cache, 2 * EVERY), file);
    assert_int_equal(encode_clip(cache, (DsviLatentSource){"c.mp4", NULL, NULL, stamp, content_of("3"), 1},
                                 &changes),
                     EVERY);
    assert_int_equal(changes.windows[DSVI_LATENT_MOVED] + changes.windows[DSVI_LATENT_DROPPED], EVERY);
    assert_int_equal(access(file, F_OK), 0);
    for (int64_t i = 0; i < 3 * EVERY; i++)
        assert_ok(dsvi_latent_cache_check(cache, i));
    free(file);
    dsvi_latent_cache_close(&cache);
}

/* Captions with the keys of their states, in the index and after a change of the captions alone. */
static void captions_are_kept_and_brought_up_to_date(void **state)
{
    (void)state;
    DsvConfig settings = make_settings();
    DsviLatentCache *cache;
    Changes changes;
    char folder[DSVI_PATH_MAX];
    const DsviFileStamp stamp = {10, 1};
    DsviCaption two[2] = {{"one caption", content_of("k1")}, {"caf\xe9 % \"", {""}}};
    const DsviCaptions captions = {two, 2};
    snprintf(folder, sizeof folder, "%s", scratch_path("captions"));
    assert_ok(dsvi_latent_cache_create(folder, &settings, NULL, &cache));
    (void)encode_clip(cache, (DsviLatentSource){"a.mp4", &captions, NULL, stamp, content_of("one"), 1},
                      &changes);
    dsvi_latent_cache_close(&cache);
    for (int times = 0; times < 2; times++) {
        assert_ok(dsvi_latent_cache_create(folder, &settings, NULL, &cache));
        for (int64_t i = 0; i < EVERY; i++)
            assert_true(dsvi_captions_equal(dsvi_latent_cache_captions(cache, i), &captions));
        two[0].text = "another caption";
        (void)encode_clip(cache, (DsviLatentSource){"a.mp4", &captions, NULL, stamp, content_of("one"), 1},
                          &changes);
        assert_int_equal(changes.windows[DSVI_LATENT_DROPPED], 0);
        dsvi_latent_cache_close(&cache);
    }
    assert_ok(dsvi_latent_cache_create(folder, &settings, NULL, &cache));
    assert_int_equal(encode_clip(cache, (DsviLatentSource){"a.mp4", NULL, NULL, stamp, content_of("one"), 1},
                                 &changes),
                     0);
    dsvi_latent_cache_close(&cache);
    assert_ok(dsvi_latent_cache_open(folder, &settings, &cache));
    assert_int_equal(dsvi_latent_cache_captions(cache, 0)->count, 0);
    dsvi_latent_cache_close(&cache);
}

/* A cache that one VAE or text encoder made takes no windows of another. */
static void other_models_are_refused(void **state)
{
    (void)state;
    DsvConfig settings = make_settings();
    DsviLatentCache *cache;
    char folder[DSVI_PATH_MAX];
    DsviLatentModel model = {.vae = content_of("vae"), .vae_type = DSVI_BF16, .condition = true}, other, read;
    snprintf(folder, sizeof folder, "%s", scratch_path("models"));
    strcpy(settings.codec_name, "wan");
    assert_ok(dsvi_latent_cache_create(folder, &settings, &model, &cache));
    assert_string_equal(dsvi_latent_cache_model(cache)->text.folder, "");
    dsvi_latent_cache_close(&cache);
    model.text = (DsviTextStore){
        .encoder = content_of("text"), .empty = content_of(""), .dtype = DSVI_BF16, .dim = 4096};
    assert_ok(dsvi_latent_cache_create(folder, &settings, &model, &cache)); /* text is added */
    dsvi_latent_cache_close(&cache);
    for (int i = 0; i < 8; i++) {
        static const char *const WORDS[] = {"made with the VAE",
                                            "made by the VAE in BF16, expected F32",
                                            "made with the text encoder",
                                            "expected none",
                                            "made by the text encoder in BF16, expected F32",
                                            "made for image-to-video models, expected text-to-video",
                                            "made with the image encoder none",
                                            "made with 0 states of pictures for each window, expected 3"};
        other = model;
        if (i == 0)
            other.vae = content_of("another");
        else if (i == 1)
            other.vae_type = DSVI_F32;
        else if (i == 2)
            other.text.encoder = content_of("another");
        else if (i == 3)
            other.text = (DsviTextStore){0};
        else if (i == 4)
            other.text.dtype = DSVI_F32;
        else if (i == 5)
            other.condition = false;
        else if (i == 6)
            other.image_encoder = content_of("images");
        else
            other.image.rows = 3;
        assert_fails(DSV_E_USAGE, WORDS[i], dsvi_latent_cache_create(folder, &settings, &other, &cache));
        assert_non_null(strstr(dsv_error_message(), folder));
    }
    settings.codec_spatial_levels++; /* an option of the codec haar alone */
    assert_ok(dsvi_latent_cache_open(folder, &settings, &cache));
    read = *dsvi_latent_cache_model(cache);
    assert_string_equal(read.vae.hex, model.vae.hex);
    assert_string_equal(read.text.empty.hex, model.text.empty.hex);
    assert_true(read.condition && read.vae_type == DSVI_BF16 && read.text.dtype == DSVI_BF16 &&
                read.text.dim == 4096);
    assert_int_equal(strncmp(read.text.folder, folder, strlen(folder)), 0);
    dsvi_latent_cache_close(&cache);
}

/* An index of version 1, as dsv 0.2 wrote it. */
static void an_older_index_is_read(void **state)
{
    (void)state;
    static const char INDEX[] =
        "{\"format\":\"dsv-latent-cache\",\"version\":1,\"settings\":{\"codec.name\":\"haar\","
        "\"num_frames\":17,\"height\":128,\"width\":128,\"fps\":29.97,\"codec.spatial_levels\":2,"
        "\"codec.temporal_levels\":1},\"items\":[{\"source\":\"a.mp4\",\"source_bytes\":10,"
        "\"source_modified\":1,\"start\":0,\"crop_x\":0.5,\"crop_y\":0.5,\"file\":\"w.safetensors\","
        "\"xxh3\":\"%016llx\",\"shape\":[2,3,4,5],\"text\":\"a dog\"}]%s}";
    DsvConfig settings = make_settings();
    DsviLatentCache *cache;
    char text[1024], folder[DSVI_PATH_MAX];
    float latent[NUMBERS];
    uint64_t checksum;
    Changes changes;
    snprintf(folder, sizeof folder, "%s", scratch_path("older"));
    assert_ok(dsvi_folder_make(folder));
    fill(latent, 0);
    assert_ok(dsvi_latent_write(scratch_path("older/w.safetensors"), SHAPE, (DsviImageStates){0}, latent,
                                &checksum));
    snprintf(text, sizeof text, INDEX, (unsigned long long)checksum, ",\"xxh3\":\"0594a23965cedb98\"");
    assert_ok(dsvi_file_write(scratch_path("older/index.json"), text, strlen(text)));
    assert_ok(dsvi_latent_cache_create(folder, &settings, NULL, &cache));
    assert_string_equal(text_of(cache, 0), "a dog");
    assert_ok(dsvi_latent_cache_check(cache, 0));
    /* its windows are kept, and take part in what contents allow from now on */
    const DsviLatentSource source = {
        "a.mp4", dsvi_latent_cache_captions(cache, 0), NULL, {10, 1}, content_of("one"), 1};
    assert_int_equal(encode_clip(cache, source, &changes), EVERY - 1);
    dsvi_latent_cache_close(&cache);
    assert_ok(dsvi_latent_cache_create(folder, &settings, NULL, &cache));
    const DsviLatentSource moved = {"b.mp4", NULL, NULL, {10, 1}, content_of("one"), 1};
    assert_int_equal(encode_clip(cache, moved, &changes), 0);
    assert_int_equal(changes.windows[DSVI_LATENT_MOVED], EVERY);
    dsvi_latent_cache_close(&cache);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_of_a_changed_file_are_dropped),
        cmocka_unit_test(repeats_are_brought_up_to_date),
        cmocka_unit_test(windows_follow_the_contents_of_clips),
        cmocka_unit_test(a_lost_index_loses_no_windows),
        cmocka_unit_test(renamed_and_copied_clips_keep_their_windows),
        cmocka_unit_test(captions_are_kept_and_brought_up_to_date),
        cmocka_unit_test(other_models_are_refused),
        cmocka_unit_test(an_older_index_is_read),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
