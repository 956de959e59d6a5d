/* dsv_sample_clips on whole published folders against diffusers' WanPipeline: from prompt and noise to
 * latents and video. Other layouts of the same weights give the same bits. */
#include "test.h"

#include <cjson/cJSON.h>

#include "base/safetensors.h"
#include "base/scratch.h"
#include "dsv/dsv.h"
#include "golden/golden_files.h"
#include "model/weights/weights.h"

static const char *device = "cpu";

typedef struct Case {
    char name[32], prompt[512], negative[512];
    bool has_negative;
    int64_t height, width, frames, steps;
    double guidance, shift;
    const char *sampler; /* NULL: that of the folder */
} Case;

static const cJSON *case_member(const cJSON *item, const char *key)
{
    const cJSON *found = cJSON_GetObjectItemCaseSensitive(item, key);
    if (!found)
        fail_msg("fixture.json lacks %s", key);
    return found;
}

static void read_case(const cJSON *item, Case *c)
{
    const char *negative = cJSON_GetStringValue(case_member(item, "negative_prompt"));
    const char *scheduler = cJSON_GetStringValue(case_member(item, "scheduler"));
    snprintf(c->name, sizeof c->name, "%s", cJSON_GetStringValue(case_member(item, "case")));
    snprintf(c->prompt, sizeof c->prompt, "%s", cJSON_GetStringValue(case_member(item, "prompt")));
    snprintf(c->negative, sizeof c->negative, "%s", negative ? negative : "");
    c->has_negative = negative != NULL;
    c->height = (int64_t)case_member(item, "height")->valuedouble;
    c->width = (int64_t)case_member(item, "width")->valuedouble;
    c->frames = (int64_t)case_member(item, "num_frames")->valuedouble;
    c->steps = (int64_t)case_member(item, "num_inference_steps")->valuedouble;
    c->guidance = case_member(item, "guidance_scale")->valuedouble;
    c->sampler = strstr(scheduler, "Euler") ? "euler" : NULL;
    c->shift = c->sampler ? atof(strstr(scheduler, "shift ") + strlen("shift ")) : 0;
}

/* Calls `run` for each case of the folder. */
static void each_case(void (*run)(const Case *c))
{
    char *text;
    size_t bytes;
    Case c;
    const cJSON *item;
    assert_ok(dsvi_file_read(golden_path("pipe_a/fixture.json"), 1 << 20, &text, &bytes));
    cJSON *description = cJSON_Parse(text);
    assert_non_null(description);
    cJSON_ArrayForEach(item, case_member(description, "cases")) {
        read_case(item, &c);
        run(&c);
    }
    cJSON_Delete(description);
    free(text);
}

static void set_option(DsvConfig *settings, const char *key, const char *value)
{
    char assignment[256];
    snprintf(assignment, sizeof assignment, "%s=%s", key, value);
    assert_ok(dsv_config_set(settings, assignment));
}

/* The options of a case, in F32. */
static void case_options(const char *model, const Case *c, DsvConfig *settings)
{
    bool found;
    dsv_config_defaults(settings);
    assert_ok(dsv_config_of_run(model, settings, &found));
    assert_true(found);
    assert_int_equal(settings->height,
                     480); /* options that the case does not set are those of Wan pipelines */
    assert_int_equal(settings->num_inference_steps, 50);
    assert_string_equal(settings->device, "auto");
    settings->height = c->height;
    settings->width = c->width;
    settings->num_frames = c->frames;
    settings->num_inference_steps = c->steps;
    settings->guidance_scale = c->guidance;
    settings->threads = 2;
    set_option(settings, "mixed_precision", "no");
    set_option(settings, "device", device);
    if (c->sampler) {
        set_option(settings, "sampler", c->sampler);
        settings->flow_shift = c->shift;
    }
}

static DsvStatus sample_case(const char *model, const Case *c, const DsvConfig *settings, const char *output,
                             const char *latents)
{
    char noise[128];
    DsvSampleArgs args;
    const char *prompt = c->prompt;
    snprintf(noise, sizeof noise, "pipe_a/cases/%s/expected.safetensors", c->name);
    dsv_sample_args_defaults(&args);
    args.model_path = model;
    args.output_path = output;
    args.prompts = &prompt;
    args.prompt_count = 1;
    args.negative_prompt = c->has_negative ? c->negative : NULL;
    args.noise_path = golden_path(noise);
    args.latents_path = latents;
    return dsv_sample_clips(&args, settings, NULL);
}

static double largest_difference(const DsviSafetensors *a, const DsviSafetensors *b, const char *name)
{
    const DsviStoredTensor *x = dsvi_safetensors_find(a, name), *y = dsvi_safetensors_find(b, name);
    double largest = 0;
    assert_non_null(x);
    assert_non_null(y);
    assert_int_equal(x->ndim, y->ndim);
    assert_memory_equal(x->shape, y->shape, (size_t)x->ndim * sizeof *x->shape);
    for (int64_t i = 0; i < x->count; i++) {
        double difference = fabs(((const float *)x->data)[i] - ((const float *)y->data)[i]);
        if (!(difference <= largest))
            largest = difference;
    }
    return largest;
}

/* Both compute in F32 and differ by rounding. The latents are about 10, and every step adds errors of the
 * transformer's sums, which guidance multiplies: 1e-4 is 100 units in the last place of such numbers. */
static void compare_case(const Case *c)
{
    char expected[128];
    DsvConfig settings;
    DsviSafetensors *wanted, *latents, *video;
    const char *model = golden_path("pipe_a");
    case_options(model, c, &settings);
    assert_ok(sample_case(model, c, &settings, scratch_path("v.safetensors"), scratch_path("l.safetensors")));
    snprintf(expected, sizeof expected, "pipe_a/cases/%s/expected.safetensors", c->name);
    assert_ok(dsvi_safetensors_open(golden_path(expected), &wanted));
    assert_ok(dsvi_safetensors_open(scratch_path("l.safetensors"), &latents));
    assert_ok(dsvi_safetensors_open(scratch_path("v.safetensors"), &video));
    assert_error_below(largest_difference(latents, wanted, "latents"), 1e-4, "latents of %s", c->name);
    assert_error_below(largest_difference(video, wanted, "video"), 1e-3, "video of %s", c->name);
    dsvi_safetensors_close(&wanted);
    dsvi_safetensors_close(&latents);
    dsvi_safetensors_close(&video);
}

static void clips_are_those_of_diffusers(void **state)
{
    (void)state;
    each_case(compare_case);
}

/* ---- the same weights in the layout of ComfyUI ---- */

/* Writes the tensors of golden file `from` to `to`, with a text before each name, and with `more` if it is
 * not NULL. `table`: names are changed to those of the Wan repository. */
static void copy_renamed(const char *from, const char *to, const char *prefix, const DsviParamTable *table,
                         const DsviStoredTensor *more)
{
    enum { TENSORS_MAX = 512 };
    static char names[TENSORS_MAX][256];
    static DsviStoredTensor tensors[TENSORS_MAX];
    DsviSafetensors *file;
    assert_ok(dsvi_safetensors_open(from, &file));
    size_t count = dsvi_safetensors_count(file);
    assert_true(count < TENSORS_MAX);
    for (size_t i = 0; i < count; i++) {
        tensors[i] = *dsvi_safetensors_at(file, i);
        int64_t at = table ? dsvi_param_find(table, tensors[i].name) : -1;
        snprintf(names[i], sizeof names[i], "%s%s", prefix,
                 at >= 0 ? table->params[at].original : tensors[i].name);
        tensors[i].name = names[i];
    }
    if (more)
        tensors[count++] = *more;
    assert_ok(dsvi_safetensors_write(to, tensors, count, NULL, 0));
    dsvi_safetensors_close(&file);
}

/* Writes a transformer to a single file, with its config.json, because its heads are not those of published
 * models. */
static void write_single_transformer(const char *folder)
{
    char path[DSVI_PATH_MAX];
    DsviDitConfig config;
    DsviParamTable table;
    assert_ok(dsvi_dit_config_read(golden_path("pipe_a/transformer/config.json"), &config));
    assert_ok(dsvi_param_table_make(&config, &table));
    float *flat = calloc((size_t)table.elements, sizeof *flat);
    assert_ok(dsvi_weights_read(golden_path("pipe_a/transformer"), &table, flat));
    assert_ok(dsvi_weights_write(scratch_path("whole"), &table, flat, DSVI_F32, UINT64_MAX));
    snprintf(path, sizeof path, "%s/wan_t2v.safetensors", folder);
    copy_renamed(scratch_path("whole/diffusion_pytorch_model.safetensors"), path, "model.diffusion_model.",
                 &table, NULL);
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_ok(dsvi_dit_config_write(path, &config));
    dsvi_param_table_free(&table);
    free(flat);
}

static void compare_layouts(const Case *c)
{
    DsvConfig settings;
    const char *model = golden_path("pipe_a");
    case_options(model, c, &settings);
    assert_ok(sample_case(model, c, &settings, scratch_path("a.safetensors"), NULL));
    case_options(scratch_path("comfy"), c, &settings);
    settings.flow_shift = c->sampler ? c->shift : 3; /* the folder has no scheduler_config.json */
    snprintf(settings.model_vae, sizeof settings.model_vae, "%s", golden_path("pipe_a/vae"));
    snprintf(settings.model_tokenizer, sizeof settings.model_tokenizer, "%s",
             golden_path("pipe_a/tokenizer"));
    assert_ok(sample_case(scratch_path("comfy"), c, &settings, scratch_path("b.safetensors"), NULL));
    /* The files differ in the name of the model, which is stored in them. */
    DsviSafetensors *a, *b;
    assert_ok(dsvi_safetensors_open(scratch_path("a.safetensors"), &a));
    assert_ok(dsvi_safetensors_open(scratch_path("b.safetensors"), &b));
    assert_true(largest_difference(a, b, "video") == 0);
    dsvi_safetensors_close(&a);
    dsvi_safetensors_close(&b);
}

static bool layouts_compared;

/* Compares the layouts for the first case. Other cases differ in settings alone. */
static void compare_layouts_once(const Case *c)
{
    if (!layouts_compared)
        compare_layouts(c);
    layouts_compared = true;
}

static void layouts_give_the_same(void **state)
{
    (void)state;
    assert_ok(dsvi_folder_make(scratch_path("comfy/diffusion_models")));
    assert_ok(dsvi_folder_make(scratch_path("comfy/text_encoders")));
    write_single_transformer(scratch_path("comfy/diffusion_models"));
    copy_renamed(golden_path("pipe_a/text_encoder/model.safetensors"),
                 scratch_path("comfy/text_encoders/umt5.safetensors"), "", NULL, NULL);
    layouts_compared = false;
    each_case(compare_layouts_once);
}

/* ---- arguments ---- */

typedef struct Seen {
    char log[4096];
    int64_t steps;
} Seen;

static void keep_line(void *context, DsvLogLevel level, const char *line)
{
    Seen *seen = context;
    size_t used = strlen(seen->log);
    (void)level;
    snprintf(seen->log + used, sizeof seen->log - used, "%s\n", line);
}

static void keep_progress(void *context, const DsvProgress *progress)
{
    Seen *seen = context;
    assert_int_equal(progress->total, 4);
    seen->steps = progress->done;
}

static const Case SMALL = {
    .name = "unipc", .prompt = "a cat", .height = 32, .width = 16, .frames = 1, .steps = 2, .guidance = 5};

static void assert_same_file(const char *a, const char *b, bool same)
{
    uint64_t x, y;
    assert_ok(dsvi_file_checksum(scratch_path(a), &x));
    assert_ok(dsvi_file_checksum(scratch_path(b), &y));
    assert_true((x == y) == same);
}

/* A file of prompts gives the clips that the prompts give one by one. */
static void prompts_of_a_file(void **state)
{
    DsvConfig settings;
    DsvSampleArgs args;
    Seen seen = {.log = ""};
    DsvEvents events = {.context = &seen, .log = keep_line, .progress = keep_progress};
    const char *prompt = "a dog", *file = "a cat\na dog\n";
    (void)state;
    case_options(golden_path("pipe_a"), &SMALL, &settings);
    assert_ok(dsvi_file_write(scratch_path("prompts.txt"), file, strlen(file)));
    dsv_sample_args_defaults(&args);
    args.model_path = golden_path("pipe_a");
    args.prompts_path = scratch_path("prompts.txt");
    args.output_path = scratch_path("two.safetensors");
    assert_ok(dsv_sample_clips(&args, &settings, &events));
    assert_int_equal(seen.steps, 4);
    assert_non_null(strstr(seen.log, "GiB for weights"));
    assert_non_null(strstr(seen.log, "before it the text encoder takes "));
    assert_non_null(strstr(seen.log, "after it the VAE "));
    assert_non_null(strstr(seen.log, "2 clips"));
    args.prompts_path = NULL;
    args.prompts = &prompt;
    args.prompt_count = 1;
    args.output_path = scratch_path("one.safetensors");
    assert_ok(dsv_sample_clips(&args, &settings, NULL));
    assert_same_file("two-0001.safetensors", "one.safetensors", true);
    assert_same_file("two-0000.safetensors", "one.safetensors", false);
    settings.seed++;
    args.output_path = scratch_path("other.safetensors");
    assert_ok(dsv_sample_clips(&args, &settings, NULL));
    assert_same_file("other.safetensors", "one.safetensors", false);
}

/* A prompt with more ids than the model takes is cut, with a warning; one of a million characters is refused.
 */
static void a_long_prompt(void **state)
{
    enum { LONG = 1000000, CUT = 100000 };
    DsvConfig settings;
    DsvSampleArgs args;
    Seen seen = {.log = ""};
    DsvEvents events = {.context = &seen, .log = keep_line};
    char *prompt = malloc(LONG + 1);
    const char *prompts[1] = {prompt};
    (void)state;
    for (int i = 0; i < LONG; i++)
        prompt[i] = "ab "[i % 3];
    prompt[LONG] = 0;
    case_options(golden_path("pipe_a"), &SMALL, &settings);
    dsv_sample_args_defaults(&args);
    args.model_path = golden_path("pipe_a");
    args.prompts = prompts;
    args.prompt_count = 1;
    args.output_path = scratch_path("long.png");
    assert_fails(DSV_E_FORMAT, "1000000 bytes", dsv_sample_clips(&args, &settings, &events));
    prompt[CUT] = 0;
    assert_ok(dsv_sample_clips(&args, &settings, &events));
    assert_non_null(strstr(seen.log, "are cut off"));
    free(prompt);
}

/* The noise of SMALL has 16 channels of 4 x 2, here with one infinite element. */
static void unusable_noise_is_named(void **state)
{
    DsvConfig settings;
    DsvSampleArgs args;
    const char *prompt = "a cat";
    const float numbers[16 * 4 * 2] = {1, INFINITY};
    const DsviStoredTensor noise = {.name = "noise",
                                    .dtype = DSVI_F32,
                                    .ndim = 4,
                                    .shape = {16, 1, 4, 2},
                                    .count = 16 * 4 * 2,
                                    .bytes = sizeof numbers,
                                    .data = numbers};
    (void)state;
    case_options(golden_path("pipe_a"), &SMALL, &settings);
    dsv_sample_args_defaults(&args);
    args.model_path = golden_path("pipe_a");
    args.prompts = &prompt;
    args.prompt_count = 1;
    args.output_path = scratch_path("never.png");
    args.noise_path = scratch_path("noise.safetensors");
    assert_ok(dsvi_safetensors_write(args.noise_path, &noise, 1, NULL, 0));
    assert_fails(DSV_E_FORMAT, "noise.safetensors: element 1 of tensor noise is not finite",
                 dsv_sample_clips(&args, &settings, NULL));
}

static void wrong_arguments(void **state)
{
    DsvConfig settings;
    DsvSampleArgs args;
    const char *prompt = "\xff", *clip = scratch_path("x.mp4");
    (void)state;
    case_options(golden_path("pipe_a"), &SMALL, &settings);
    dsv_sample_args_defaults(&args);
    args.model_path = golden_path("pipe_a");
    args.output_path = clip;
    assert_fails(DSV_E_USAGE, "needs a prompt", dsv_sample_clips(&args, &settings, NULL));
    args.prompts = &prompt;
    args.prompt_count = 1;
    assert_fails(DSV_E_FORMAT, "not UTF-8", dsv_sample_clips(&args, &settings, NULL));
    args.text_path = clip;
    assert_fails(DSV_E_USAGE, "exclude one another", dsv_sample_clips(&args, &settings, NULL));
    args.text_path = NULL;
    args.bytes--;
    assert_fails(DSV_E_USAGE, "DsvSampleArgs has", dsv_sample_clips(&args, &settings, NULL));
    args.bytes++;
    prompt = "a cat";
    settings.num_frames = 6;
    assert_fails(DSV_E_SHAPE, "num_frames=6: expected 4k + 1; the nearest is 5",
                 dsv_sample_clips(&args, &settings, NULL));
    settings.num_frames = 5;
    settings.width = 250;
    assert_fails(DSV_E_SHAPE, "width=250: expected a multiple of 16; the nearest is 256",
                 dsv_sample_clips(&args, &settings, NULL));
    settings.width = 1;
    assert_fails(DSV_E_SHAPE, "the nearest is 16", dsv_sample_clips(&args, &settings, NULL));
    settings.width = 256;
    args.negative_prompt = "\xff";
    assert_fails(DSV_E_FORMAT, "negative prompt: the text is not UTF-8",
                 dsv_sample_clips(&args, &settings, NULL));
    args.negative_prompt = NULL;
    snprintf(settings.model_text_encoder, sizeof settings.model_text_encoder, "%s", golden_path("umt5"));
    assert_fails(DSV_E_SHAPE, "umt5: a text encoder with hidden states of ",
                 dsv_sample_clips(&args, &settings, NULL));
    settings.model_text_encoder[0] = 0;
    settings.width = 16;
    settings.height = 16000;
    settings.width = 16000;
    settings.num_frames = 3997;
    assert_fails(DSV_E_SHAPE, "positions", dsv_sample_clips(&args, &settings, NULL));
    assert_false(dsvi_path_exists(clip));
}

static bool stop_at_once(void *context)
{
    (void)context;
    return true;
}

/* Both texts are evaluated in one pass if reading the weights is a large part of it: in small clips. */
static void small_clips_take_one_pass(void **state)
{
    DsvConfig settings;
    DsvSampleArgs args;
    Seen seen = {.log = ""};
    DsvEvents events = {.context = &seen, .log = keep_line, .stop = stop_at_once};
    const char *prompt = "a cat";
    (void)state;
    case_options(golden_path("pipe_a"), &SMALL, &settings);
    dsv_sample_args_defaults(&args);
    args.model_path = golden_path("pipe_a");
    args.output_path = scratch_path("never.mp4");
    args.prompts = &prompt;
    args.prompt_count = 1;
    assert_fails(DSV_E_INTERRUPTED, "stopped after 0 of 2", dsv_sample_clips(&args, &settings, &events));
    assert_non_null(strstr(seen.log, " and guidance in one pass"));
    seen.log[0] = 0;
    settings.height = 480;
    settings.width = 832;
    settings.num_frames = 9;
    assert_fails(DSV_E_INTERRUPTED, "stopped after 0 of 2", dsv_sample_clips(&args, &settings, &events));
    assert_non_null(strstr(seen.log, " and guidance in two passes"));
}

/* Faults of prompts and limits that a part cannot keep are found before anything is estimated. */
static void faults_come_before_the_estimate(void **state)
{
    DsvConfig settings;
    DsvSampleArgs args;
    Seen seen = {.log = ""};
    DsvEvents events = {.context = &seen, .log = keep_line};
    const char *prompts[2] = {"a cat", "a \xff"};
    (void)state;
    case_options(golden_path("pipe_a"), &SMALL, &settings);
    dsv_sample_args_defaults(&args);
    args.model_path = golden_path("pipe_a");
    args.output_path = scratch_path("never.png");
    args.prompts = prompts;
    args.prompt_count = 2;
    assert_fails(DSV_E_FORMAT, "prompt 2", dsv_sample_clips(&args, &settings, &events));
    args.prompt_count = 1;
    settings.memory_gib = 1e-5;
    assert_fails(DSV_E_NO_MEMORY, "the text encoder has a limit of",
                 dsv_sample_clips(&args, &settings, &events));
    settings.height = settings.width = 512;
    settings.memory_gib = 0.002;
    assert_fails(DSV_E_NO_MEMORY, "with the VAE, expected at least",
                 dsv_sample_clips(&args, &settings, &events));
    assert_string_equal(seen.log, "");
    assert_false(dsvi_path_exists(scratch_path("never-0000.png")));
}

static void keep_text(void *context, const char *text)
{
    keep_line(context, DSV_LOG_INFO, text);
}

/* dsv inspect lists the parts of a model of an unsupported variant, and ends with one sentence. */
static void inspection_of_a_refused_model(void **state)
{
    static const char *const PARTS[] = {"transformer", "transformer_2", "image_encoder"};
    static const char INDEX[] = "{\"_class_name\": \"WanAnimatePipeline\"}";
    const float numbers[6] = {0};
    const DsviStoredTensor tensor = {.name = "patch_embedding.weight",
                                     .dtype = DSVI_F32,
                                     .ndim = 2,
                                     .shape = {2, 3},
                                     .count = 6,
                                     .bytes = sizeof numbers,
                                     .data = numbers};
    char path[128];
    Seen seen = {.log = ""};
    (void)state;
    for (size_t i = 0; i < sizeof PARTS / sizeof *PARTS; i++) {
        snprintf(path, sizeof path, "i2v/%s", PARTS[i]);
        assert_ok(dsvi_folder_make(scratch_path(path)));
        snprintf(path, sizeof path, "i2v/%s/model.safetensors", PARTS[i]);
        assert_ok(dsvi_safetensors_write(scratch_path(path), &tensor, 1, NULL, 0));
    }
    assert_ok(dsvi_file_write(scratch_path("i2v/model_index.json"), INDEX, sizeof INDEX - 1));
    assert_fails(DSV_E_UNSUPPORTED, "a Wan Animate model",
                 dsv_inspect(scratch_path("i2v"), keep_text, &seen));
    assert_non_null(strstr(seen.log, "a published Wan model, laid out as diffusers"));
    assert_non_null(strstr(seen.log, "\ntransformer: "));
    assert_non_null(strstr(seen.log, "\ntransformer_2: "));
    assert_non_null(strstr(seen.log, "\nimage encoder: "));
    assert_non_null(strstr(seen.log, "1 tensors of F32 in 1 file, 6 numbers"));
}

static int run_all(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clips_are_those_of_diffusers),
        cmocka_unit_test(layouts_give_the_same),
        cmocka_unit_test(prompts_of_a_file),
        cmocka_unit_test(a_long_prompt),
        cmocka_unit_test(unusable_noise_is_named),
        cmocka_unit_test(wrong_arguments),
        cmocka_unit_test(inspection_of_a_refused_model),
        cmocka_unit_test(small_clips_take_one_pass),
        cmocka_unit_test(faults_come_before_the_estimate),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}

/* The cases of diffusers on a GPU. */
static int run_cuda(void)
{
    DsvConfig settings;
    DsvSampleArgs args;
    const char *prompt = "a boat";
    bool found;
    const struct CMUnitTest tests[] = {cmocka_unit_test(clips_are_those_of_diffusers)};
    device = "cuda";
    dsv_config_defaults(&settings);
    dsv_sample_args_defaults(&args);
    args.model_path = golden_path("pipe_a");
    args.output_path = "no folder/clip.safetensors"; /* which is refused once the device is open */
    args.prompts = &prompt;
    args.prompt_count = 1;
    assert_ok(dsv_config_of_run(args.model_path, &settings, &found));
    set_option(&settings, "device", device);
    if (dsv_sample_clips(&args, &settings, NULL) == DSV_E_UNSUPPORTED) {
        fprintf(stderr, "SKIPPED: %s\n", dsv_error_message());
        return SKIPPED;
    }
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}

/* test_wan_sample [cuda] */
int main(int argc, char **argv)
{
    return golden_run("pipe_a", argc == 2 && strcmp(argv[1], "cuda") == 0 ? run_cuda : run_all);
}
