/* Whole runs through dsv_train: same seed twice, stopped and resumed, one thread or two, refusals. With the
 * argument `cuda`, the same on a GPU if one is available. */
#include "test.h"

#include "run_rig.h"
#include "run/checkpoint.h"
#include "train/flow_draw.h"
#include "run/manifest.h"

static void same_seed_twice(void **state)
{
    DsvConfig settings;
    DsvTrainSummary summary;
    const char *a = tiny_folder(), *b = tiny_folder();
    (void)state;
    train_straight(&settings, a, &summary);
    assert_true(summary.sparse_blocks > 0); /* otherwise the test does not cover sparse attention */
    train_straight(&settings, b, &summary);
    same_runs(a, b);
}

/* With one clip per step its loss is in the bin of its sigma, and in no other bin. */
static void a_loss_lies_in_its_bin(void **state)
{
    DsvConfig settings;
    DsvTrainSummary summary;
    const char *folder = tiny_folder();
    (void)state;
    run_settings(&settings, folder);
    set(&settings, "train_batch_size", "1");
    assert_ok(dsv_train(&settings, NULL, &summary));
    FILE *file = open_metrics(folder);
    for (uint64_t sample = 0; sample < STEPS; sample++) {
        cJSON *line = next_line(file);
        const cJSON *bins = cJSON_GetObjectItem(line, "loss_bins");
        assert_int_equal(cJSON_GetArraySize(bins), DSVI_SIGMA_BINS);
        for (int i = 0; i < DSVI_SIGMA_BINS; i++) {
            const cJSON *bin = cJSON_GetArrayItem(bins, i);
            if (i != dsvi_sigma_bin(dsvi_flow_sigma(&settings, settings.flow_shift, sample)))
                assert_true(cJSON_IsNull(bin));
            else
                assert_true(bin->valuedouble == cJSON_GetObjectItem(line, "loss")->valuedouble);
        }
        cJSON_Delete(line);
    }
    fclose(file);
    assert_ok(dsvi_folder_remove(folder));
}

static void one_thread_or_two(void **state)
{
    DsvConfig settings;
    DsvTrainSummary summary;
    DsvEvents events = {0};
    const char *folder[2] = {tiny_folder(), tiny_folder()};
    static const char *const threads[2] = {"1", "2"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        run_settings(&settings, folder[i]);
        set(&settings, "threads", threads[i]);
        set(&settings, "data.workers", threads[i]);
        assert_ok(dsv_train(&settings, &events, &summary));
    }
    same_metrics(folder[0], folder[1]);
    tiny_same_checkpoints(folder[0], folder[1], STEPS);
    for (int i = 0; i < 2; i++)
        assert_ok(dsvi_folder_remove(folder[i]));
}

/* A run stopped once after any number of steps and resumed equals a run that was never stopped. */
static void stop_and_resume(void **state)
{
    DsvConfig settings;
    DsvTrainSummary summary;
    const char *straight = tiny_folder();
    const char *kind = *state;
    run_settings(&settings, straight);
    set(&settings, "sparse.selector", kind);
    assert_ok(dsv_train(&settings, NULL, &summary));
    for (int64_t stop = 0; stop < STEPS; stop += 3) {
        const char *folder = tiny_folder();
        Stopper stopper = {.steps = stop};
        DsvEvents events = {.context = &stopper, .stop = stop_after, .log = keep_log};
        run_settings(&settings, folder);
        set(&settings, "sparse.selector", kind);
        assert_fails(DSV_E_INTERRUPTED, "stopped after step", dsv_train(&settings, &events, &summary));
        assert_int_equal(summary.last_step, stop);
        assert_non_null(strstr(summary.checkpoint, "checkpoint-"));
        set(&settings, "resume_from_checkpoint", "latest");
        assert_ok(dsv_train(&settings, NULL, &summary));
        assert_int_equal(summary.first_step, stop);
        same_metrics(straight, folder);
        tiny_same_checkpoints(straight, folder, STEPS);
        assert_ok(dsvi_folder_remove(folder));
    }
    assert_ok(dsvi_folder_remove(straight));
}

static void offload_settings(DsvConfig *settings, const char *folder, const char *keep, const char *offload)
{
    run_settings(settings, folder);
    set(settings, "model.num_layers", "4");
    set(settings, "gradient_accumulation_steps", "2");
    set(settings, "sparse.list_memory", "0.6");
    set(settings, "gradient_checkpointing", keep);
    set(settings, "sparse.offload_lists", offload);
}

/* Lists kept on the device and lists offloaded to the host, in a run that is also resumed. */
static void lists_kept_or_offloaded(void **state)
{
    DsvConfig settings;
    DsvTrainSummary summary;
    const char *kept = tiny_folder(), *offloaded = tiny_folder(), *keep = *state;
    Stopper stopper = {.steps = 5};
    DsvEvents events = {.context = &stopper, .stop = stop_after, .log = keep_log};
    offload_settings(&settings, kept, keep, "false");
    assert_ok(dsv_train(&settings, NULL, &summary));
    assert_true(summary.sparse_blocks > 1);
    offload_settings(&settings, offloaded, keep, "true");
    assert_fails(DSV_E_INTERRUPTED, "stopped after step", dsv_train(&settings, &events, &summary));
    set(&settings, "resume_from_checkpoint", "latest");
    assert_ok(dsv_train(&settings, NULL, &summary));
    same_runs(kept, offloaded);
}

static void bad_inputs_are_named(void **state)
{
    DsvConfig settings;
    DsvTrainSummary summary;
    const char *folder = tiny_folder(), *empty = tiny_folder();
    (void)state;
    run_settings(&settings, folder);
    set(&settings, "data.path", empty);
    assert_fails(DSV_E_NOT_FOUND, empty, dsv_train(&settings, NULL, &summary));
    run_settings(&settings, "/proc/dsv-cannot-be-here");
    assert_int_not_equal(dsv_train(&settings, NULL, &summary), DSV_OK);
    assert_non_null(strstr(dsv_error_message(), "/proc/dsv-cannot-be-here"));
    run_settings(&settings, folder);
    set(&settings, "height", "33");
    assert_fails(DSV_E_SHAPE, "33", dsv_train(&settings, NULL, &summary));
    assert_ok(dsvi_folder_remove(folder));
    assert_ok(dsvi_folder_remove(empty));
}

/* The clip that a run samples at its end equals the clip sampled from its stored model: same weights, same
 * lists. */
static void a_stored_model_samples_the_same(void **state)
{
    DsvConfig settings, of_run;
    DsvTrainSummary summary;
    char video[DSVI_PATH_MAX];
    uint64_t of_training, of_storage;
    bool found;
    const char *folder = tiny_folder();
    (void)state;
    run_settings(&settings, folder);
    set(&settings, "validation_at_end", "true");
    set(&settings, "num_inference_steps", "3");
    assert_ok(dsv_train(&settings, NULL, &summary));
    assert_true(summary.sparse_blocks > 0);
    dsv_config_defaults(&of_run);
    assert_ok(dsv_config_of_run(folder, &of_run, &found));
    snprintf(video, sizeof video, "%s/again.mp4", folder);
    assert_ok(dsv_sample(folder, NULL, video, &of_run, NULL));
    assert_ok(dsvi_file_checksum(summary.sample, &of_training));
    assert_ok(dsvi_file_checksum(video, &of_storage));
    assert_true(of_training == of_storage);
    assert_ok(dsvi_folder_remove(folder));
}

/* A run can start from the model of another run, and clips can be sampled from it. */
static void a_run_is_a_model(void **state)
{
    DsvConfig settings, of_run;
    DsvTrainSummary summary;
    char path[DSVI_PATH_MAX], video[DSVI_PATH_MAX];
    bool found;
    const char *first = tiny_folder(), *second = tiny_folder();
    (void)state;
    train_straight(&settings, first, &summary);
    run_settings(&settings, second);
    snprintf(path, sizeof path, "%s/transformer/diffusion_pytorch_model.safetensors", summary.checkpoint);
    set(&settings, "model.path", path);
    set(&settings, "max_train_steps", "2");
    assert_ok(dsv_train(&settings, NULL, &summary));
    dsv_config_defaults(&of_run);
    dsv_config_defaults(&of_run);
    assert_ok(dsv_config_of_run(first, &of_run, &found));
    assert_true(found && of_run.num_frames == TINY_FRAMES);
    set(&of_run, "num_inference_steps", "2");
    snprintf(video, sizeof video, "%s/out.mp4", second);
    assert_ok(dsv_sample(first, NULL, video, &of_run, NULL));
    uint64_t bytes;
    assert_ok(dsvi_file_size(video, &bytes));
    assert_true(bytes > 0);
    assert_ok(dsvi_folder_remove(first));
    assert_ok(dsvi_folder_remove(second));
}

static void sample_to(const char *model, const char *folder, const char *name, uint64_t *checksum)
{
    DsvConfig of_run;
    char video[DSVI_PATH_MAX];
    bool found = false;
    dsv_config_defaults(&of_run);
    dsv_config_defaults(&of_run);
    assert_ok(dsv_config_of_run(model, &of_run, &found));
    assert_true(found && of_run.num_frames == TINY_FRAMES);
    set(&of_run, "num_inference_steps", "2");
    snprintf(video, sizeof video, "%s/%s", folder, name);
    assert_ok(dsv_sample(model, NULL, video, &of_run, NULL));
    assert_ok(dsvi_file_checksum(video, checksum));
}

/* Sampling from transformer_ema of a checkpoint uses the checkpoint's options and lists, with the averaged
 * weights. */
static void an_average_is_a_model(void **state)
{
    DsvConfig settings;
    DsvTrainSummary summary;
    char model[DSVI_PATH_MAX], weights[DSVI_PATH_MAX], aside[DSVI_PATH_MAX];
    uint64_t of_weights, same_weights, of_average, swapped;
    const char *folder = tiny_folder();
    (void)state;
    train_straight(&settings, folder, &summary);
    assert_true(summary.sparse_blocks > 0);
    snprintf(model, sizeof model, "%s/transformer_ema/", summary.checkpoint);
    snprintf(weights, sizeof weights, "%s/transformer", summary.checkpoint);
    snprintf(aside, sizeof aside, "%s/aside", summary.checkpoint);
    sample_to(summary.checkpoint, folder, "weights.mp4", &of_weights);
    sample_to(weights, folder, "again.mp4", &same_weights);
    sample_to(model, folder, "average.mp4", &of_average);
    assert_true(of_weights == same_weights && of_weights != of_average);
    assert_ok(dsvi_path_rename(weights, aside));
    assert_ok(dsvi_path_rename(model, weights));
    snprintf(aside, sizeof aside, "%s/manifest.json", summary.checkpoint);
    assert_int_equal(unlink(aside), 0);
    assert_ok(dsvi_manifest_write(summary.checkpoint));
    sample_to(summary.checkpoint, folder, "swapped.mp4", &swapped);
    assert_true(swapped == of_average);
    assert_ok(dsvi_folder_remove(folder));
}

/* Losses of a run in F32 with all blocks dense. */
static void losses_on(const char *name, double loss[STEPS])
{
    DsvConfig settings;
    DsvTrainSummary summary;
    const char *folder = tiny_folder();
    run_settings(&settings, folder);
    set(&settings, "device", name);
    set(&settings, "mixed_precision", "no");
    set(&settings, "sparse.enabled", "false");
    assert_ok(dsv_train(&settings, NULL, &summary));
    FILE *file = open_metrics(folder);
    for (int i = 0; i < STEPS; i++) {
        cJSON *line = next_line(file);
        loss[i] = cJSON_GetObjectItem(line, "loss")->valuedouble;
        cJSON_Delete(line);
    }
    fclose(file);
    assert_ok(dsvi_folder_remove(folder));
}

/* The same run with other kernels: only rounding differs, and the difference grows with the steps. */
static void devices_agree(void **state)
{
    double cpu[STEPS], gpu[STEPS];
    (void)state;
    losses_on("cpu", cpu);
    losses_on("cuda", gpu);
    for (int i = 0; i < STEPS; i++)
        assert_error_below(fabs(gpu[i] / cpu[i] - 1), 1e-4, "loss of step %d", i + 1);
}

static int run_cuda(void)
{
    DsvConfig settings;
    DsvTrainSummary summary;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_seed_twice),
        cmocka_unit_test_prestate(lists_kept_or_offloaded, "false"),
        cmocka_unit_test_prestate(lists_kept_or_offloaded, "selective"),
        cmocka_unit_test_prestate(lists_kept_or_offloaded, "true"),
        cmocka_unit_test(devices_agree),
        cmocka_unit_test_prestate(stop_and_resume, "projection"),
        cmocka_unit_test_prestate(stop_and_resume, "predictor"),
        cmocka_unit_test_prestate(stop_and_resume, "pooled"),
        cmocka_unit_test(a_stored_model_samples_the_same),
    };
    device = "cuda";
    run_settings(&settings, "nowhere");
    set(&settings, "data.path", "nowhere");
    if (dsv_train(&settings, NULL, &summary) == DSV_E_UNSUPPORTED) {
        fprintf(stderr, "SKIPPED: %s\n", dsv_error_message());
        return SKIPPED;
    }
    return cmocka_run_group_tests(tests, make_clips, remove_clips);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "cuda") == 0)
        return run_cuda();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_seed_twice),
        cmocka_unit_test(a_loss_lies_in_its_bin),
        cmocka_unit_test(one_thread_or_two),
        cmocka_unit_test_prestate(stop_and_resume, "projection"),
        cmocka_unit_test_prestate(stop_and_resume, "predictor"),
        cmocka_unit_test_prestate(stop_and_resume, "pooled"),
        cmocka_unit_test_prestate(lists_kept_or_offloaded, "false"),
        cmocka_unit_test_prestate(lists_kept_or_offloaded, "selective"),
        cmocka_unit_test_prestate(lists_kept_or_offloaded, "true"),
        cmocka_unit_test(bad_inputs_are_named),
        cmocka_unit_test(a_stored_model_samples_the_same),
        cmocka_unit_test(a_run_is_a_model),
        cmocka_unit_test(an_average_is_a_model),
    };
    return cmocka_run_group_tests(tests, make_clips, remove_clips);
}
