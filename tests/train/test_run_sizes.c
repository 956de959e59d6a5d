/* Whole runs on clips of several sizes: to the bit after a resume, and refused before the first step. */
#include "run_rig.h"

/* Clips of 12, 5 and 1 frames, so that three sizes have clips. */
static int make_sized_clips(void **state)
{
    static float pixels[3 * 12 * 40 * 56];
    static const int64_t SHAPES[][3] = {{12, 40, 40}, {12, 40, 40}, {12, 40, 40}, {5, 40, 56},
                                        {5, 40, 56},  {1, 40, 40},  {1, 40, 40}};
    (void)state;
    snprintf(clips, sizeof clips, "%s", tiny_folder());
    for (size_t clip = 0; clip < sizeof SHAPES / sizeof *SHAPES; clip++) {
        const int64_t *shape = SHAPES[clip];
        char path[DSVI_PATH_MAX];
        for (int64_t i = 0; i < 3 * shape[0] * shape[1] * shape[2]; i++)
            pixels[i] = (float)sin(0.3 * (double)(clip + 1) * (double)(i % shape[2]) + 0.01 * (double)i);
        snprintf(path, sizeof path, "%s/waves-%d.mp4", clips, (int)clip);
        assert_ok(dsvi_video_write(path, pixels, shape[0], shape[1], shape[2], 8));
    }
    return 0;
}

static void sized_settings(DsvConfig *settings, const char *folder)
{
    run_settings(settings, folder);
    set(settings, "data.buckets", "9x32x32,5x32x48,1x32x32");
    set(settings, "gradient_accumulation_steps", "2");
}

/* Returns the tokens of all steps of a run. */
static double tokens_of_run(const char *folder)
{
    double tokens = 0;
    FILE *metrics = open_metrics(folder);
    for (cJSON *line; (line = next_line(metrics)) != NULL; cJSON_Delete(line))
        tokens += round(cJSON_GetObjectItem(line, "tokens_per_s")->valuedouble *
                        cJSON_GetObjectItem(line, "step_ms")->valuedouble / 1000);
    fclose(metrics);
    return tokens;
}

static void a_resumed_run_has_the_same_bits(void **state)
{
    (void)state;
    DsvConfig settings;
    const char *straight = tiny_folder(), *resumed = tiny_folder();
    char path[DSVI_PATH_MAX], other[DSVI_PATH_MAX], *list;
    size_t bytes;
    uint64_t a, b;
    sized_settings(&settings, straight);
    assert_ok(dsv_train(&settings, NULL, NULL));
    sized_settings(&settings, resumed);
    Stopper stopper = {.steps = 5};
    const DsvEvents events = {.context = &stopper, .stop = stop_after};
    assert_int_equal(dsv_train(&settings, &events, NULL), DSV_E_INTERRUPTED);
    set(&settings, "resume_from_checkpoint", "latest");
    assert_ok(dsv_train(&settings, NULL, NULL));
    tiny_same_checkpoints(straight, resumed, 10);
    same_decisions(straight, resumed);
    /* the main size, which has the projection, is 5x32x48, the nearest to the settings' 5x32x32 */
    snprintf(path, sizeof path, "%s/checkpoint-10/sparse-9x32x32.safetensors", straight);
    snprintf(other, sizeof other, "%s/checkpoint-10/sparse-9x32x32.safetensors", resumed);
    assert_ok(dsvi_file_checksum(path, &a));
    assert_ok(dsvi_file_checksum(other, &b));
    assert_true(a == b);
    snprintf(path, sizeof path, "%s/inputs.csv", straight);
    assert_ok(dsvi_file_read(path, 1 << 20, &list, &bytes));
    assert_non_null(strstr(list, "waves-3.mp4\",5x32x48,1,5,5,"));
    free(list);
    /* 5 epochs of 2 batches of 80 tokens a clip, one of 72 and one of 16, with 2 clips in a batch */
    assert_true(tokens_of_run(straight) == 5 * 2 * (2 * 80 + 72 + 16));
    assert_ok(dsvi_folder_remove(straight));
    assert_ok(dsvi_folder_remove(resumed));
}

/* Each step is of one size here and shows the density of its own lists: a step of another size than the main
 * one, with 160 tokens, does not repeat the density of the step before. */
static void a_step_shows_the_density_of_its_sizes(void **state)
{
    (void)state;
    DsvConfig settings;
    const char *folder = tiny_folder();
    int others = 0, new = 0;
    double before = 1;
    sized_settings(&settings, folder);
    set(&settings, "gradient_accumulation_steps", "1");
    set(&settings, "max_train_steps", "20");
    assert_ok(dsv_train(&settings, NULL, NULL));
    FILE *metrics = open_metrics(folder);
    for (cJSON *line; (line = next_line(metrics)) != NULL; cJSON_Delete(line)) {
        double density = cJSON_GetObjectItem(line, "density")->valuedouble;
        double tokens = round(cJSON_GetObjectItem(line, "tokens_per_s")->valuedouble *
                              cJSON_GetObjectItem(line, "step_ms")->valuedouble / 1000);
        assert_true(density > 0 && density <= 1);
        if (tokens != 160 && before < 1) {
            others++;
            new += density != before;
        }
        before = density;
    }
    fclose(metrics);
    assert_true(others >= 4 && 2 * new > others); /* rarely two sizes have one density by chance */
    assert_ok(dsvi_folder_remove(folder));
}

/* Nothing is left of a run that is refused. */
static void what_cannot_be_trained_is_refused_before_a_step(void **state)
{
    (void)state;
    static const struct {
        const char *key, *value, *words;
        DsvStatus status;
    } CASES[] = {
        {"data.buckets", "9x32x32,33x32x32", "data.buckets: no clip goes to 33x32x32", DSV_E_USAGE},
        {"data.buckets", "9x32x32,5x30x32", "data.buckets: 5x30x32: ", DSV_E_SHAPE},
        {"data.buckets", "9x32", "'9x32' is no size", DSV_E_USAGE},
        {"height", "36", "height=36, expected a multiple of 8", DSV_E_SHAPE}, /* of sampled clips */
        {"sparse.selector", "predictor", "sparse.selector is predictor", DSV_E_UNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        DsvConfig settings;
        const char *folder = tiny_folder();
        char path[DSVI_PATH_MAX];
        sized_settings(&settings, folder);
        set(&settings, "validation_at_end", "true");
        set(&settings, CASES[i].key, CASES[i].value);
        assert_fails(CASES[i].status, CASES[i].words, dsv_train(&settings, NULL, NULL));
        snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
        assert_false(dsvi_path_exists(path));
        assert_ok(dsvi_folder_remove(folder));
    }
}

static void ignore_line(void *context, const char *line)
{
    (void)context;
    (void)line;
}

/* A dry run knows how many ranks share a clip, although it plans one rank. */
static void a_dry_run_refuses_other_sizes_of_ranks_that_share_a_clip(void **state)
{
    DsvConfig settings;
    (void)state;
    sized_settings(&settings, "nowhere");
    set(&settings, "cp_size", "2");
    assert_fails(DSV_E_UNSUPPORTED, "data.buckets has 3 sizes and 2 ranks share a clip",
                 dsv_train_preview(&settings, ignore_line, NULL));
    set(&settings, "data.path", "");
    set(&settings, "data.buckets", "9x32x32");
    set(&settings, "num_frames", "5");
    set(&settings, "validation_at_end", "true");
    assert_fails(DSV_E_UNSUPPORTED, "the size 9x32x32, sampled and held-out clips have 5x32x32",
                 dsv_train_preview(&settings, ignore_line, NULL));
    set(&settings, "num_frames", "9");
    assert_ok(dsv_train_preview(&settings, ignore_line, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_dry_run_refuses_other_sizes_of_ranks_that_share_a_clip),
        cmocka_unit_test(a_resumed_run_has_the_same_bits),
        cmocka_unit_test(a_step_shows_the_density_of_its_sizes),
        cmocka_unit_test(what_cannot_be_trained_is_refused_before_a_step),
    };
    return cmocka_run_group_tests(tests, make_sized_clips, remove_clips);
}
