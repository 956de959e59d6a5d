/* Whole small Wan folders made of golden files, and clips of diffusers that dsv_sample_clips must sample. */
#ifndef DSVI_TEST_WAN_CASE_H
#define DSVI_TEST_WAN_CASE_H

#include <unistd.h>

#include <cjson/cJSON.h>

#include "base/safetensors.h"
#include "base/scratch.h"
#include "dsv/dsv.h"
#include "golden/golden_files.h"
#include "test.h"

#define WAN_CASE_PART "[\"diffusers\", \"WanTransformer3DModel\"]"

/* What the last call of wan_case_sample logged, and its last unit of progress. */
static char wan_case_log[8192], wan_case_unit[32];

/* Adds a line to wan_case_log: for dsv_inspect. */
static inline void wan_case_keep(void *context, const char *line)
{
    size_t used = strlen(wan_case_log);
    (void)context;
    snprintf(wan_case_log + used, sizeof wan_case_log - used, "%s\n", line);
}

static inline void wan_case_keep_line(void *context, DsvLogLevel level, const char *line)
{
    (void)level;
    wan_case_keep(context, line);
}

static inline void wan_case_keep_unit(void *context, const DsvProgress *progress)
{
    (void)context;
    snprintf(wan_case_unit, sizeof wan_case_unit, "%s", progress->unit);
}

/* Makes the golden file `from` the file `to` of the scratch folder. */
static inline void wan_case_link(const char *from, const char *to)
{
    (void)unlink(scratch_path(to));
    assert_int_equal(symlink(golden_path(from), scratch_path(to)), 0);
}

/* Writes the model_index.json of the folder "model": its pipeline, and as JSON the class of transformer_2 and
 * boundary_ratio. */
static inline void wan_case_index(const char *pipeline, const char *second, const char *ratio)
{
    char text[512];
    snprintf(text, sizeof text,
             "{\"_class_name\": \"%s\", \"transformer\": %s, \"transformer_2\": %s, \"boundary_ratio\": %s}",
             pipeline, WAN_CASE_PART, second, ratio);
    (void)unlink(scratch_path("model/model_index.json"));
    assert_ok(dsvi_file_write(scratch_path("model/model_index.json"), text, strlen(text)));
}

/* Makes the folder "model" of the scratch folder: transformers, scheduler and image encoder of the golden
 * folder `set`, all other parts of pipe_a, and as index that of `set`. */
static inline void wan_case_make(const char *set)
{
    static const char *const OF_SET[] = {"transformer",   "transformer_2",   "scheduler",
                                         "image_encoder", "image_processor", "model_index.json"};
    char from[128], to[128];
    assert_ok(dsvi_folder_make(scratch_path("model")));
    for (size_t i = 0; i < sizeof OF_SET / sizeof *OF_SET; i++) {
        snprintf(from, sizeof from, "%s/%s", set, OF_SET[i]);
        snprintf(to, sizeof to, "model/%s", OF_SET[i]);
        (void)unlink(scratch_path(to));
        if (dsvi_path_exists(golden_path(from)))
            wan_case_link(from, to);
    }
    wan_case_link("pipe_a/vae", "model/vae");
    wan_case_link("pipe_a/text_encoder", "model/text_encoder");
    wan_case_link("pipe_a/tokenizer", "model/tokenizer");
}

static inline double wan_case_number_of(const cJSON *item, const char *key)
{
    const cJSON *found = cJSON_GetObjectItemCaseSensitive(item, key);
    return cJSON_IsNumber(found) ? found->valuedouble : 0;
}

static inline void wan_case_options_of(const cJSON *item, DsvConfig *settings)
{
    bool found;
    dsv_config_defaults(settings);
    assert_ok(dsv_config_of_run(scratch_path("model"), settings, &found));
    assert_true(found);
    assert_ok(dsv_config_set(settings, "mixed_precision=no"));
    settings->height = (int64_t)wan_case_number_of(item, "height");
    settings->width = (int64_t)wan_case_number_of(item, "width");
    settings->num_frames = (int64_t)wan_case_number_of(item, "num_frames");
    settings->num_inference_steps = (int64_t)wan_case_number_of(item, "num_inference_steps");
    settings->guidance_scale = wan_case_number_of(item, "guidance_scale");
    settings->guidance_scale_2 = wan_case_number_of(item, "guidance_scale_2");
    settings->threads = 2;
    snprintf(settings->sampler, sizeof settings->sampler, "%s",
             cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "sampler")));
}

/* Samples with text states, noise and latents of `inputs`; args may have more. The latents are written to
 * latents.safetensors of the scratch folder. */
static inline DsvStatus wan_case_sample(const char *inputs, const DsvSampleArgs *args,
                                        const DsvConfig *settings)
{
    DsvSampleArgs all = *args;
    DsvEvents events;
    memset(&events, 0, sizeof events);
    events.log = wan_case_keep_line;
    events.progress = wan_case_keep_unit;
    all.model_path = scratch_path("model");
    all.output_path = scratch_path("clip.safetensors");
    all.text_path = inputs;
    all.noise_path = inputs;
    all.latents_path = scratch_path("latents.safetensors");
    wan_case_log[0] = wan_case_unit[0] = 0;
    return dsv_sample_clips(&all, settings, &events);
}

static inline void wan_case_compare_latents(const char *wanted_path, const char *name)
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

/* Samples a case with the pictures that its key last_image asks for. */
static inline void wan_case_compare_case(const char *set, const cJSON *item)
{
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItem(item, "case"));
    const cJSON *last = cJSON_GetObjectItem(item, "last_image");
    char path[128], inputs[DSVI_PATH_MAX], pictures[2][DSVI_PATH_MAX];
    DsvSampleArgs args;
    DsvConfig settings;
    snprintf(path, sizeof path, "%s/cases/%s.safetensors", set, name);
    snprintf(inputs, sizeof inputs, "%s", golden_path(path));
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s.png", set, i ? "last" : "first");
        snprintf(pictures[i], sizeof pictures[i], "%s", golden_path(path));
    }
    dsv_sample_args_defaults(&args);
    args.image_path = last ? pictures[0] : NULL;
    args.last_image_path = cJSON_IsTrue(last) ? pictures[1] : NULL;
    wan_case_options_of(item, &settings);
    assert_ok(wan_case_sample(inputs, &args, &settings));
    wan_case_compare_latents(inputs, name);
}

/* Samples each case of the golden folder `set` with the folder "model", and compares the latents with those
 * of the case. Both compute in F32: 1e-4 is 100 units in the last place of latents of about 10. Before each
 * case `prepare`, unless NULL, gets its boundary_ratio, 0 if the case has none; after it `check`, unless
 * NULL, may look at the log. */
static inline void wan_case_compare_all(const char *set, void (*prepare)(double ratio), void (*check)(void))
{
    char *text, path[128];
    size_t bytes;
    const cJSON *item;
    snprintf(path, sizeof path, "%s/fixture.json", set);
    assert_ok(dsvi_file_read(golden_path(path), 1 << 20, &text, &bytes));
    cJSON *description = cJSON_Parse(text);
    assert_true(cJSON_GetArraySize(cJSON_GetObjectItem(description, "cases")) > 0);
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(description, "cases")) {
        if (prepare)
            prepare(wan_case_number_of(item, "boundary_ratio"));
        wan_case_compare_case(set, item);
        if (check)
            check();
    }
    cJSON_Delete(description);
    free(text);
}

#endif
