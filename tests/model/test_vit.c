/* The image encoder and the preparation of its pictures against the package transformers (golden files vit),
 * and what is said about files of other models. */
#include "test.h"

#include "../base/scratch.h"
#include "base/safetensors.h"
#include "cpu/cpu.h"
#include "golden/golden_files.h"
#include "model/vit/vit.h"

enum { PICTURES = 3 };

/* States in F32 differ from those of transformers by the order of sums. */
#define F32_BOUND 1e-5
#define BF16_BOUND 2e-2

static DsviSafetensors *expected;

static const DsviStoredTensor *tensor(const char *name)
{
    const DsviStoredTensor *found = dsvi_safetensors_find(expected, name);
    assert_non_null(found);
    return found;
}

/* Encodes the golden pictures, at most `batch` at a time; the caller frees the result. */
static float *encode(const char *encoder, const char *isa, DsviDtype act, int64_t batch, int64_t *count)
{
    DsviBackend backend;
    DsviVit *vit;
    assert_ok(dsvi_cpu_open(isa, 2, &backend));
    assert_ok(dsvi_vit_open(&backend, encoder, act, batch, &vit));
    const DsviVitConfig *config = dsvi_vit_config(vit);
    *count = PICTURES * dsvi_vit_rows(config) * config->hidden_size;
    float *states = malloc((size_t)*count * sizeof *states);
    assert_non_null(states);
    assert_ok(dsvi_vit_encode(vit, PICTURES, tensor("pixel_values")->data, states));
    dsvi_vit_close(&vit);
    assert_null(vit);
    dsvi_cpu_close(&backend);
    return states;
}

static void states_are_those_of_transformers(void **state)
{
    static const struct {
        const char *isa;
        DsviDtype act;
        double bound;
    } WAYS[] = {{"auto", DSVI_F32, F32_BOUND}, {"ref", DSVI_F32, F32_BOUND}, {"auto", DSVI_BF16, BF16_BOUND}};
    static const char *const ENCODERS[] = {"gelu", "quick_gelu"};
    char path[64], name[64];
    int64_t count;
    (void)state;
    for (size_t e = 0; e < sizeof ENCODERS / sizeof *ENCODERS; e++)
        for (size_t w = 0; w < sizeof WAYS / sizeof *WAYS; w++) {
            snprintf(path, sizeof path, "vit/%s", ENCODERS[e]);
            snprintf(name, sizeof name, "hidden_states_%s", ENCODERS[e]);
            float *states = encode(golden_path(path), WAYS[w].isa, WAYS[w].act, 2, &count);
            assert_int_equal(count, tensor(name)->count);
            assert_error_below(relative_l2(DSVI_F32, states, DSVI_F32, tensor(name)->data, count),
                               WAYS[w].bound, "%s, way %zu", ENCODERS[e], w);
            free(states);
        }
}

static void pictures_are_prepared_as_by_transformers(void **state)
{
    DsviVitProcessor processor;
    const DsviStoredTensor *wanted = tensor("pixel_values");
    const int64_t picture = wanted->count / PICTURES;
    float *pixels = malloc(wanted->bytes);
    char name[16];
    (void)state;
    assert_non_null(pixels);
    assert_ok(dsvi_vit_processor_read(golden_path("vit/preprocessor_config.json"), &processor));
    for (int i = 0; i < PICTURES; i++) {
        snprintf(name, sizeof name, "rgb_%d", i);
        const DsviStoredTensor *rgb = tensor(name);
        assert_ok(
            dsvi_vit_prepare(&processor, rgb->shape[0], rgb->shape[1], rgb->data, pixels + i * picture));
    }
    /* One unit of a byte changes a pixel by 0.014 or more: each byte is that of Pillow. */
    for (int64_t i = 0; i < wanted->count; i++)
        if (!(fabsf(pixels[i] - ((const float *)wanted->data)[i]) < 1e-5f))
            fail_msg("number %lld: %g, expected %g", (long long)i, pixels[i],
                     ((const float *)wanted->data)[i]);
    free(pixels);
}

/* Writes the text to a scratch file and reads it as the config.json of an encoder. */
static DsvStatus read_config(const char *text)
{
    DsviVitConfig config;
    assert_ok(dsvi_file_write(scratch_path("config.json"), text, strlen(text)));
    return dsvi_vit_config_read(scratch_path("config.json"), &config);
}

static DsvStatus read_processor(const char *text)
{
    DsviVitProcessor processor;
    assert_ok(dsvi_file_write(scratch_path("preprocessor_config.json"), text, strlen(text)));
    return dsvi_vit_processor_read(scratch_path("preprocessor_config.json"), &processor);
}

static void other_models_are_refused(void **state)
{
#define CLIP "{\"model_type\": \"clip_vision_model\", "
    (void)state;
    assert_ok(read_config("{\"model_type\": \"clip_vision_model\"}"));
    assert_true(dsvi_vit_is(scratch_path(".")));
    assert_fails(DSV_E_UNSUPPORTED, "config.json: model_type is siglip, expected clip_vision_model",
                 read_config("{\"model_type\": \"siglip\"}"));
    assert_false(dsvi_vit_is(scratch_path(".")));
    assert_fails(DSV_E_FORMAT, "not a JSON object", read_config("[]"));
    assert_fails(DSV_E_UNSUPPORTED, "hidden_act is relu, expected gelu or quick_gelu",
                 read_config(CLIP "\"hidden_act\": \"relu\"}"));
    assert_fails(DSV_E_UNSUPPORTED, "num_channels is 1, expected 3 to 3",
                 read_config(CLIP "\"num_channels\": 1}"));
    assert_fails(DSV_E_UNSUPPORTED, "image_size is 225, expected a multiple of patch_size, 32",
                 read_config(CLIP "\"image_size\": 225}"));
    assert_fails(DSV_E_UNSUPPORTED, "hidden_size is 100, expected an even multiple of num_attention_heads",
                 read_config(CLIP "\"hidden_size\": 100}"));
    assert_fails(DSV_E_FORMAT, "key num_hidden_layers is not a whole number",
                 read_config(CLIP "\"num_hidden_layers\": 1.5}"));
    assert_fails(DSV_E_UNSUPPORTED, "layer_norm_eps is 0", read_config(CLIP "\"layer_norm_eps\": 0}"));
#undef CLIP
}

static void other_preparations_are_refused(void **state)
{
    (void)state;
    assert_ok(read_processor("{\"size\": 30, \"crop_size\": 20}"));
    assert_fails(DSV_E_UNSUPPORTED, "do_center_crop is false", read_processor("{\"do_center_crop\": false}"));
    assert_fails(DSV_E_UNSUPPORTED, "resample is 2, expected 3 (bicubic)",
                 read_processor("{\"resample\": 2}"));
    assert_fails(DSV_E_UNSUPPORTED, "size has no key shortest_edge",
                 read_processor("{\"size\": {\"height\": 224, \"width\": 224}}"));
    assert_fails(DSV_E_UNSUPPORTED, "crop_size is 300 x 300, expected a square of at most size, 224",
                 read_processor("{\"crop_size\": 300}"));
    assert_fails(DSV_E_FORMAT, "image_std is not a list of three numbers",
                 read_processor("{\"image_std\": [1, 0, 1]}"));
    assert_fails(DSV_E_FORMAT, "rescale_factor is not a number between 0 and 1",
                 read_processor("{\"rescale_factor\": 255}"));
}

/* A file without one of the tensors, and a file with a tensor too many. */
static void incomplete_files_are_refused(void **state)
{
    DsviSafetensors *file;
    DsviStoredTensor tensors[64];
    DsviBackend backend;
    DsviVit *vit;
    char *text;
    size_t bytes;
    (void)state;
    assert_ok(dsvi_file_read(golden_path("vit/gelu/config.json"), 1 << 20, &text, &bytes));
    assert_ok(dsvi_file_write(scratch_path("config.json"), text, bytes));
    free(text);
    assert_ok(dsvi_safetensors_open(golden_path("vit/gelu/model.safetensors"), &file));
    const size_t count = dsvi_safetensors_count(file);
    assert_true(count < sizeof tensors / sizeof *tensors);
    for (size_t i = 0; i < count; i++)
        tensors[i] = *dsvi_safetensors_at(file, i);
    assert_ok(dsvi_cpu_open("auto", 1, &backend));
    assert_ok(dsvi_safetensors_write(scratch_path("model.safetensors"), tensors + 1, count - 1, NULL, 0));
    assert_fails(DSV_E_NOT_FOUND, tensors[0].name,
                 dsvi_vit_open(&backend, scratch_path("."), DSVI_F32, 1, &vit));
    assert_null(vit);
    tensors[count] = tensors[0];
    tensors[count].name = "vision_model.other.weight";
    assert_ok(dsvi_safetensors_write(scratch_path("model.safetensors"), tensors, count + 1, NULL, 0));
    assert_fails(DSV_E_SHAPE, "vision_model.other.weight",
                 dsvi_vit_open(&backend, scratch_path("."), DSVI_F32, 1, &vit));
    dsvi_cpu_close(&backend);
    dsvi_safetensors_close(&file);
}

static int run_all(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_are_those_of_transformers),
        cmocka_unit_test(pictures_are_prepared_as_by_transformers),
        cmocka_unit_test(other_models_are_refused),
        cmocka_unit_test(other_preparations_are_refused),
        cmocka_unit_test(incomplete_files_are_refused),
    };
    if (dsvi_safetensors_open(golden_path("vit/expected.safetensors"), &expected) != DSV_OK)
        return 1;
    int failed = cmocka_run_group_tests(tests, scratch_make, scratch_remove);
    dsvi_safetensors_close(&expected);
    return failed;
}

int main(void)
{
    return golden_run("vit", run_all);
}
