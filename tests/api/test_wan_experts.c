/* Models of two experts (Wan 2.2 A14B): dsv_sample_clips against diffusers' WanPipeline, dsv_inspect, and
 * what is said about an expert that is missing or has another shape, and about training. */
#include "test.h"

#include <unistd.h>

#include <cjson/cJSON.h>

#include "base/safetensors.h"
#include "base/scratch.h"
#include "dsv/dsv.h"
#include "golden/golden_files.h"

static const char PART[] = "[\"diffusers\", \"WanTransformer3DModel\"]";
static char log_text[8192], last_unit[32];

static void keep_text(void *context, const char *line)
{
    size_t used = strlen(log_text);
    (void)context;
    snprintf(log_text + used, sizeof log_text - used, "%s\n", line);
}

static void keep_line(void *context, DsvLogLevel level, const char *line)
{
    (void)level;
    keep_text(context, line);
}

static void keep_unit(void *context, const DsvProgress *progress)
{
    (void)context;
    snprintf(last_unit, sizeof last_unit, "%s", progress->unit);
}

static void link_part(const char *from, const char *to)
{
    (void)unlink(scratch_path(to));
    assert_int_equal(symlink(golden_path(from), scratch_path(to)), 0);
}

static void write_index(const char *experts, const char *ratio)
{
    char text[512];
    snprintf(text, sizeof text,
             "{\"_class_name\": \"WanPipeline\", \"transformer\": %s, \"transformer_2\": %s, "
             "\"boundary_ratio\": %s}",
             PART, experts, ratio);
    assert_ok(dsvi_file_write(scratch_path("model/model_index.json"), text, strlen(text)));
}

static void make_model(const char *ratio)
{
    assert_ok(dsvi_folder_make(scratch_path("model")));
    link_part("pipe_experts/transformer", "model/transformer");
    link_part("pipe_experts/transformer_2", "model/transformer_2");
    link_part("pipe_experts/scheduler", "model/scheduler");
    link_part("pipe_a/vae", "model/vae");
    link_part("pipe_a/text_encoder", "model/text_encoder");
    link_part("pipe_a/tokenizer", "model/tokenizer");
    write_index(PART, ratio);
}

static double number_of(const cJSON *item, const char *key)
{
    const cJSON *found = cJSON_GetObjectItemCaseSensitive(item, key);
    return cJSON_IsNumber(found) ? found->valuedouble : 0;
}

static void options_of(const cJSON *item, DsvConfig *settings)
{
    bool found;
    dsv_config_defaults(settings);
    assert_ok(dsv_config_of_run(scratch_path("model"), settings, &found));
    assert_true(found);
    assert_ok(dsv_config_set(settings, "mixed_precision=no"));
    settings->height = (int64_t)number_of(item, "height");
    settings->width = (int64_t)number_of(item, "width");
    settings->num_frames = (int64_t)number_of(item, "num_frames");
    settings->num_inference_steps = (int64_t)number_of(item, "num_inference_steps");
    settings->guidance_scale = number_of(item, "guidance_scale");
    settings->guidance_scale_2 = number_of(item, "guidance_scale_2");
    settings->threads = 2;
    snprintf(settings->sampler, sizeof settings->sampler, "%s",
             cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "sampler")));
}

static DsvStatus sample(const char *inputs, const DsvConfig *settings)
{
    DsvSampleArgs args;
    const DsvEvents events = {.log = keep_line, .progress = keep_unit};
    dsv_sample_args_defaults(&args);
    args.model_path = scratch_path("model");
    args.output_path = scratch_path("clip.safetensors");
    args.text_path = inputs;
    args.noise_path = inputs;
    args.latents_path = scratch_path("latents.safetensors");
    log_text[0] = last_unit[0] = 0;
    return dsv_sample_clips(&args, settings, &events);
}

static void compare_latents(const char *wanted_path, const char *name)
{
    DsviSafetensors *wanted, *found;
    double largest = 0;
    assert_ok(dsvi_safetensors_open(wanted_path, &wanted));
    assert_ok(dsvi_safetensors_open(scratch_path("latents.safetensors"), &found));
    const DsviStoredTensor *x = dsvi_safetensors_find(wanted, "latents");
    const DsviStoredTensor *y = dsvi_safetensors_find(found, "latents");
    assert_int_equal(x->count, y->count);
    for (int64_t i = 0; i < x->count; i++) {
        double difference = fabs(((const float *)x->data)[i] - ((const float *)y->data)[i]);
        if (!(difference <= largest))
            largest = difference;
    }
    if (!(largest < 1e-4))
        fail_msg("latents of %s differ by %g", name, largest);
    dsvi_safetensors_close(&wanted);
    dsvi_safetensors_close(&found);
}

static void latents_are_those_of_diffusers(void **state)
{
    char *text, file[128], ratio[32], inputs[DSVI_PATH_MAX];
    size_t bytes;
    const cJSON *item;
    DsvConfig settings;
    (void)state;
    assert_ok(dsvi_file_read(golden_path("pipe_experts/fixture.json"), 1 << 20, &text, &bytes));
    cJSON *description = cJSON_Parse(text);
    assert_true(cJSON_GetArraySize(cJSON_GetObjectItem(description, "cases")) > 0);
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(description, "cases")) {
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItem(item, "case"));
        snprintf(file, sizeof file, "pipe_experts/cases/%s.safetensors", name);
        snprintf(inputs, sizeof inputs, "%s", golden_path(file));
        snprintf(ratio, sizeof ratio, "%g", number_of(item, "boundary_ratio"));
        make_model(ratio);
        options_of(item, &settings);
        assert_ok(sample(inputs, &settings));
        compare_latents(inputs, name);
        assert_non_null(strstr(log_text, "the expert for high noise (transformer) runs now"));
        assert_non_null(strstr(log_text, "the expert for low noise (transformer_2) runs now"));
        assert_string_equal(last_unit, "low noise, step");
    }
    cJSON_Delete(description);
    free(text);
}

static void inspection_names_both_experts(void **state)
{
    (void)state;
    make_model("0.875");
    log_text[0] = 0;
    assert_ok(dsv_inspect(scratch_path("model"), keep_text, NULL));
    assert_non_null(strstr(log_text, "transformer from timestep 875 on, transformer_2 below"));
    assert_non_null(strstr(log_text, "transformer is sound"));
    assert_non_null(strstr(log_text, "transformer_2 is sound"));
}

static void faults(void **state)
{
    DsvConfig settings;
    bool found;
    char inputs[DSVI_PATH_MAX];
    (void)state;
    make_model("0.875");
    snprintf(inputs, sizeof inputs, "%s", golden_path("pipe_experts/cases/unipc.safetensors"));
    dsv_config_defaults(&settings);
    assert_ok(dsv_config_of_run(scratch_path("model"), &settings, &found));
    snprintf(settings.model_path, sizeof settings.model_path, "%s", scratch_path("model"));
    assert_ok(dsv_config_set(&settings, "codec.name=haar"));
    assert_fails(DSV_E_UNSUPPORTED, "the two experts of Wan 2.2", dsv_train(&settings, NULL, NULL));
    settings.model_path[0] = 0;
    link_part("pipe_a/transformer", "model/transformer_2");
    assert_fails(DSV_E_SHAPE, "both experts need the sizes of transformer", sample(inputs, &settings));
    assert_int_equal(unlink(scratch_path("model/transformer_2")), 0);
    assert_fails(DSV_E_NOT_FOUND, "the transformer_2 is missing", sample(inputs, &settings));
    write_index("[null, null]", "0.875");
    assert_fails(DSV_E_FORMAT, "boundary_ratio is set and transformer_2 is not", sample(inputs, &settings));
    write_index(PART, "null");
    assert_fails(DSV_E_FORMAT, "transformer_2 is set and boundary_ratio is not", sample(inputs, &settings));
    write_index(PART, "2");
    assert_fails(DSV_E_FORMAT, "boundary_ratio is not a number from 0 to 1", sample(inputs, &settings));
    write_index("[null, null]", "null");
    settings.guidance_scale_2 = 3;
    assert_fails(DSV_E_USAGE, "has one transformer, and no second expert", sample(inputs, &settings));
}

static int run_all(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(latents_are_those_of_diffusers),
        cmocka_unit_test(inspection_names_both_experts),
        cmocka_unit_test(faults),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}

int main(void)
{
    return golden_run("pipe_experts", run_all);
}
