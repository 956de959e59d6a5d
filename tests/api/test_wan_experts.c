/* Models of two experts (Wan 2.2 A14B): dsv_sample_clips against diffusers' WanPipeline, dsv_inspect, and
 * what is said about an expert that is missing or has another shape; training of one expert. */
#include "data/clip.h"
#include "sample/video_writer.h"
#include "wan_case.h"

enum { LATENTS = 16 * 2 * 4 * 4, FRAMES = 3 * 5 * 32 * 32 /* of a clip of 5 frames of 32 x 32 */ };

static void make_model(double ratio)
{
    char text[32];
    snprintf(text, sizeof text, "%g", ratio);
    wan_case_make("pipe_experts");
    wan_case_index("WanPipeline", WAN_CASE_PART, text);
}

static void both_experts_ran(void)
{
    assert_non_null(strstr(wan_case_log, "the expert for high noise (transformer) runs now"));
    assert_non_null(strstr(wan_case_log, "the expert for low noise (transformer_2) runs now"));
    assert_string_equal(wan_case_unit, "low noise, step");
}

static void latents_are_those_of_diffusers(void **state)
{
    (void)state;
    wan_case_compare_all("pipe_experts", make_model, both_experts_ran);
}

static DsvStatus sample(const char *inputs, const DsvConfig *settings)
{
    DsvSampleArgs args;
    dsv_sample_args_defaults(&args);
    return wan_case_sample(inputs, &args, settings);
}

static void inspection_names_both_experts(void **state)
{
    (void)state;
    make_model(0.875);
    wan_case_log[0] = 0;
    assert_ok(dsv_inspect(scratch_path("model"), wan_case_keep, NULL));
    assert_non_null(strstr(wan_case_log, "transformer from timestep 875 on, transformer_2 below"));
    assert_non_null(strstr(wan_case_log, "transformer is sound"));
    assert_non_null(strstr(wan_case_log, "transformer_2 is sound"));
}

static void faults(void **state)
{
    DsvConfig settings;
    bool found;
    char inputs[DSVI_PATH_MAX];
    (void)state;
    make_model(0.875);
    snprintf(inputs, sizeof inputs, "%s", golden_path("pipe_experts/cases/unipc.safetensors"));
    dsv_config_defaults(&settings);
    assert_ok(dsv_config_of_run(scratch_path("model"), &settings, &found));
    snprintf(settings.model_path, sizeof settings.model_path, "%s", scratch_path("model"));
    assert_ok(dsv_config_set(&settings, "codec.name=haar"));
    assert_fails(DSV_E_USAGE, "has two experts, expected model.expert=high",
                 dsv_train(&settings, NULL, NULL));
    assert_ok(dsv_config_set(&settings, "model.expert=high"));
    assert_fails(DSV_E_USAGE, "a run that trains all weights has no room for the other",
                 dsv_train(&settings, NULL, NULL));
    assert_ok(dsv_config_set(&settings, "validation_at_end=false"));
    assert_ok(dsv_config_set(&settings, "sigma_max=0.5"));
    assert_fails(DSV_E_USAGE, "sigma_min=0 and sigma_max=0.5 leave no noise level to model.expert=high",
                 dsv_train(&settings, NULL, NULL));
    snprintf(settings.model_path, sizeof settings.model_path, "%s", golden_path("pipe_a"));
    assert_fails(DSV_E_USAGE, "is no model of two experts", dsv_train(&settings, NULL, NULL));
    settings.model_path[0] = 0;
    wan_case_link("pipe_a/transformer", "model/transformer_2");
    assert_fails(DSV_E_SHAPE, "both experts need the sizes of transformer", sample(inputs, &settings));
    assert_int_equal(unlink(scratch_path("model/transformer_2")), 0);
    assert_fails(DSV_E_NOT_FOUND, "the transformer_2 is missing", sample(inputs, &settings));
    wan_case_index("WanPipeline", "[null, null]", "0.875");
    assert_fails(DSV_E_FORMAT, "boundary_ratio is set and transformer_2 is not", sample(inputs, &settings));
    wan_case_index("WanPipeline", WAN_CASE_PART, "null");
    assert_fails(DSV_E_FORMAT, "transformer_2 is set and boundary_ratio is not", sample(inputs, &settings));
    wan_case_index("WanPipeline", WAN_CASE_PART, "2");
    assert_fails(DSV_E_FORMAT, "boundary_ratio is not a number from 0 to 1", sample(inputs, &settings));
    wan_case_index("WanPipeline", "[null, null]", "null");
    settings.guidance_scale_2 = 3;
    assert_fails(DSV_E_USAGE, "has one transformer, and no second expert", sample(inputs, &settings));
}

/* Options with which a LoRA of an expert is trained for a few steps. Sparse attention is off. */
static DsvConfig expert_settings(const char *expert, const char *folder)
{
    DsvConfig settings;
    char text[DSVI_PATH_MAX + 32];
    const char *const options[] = {"codec.name=wan",     "num_frames=5",       "height=32",
                                   "width=32",           "data.workers=1",     "max_train_steps=6",
                                   "train_batch_size=2", "lora_rank=2",        "lr=1e-2",
                                   "warmup_steps=0",     "mixed_precision=no", "sparse.enabled=false",
                                   "ema_decay=0.5",      "validation.clips=2", "validation_at_end=false"};
    dsv_config_defaults(&settings);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        assert_ok(dsv_config_set(&settings, options[i]));
    snprintf(text, sizeof text, "model.expert=%s", expert);
    assert_ok(dsv_config_set(&settings, text));
    snprintf(settings.model_path, sizeof settings.model_path, "%s", scratch_path("model"));
    snprintf(settings.data_path, sizeof settings.data_path, "%s", scratch_path("clips"));
    snprintf(settings.validation_data, sizeof settings.validation_data, "%s", scratch_path("clips"));
    snprintf(settings.data_cache, sizeof settings.data_cache, "%s", scratch_path("cache"));
    snprintf(settings.output_dir, sizeof settings.output_dir, "%s", scratch_path(folder));
    settings.threads = 2;
    return settings;
}

/* Trains, and stores the path of the file of the LoRA. */
static void train_with(const DsvConfig *settings, char lora[DSVI_PATH_MAX])
{
    const DsvEvents events = {.log = wan_case_keep_line};
    wan_case_log[0] = 0;
    assert_ok(dsv_train(settings, &events, NULL));
    snprintf(lora, DSVI_PATH_MAX, "%s/checkpoint-6/lora_%s_noise.safetensors", settings->output_dir,
             settings->model_expert);
}

static void train_expert(const char *expert, const char *folder, char lora[DSVI_PATH_MAX])
{
    const DsvConfig settings = expert_settings(expert, folder);
    train_with(&settings, lora);
}

/* Fails unless all samples of a run had noise levels in the bins [first, end), and held-out windows too. */
static void check_bins(const char *folder, int first, int end)
{
    char path[DSVI_PATH_MAX], *text;
    size_t bytes;
    int64_t inside = 0, outside = 0;
    snprintf(path, sizeof path, "%s/metrics.jsonl", scratch_path(folder));
    assert_ok(dsvi_file_read(path, 1 << 20, &text, &bytes));
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        cJSON *object = cJSON_Parse(line);
        const cJSON *bins = cJSON_GetObjectItem(object, "loss_bins");
        assert_int_equal(cJSON_GetArraySize(bins), 10);
        for (int bin = 0; bin < 10; bin++) {
            bool counted = cJSON_IsNumber(cJSON_GetArrayItem(bins, bin));
            inside += counted && bin >= first && bin < end;
            outside += counted && (bin < first || bin >= end);
        }
        cJSON_Delete(object);
    }
    free(text);
    assert_true(inside > 0);
    assert_int_equal(outside, 0);
}

/* Samples a clip to expert.safetensors of the scratch folder, and its latents to latents.safetensors. */
static DsvStatus sample_loras(const char *const *loras, const DsvExpert *experts, size_t count,
                              const char *model)
{
    DsvConfig settings;
    DsvSampleArgs args;
    const char *prompt = "rain";
    bool found;
    dsv_config_defaults(&settings);
    assert_ok(dsv_config_of_run(scratch_path("model"), &settings, &found));
    assert_ok(dsv_config_set(&settings, "mixed_precision=no"));
    settings.height = settings.width = 32;
    settings.num_frames = 5;
    settings.num_inference_steps = 4;
    settings.guidance_scale = 1;
    dsv_sample_args_defaults(&args);
    args.model_path = model;
    args.output_path = scratch_path("expert.safetensors");
    args.prompts = &prompt;
    args.prompt_count = 1;
    args.lora_paths = loras;
    args.lora_experts = experts;
    args.lora_count = count;
    args.latents_path = scratch_path("latents.safetensors");
    return dsv_sample_clips(&args, &settings, NULL);
}

static void clip_of(const char *const *loras, const DsvExpert *experts, size_t count, const char *model,
                    uint64_t *checksum)
{
    assert_ok(sample_loras(loras, experts, count, model));
    assert_ok(dsvi_file_checksum(scratch_path("expert.safetensors"), checksum));
}

/* Replaces a transformer of "model" by a copy in F32, to which LoRAs are added without rounding. */
static void widen(const char *part)
{
    char name[128], from[DSVI_PATH_MAX];
    DsviSafetensors *file;
    snprintf(name, sizeof name, "pipe_experts/%s/diffusion_pytorch_model.safetensors", part);
    snprintf(from, sizeof from, "%s", golden_path(name));
    assert_ok(dsvi_safetensors_open(from, &file));
    size_t count = dsvi_safetensors_count(file);
    DsviStoredTensor *tensors = calloc(count, sizeof *tensors);
    for (size_t i = 0; i < count; i++) {
        tensors[i] = *dsvi_safetensors_at(file, i);
        float *wide = malloc((size_t)tensors[i].count * sizeof *wide);
        dsvi_convert(DSVI_F32, wide, tensors[i].dtype, tensors[i].data, tensors[i].count);
        tensors[i].dtype = DSVI_F32;
        tensors[i].bytes = (size_t)tensors[i].count * sizeof *wide;
        tensors[i].data = wide;
    }
    snprintf(name, sizeof name, "model/%s", part);
    assert_int_equal(unlink(scratch_path(name)), 0);
    assert_ok(dsvi_folder_make(scratch_path(name)));
    snprintf(name, sizeof name, "model/%s/diffusion_pytorch_model.safetensors", part);
    assert_ok(dsvi_safetensors_write(scratch_path(name), tensors, count, NULL, 0));
    for (size_t i = 0; i < count; i++)
        free((void *)tensors[i].data);
    free(tensors);
    dsvi_safetensors_close(&file);
    snprintf(name, sizeof name, "model/%s/config.json", part);
    snprintf(from, sizeof from, "pipe_experts/%s/config.json", part);
    wan_case_link(from, name);
}

/* Trains a LoRA of each expert of "model", whose boundary is 0.6. */
static void train_both(char high[DSVI_PATH_MAX], char low[DSVI_PATH_MAX])
{
    static float pixels[3 * 5 * 32 * 32];
    for (int i = 0; i < 3 * 5 * 32 * 32; i++)
        pixels[i] = (float)sin(0.3 * (i % 32) + 0.01 * i);
    assert_ok(dsvi_folder_make(scratch_path("clips")));
    assert_ok(dsvi_video_write(scratch_path("clips/waves.mp4"), pixels, 5, 32, 32, 8));
    make_model(0.6);
    widen("transformer");
    widen("transformer_2");
    train_expert("high", "run-high", high);
    assert_non_null(strstr(wan_case_log, "trains transformer at noise levels 0.6 to 1 (boundary_ratio=0.6); "
                                         "flow_shift=3, the folder's scheduler has"));
    check_bins("run-high", 6, 10);
    train_expert("low", "run-low", low);
    assert_non_null(strstr(wan_case_log, "trains transformer_2 at noise levels 0 to 0.6"));
    check_bins("run-low", 0, 6);
    assert_true(dsvi_path_exists(scratch_path("run-low/checkpoint-6/lora_low_noise_ema.safetensors")));
}

/* A LoRA that names its expert is refused for the other expert, for both, and by a model of one transformer.
 * dsv lora convert leaves the name out. */
static void wrong_experts(const char *high, char converted[DSVI_PATH_MAX])
{
    const DsvExpert as_low = DSV_EXPERT_LOW, as_high = DSV_EXPERT_HIGH;
    char run[DSVI_PATH_MAX];
    const char *file = high, *folder = run;
    snprintf(run, sizeof run, "%s", scratch_path("run-high"));
    snprintf(converted, DSVI_PATH_MAX, "%s", scratch_path("converted.safetensors"));
    assert_fails(DSV_E_USAGE, "was trained for the expert for high noise and is meant for low noise",
                 sample_loras(&file, &as_low, 1, scratch_path("model")));
    assert_fails(DSV_E_USAGE, "is meant for both, expected it as --lora-high",
                 sample_loras(&file, NULL, 1, scratch_path("model")));
    assert_fails(DSV_E_USAGE, "is a LoRA of the expert for high noise",
                 sample_loras(&file, &as_high, 1, golden_path("pipe_a")));
    assert_fails(DSV_E_USAGE, "lora_high_noise.safetensors",
                 sample_loras(&folder, &as_high, 1, scratch_path("model")));
    assert_ok(dsv_lora_convert(high, converted, "comfy"));
}

/* The LoRA of one expert does not go on as that of the other. */
static void continued_as_other_expert(const char *lora)
{
    DsvConfig settings;
    const char *slash = strrchr(lora, '/');
    dsv_config_defaults(&settings);
    assert_ok(dsv_config_load(&settings, scratch_path("run-low/config.yaml")));
    snprintf(settings.output_dir, sizeof settings.output_dir, "%s", scratch_path("continued"));
    snprintf(settings.resume_from_checkpoint, sizeof settings.resume_from_checkpoint, "%.*s",
             (int)(slash - lora), lora);
    assert_fails(DSV_E_USAGE, "was trained with model.expert=high, this run has model.expert=low",
                 dsv_train(&settings, NULL, NULL));
    assert_false(dsvi_path_exists(scratch_path("continued/config.yaml")));
}

/* Reads the latents of the last clip. */
static void read_latents(float latents[LATENTS])
{
    DsviSafetensors *file;
    assert_ok(dsvi_safetensors_open(scratch_path("latents.safetensors"), &file));
    const DsviStoredTensor *tensor = dsvi_safetensors_find(file, "latents");
    assert_int_equal(tensor->count, LATENTS);
    memcpy(latents, tensor->data, LATENTS * sizeof *latents);
    dsvi_safetensors_close(&file);
}

/* A merged model in F32 samples the latents of the model with adapters, to the bit. */
static void merged_experts(const char *const *loras, const DsvExpert *experts)
{
    float with[LATENTS], merged[LATENTS];
    assert_fails(DSV_E_USAGE, "is meant for both",
                 dsv_lora_merge(scratch_path("model"), loras[0], 1, scratch_path("merged")));
    assert_false(dsvi_path_exists(scratch_path("merged")));
    assert_ok(dsv_lora_merge_experts(scratch_path("model"), loras, NULL, experts, 2, scratch_path("merged")));
    assert_ok(sample_loras(loras, experts, 2, scratch_path("model")));
    read_latents(with);
    assert_ok(sample_loras(NULL, NULL, 0, scratch_path("merged")));
    read_latents(merged);
    assert_memory_equal(with, merged, sizeof with);
    /* a copy inside the model does not copy itself */
    assert_ok(
        dsv_lora_merge_experts(scratch_path("merged"), loras, NULL, experts, 2, scratch_path("merged/more")));
    assert_false(dsvi_path_exists(scratch_path("merged/more/more")));
}

static void read_frames(const char *path, float frames[FRAMES])
{
    const DsviClipWindow window = {
        .fps = 16, .frames = 5, .height = 32, .width = 32, .crop_x = 0.5, .crop_y = 0.5};
    assert_ok(dsvi_clip_read(path, &window, frames));
}

/* Returns the mean distance, in steps of 8 bits, of a clip of a run to that of dsv sample with the same
 * options, with the LoRA or without. */
static double distance_to_sample(const DsvConfig *settings, const char *clip, const char *lora)
{
    static float ours[FRAMES], theirs[FRAMES];
    const DsvExpert expert = strcmp(settings->model_expert, "low") == 0 ? DSV_EXPERT_LOW : DSV_EXPERT_HIGH;
    const char *prompt = "rain";
    double sum = 0;
    DsvSampleArgs args;
    dsv_sample_args_defaults(&args);
    args.model_path = scratch_path("model");
    args.output_path = scratch_path("clip.mp4");
    args.prompts = &prompt;
    args.prompt_count = 1;
    args.lora_paths = &lora;
    args.lora_experts = &expert;
    args.lora_count = lora ? 1 : 0;
    assert_ok(dsv_sample_clips(&args, settings, NULL));
    read_frames(args.output_path, theirs);
    read_frames(clip, ours);
    for (int i = 0; i < FRAMES; i++)
        sum += fabs((double)ours[i] - (double)theirs[i]) * 255 / 2;
    return sum / FRAMES;
}

/* While one expert trains, clips are sampled with both. An untrained LoRA, at lr=0, gives the clip of the
 * model to the bit. A trained one gives that of dsv sample, which adds the rounded LoRA to the weights, up to
 * rounding, and is the same as without sampling. */
static void clips_are_sampled_with_both_experts(const char *expert, const char *lora_alone, bool untrained)
{
    static const char *const RATES[] = {"lr=0", "lr=1e-2"};
    for (int trained = !untrained; trained < 2; trained++) {
        char lora[DSVI_PATH_MAX], clip[DSVI_PATH_MAX], folder[64];
        uint64_t with, alone;
        snprintf(folder, sizeof folder, "sampled-%s-%d", expert, trained);
        DsvConfig settings = expert_settings(expert, folder);
        assert_ok(dsv_config_set(&settings, RATES[trained]));
        assert_ok(dsv_config_set(&settings, "validation_steps=3"));
        assert_ok(dsv_config_set(&settings, "num_inference_steps=4"));
        assert_ok(dsv_config_set(&settings, "guidance_scale=2"));
        snprintf(settings.validation_prompts, sizeof settings.validation_prompts, "%s",
                 scratch_path("prompts.txt"));
        assert_ok(dsvi_file_write(settings.validation_prompts, "rain\nsnow\n", 10));
        train_with(&settings, lora);
        snprintf(clip, sizeof clip, "%s/samples/prompt-001/step-000006.mp4", settings.output_dir);
        double distance = distance_to_sample(&settings, clip, trained ? lora : NULL);
        double without = distance_to_sample(&settings, clip, NULL);
        print_message("%s, %s: %g steps of 8 bits, %g without the LoRA\n", expert, RATES[trained], distance,
                      without);
        assert_true(trained ? distance < 0.5 * without : distance == 0);
        assert_ok(dsvi_file_checksum(lora, &with));
        assert_ok(dsvi_file_checksum(lora_alone, &alone));
        assert_true(!trained || with == alone);
    }
}

/* Each expert is trained in its range and sampled with its own LoRA only. A run folder adds its LoRA to its
 * expert. */
static void each_expert_has_its_lora(void **state)
{
    char high[DSVI_PATH_MAX], low[DSVI_PATH_MAX], converted[DSVI_PATH_MAX];
    const char *const loras[] = {high, low};
    const DsvExpert experts[] = {DSV_EXPERT_HIGH, DSV_EXPERT_LOW};
    uint64_t none, both, swapped, only_high, of_run;
    const char *const as_low = converted;
    (void)state;
    train_both(high, low);
    wrong_experts(high, converted);
    continued_as_other_expert(high);
    clip_of(NULL, NULL, 0, scratch_path("model"), &none);
    clip_of(loras, experts, 2, scratch_path("model"), &both);
    clip_of(loras, experts, 1, scratch_path("model"), &only_high);
    clip_of(NULL, NULL, 0, scratch_path("run-high"), &of_run);
    clip_of(&as_low, experts + 1, 1, scratch_path("model"), &swapped);
    assert_true(none != both && both != only_high && none != only_high);
    assert_true(swapped != none && swapped != only_high);
    assert_true(only_high == of_run);
    merged_experts(loras, experts);
    clips_are_sampled_with_both_experts("high", high, true);
    clips_are_sampled_with_both_experts("low", low, false);
}

static int run_all(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(latents_are_those_of_diffusers),
        cmocka_unit_test(inspection_names_both_experts),
        cmocka_unit_test(faults),
        cmocka_unit_test(each_expert_has_its_lora),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}

int main(void)
{
    return golden_run("pipe_experts", run_all);
}
