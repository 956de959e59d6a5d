/* Sampling published models whose weights wait in host memory: the clip has the bits of the clip with all
 * weights on the device, a limit is kept, and one that cannot be kept is refused with the least that
 * suffices. */
#include "test.h"

#include <unistd.h>

#include "base/scratch.h"
#include "dsv/dsv.h"
#include "golden/golden_files.h"
#include "model/weights/weights.h"

enum { BLOCKS = 5, FFN_DIM = 4096 }; /* a block takes more memory than text encoder and VAE */

static char log_text[8192];

static void keep_line(void *context, DsvLogLevel level, const char *line)
{
    size_t used = strlen(log_text);
    (void)context;
    (void)level;
    snprintf(log_text + used, sizeof log_text - used, "%s\n", line);
}

static void link_part(const char *from, const char *to)
{
    assert_int_equal(symlink(golden_path(from), scratch_path(to)), 0);
}

/* Writes a transformer of BLOCKS blocks with random weights. */
static void write_transformer(const char *part, uint64_t seed)
{
    char path[DSVI_PATH_MAX];
    DsviDitConfig config;
    DsviParamTable table;
    assert_ok(dsvi_dit_config_read(golden_path("pipe_a/transformer/config.json"), &config));
    config.num_layers = BLOCKS;
    config.ffn_dim = FFN_DIM;
    assert_ok(dsvi_param_table_make(&config, &table));
    float *flat = malloc((size_t)table.elements * sizeof *flat);
    dsvi_weights_init(&table, seed, flat);
    for (int64_t i = 0; i < table.elements; i++)
        flat[i] += 0.01F * (float)(i % 7 - 3); /* no part of the model is zero */
    snprintf(path, sizeof path, "%s", scratch_path(part));
    assert_ok(dsvi_weights_write(path, &table, flat, DSVI_F32, UINT64_MAX));
    strcat(path, "/config.json");
    assert_ok(dsvi_dit_config_write(path, &config));
    dsvi_param_table_free(&table);
    free(flat);
}

static void write_models(void)
{
    static const char TWO[] =
        "{\"_class_name\": \"WanPipeline\", \"transformer\": [\"diffusers\", \"WanTransformer3DModel\"], "
        "\"transformer_2\": [\"diffusers\", \"WanTransformer3DModel\"], \"boundary_ratio\": 0.875}";
    static const char *const PARTS[] = {"vae", "text_encoder", "tokenizer", "scheduler"};
    char from[64], to[64];
    assert_ok(dsvi_folder_make(scratch_path("one")));
    assert_ok(dsvi_folder_make(scratch_path("two")));
    for (int i = 0; i < 8; i++) {
        snprintf(from, sizeof from, "pipe_a/%s", PARTS[i % 4]);
        snprintf(to, sizeof to, "%s/%s", i < 4 ? "one" : "two", PARTS[i % 4]);
        link_part(from, to);
    }
    link_part("pipe_a/model_index.json", "one/model_index.json");
    assert_ok(dsvi_file_write(scratch_path("two/model_index.json"), TWO, sizeof TWO - 1));
    write_transformer("one/transformer", 1);
    write_transformer("two/transformer", 2);
    write_transformer("two/transformer_2", 3);
}

static void options_of(const char *model, const char *precision, double guidance, DsvConfig *settings)
{
    bool found;
    dsv_config_defaults(settings);
    assert_ok(dsv_config_of_run(scratch_path(model), settings, &found));
    assert_true(found);
    assert_ok(dsv_config_set(settings, precision));
    settings->height = 32;
    settings->width = 16;
    settings->num_frames = 1;
    settings->num_inference_steps = 4;
    settings->guidance_scale = guidance;
    settings->threads = 2;
}

static DsvStatus sample(const char *model, const DsvConfig *settings, uint64_t *checksum)
{
    DsvSampleArgs args;
    const DsvEvents events = {.log = keep_line};
    const char *prompt = "a cat";
    dsv_sample_args_defaults(&args);
    args.model_path = scratch_path(model);
    args.output_path = scratch_path("clip.safetensors");
    args.latents_path = scratch_path("latents.safetensors");
    args.prompts = &prompt;
    args.prompt_count = 1;
    log_text[0] = 0;
    DsvStatus status = dsv_sample_clips(&args, settings, &events);
    if (status == DSV_OK)
        assert_ok(dsvi_file_checksum(scratch_path("latents.safetensors"), checksum));
    return status;
}

/* All blocks wait in host memory: of one model, and of two experts, which share slots and host memory. */
static void the_bits_are_those_without(void **state)
{
    static const char *const MODELS[] = {"one", "two"};
    static const char *const FORMS[] = {"mixed_precision=no", "mixed_precision=bf16", "base_precision=fp8"};
    (void)state;
    for (int i = 0; i < 6; i++) {
        DsvConfig settings;
        uint64_t kept, lent;
        options_of(MODELS[i % 2], FORMS[i / 2], 3, &settings);
        assert_ok(sample(MODELS[i % 2], &settings, &kept));
        assert_null(strstr(log_text, "wait in host memory"));
        assert_ok(dsv_config_set(&settings, "offload=weights"));
        assert_ok(sample(MODELS[i % 2], &settings, &lent));
        assert_non_null(strstr(log_text, "the weights of 5 blocks ("));
        assert_true(kept == lent);
    }
}

/* Returns the number after a phrase of the last error message. */
static double number_after(const char *phrase)
{
    const char *at = strstr(dsv_error_message(), phrase);
    if (!at)
        fail_msg("%s\nlacks %s", dsv_error_message(), phrase);
    return atof(at + strlen(phrase));
}

/* Without offload a limit too makes blocks wait, as few as it requires. */
static void a_limit_is_kept_or_refused(void **state)
{
    DsvConfig settings;
    uint64_t kept, lent;
    (void)state;
    options_of("one", "mixed_precision=no", 1, &settings);
    assert_ok(sample("one", &settings, &kept));
    settings.memory_gib = 0.002;
    assert_fails(DSV_E_NO_MEMORY, "of 5 blocks in host memory, and memory_gib allows 0.002",
                 sample("one", &settings, &lent));
    double least = number_after("needs at least ");
    assert_true(least > 0.002);
    settings.memory_gib = least;
    assert_ok(sample("one", &settings, &lent));
    assert_non_null(strstr(log_text, "the weights of 5 blocks"));
    assert_true(kept == lent);
    settings.memory_gib = least + 0.001; /* a block more */
    assert_ok(sample("one", &settings, &lent));
    assert_non_null(strstr(log_text, "the weights of 4 blocks"));
    assert_true(kept == lent);
}

static int make_models(void **state)
{
    int status = scratch_make(state);
    write_models();
    return status;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_are_those_without),
        cmocka_unit_test(a_limit_is_kept_or_refused),
    };
    return cmocka_run_group_tests(tests, make_models, scratch_remove);
}
