/* Whole runs that train a LoRA: the loss falls, the LoRA's file gives the loss of the run when it is merged,
 * a stopped and resumed run equals one without a stop. */
#include "test.h"

#include "base/safetensors.h"
#include "run_rig.h"

static char base[DSVI_PATH_MAX]; /* a trained model, beside whose weights the tests train LoRAs */

static void lora_settings(DsvConfig *settings, const char *folder)
{
    run_settings(settings, folder);
    set(settings, "model.path", base);
    set(settings, "lora_rank", "4");
    set(settings, "lora_alpha", "8");
    set(settings, "lr", "1e-2");
    set(settings, "validation.data", clips);
    set(settings, "validation.clips", "2");
    set(settings, "num_inference_steps", "2");
}

static int make_base(void **state)
{
    DsvConfig settings;
    if (make_clips(state) != 0)
        return 1;
    snprintf(base, sizeof base, "%s", tiny_folder());
    run_settings(&settings, base);
    set(&settings, "max_train_steps",
        "60"); /* the head of a new model is zero, and hides what blocks compute */
    return dsv_train(&settings, NULL, NULL) == DSV_OK ? 0 : 1;
}

static int remove_base(void **state)
{
    return dsvi_folder_remove(base) == DSV_OK ? remove_clips(state) : 1;
}

static void file_in(char path[DSVI_PATH_MAX], const char *folder, const char *file)
{
    snprintf(path, DSVI_PATH_MAX, "%s/checkpoint-%d/%s", folder, STEPS, file);
}

static void same_bytes(const char *folder_a, const char *folder_b, const char *file)
{
    char path[DSVI_PATH_MAX];
    uint64_t a, b;
    file_in(path, folder_a, file);
    assert_ok(dsvi_file_checksum(path, &a));
    file_in(path, folder_b, file);
    assert_ok(dsvi_file_checksum(path, &b));
    if (a != b)
        fail_msg("%s differs", file);
}

static void same_lora_runs(const char *folder_a, const char *folder_b)
{
    static const char *const FILES[] = {
        "lora.safetensors",
        "lora_ema.safetensors",
        "sparse.safetensors",
        "optimizer/exp_avg.safetensors",
        "optimizer/ema.safetensors",
        "optimizer/exp_avg_sq.safetensors",
        "optimizer/weight.safetensors",
    };
    same_metrics(folder_a, folder_b);
    for (size_t i = 0; i < sizeof FILES / sizeof *FILES; i++)
        same_bytes(folder_a, folder_b, FILES[i]);
}

/* The last held-out loss on record in a run folder. */
static double last_held_out_loss(const char *folder)
{
    char path[DSVI_PATH_MAX];
    double loss = NAN;
    snprintf(path, sizeof path, "%s/validation.jsonl", folder);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    for (cJSON *line = next_line(file); line; line = next_line(file)) {
        const cJSON *value = cJSON_GetObjectItem(line, "loss");
        loss = cJSON_IsNumber(value) ? value->valuedouble : NAN;
        cJSON_Delete(line);
    }
    fclose(file);
    return loss;
}

/* The held-out loss of a model, from a run whose learning rate is 0. */
static double held_out_loss(const char *model)
{
    DsvConfig settings;
    const char *folder = tiny_folder();
    run_settings(&settings, folder);
    set(&settings, "model.path", model);
    set(&settings, "lr", "0");
    set(&settings, "max_train_steps", "1");
    set(&settings, "sparse.enabled", "false");
    set(&settings, "validation.data", clips);
    set(&settings, "validation.clips", "2");
    set(&settings, "validation_at_end", "true");
    set(&settings, "num_inference_steps", "1");
    assert_ok(dsv_train(&settings, NULL, NULL));
    double loss = last_held_out_loss(folder);
    assert_ok(dsvi_folder_remove(folder));
    return loss;
}

/* Samples a clip of `model` to a file in `folder`, with the LoRA times `scale` unless `lora` is NULL. */
static void sample_to(const char *model, const char *lora, double scale, const char *folder, char path[128])
{
    static int number;
    DsvConfig settings;
    DsvSampleArgs args;
    run_settings(&settings, folder);
    set(&settings, "num_inference_steps", "2");
    set(&settings, "sparse.enabled",
        "false"); /* the sparse state of a checkpoint is not part of the merged model */
    snprintf(path, 128, "%s/sample-%d.safetensors", folder, number++);
    dsv_sample_args_defaults(&args);
    args.model_path = model;
    args.output_path = path;
    args.lora_paths = &lora;
    args.lora_scales = &scale;
    args.lora_count = lora ? 1 : 0;
    assert_ok(dsv_sample_clips(&args, &settings, NULL));
}

static bool same_video(const char *path_a, const char *path_b)
{
    DsviSafetensors *a, *b;
    assert_ok(dsvi_safetensors_open(path_a, &a));
    assert_ok(dsvi_safetensors_open(path_b, &b));
    const DsviStoredTensor *x = dsvi_safetensors_find(a, "video"), *y = dsvi_safetensors_find(b, "video");
    assert_non_null(x);
    assert_non_null(y);
    bool same = x->bytes == y->bytes && memcmp(x->data, y->data, x->bytes) == 0;
    dsvi_safetensors_close(&a);
    dsvi_safetensors_close(&b);
    return same;
}

/* A model sampled with a LoRA gives the bits of the model to which the LoRA has been added with the same
 * scale, and other bits than the model alone. */
static void same_samples(const char *model, const char *lora, const char *folder)
{
    char with[128], alone[128], of_merged[128], merged[DSVI_PATH_MAX];
    snprintf(merged, sizeof merged, "%s", tiny_folder());
    assert_ok(dsv_lora_merge(model, lora, 0.7, merged));
    sample_to(model, lora, 0.7, folder, with);
    sample_to(model, NULL, 0, folder, alone);
    sample_to(merged, NULL, 0, folder, of_merged);
    assert_true(same_video(with, of_merged));
    assert_false(same_video(with, alone));
    assert_ok(dsvi_folder_remove(merged));
}

/* The model with the merged LoRA has the held-out loss that the run has measured, but for the rounding of the
 * file to BF16, and a lower one than the model alone. */
static void a_merged_lora_has_the_loss_of_its_run(void **state)
{
    DsvConfig settings;
    const char *folder = tiny_folder(), *merged = tiny_folder();
    char checkpoint[DSVI_PATH_MAX], lora[DSVI_PATH_MAX];
    (void)state;
    lora_settings(&settings, folder);
    set(&settings, "sparse.enabled", "false");
    set(&settings, "validation_at_end", "true");
    assert_ok(dsv_train(&settings, NULL, NULL));
    file_in(lora, folder, "lora.safetensors");
    snprintf(checkpoint, sizeof checkpoint, "%s/checkpoint-60/transformer", base);
    assert_ok(dsv_lora_merge(checkpoint, lora, 1, merged));
    double before = held_out_loss(checkpoint), after = held_out_loss(merged),
           run = last_held_out_loss(folder);
    print_message("held-out loss: model %.5f, run with the LoRA %.5f, merged %.5f\n", before, run, after);
    same_samples(checkpoint, lora, folder);
    assert_true(after < 0.998 * before);
    assert_error_below(fabs(after / run - 1), 3e-4, "loss of the merged model");
    assert_ok(dsvi_folder_remove(folder));
    assert_ok(dsvi_folder_remove(merged));
}

static void a_resumed_run_equals_one_without_a_stop(void **state)
{
    DsvConfig settings;
    DsvTrainSummary summary;
    const char *straight = tiny_folder(), *folder = tiny_folder();
    Stopper stopper = {.steps = 5};
    DsvEvents events = {.context = &stopper, .stop = stop_after, .log = keep_log};
    (void)state;
    lora_settings(&settings, straight);
    set(&settings, "lora_dropout", "0.2");
    assert_ok(dsv_train(&settings, NULL, &summary));
    lora_settings(&settings, folder);
    set(&settings, "lora_dropout", "0.2");
    assert_fails(DSV_E_INTERRUPTED, "stopped after step", dsv_train(&settings, &events, &summary));
    set(&settings, "resume_from_checkpoint", "latest");
    assert_ok(dsv_train(&settings, NULL, &summary));
    assert_int_equal(summary.first_step, 5);
    same_lora_runs(straight, folder);
    set(&settings, "lora_rank", "2");
    assert_fails(DSV_E_USAGE, "was trained with lora_rank=4, this run has lora_rank=2",
                 dsv_train(&settings, NULL, &summary));
    set(&settings, "lora_dropout", "0");
    set(&settings, "lora_rank", "0");
    assert_fails(DSV_E_USAGE, "was trained with lora_rank=4, this run has lora_rank=0",
                 dsv_train(&settings, NULL, &summary));
    assert_ok(dsvi_folder_remove(straight));
    assert_ok(dsvi_folder_remove(folder));
}

/* Opens a file of exact matrices of the checkpoint of `step`. */
static DsviSafetensors *open_matrices(const char *folder, int step, const char *file)
{
    char path[DSVI_PATH_MAX];
    DsviSafetensors *out;
    snprintf(path, sizeof path, "%s/checkpoint-%d/optimizer/%s.safetensors", folder, step, file);
    assert_ok(dsvi_safetensors_open(path, &out));
    return out;
}

/* Checks e += (1 - decay) (w - e) from one step to the next for every number of every matrix. */
static void check_average_of_step(const char *folder, int step, double decay)
{
    DsviSafetensors *before = open_matrices(folder, step - 1, "ema");
    DsviSafetensors *weight = open_matrices(folder, step, "weight"),
                    *after = open_matrices(folder, step, "ema");
    double moved = 0;
    assert_true(dsvi_safetensors_count(weight) > 0);
    for (size_t i = 0; i < dsvi_safetensors_count(weight); i++) {
        const float *w = dsvi_safetensors_at(weight, i)->data;
        const float *e = dsvi_safetensors_at(before, i)->data, *got = dsvi_safetensors_at(after, i)->data;
        for (int64_t n = 0; n < dsvi_safetensors_at(weight, i)->count; n++) {
            double expected = e[n] + (1 - decay) * ((double)w[n] - e[n]);
            assert_error_below(fabs(got[n] - expected), 1e-6, "moving average");
            moved += fabs((double)got[n] - e[n]);
        }
    }
    assert_true(moved > 0);
    dsvi_safetensors_close(&before);
    dsvi_safetensors_close(&weight);
    dsvi_safetensors_close(&after);
}

/* With every optimizer the matrices are trained, and their moving average follows its definition. */
static void averages_follow_the_matrices(void **state)
{
    static const char *const OPTIMIZER[] = {"adamw", "adamw_bf16", "adamw_8bit", "muon"};
    (void)state;
    for (size_t i = 0; i < sizeof OPTIMIZER / sizeof *OPTIMIZER; i++) {
        DsvConfig settings;
        DsvTrainSummary summary;
        const char *folder = tiny_folder();
        lora_settings(&settings, folder);
        set(&settings, "optimizer", OPTIMIZER[i]);
        set(&settings, "max_train_steps", "4");
        set(&settings, "checkpointing_steps", "1");
        set(&settings, "checkpoints_total_limit", "0");
        set(&settings, "ema_decay", "0.75");
        assert_ok(dsv_train(&settings, NULL, &summary));
        for (int step = 2; step <= 4; step++)
            check_average_of_step(folder, step, 0.75);
        assert_ok(dsvi_folder_remove(folder));
    }
}

/* With the frozen weights in 8 bits the loss stays close to the loss with BF16, and a resumed run has the
 * bits of one without a stop. */
static void frozen_weights_in_8_bits(void **state)
{
    DsvConfig settings;
    DsvTrainSummary exact, straight_summary, summary;
    const char *folder = tiny_folder(), *straight = tiny_folder(), *resumed = tiny_folder();
    Stopper stopper = {.steps = 5};
    DsvEvents events = {.context = &stopper, .stop = stop_after, .log = keep_log};
    (void)state;
    lora_settings(&settings, folder);
    assert_ok(dsv_train(&settings, NULL, &exact));
    lora_settings(&settings, straight);
    set(&settings, "base_precision", "fp8");
    assert_ok(dsv_train(&settings, NULL, &straight_summary));
    assert_true(straight_summary.last_loss != exact.last_loss);
    assert_error_below(fabs(straight_summary.last_loss / exact.last_loss - 1), 0.05, "loss with 8 bits");
    lora_settings(&settings, resumed);
    set(&settings, "base_precision", "fp8");
    assert_fails(DSV_E_INTERRUPTED, "stopped after step", dsv_train(&settings, &events, &summary));
    set(&settings, "resume_from_checkpoint", "latest");
    assert_ok(dsv_train(&settings, NULL, &summary));
    same_lora_runs(straight, resumed);
    assert_ok(dsvi_folder_remove(folder));
    assert_ok(dsvi_folder_remove(straight));
    assert_ok(dsvi_folder_remove(resumed));
}

/* Lets dsv choose what waits in host memory, with the least limit, which the refusal of a lower one names. */
static void plan_in_least_memory(DsvConfig *settings)
{
    static const char WANTS[] = "the run wants at least ";
    char limit[32];
    set(settings, "offload", "auto");
    set(settings, "memory_gib", "1e-6");
    assert_fails(DSV_E_NO_MEMORY, WANTS, dsv_train(settings, NULL, NULL));
    double least = strtod(strstr(dsv_error_message(), WANTS) + strlen(WANTS), NULL);
    snprintf(limit, sizeof limit, "%.6f", least);
    set(settings, "memory_gib", limit);
}

/* With the frozen weights in host memory, or the LoRA's optimizer state, which the CPU then updates, a run
 * has the bits of one with all on the device: its steps, held-out losses and clips, and the steps after a
 * stop, also if dsv then chooses what waits. The model has more blocks than there are slots for them. */
static void frozen_weights_in_host_memory(void **state)
{
    static const char *const FORMS[][4] = {{"bf16", "selective", "weights", "auto"},
                                           {"fp8", "true", "weights+residual", "auto"},
                                           {"bf16", "selective", "states", "host"}};
    DsvConfig settings;
    char deep[DSVI_PATH_MAX];
    (void)state;
    snprintf(deep, sizeof deep, "%s", tiny_folder());
    run_settings(&settings, deep);
    set(&settings, "model.num_layers", "5");
    set(&settings, "max_train_steps", "3");
    assert_ok(dsv_train(&settings, NULL, NULL));
    for (size_t i = 0; i < sizeof FORMS / sizeof *FORMS; i++) {
        const char *kept = tiny_folder(), *lent = tiny_folder();
        Stopper stopper = {.steps = 5};
        DsvEvents events = {.context = &stopper, .stop = stop_after, .log = keep_log};
        lora_settings(&settings, kept);
        set(&settings, "model.path", deep);
        set(&settings, "base_precision", FORMS[i][0]);
        set(&settings, "gradient_checkpointing", FORMS[i][1]);
        set(&settings, "validation_at_end", "true");
        assert_ok(dsv_train(&settings, NULL, NULL));
        set(&settings, "output_dir", lent);
        set(&settings, "offload", FORMS[i][2]);
        set(&settings, "offload_update", FORMS[i][3]);
        assert_fails(DSV_E_INTERRUPTED, "stopped after step", dsv_train(&settings, &events, NULL));
        set(&settings, "resume_from_checkpoint", "latest");
        if (i == 1)
            plan_in_least_memory(&settings);
        assert_ok(dsv_train(&settings, NULL, NULL));
        same_lora_runs(kept, lent);
        assert_true(last_held_out_loss(kept) == last_held_out_loss(lent));
        assert_ok(dsvi_folder_remove(kept));
        assert_ok(dsvi_folder_remove(lent));
    }
    assert_ok(dsvi_folder_remove(deep));
}

static void wrong_settings_are_refused(void **state)
{
    DsvConfig settings;
    const char *folder = tiny_folder();
    (void)state;
    lora_settings(&settings, folder);
    set(&settings, "model.path", "");
    assert_fails(DSV_E_USAGE, "lora_rank is 4 and model.path is empty", dsv_train(&settings, NULL, NULL));
    lora_settings(&settings, folder);
    set(&settings, "lora_target_modules", "q,w");
    assert_fails(DSV_E_USAGE, "no linear layer of the blocks is called w", dsv_train(&settings, NULL, NULL));
    static const char *const OPTIONS[][2] = {
        {"lora_alpha", "8"}, {"lora_dropout", "0.1"}, {"lora_target_modules", "q,k"}};
    for (size_t i = 0; i < sizeof OPTIONS / sizeof *OPTIONS; i++) {
        char sentence[80];
        run_settings(&settings, folder);
        set(&settings, OPTIONS[i][0], OPTIONS[i][1]);
        snprintf(sentence, sizeof sentence, "lora_rank is 0 and %s is given", OPTIONS[i][0]);
        assert_fails(DSV_E_USAGE, sentence, dsv_train(&settings, NULL, NULL));
    }
    run_settings(&settings, folder);
    set(&settings, "base_precision", "fp8");
    assert_fails(DSV_E_USAGE, "base_precision is fp8 and lora_rank is 0", dsv_train(&settings, NULL, NULL));
    assert_ok(dsvi_folder_remove(folder));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_merged_lora_has_the_loss_of_its_run),
        cmocka_unit_test(a_resumed_run_equals_one_without_a_stop),
        cmocka_unit_test(averages_follow_the_matrices),
        cmocka_unit_test(frozen_weights_in_8_bits),
        cmocka_unit_test(frozen_weights_in_host_memory),
        cmocka_unit_test(wrong_settings_are_refused),
    };
    return cmocka_run_group_tests(tests, make_base, remove_base);
}
