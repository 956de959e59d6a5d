/* Sizes of a transformer from its tensors alone: they are those of its configuration, with both namings and
 * with the prefix of single files; other models are refused. */
#include "test.h"

#include "base/scratch.h"
#include "model/weights/weights.h"

enum { TENSORS_MAX = 128 };

typedef struct Single {
    DsviDitConfig config;
    DsviParamTable table;
    float *zeros;
    char names[TENSORS_MAX][160];
    DsviStoredTensor tensors[TENSORS_MAX];
    size_t count;
} Single;

/* Makes a model that takes image rows with positions if `image`. */
static void make_single_of(Single *s, bool original, const char *prefix, bool image)
{
    s->config = (DsviDitConfig){
        .num_layers = 2,
        .num_attention_heads = 2,
        .attention_head_dim = 128,
        .ffn_dim = 96,
        .freq_dim = 32,
        .text_dim = 24,
        .text_len = 512,
        .in_channels = image ? 36 : 16,
        .out_channels = 16,
        .patch = {1, 2, 2},
        .rope_max_seq_len = 1024,
        .eps = 1e-6,
        .image_dim = image ? 20 : 0,
        .pos_embed_seq_len = image ? 6 : 0,
    };
    assert_ok(dsvi_param_table_make(&s->config, &s->table));
    s->zeros = calloc((size_t)s->table.elements, sizeof *s->zeros);
    s->count = (size_t)s->table.count;
    assert_true(s->count < TENSORS_MAX);
    for (int64_t i = 0; i < s->table.count; i++) {
        const DsviParam *param = &s->table.params[i];
        snprintf(s->names[i], sizeof s->names[i], "%s%s", prefix, original ? param->original : param->name);
        s->tensors[i] = (DsviStoredTensor){.name = s->names[i],
                                           .dtype = DSVI_BF16,
                                           .ndim = param->ndim,
                                           .count = param->count,
                                           .bytes = (size_t)param->count * 2,
                                           .data = s->zeros};
        memcpy(s->tensors[i].shape, param->shape, sizeof param->shape);
    }
}

static void make_single(Single *s, bool original, const char *prefix)
{
    make_single_of(s, original, prefix, false);
}

static DsvStatus read_single(Single *s, DsviDitConfig *config)
{
    const char *path = scratch_path("single.safetensors");
    assert_ok(dsvi_safetensors_write(path, s->tensors, s->count, NULL, 0));
    dsvi_param_table_free(&s->table);
    free(s->zeros);
    return dsvi_weights_config(path, config);
}

static void sizes_are_found(void **state)
{
    static const char *const PREFIXES[] = {"", "model.diffusion_model.", "diffusion_model."};
    (void)state;
    for (size_t i = 0; i < 4 * sizeof PREFIXES / sizeof *PREFIXES; i++) {
        Single s;
        DsviDitConfig config;
        make_single_of(&s, i % 2, PREFIXES[i / 4], i % 4 >= 2);
        assert_ok(read_single(&s, &config));
        assert_ok(dsvi_dit_config_compare(&config, &s.config, "single"));
    }
}

/* config.json of the original code does not say that the model takes image rows; its weights do. */
static void image_rows_are_found(void **state)
{
    Single s;
    DsviDitConfig config, without;
    (void)state;
    make_single_of(&s, true, "", true);
    assert_ok(read_single(&s, &config));
    without = config;
    without.image_dim = without.pos_embed_seq_len = 0;
    assert_ok(dsvi_weights_find_image(scratch_path("single.safetensors"), &without));
    assert_ok(dsvi_dit_config_compare(&without, &config, "single"));
    without = config;
    without.image_dim = without.pos_embed_seq_len = 0;
    without.in_channels = without.out_channels;
    assert_ok(dsvi_weights_find_image("no such file", &without));
    assert_int_equal(without.image_dim, 0);
}

/* Gives parameter `name` another length in dimension `at`; the number of elements must not grow. */
static void resize(Single *s, const char *name, int at, int64_t length)
{
    DsviStoredTensor *tensor = &s->tensors[dsvi_param_find(&s->table, name)];
    tensor->count = tensor->count / tensor->shape[at] * length;
    tensor->shape[at] = length;
    tensor->bytes = (size_t)tensor->count * 2;
}

static void others_are_refused(void **state)
{
    Single s;
    DsviDitConfig config;
    (void)state;
    make_single(&s, true, "");
    snprintf(s.names[3], sizeof s.names[3], "vace_blocks.0.before_proj.weight");
    assert_fails(DSV_E_UNSUPPORTED, "VACE", read_single(&s, &config));
    make_single(&s, false, "");
    resize(&s, "proj_out.weight", 0, 32);
    assert_fails(DSV_E_UNSUPPORTED, "16 input and 8 output channels", read_single(&s, &config));
    make_single(&s, false, "");
    resize(&s, "proj_out.weight", 0, 48);
    resize(&s, "patch_embedding.weight", 1, 12);
    assert_fails(DSV_E_UNSUPPORTED, "12 latent channels, expected 16", read_single(&s, &config));
    make_single(&s, false, "");
    resize(&s, "patch_embedding.weight", 0, 100);
    assert_fails(DSV_E_SHAPE, "the width is 100", read_single(&s, &config));
    make_single(&s, false, "");
    snprintf(s.names[0], sizeof s.names[0], "other");
    assert_fails(DSV_E_NOT_FOUND, "patch_embedding.weight is missing", read_single(&s, &config));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_found),
        cmocka_unit_test(image_rows_are_found),
        cmocka_unit_test(others_are_refused),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
