/* Transformer files whose matrices are in F8_E4M3: plain casts, and with a scale for each tensor as ComfyUI
 * writes them. */
#include "test.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/rng.h"
#include "dsv/config.h"
#include "model/weights/weights.h"

typedef struct File {
    DsviParamTable table;
    DsviStoredTensor *tensors; /* room for a scale beside each parameter */
    char (*names)[128];
    size_t count;
    float scale[512];
    char path[64];
} File;

/* The value of a code, from the definition of the format: 4 bits of exponent with bias 7, 3 of fraction. */
static double value_of(uint8_t code)
{
    int exponent = code >> 3 & 15, fraction = code & 7;
    double value = exponent ? ldexp(1 + fraction / 8.0, exponent - 7) : ldexp(fraction / 8.0, -6);
    return code & 0x80 ? -value : value;
}

static uint8_t code_of(int64_t param, int64_t i)
{
    uint32_t words[4];
    dsvi_rng_words((DsviRng){9, DSVI_RNG_TEST, (uint32_t)param}, (uint64_t)i, words);
    return (words[0] & 0x7f) == 0x7f ? 0 : (uint8_t)words[0]; /* the largest code of each sign is NaN */
}

static void add_tensor(File *f, const char *name, const char *last, DsviDtype dtype, const DsviParam *like,
                       void *data)
{
    DsviStoredTensor *tensor = &f->tensors[f->count];
    snprintf(f->names[f->count], sizeof f->names[0], "model.diffusion_model.%s%s", name, last);
    tensor->name = f->names[f->count++];
    tensor->dtype = dtype;
    tensor->ndim = like ? like->ndim : 0;
    tensor->count = like ? like->count : 1;
    if (like)
        memcpy(tensor->shape, like->shape, sizeof tensor->shape);
    tensor->bytes = (size_t)tensor->count * dsvi_dtype_size(dtype);
    tensor->data = data;
}

static void make_tensors(File *f, bool scales)
{
    DsvConfig settings;
    DsviDitConfig config;
    dsv_config_defaults(&settings);
    assert_ok(dsv_config_set(&settings, "model.num_layers=1"));
    assert_ok(dsv_config_set(&settings, "model.num_attention_heads=2"));
    assert_ok(dsv_config_set(&settings, "model.attention_head_dim=32"));
    assert_ok(dsv_config_set(&settings, "model.ffn_dim=96"));
    assert_ok(dsvi_dit_config_make(&settings, &config));
    config.in_channels = config.out_channels = 4;
    assert_ok(dsvi_param_table_make(&config, &f->table));
    assert_true(f->table.count <= 512);
    f->tensors = calloc((size_t)(3 * f->table.count), sizeof *f->tensors);
    f->names = calloc((size_t)(3 * f->table.count), sizeof *f->names);
    for (int64_t i = 0; i < f->table.count; i++) {
        const DsviParam *param = &f->table.params[i];
        size_t stem = strlen(param->original) - strlen(".weight");
        char layer[128];
        f->scale[i] = scales ? 0.01f * (float)(i + 1) : 1;
        snprintf(layer, sizeof layer, "%.*s", (int)stem, param->original);
        if (scales && param->in_compute_dtype) {
            add_tensor(f, layer, ".scale_weight", DSVI_F32, NULL, &f->scale[i]);
            add_tensor(f, layer, ".scale_input", DSVI_F32, NULL, &f->scale[i]);
        }
    }
    for (int codes = 0; codes < 2; codes++) { /* wider dtypes first */
        for (int64_t i = 0; i < f->table.count; i++) {
            const DsviParam *param = &f->table.params[i];
            DsviDtype dtype = codes ? DSVI_F8_E4M3 : DSVI_F32;
            char *data = malloc((size_t)param->count * dsvi_dtype_size(dtype));
            if (param->in_compute_dtype != codes) {
                free(data);
                continue;
            }
            for (int64_t n = 0; n < param->count; n++)
                if (codes)
                    data[n] = (char)code_of(i, n);
                else
                    ((float *)data)[n] = (float)n;
            add_tensor(f, param->original, "", dtype, param, data);
        }
    }
    snprintf(f->path, sizeof f->path, "/tmp/dsv-test-fp8-%d.safetensors", (int)getpid());
}

static void free_file(File *f)
{
    for (size_t i = 0; i < f->count; i++)
        if (f->tensors[i].ndim > 0)
            free((void *)f->tensors[i].data);
    free(f->tensors);
    free(f->names);
    dsvi_param_table_free(&f->table);
    unlink(f->path);
}

static void codes_are_read(void **state)
{
    (void)state;
    for (int scales = 0; scales < 2; scales++) {
        File f = {.count = 0};
        make_tensors(&f, scales);
        assert_ok(dsvi_safetensors_write(f.path, f.tensors, f.count, NULL, 0));
        float *flat = calloc((size_t)f.table.elements, sizeof *flat);
        assert_ok(dsvi_weights_read(f.path, &f.table, flat));
        for (int64_t i = 0; i < f.table.count; i++) {
            const DsviParam *param = &f.table.params[i];
            for (int64_t n = 0; n < param->count; n++) {
                double expected = param->in_compute_dtype ? (double)f.scale[i] * value_of(code_of(i, n))
                                                          : (double)n;
                assert_true(flat[param->offset + n] == (float)expected);
            }
        }
        free(flat);
        free_file(&f);
    }
}

static void wrong_scales_are_refused(void **state)
{
    File f = {.count = 0};
    float two[2] = {1, 2};
    const DsviParam pair = {.ndim = 1, .shape = {2}, .count = 2};
    (void)state;
    make_tensors(&f, true);
    float *flat = calloc((size_t)f.table.elements, sizeof *flat);
    DsviStoredTensor good = f.tensors[0];
    f.tensors[0].shape[0] = f.tensors[0].count = pair.count;
    f.tensors[0].ndim = 1;
    f.tensors[0].bytes = sizeof two;
    f.tensors[0].data = two;
    assert_ok(dsvi_safetensors_write(f.path, f.tensors, f.count, NULL, 0));
    assert_fails(DSV_E_SHAPE, "has 2 numbers of F32, expected one finite number",
                 dsvi_weights_read(f.path, &f.table, flat));
    f.tensors[0] = good;
    for (int64_t i = 0; i < f.table.count; i++)
        f.scale[i] = NAN;
    assert_ok(dsvi_safetensors_write(f.path, f.tensors, f.count, NULL, 0));
    assert_fails(DSV_E_SHAPE, "expected one finite number", dsvi_weights_read(f.path, &f.table, flat));
    free(flat);
    free_file(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_are_read),
        cmocka_unit_test(wrong_scales_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
