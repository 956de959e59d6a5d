/* dsv_train with a published model: clips and captions are encoded before the first step, the LoRA is trained
 * with text, and data that does not fit is refused. */
#include "train_wan_case.h"

#include "backend/backend.h"
#include "data/clip.h"
#include "run/preview.h"

/* The commands of a user: train on a folder of clips, train again from the same cache, sample with the LoRA.
 */
static void a_folder_of_clips_becomes_a_lora(void **state)
{
    DsvConfig settings;
    DsvSampleArgs args;
    Stopper heard;
    char lora[DSVI_PATH_MAX];
    const char *folder = folder_named("run"), *again = folder_named("again"), *prompt = "rain";
    const char *loras[] = {lora};
    uint64_t named, of_run;
    (void)state;
    wan_settings(&settings, folder);
    train(&settings, &heard);
    assert_non_null(strstr(heard.log, "3 of 3 distinct texts encoded"));
    assert_non_null(strstr(heard.log, "4 windows: 4 encoded"));
    assert_non_null(strstr(heard.log, "cache/train: 4 cached windows"));
    assert_null(strstr(heard.log, "not used"));
    wan_settings(&settings, again);
    train(&settings, &heard);
    assert_non_null(strstr(heard.log, "4 windows: 0 encoded, 4 kept"));
    same_in_checkpoint(folder, again, 10, "lora.safetensors");
    snprintf(lora, sizeof lora, "%s/checkpoint-10/lora.safetensors", folder);
    set(&settings, "num_inference_steps", "2");
    dsv_sample_args_defaults(&args);
    args.model_path = wan_model;
    args.output_path = scratch_path("clip.safetensors");
    args.prompts = &prompt;
    args.prompt_count = 1;
    args.lora_paths = loras;
    args.lora_count = 1;
    assert_ok(dsv_sample_clips(&args, &settings, NULL));
    /* the folder of the run stands for model and LoRA together */
    args.model_path = folder;
    args.output_path = scratch_path("clip-of-run.safetensors");
    args.lora_count = 0;
    assert_ok(dsv_sample_clips(&args, &settings, NULL));
    assert_ok(dsvi_file_checksum(scratch_path("clip.safetensors"), &named));
    assert_ok(dsvi_file_checksum(scratch_path("clip-of-run.safetensors"), &of_run));
    assert_true(named == of_run);
}

/* With caption_dropout=1 a run trains as if no clip had a caption, and captions change the loss. */
static void captions_reach_the_model(void **state)
{
    DsvConfig settings;
    Stopper heard;
    const char *with = folder_named("with"), *dropped = folder_named("dropped"), *bare = folder_named("bare");
    char command[4 * DSVI_PATH_MAX];
    (void)state;
    wan_settings(&settings, with);
    set(&settings, "caption_dropout", "0");
    train(&settings, &heard);
    wan_settings(&settings, dropped);
    set(&settings, "caption_dropout", "1");
    train(&settings, &heard);
    /* copies, because libx264 does not give the same bytes for the same frames every time */
    snprintf(command, sizeof command, "mkdir '%s' && cp '%s'/*.mp4 '%s'", scratch_path("bare-clips"),
             scratch_path("clips"), scratch_path("bare-clips"));
    assert_int_equal(system(command), 0);
    wan_settings(&settings, bare);
    set(&settings, "data.path", scratch_path("bare-clips"));
    set(&settings, "data.cache", scratch_path("bare-cache"));
    set(&settings, "caption_dropout", "0");
    train(&settings, &heard);
    assert_true(loss_of_step(dropped, 1) == loss_of_step(bare, 1));
    assert_true(loss_of_step(dropped, 10) == loss_of_step(bare, 10));
    assert_true(loss_of_step(with, 1) != loss_of_step(bare, 1));
    assert_true(isfinite(loss_of_step(with, 10)));
}

static void the_trigger_word_is_part_of_the_captions(void **state)
{
    DsvConfig settings;
    Stopper heard;
    char index[DSVI_PATH_MAX], *text;
    size_t bytes;
    (void)state;
    wan_settings(&settings, folder_named("trigger"));
    set(&settings, "data.cache", scratch_path("trigger-cache"));
    set(&settings, "data.trigger_word", "sks");
    train(&settings, &heard);
    snprintf(index, sizeof index, "%s/train/index.json", scratch_path("trigger-cache"));
    assert_ok(dsvi_file_read(index, 1 << 20, &text, &bytes));
    assert_non_null(strstr(text, "sks rain"));
    free(text);
    wan_settings(&settings, folder_named("other-word"));
    set(&settings, "data.path", folder_named("cache/train"));
    set(&settings, "data.trigger_word", "sks");
    assert_fails(DSV_E_USAGE, "data.trigger_word is 'sks', and the caption",
                 dsv_train(&settings, NULL, NULL));
}

/* Sampled clips show the first caption, decoded by the VAE. */
static void clips_are_sampled_with_text(void **state)
{
    DsvConfig settings;
    Stopper heard;
    const char *folder = folder_named("sampling");
    (void)state;
    wan_settings(&settings, folder);
    set(&settings, "validation_at_end", "true");
    set(&settings, "num_inference_steps", "2");
    set(&settings, "guidance_scale", "2");
    train(&settings, &heard);
    assert_non_null(strstr(heard.log, "sampled clips show: A cat walks on the grass"));
    assert_non_null(strstr(heard.log, "samples/step-000010.mp4"));
    assert_null(strstr(heard.log, "guidance_scale has no effect"));
    assert_true(dsvi_path_exists(scratch_path("sampling/samples/step-000010.mp4")));
}

/* Reads the frames of a clip as F32. */
static float *frames_of(const char *path)
{
    enum { FRAMES = 9, SIDE = 32 };
    float *pixels = malloc(3 * FRAMES * SIDE * SIDE * sizeof *pixels);
    const DsviClipWindow window = {.fps = 8, .frames = FRAMES, .height = SIDE, .width = SIDE};
    assert_non_null(pixels);
    assert_ok(dsvi_clip_read(path, &window, pixels));
    return pixels;
}

/* The mean distance of two clips' pixels, in steps of 8 bits. */
static double clip_distance(const char *a, const char *b)
{
    enum { ELEMENTS = 3 * 9 * 32 * 32 };
    float *first = frames_of(a), *second = frames_of(b);
    double sum = 0;
    for (int i = 0; i < ELEMENTS; i++)
        sum += fabs((double)first[i] - (double)second[i]) * 255 / 2;
    free(first);
    free(second);
    return sum / ELEMENTS;
}

/* Trains to `folder` and samples three prompts at step 5 and at the end. */
static void train_with_prompts(DsvConfig *settings, const char *folder, const char *rank, Stopper *heard)
{
    static const char PROMPTS[] = "rain\na red fox\n\n";
    assert_ok(dsvi_file_write(scratch_path("prompts.txt"), PROMPTS, sizeof PROMPTS - 1));
    set(settings, "output_dir", folder);
    set(settings, "lora_rank", rank);
    set(settings, "data.cache", scratch_path("prompted-cache"));
    set(settings, "validation.prompts", scratch_path("prompts.txt"));
    set(settings, "validation_steps", "5");
    set(settings, "validation_at_end", "true");
    set(settings, "num_inference_steps", "2");
    set(settings, "guidance_scale", "2");
    train(settings, heard);
}

/* dsv sample makes clips prompted-0000.mp4, ... of the prompts. */
static void sample_prompts(const char *folder, const char *lora, const DsvConfig *settings)
{
    DsvSampleArgs args;
    dsv_sample_args_defaults(&args);
    args.model_path = folder;
    args.output_path = scratch_path("prompted.mp4");
    args.prompts_path = scratch_path("prompts.txt");
    args.lora_paths = &lora;
    args.lora_count = lora ? 1 : 0;
    assert_ok(dsv_sample_clips(&args, settings, NULL));
}

/* Compares the clips of a run's last step with those of dsv sample. */
static void compare_prompts(const char *run, double tolerance)
{
    for (int i = 0; i < 3; i++) {
        char ours[DSVI_PATH_MAX], sampled[64];
        snprintf(ours, sizeof ours, "%s/samples/prompt-%03d/step-000010.mp4", run, i + 1);
        snprintf(sampled, sizeof sampled, "prompted-%04d.mp4", i);
        double distance = clip_distance(ours, scratch_path(sampled));
        if (!(distance <= tolerance))
            fail_msg("prompt %d: %g steps of 8 bits", i + 1, distance);
    }
}

/* The clips of a run that trains all weights are those of dsv sample with the checkpoint's weights, to the
 * bit. */
static void prompts_are_sampled_as_by_dsv_sample(void **state)
{
    DsvConfig settings;
    Stopper heard;
    char command[4 * DSVI_PATH_MAX];
    const char *run = folder_named("prompted"), *copy = folder_named("prompted-model");
    (void)state;
    wan_settings(&settings, run);
    train_with_prompts(&settings, run, "0", &heard);
    assert_non_null(strstr(heard.log, "3 of 3 distinct prompts"));
    assert_non_null(strstr(heard.log, "sampled clips show the 3 prompts of"));
    assert_true(dsvi_path_exists(scratch_path("prompted/samples/prompt-002/step-000005.mp4")));
    assert_non_null(strstr(heard.log, "decoding a sampled clip takes"));
    snprintf(command, sizeof command,
             "cp -r '%s' '%s' && rm -r '%s/transformer' && cp -r '%s/checkpoint-10/transformer' '%s'",
             wan_model, copy, copy, run, copy);
    assert_int_equal(system(command), 0);
    sample_prompts(copy, NULL, &settings);
    compare_prompts(run, 0);
    /* the run itself is a model: its checkpoint among the parts of its model.path */
    sample_prompts(run, NULL, &settings);
    compare_prompts(run, 0);
}

/* With validation.ema the clips are those of the moving average to the bit, here with state in host memory,
 * and training is not changed. */
static void the_moving_average_is_sampled(void **state)
{
    DsvConfig settings;
    Stopper heard;
    char command[4 * DSVI_PATH_MAX];
    const char *run = folder_named("averaged"), *copy = folder_named("averaged-model");
    (void)state;
    wan_settings(&settings, run);
    set(&settings, "validation.ema", "true");
    set(&settings, "offload", "states");
    train_with_prompts(&settings, run, "0", &heard);
    same_in_checkpoint(scratch_path("prompted"), run, 10, "optimizer/exp_avg.safetensors");
    same_in_checkpoint(scratch_path("prompted"), run, 10, "transformer/diffusion_pytorch_model.safetensors");
    same_in_checkpoint(scratch_path("prompted"), run, 10,
                       "transformer_ema/diffusion_pytorch_model.safetensors");
    snprintf(command, sizeof command,
             "cp -r '%s' '%s' && rm -r '%s/transformer' && cp -r '%s/checkpoint-10/transformer_ema' "
             "'%s/transformer'",
             wan_model, copy, copy, run, copy);
    assert_int_equal(system(command), 0);
    sample_prompts(copy, NULL, &settings);
    compare_prompts(run, 0);
    sample_prompts(folder_named("averaged/checkpoint-10/transformer_ema"), NULL, &settings);
    compare_prompts(run, 0);
    set(&settings, "ema_decay", "0");
    set(&settings, "output_dir", folder_named("refused-average"));
    assert_fails(DSV_E_USAGE, "validation.ema is true and ema_decay is 0", dsv_train(&settings, NULL, NULL));
}

/* dsv sample merges the LoRA, which is stored in BF16, into the weights. Training multiplies with the LoRA's
 * F32 matrices and adds the product to the layer's output. The clips are therefore similar, not equal: the
 * mean distance was 1.4 steps of 8 bits when the bound was set, and 6.1 without the LoRA. */
static void prompts_are_sampled_with_the_lora(void **state)
{
    DsvConfig settings;
    Stopper heard;
    char lora[DSVI_PATH_MAX];
    const char *run = folder_named("prompted-lora");
    (void)state;
    wan_settings(&settings, run);
    train_with_prompts(&settings, run, "4", &heard);
    assert_null(
        strstr(heard.log, "distinct prompts of sampled clips encoded")); /* stored by the test above */
    snprintf(lora, sizeof lora, "%s/checkpoint-10/lora.safetensors", run);
    sample_prompts(wan_model, lora, &settings);
    compare_prompts(run, 2);
    sample_prompts(wan_model, NULL, &settings);
    double without = clip_distance(scratch_path("prompted-lora/samples/prompt-001/step-000010.mp4"),
                                   scratch_path("prompted-0000.mp4"));
    if (!(without > 4))
        fail_msg("without the LoRA: %g steps of 8 bits", without);
}

static void keep_line(void *context, const char *line)
{
    keep_log(context, DSV_LOG_INFO, line);
}

/* The preview counts the VAE, and refuses a limit that leaves no memory for it beside the run. */
static void decoding_is_in_the_preview(void **state)
{
    DsvConfig settings;
    Stopper heard = {.steps = 0};
    double decoding = 0;
    (void)state;
    wan_settings(&settings, folder_named("preview"));
    set(&settings, "validation_at_end", "true");
    assert_ok(dsv_train_preview(&settings, keep_line, &heard));
    const char *line = strstr(heard.log, "decoding a sampled clip takes");
    assert_non_null(line);
    assert_int_equal(sscanf(line, "decoding a sampled clip takes %lf MiB", &decoding), 1);
    assert_true(decoding > 0.1);
    heard.log[0] = 0;
    set(&settings, "validation_at_end", "false");
    assert_ok(dsv_train_preview(&settings, keep_line, &heard));
    assert_null(strstr(heard.log, "decoding a sampled clip takes"));
    DsviBackend backend;
    DsviPreview preview;
    set(&settings, "validation_at_end", "true");
    assert_ok(dsvi_backend_open(&settings, &backend));
    assert_ok(dsvi_preview_make(&settings, &backend, &preview));
    dsvi_backend_close(&backend);
    settings.memory_gib = ((double)preview.device.used + 1000) / (double)(1 << 30);
    assert_fails(DSV_E_NO_MEMORY, "sampled clips are decoded beside the run",
                 dsv_train_preview(&settings, keep_line, &heard));
    settings.memory_gib += decoding / 1024;
    assert_ok(dsv_train_preview(&settings, keep_line, &heard));
}

/* Sizes that the model or the memory cannot take are refused before a clip is encoded. */
static void sizes_that_do_not_fit_are_refused(void **state)
{
    DsvConfig settings;
    const char *folder = folder_named("refused-sizes");
    (void)state;
    sized_settings(&settings, folder);
    set(&settings, "data.cache", folder_named("refused-cache"));
    set(&settings, "data.buckets", "9x32x32,5x32x40");
    assert_fails(DSV_E_SHAPE,
                 "data.buckets: 5x32x40: width=40, expected a multiple of 16, 8 of the codec times 2 of the "
                 "model's patch: the nearest are 32 and 48",
                 dsv_train(&settings, NULL, NULL));
    set(&settings, "data.buckets", "9x32x32,17x256x256");
    set(&settings, "memory_gib", "0.005");
    assert_fails(DSV_E_NO_MEMORY, "too large in data.buckets: 17x256x256", dsv_train(&settings, NULL, NULL));
    set(&settings, "data.buckets", "auto");
    set(&settings, "memory_gib", "1e-6");
    assert_fails(DSV_E_NO_MEMORY, "too large in data.buckets: 5x32x32", dsv_train(&settings, NULL, NULL));
    assert_false(dsvi_path_exists(folder_named("refused-cache")));
    assert_false(dsvi_path_exists(folder));
}

/* A folder that holds a run, and a checkpoint that does not continue as asked, are refused before a clip is
 * encoded. Clips that are shorter than a window are told. */
static void folders_are_checked_before_clips_are_encoded(void **state)
{
    DsvConfig settings;
    Stopper heard;
    const char *unused = folder_named("unused-cache");
    (void)state;
    wan_settings(&settings, folder_named("first"));
    set(&settings, "data.path", folder_named("sized"));
    set(&settings, "num_frames", "9");
    set(&settings, "data.cache", folder_named("first-cache"));
    train(&settings, &heard);
    assert_non_null(strstr(heard.log, "clips are shorter than 9 frames, the first: "));
    set(&settings, "data.cache", unused);
    assert_fails(DSV_E_USAGE, "already holds a run", dsv_train(&settings, NULL, NULL));
    set(&settings, "output_dir", folder_named("second"));
    set(&settings, "resume_from_checkpoint", folder_named("no-checkpoint"));
    assert_fails(DSV_E_NOT_FOUND, "no such folder, expected latest or a checkpoint",
                 dsv_train(&settings, NULL, NULL));
    set(&settings, "resume_from_checkpoint", folder_named("first/checkpoint-10"));
    set(&settings, "lora_rank", "2");
    assert_fails(DSV_E_USAGE, "this run has lora_rank=2", dsv_train(&settings, NULL, NULL));
    set(&settings, "output_dir", folder_named("first"));
    set(&settings, "resume_from_checkpoint", "latest");
    assert_fails(DSV_E_USAGE, "this run has lora_rank=2", dsv_train(&settings, NULL, NULL));
    assert_false(dsvi_path_exists(unused));
    assert_false(dsvi_path_exists(folder_named("second")));
}

/* Fails to train with these options before a clip is encoded. */
static void refused_unencoded(const DsvConfig *settings, const char *buckets, const char *memory,
                              DsvStatus status, const char *sentence)
{
    DsvConfig refused = *settings;
    set(&refused, "data.cache", folder_named("resumed-cache"));
    set(&refused, "data.buckets", buckets);
    set(&refused, "memory_gib", memory);
    assert_fails(status, sentence, dsv_train(&refused, NULL, NULL));
    assert_false(dsvi_path_exists(scratch_path("resumed-cache")));
}

/* A run with resume_from_checkpoint is checked before its clips are encoded: one that begins because there is
 * no checkpoint, and one that goes on, with a LoRA and without. */
static void resumed_runs_are_checked_before_clips_are_encoded(void **state)
{
    static const char *const RANKS[] = {"4", "0"};
    DsvConfig settings;
    Stopper heard;
    (void)state;
    for (int whole = 0; whole < 2; whole++) {
        wan_settings(&settings, folder_named(whole ? "resumed-whole" : "resumed-lora"));
        set(&settings, "lora_rank", RANKS[whole]);
        set(&settings, "max_train_steps", "1");
        set(&settings, "resume_from_checkpoint", "latest");
        for (int begun = 0; begun < 2; begun++) {
            refused_unencoded(&settings, "5x32x40", "0", DSV_E_SHAPE, "data.buckets: 5x32x40: width=40");
            refused_unencoded(&settings, "auto", "1e-6", DSV_E_NO_MEMORY, "memory_gib allows 1e-06");
            refused_unencoded(&settings, "", "1e-6", DSV_E_NO_MEMORY, "memory_gib allows 1e-06");
            if (!begun)
                train(&settings, &heard);
        }
    }
}

/* A run that trains all weights goes on with the transformer of its checkpoint: the checks take the shape of
 * the model from there, because model.path may have lost its transformer, which then is not needed. */
static void checks_take_the_shape_of_the_checkpoint(void **state)
{
    DsvConfig settings;
    Stopper heard;
    char command[4 * DSVI_PATH_MAX], checkpoint[DSVI_PATH_MAX];
    const char *model = folder_named("lost-model"), *run = folder_named("lost");
    (void)state;
    snprintf(command, sizeof command, "cp -r '%s' '%s'", wan_model, model);
    assert_int_equal(system(command), 0);
    wan_settings(&settings, run);
    set(&settings, "model.path", model);
    set(&settings, "lora_rank", "0");
    set(&settings, "max_train_steps", "2");
    set(&settings, "checkpointing_steps", "1");
    train(&settings, &heard);
    snprintf(command, sizeof command, "rm -r '%s/transformer'", model);
    assert_int_equal(system(command), 0);
    snprintf(checkpoint, sizeof checkpoint, "%s/checkpoint-1", run);
    for (int named = 0; named < 2; named++) {
        set(&settings, "resume_from_checkpoint", named ? checkpoint : "latest");
        set(&settings, "max_train_steps", named ? "4" : "3");
        set(&settings, "data.cache", folder_named("cache"));
        refused_unencoded(&settings, "9x32x32", "1e-6", DSV_E_NO_MEMORY, "memory_gib allows 1e-06");
        train(&settings, &heard);
        assert_non_null(
            strstr(heard.log, named ? "resuming after step 1 from" : "resuming after step 2 from"));
    }
    /* a damaged checkpoint is passed over, as when the run begins */
    snprintf(command, sizeof command, "echo >> '%s/checkpoint-4/transformer/config.json'", run);
    assert_int_equal(system(command), 0);
    set(&settings, "resume_from_checkpoint", "latest");
    train(&settings, &heard);
    assert_non_null(strstr(heard.log, "passing over a damaged checkpoint"));
}

static void prompts_that_cannot_be_sampled_are_refused(void **state)
{
    DsvConfig settings;
    (void)state;
    wan_settings(&settings, folder_named("refused-prompts"));
    set(&settings, "validation.prompts", scratch_path("no-prompts.txt"));
    assert_fails(DSV_E_USAGE, "no clip is sampled with validation_steps=0 and",
                 dsv_train(&settings, NULL, NULL));
    set(&settings, "validation_at_end", "true");
    assert_fails(DSV_E_NOT_FOUND, "no-prompts.txt", dsv_train(&settings, NULL, NULL));
    set(&settings, "codec.name", "haar");
    assert_fails(DSV_E_USAGE, "expected codec.name=wan", dsv_train(&settings, NULL, NULL));
}

/* The held-out loss is measured with the captions of the held-out clips. */
static void held_out_clips_have_text(void **state)
{
    DsvConfig settings;
    Stopper heard;
    (void)state;
    wan_settings(&settings, folder_named("held-out"));
    set(&settings, "validation.data", scratch_path("clips"));
    set(&settings, "validation.clips", "2");
    train(&settings, &heard);
    assert_non_null(strstr(heard.log, "held-out loss"));
    set(&settings, "output_dir", folder_named("held-out-mixed"));
    set(&settings, "validation.data", folder_named("cache/validation"));
    train(&settings, &heard);
}

static void wrong_data_is_refused(void **state)
{
    DsvConfig settings;
    char from[DSVI_PATH_MAX], copy[DSVI_PATH_MAX], command[3 * DSVI_PATH_MAX];
    (void)state;
    /* a copy of the model with another VAE */
    snprintf(copy, sizeof copy, "%s", scratch_path("other-model"));
    snprintf(command, sizeof command, "cp -r '%s' '%s' && printf ' ' >> '%s/vae/config.json'", wan_model,
             copy, copy);
    assert_int_equal(system(command), 0);
    wan_settings(&settings, folder_named("refused"));
    snprintf(from, sizeof from, "%s", scratch_path("cache/train"));
    set(&settings, "data.path", from);
    set(&settings, "model.path", copy);
    assert_fails(DSV_E_USAGE, "was made by another VAE than that of model.path",
                 dsv_train(&settings, NULL, NULL));
    set(&settings, "model.path", "");
    set(&settings, "lora_rank", "0");
    set(&settings, "data.path", scratch_path("clips"));
    set(&settings, "model.preset", "demo");
    set(&settings, "validation_at_end", "false");
    assert_fails(DSV_E_USAGE, "holds clips, codec.name is wan and model.path is empty",
                 dsv_train(&settings, NULL, NULL));
    wan_settings(&settings, folder_named("refused"));
    set(&settings, "num_frames", "6");
    assert_fails(DSV_E_SHAPE, "num_frames=6, expected 4k + 1", dsv_train(&settings, NULL, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_folder_of_clips_becomes_a_lora),
        cmocka_unit_test(captions_reach_the_model),
        cmocka_unit_test(the_trigger_word_is_part_of_the_captions),
        cmocka_unit_test(clips_are_sampled_with_text),
        cmocka_unit_test(prompts_are_sampled_as_by_dsv_sample),
        cmocka_unit_test(the_moving_average_is_sampled),
        cmocka_unit_test(prompts_are_sampled_with_the_lora),
        cmocka_unit_test(decoding_is_in_the_preview),
        cmocka_unit_test(sizes_that_do_not_fit_are_refused),
        cmocka_unit_test(folders_are_checked_before_clips_are_encoded),
        cmocka_unit_test(resumed_runs_are_checked_before_clips_are_encoded),
        cmocka_unit_test(checks_take_the_shape_of_the_checkpoint),
        cmocka_unit_test(prompts_that_cannot_be_sampled_are_refused),
        cmocka_unit_test(held_out_clips_have_text),
        cmocka_unit_test(wrong_data_is_refused),
    };
    return cmocka_run_group_tests(tests, make_data, scratch_remove);
}
