/* Data sets of several sources: how data.path names them, and which share of the samples each has. */
#include "data/dataset_sources.h"

#include "base/scratch.h"
#include "clip_maker.h"
#include "data/dataset_sizes.h"
#include "data/latent_cache.h"

enum { ROWS = 2, DIM = 3 };

static const DsviClipSteps STEPS = {1, 8};

/* Makes folders of one, two and five clips, and a list of two of them. */
static int make_sources(void **state)
{
    static const char *const CLIPS[] = {"one/a.mp4",  "two/b.mp4",  "two/c.mp4",  "five/d.mp4",
                                        "five/e.mp4", "five/f.mp4", "five/g.mp4", "five/h.mp4"};
    if (scratch_make(state) != 0)
        return 1;
    assert_ok(dsvi_folder_make(scratch_path("one")));
    assert_ok(dsvi_folder_make(scratch_path("two")));
    assert_ok(dsvi_folder_make(scratch_path("five")));
    for (size_t i = 0; i < sizeof CLIPS / sizeof *CLIPS; i++)
        make_ramp(scratch_path(CLIPS[i]), i < 1 ? 12 : 4, 32, 32, 16);
    write_text(scratch_path("two/b.txt"), "b moves");
    write_text(scratch_path("list.csv"), "path,weight\ntwo/b.mp4,3\ntwo/c.mp4,1\n");
    return 0;
}

static DsvConfig settings_of(void)
{
    DsvConfig settings;
    dsv_config_defaults(&settings);
    settings.num_frames = 4;
    settings.height = settings.width = 32;
    return settings;
}

/* Returns `text` with each @ replaced by the scratch folder and a slash. */
static const char *paths(const char *text)
{
    static char out[4 * DSVI_PATH_MAX];
    char *end = out;
    *end = 0;
    for (; *text; text++)
        end += *text == '@' ? sprintf(end, "%s/", scratch_folder) : sprintf(end, "%c", *text);
    return out;
}

static void check_sources(const char *text, const char *wanted)
{
    DsviDataSource sources[DSVI_DATA_SOURCES_MAX];
    int64_t count;
    char found[4 * DSVI_PATH_MAX] = "", *end = found;
    assert_ok(dsvi_data_sources_parse(paths(text), sources, &count));
    for (int64_t i = 0; i < count; i++)
        end += sprintf(end, "%s|%g|%d;", sources[i].path, sources[i].weight, (int)sources[i].repeats);
    assert_string_equal(found, paths(wanted));
}

static void check_refused(DsvStatus status, const char *text, const char *words)
{
    DsviDataSource sources[DSVI_DATA_SOURCES_MAX];
    int64_t count;
    assert_fails(status, words, dsvi_data_sources_parse(paths(text), sources, &count));
}

static void sources_have_weights_or_repeats(void **state)
{
    (void)state;
    check_sources("@one", "@one|0|1;");
    check_sources("@one,@two", "@one|0|1;@two|0|1;");
    check_sources("@one:0.7, @two/b.mp4:3e-1", "@one|0.7|1;@two/b.mp4|0.3|1;");
    check_sources("@one:x10,@two", "@one|0|10;@two|0|1;");
    check_sources("@one:2", "@one|2|1;");
    /* the names of files may have colons and commas */
    assert_ok(dsvi_folder_make(scratch_path("odd:0.5")));
    assert_ok(dsvi_folder_make(scratch_path("odd,one")));
    check_sources("@odd:0.5", "@odd:0.5|0|1;");
    check_sources("@odd:0.5:2,@one:1", "@odd:0.5|2|1;@one|1|1;");
    check_sources("@odd,one", "@odd,one|0|1;");
}

static void wrong_sources_are_refused(void **state)
{
    (void)state;
    char many[DSV_TEXT_MAX + 8] = "";
    check_refused(DSV_E_USAGE, "", "data.path is empty");
    check_refused(DSV_E_NOT_FOUND, "@none", "/none: no such file or folder");
    check_refused(DSV_E_NOT_FOUND, "@one:0.5,@none:0.5", "/none:0.5: no such file or folder");
    check_refused(DSV_E_USAGE, "@one,,@two", "a source of the list is empty");
    check_refused(DSV_E_USAGE, "@one,", "a source of the list is empty");
    check_refused(DSV_E_USAGE, "@one:0,@two:1", "/one:0: the weight is '0', expected a number above 0");
    check_refused(DSV_E_USAGE, "@one:-1,@two:1", "the weight is '-1'");
    check_refused(DSV_E_USAGE, "@one:nan,@two:1", "the weight is 'nan'");
    check_refused(DSV_E_USAGE, "@one:,@two:1", "the weight is ''");
    check_refused(DSV_E_USAGE, "@one:much,@two:1", "the weight is 'much'");
    check_refused(DSV_E_USAGE, "@one:x0,@two",
                  "repeats are 'x0', expected x and a whole number from 1 to 1000000");
    check_refused(DSV_E_USAGE, "@one:x1.5,@two", "repeats are 'x1.5'");
    check_refused(DSV_E_USAGE, "@one:0.5,@two", "/one has a weight and ");
    check_refused(DSV_E_USAGE, "@one:x2,@two:0.5", "/two has a weight and ");
    check_refused(DSV_E_USAGE, "@one:1,@two:1,@one:2", "/one are the same source, expected each source once");
    check_refused(DSV_E_USAGE, "@one,@one/", "/one/ are the same source");
    check_refused(DSV_E_USAGE, "@one/a.mp4,@two,@two/../one/./a.mp4:x3", "/two/../one/./a.mp4 are the same");
    assert_int_equal(symlink(scratch_path("one"), scratch_path("link")), 0);
    check_refused(DSV_E_USAGE, "@link,@two,@one", "/one are the same source");
    remove(scratch_path("link"));
    for (int i = 0; i <= DSVI_DATA_SOURCES_MAX; i++)
        strcat(many, i ? ",/" : "/");
    check_refused(DSV_E_USAGE, many, "more than 64 sources");
    memset(many, 'a', DSV_TEXT_MAX);
    check_refused(DSV_E_USAGE, many, "longer than 1023 bytes");
}

static DsviDataset *open_sources(const char *text, const DsvConfig *settings, bool expand)
{
    DsviDataset *d;
    assert_ok(dsvi_dataset_open(paths(text), settings, &d));
    assert_ok(dsvi_dataset_assign(d, settings, &STEPS, expand));
    return d;
}

/* Counts the samples of the second epoch of each source. */
static void count_samples(const DsviDataset *d, const DsvConfig *settings, int64_t *of_source)
{
    uint64_t epoch = dsvi_dataset_epoch_batches(d, settings);
    memset(of_source, 0, (size_t)d->source_count * sizeof *of_source);
    for (uint64_t i = epoch; i < 2 * epoch; i++)
        of_source[d->items[dsvi_dataset_sample(d, settings, i).item].from]++;
}

/* The samples of an epoch come from the sources in proportion to their weights, whatever the number of their
 * clips. A list divides its share among its clips by its own weights. */
static void sources_have_their_share(void **state)
{
    (void)state;
    DsvConfig settings = settings_of();
    int64_t used[3];
    DsviDataset *d = open_sources("@one:0.5,@five:0.5", &settings, true);
    count_samples(d, &settings, used);
    assert_true(used[0] == 5 && used[1] == 5);
    dsvi_dataset_close(&d);

    d = open_sources("@one:0.7,@two:0.2,@five:0.1", &settings, true);
    count_samples(d, &settings, used);
    assert_true(used[0] == 7 * used[2] && used[1] == 2 * used[2]);
    dsvi_dataset_close(&d);

    d = open_sources("@list.csv:0.5,@one:0.5", &settings, true);
    assert_true(d->items[0].repeats == 3 && d->items[1].repeats == 1 && d->items[2].repeats == 4);
    dsvi_dataset_close(&d);

    d = open_sources("@one:x10,@two", &settings, true);
    assert_true(d->items[0].repeats == 10 && d->items[1].repeats == 1 && d->items[2].repeats == 1);
    assert_string_equal(d->items[1].captions.at[0].text, "b moves");
    dsvi_dataset_close(&d);

    d = open_sources("@one,@two", &settings, true);
    assert_null(d->order);
    assert_int_equal(d->count, 3);
    dsvi_dataset_close(&d);
}

/* Windows count as samples: the clip of source one gives three, each of the five others gives one. A clip
 * that is left out takes nothing from the share of its source. */
static void windows_and_clips_left_out_do_not_change_shares(void **state)
{
    (void)state;
    DsvConfig settings = settings_of();
    int64_t used[2];
    snprintf(settings.data_windows, sizeof settings.data_windows, "all");
    write_text(scratch_path("five/broken.mp4"), "no clip");
    DsviDataset *d = open_sources("@one:1,@five:1", &settings, true);
    assert_int_equal(d->count, 8);
    count_samples(d, &settings, used);
    assert_true(used[0] == used[1] && used[0] == 15);
    dsvi_dataset_close(&d);

    d = open_sources("@one:1,@five:1", &settings, false); /* as dsv encode does */
    assert_int_equal(d->count, 6);
    assert_true(d->items[0].windows == 3 && d->items[0].repeats == 5 && d->items[1].repeats == 3);
    dsvi_dataset_close(&d);
    remove(scratch_path("five/broken.mp4"));
}

static void collect_line(void *context, const char *line)
{
    strcat(strcat(context, line), "\n");
}

static void sources_are_described(void **state)
{
    (void)state;
    DsvConfig settings = settings_of();
    char text[2048] = "";
    DsviDataset *d = open_sources("@one:0.7,@two:0.3", &settings, true);
    dsvi_dataset_sources_report(d, collect_line, text);
    assert_non_null(strstr(text, "one: 1 clips, weight 0.7, 14 samples an epoch, 70.0 % of all\n"));
    assert_non_null(strstr(text, "two: 2 clips, weight 0.3, 6 samples an epoch, 30.0 % of all\n"));
    dsvi_dataset_close(&d);
    text[0] = 0;
    d = open_sources("@one:x2,@two", &settings, true);
    dsvi_dataset_sources_report(d, collect_line, text);
    assert_non_null(strstr(text, "one: 1 clips, repeats 2, 2 samples an epoch, 50.0 % of all\n"));
    dsvi_dataset_close(&d);
    text[0] = 0;
    d = open_sources("@one", &settings, true);
    dsvi_dataset_sources_report(d, collect_line, text);
    assert_string_equal(text, "");
    dsvi_dataset_close(&d);
}

static void sources_that_cannot_be_mixed_are_refused(void **state)
{
    (void)state;
    DsvConfig settings = settings_of();
    DsviDataset *d;
    assert_ok(dsvi_folder_make(scratch_path("empty")));
    assert_fails(DSV_E_NOT_FOUND, "/empty: no usable clip in it",
                 dsvi_dataset_open(paths("@one:0.5,@empty:0.5"), &settings, &d));
    write_text(scratch_path("often.csv"), "path,repeats\none/a.mp4,500000\n");
    assert_fails(DSV_E_USAGE, "one/a.mp4: 3 x 500000 repeats, expected at most 1000000",
                 dsvi_dataset_open(paths("@often.csv:x3,@two"), &settings, &d));
    assert_ok(dsvi_dataset_open(paths("@one:1,@five:1e-7"), &settings, &d));
    assert_fails(DSV_E_USAGE, "data.path: weights of single clips from ",
                 dsvi_dataset_assign(d, &settings, &STEPS, true));
    dsvi_dataset_close(&d);
    make_ramp(scratch_path("empty/wide.mp4"), 2, 32, 64, 16);
    snprintf(settings.data_buckets, sizeof settings.data_buckets, "4x32x32");
    assert_ok(dsvi_dataset_open(paths("@one:0.5,@empty:0.5"), &settings, &d));
    assert_fails(DSV_E_NOT_FOUND, "/empty: none of its clips can be used, and its weight is 0.5",
                 dsvi_dataset_assign(d, &settings, &STEPS, true));
    dsvi_dataset_close(&d);
}

/* A clip in two sources counts in both, which the user is told. Clips that a list names twice are not meant.
 */
static void clips_in_two_sources_are_told(void **state)
{
    (void)state;
    DsvConfig settings = settings_of();
    write_text(scratch_path("again.csv"), "path\none/a.mp4\ntwo/../two/c.mp4\none/a.mp4\n");
    DsviDataset *d = open_sources("@again.csv,@two,@list.csv", &settings, true);
    assert_int_equal(d->count, 7);
    assert_int_equal(d->remark_count, 1);
    assert_non_null(
        strstr(d->remarks[0], "clips that are in more than one source of data.path: 2, the first: "));
    assert_non_null(strstr(d->remarks[0], paths("two/../two/c.mp4, in @again.csv and @two")));
    dsvi_dataset_close(&d);
    d = open_sources("@again.csv,@five", &settings, true);
    assert_int_equal(d->remark_count, 0);
    dsvi_dataset_close(&d);
}

/* Writes a cache of one window, whose caption has states that begin with `first`. */
static void make_cache(const char *name, const char *vae, float first)
{
    const DsvConfig settings = settings_of();
    const DsviClipWindow window = {0, settings.fps, 4, 32, 32, 0.5, 0.5};
    const int64_t shape[4] = {1, 1, 2, 2};
    float latent[4] = {0}, rows[ROWS * DIM] = {first};
    DsviLatentModel model = {.vae = dsvi_hash_key_of(vae, strlen(vae)),
                             .text = {.encoder = dsvi_hash_key_of("text", 4), .dim = DIM}};
    DsviLatentCache *cache;
    char clip[64];
    snprintf(clip, sizeof clip, "%s.mp4", name);
    model.text.empty = dsvi_text_states_key(&model.text, (const int32_t[]){1}, 1);
    DsviCaption caption = {.text = "moves", .states = model.text.empty};
    const DsviLatentSource source = {.path = clip, .captions = &(const DsviCaptions){&caption, 1}};
    assert_ok(dsvi_latent_cache_create(scratch_path(name), &settings, &model, &cache));
    assert_ok(dsvi_text_states_write(&dsvi_latent_cache_model(cache)->text, &model.text.empty, ROWS, rows));
    assert_ok(dsvi_latent_cache_put(cache, &source, &window, shape, latent));
    dsvi_latent_cache_close(&cache);
}

/* Several caches are one data set if one model made them; each has its own text states. */
static void caches_of_one_model_are_sources(void **state)
{
    (void)state;
    DsvConfig settings = settings_of();
    DsviDataset *d;
    make_cache("cache-a", "vae", 1);
    make_cache("cache-b", "vae", 2);
    make_cache("cache-c", "other", 3);
    d = open_sources("@cache-a:0.25,@cache-b:0.75", &settings, true);
    assert_true(d->latents && d->count == 2);
    assert_true(d->items[0].repeats == 1 && d->items[1].repeats == 3);
    for (int64_t i = 0; i < 2; i++) {
        float rows[ROWS * DIM];
        int64_t count;
        for (int64_t caption = -1; caption < 1; caption++) {
            assert_ok(dsvi_dataset_text_states(d, i, caption, ROWS, rows, &count));
            assert_true(count == ROWS && rows[0] == (float)(i + 1));
        }
    }
    dsvi_dataset_close(&d);
    assert_fails(DSV_E_USAGE, "/cache-c was made by another VAE than ",
                 dsvi_dataset_open(paths("@cache-a,@cache-c"), &settings, &d));
    assert_fails(DSV_E_USAGE, "/cache-a is a latent cache and ",
                 dsvi_dataset_open(paths("@cache-a,@one"), &settings, &d));
    assert_fails(DSV_E_USAGE, "/cache-a is a latent cache and ",
                 dsvi_dataset_open(paths("@list.csv,@cache-a"), &settings, &d));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sources_have_weights_or_repeats),
        cmocka_unit_test(wrong_sources_are_refused),
        cmocka_unit_test(sources_have_their_share),
        cmocka_unit_test(windows_and_clips_left_out_do_not_change_shares),
        cmocka_unit_test(sources_are_described),
        cmocka_unit_test(sources_that_cannot_be_mixed_are_refused),
        cmocka_unit_test(clips_in_two_sources_are_told),
        cmocka_unit_test(caches_of_one_model_are_sources),
    };
    return cmocka_run_group_tests(tests, make_sources, scratch_remove);
}
