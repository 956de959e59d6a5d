/* LoRA files: names in all forms, checks against each other and against a model, adding, writing. */
#include "test.h"

#include <unistd.h>

#include "base/fs.h"
#include "model/lora/lora.h"
#include "model/weights/weights.h"

enum { RANK = 2, WIDTH = 64, MAX = 16 };

static char folder[] = "/tmp/dsv-lora-XXXXXX";
static char path[64], other[64];

/* A LoRA of two layers that a test changes before it writes the file. */
typedef struct File {
    float a[RANK * WIDTH], b[WIDTH * RANK], alpha, diff[WIDTH];
    DsviStoredTensor tensor[MAX];
    size_t count;
} File;

static void add(File *f, const char *name, int ndim, int64_t rows, int64_t cols, const float *data)
{
    int64_t count = ndim == 0 ? 1 : ndim == 1 ? rows : rows * cols;
    f->tensor[f->count++] = (DsviStoredTensor){.name = name,
                                               .dtype = DSVI_F32,
                                               .ndim = ndim,
                                               .shape = {rows, cols},
                                               .count = count,
                                               .bytes = (size_t)count * sizeof(float),
                                               .data = data};
}

static void fill_file(File *f)
{
    memset(f, 0, sizeof *f);
    for (int i = 0; i < RANK * WIDTH; i++) {
        f->a[i] = 0.01f * (float)(i % 13) - 0.05f;
        f->b[i] = 0.02f * (float)(i % 7) - 0.03f;
    }
    for (int i = 0; i < WIDTH; i++)
        f->diff[i] = 0.5f * (float)i;
    f->alpha = 3;
    add(f, "diffusion_model.blocks.0.self_attn.q.lora_A.weight", 2, RANK, WIDTH, f->a);
    add(f, "diffusion_model.blocks.0.self_attn.q.lora_B.weight", 2, WIDTH, RANK, f->b);
    add(f, "diffusion_model.blocks.0.self_attn.q.alpha", 0, 0, 0, &f->alpha);
    add(f, "diffusion_model.blocks.1.norm3.diff", 1, WIDTH, 0, f->diff);
    add(f, "diffusion_model.blocks.1.cross_attn.o.diff_b", 1, WIDTH, 0, f->diff);
}

static void write_file(const File *f)
{
    assert_ok(dsvi_safetensors_write(path, f->tensor, f->count, NULL, 0));
}

static void open_fails(const File *f, DsvStatus status, const char *words)
{
    DsviLora lora;
    write_file(f);
    assert_fails(status, words, dsvi_lora_open(path, &lora));
}

static void make_table(DsviParamTable *table)
{
    DsvConfig settings;
    DsviDitConfig config;
    dsv_config_defaults(&settings);
    settings.model_num_layers = 2;
    settings.model_num_attention_heads = 2;
    settings.model_attention_head_dim = WIDTH / 2;
    settings.model_ffn_dim = 80;
    assert_ok(dsvi_dit_config_make(&settings, &config));
    assert_ok(dsvi_param_table_make(&config, table));
}

/* ---- names ---- */

static void all_forms_name_the_same_layer(void **state)
{
    static const char *const same[][2] = {
        {"diffusion_model.blocks.3.self_attn.q.lora_A.weight", "blocks.3.attn1.to_q"},
        {"model.diffusion_model.blocks.3.self_attn.q.lora_A.weight", "blocks.3.attn1.to_q"},
        {"diffusion_model.blocks.3.self_attn.q.lora_down.weight", "blocks.3.attn1.to_q"},
        {"lora_unet_blocks_3_self_attn_q.lora_down.weight", "blocks.3.attn1.to_q"},
        {"lora_unet__blocks_3_self_attn_q.lora_down.weight", "blocks.3.attn1.to_q"},
        {"transformer.blocks.3.attn1.to_q.lora_A.weight", "blocks.3.attn1.to_q"},
        {"blocks.3.self_attn.q.lora_A.default.weight", "blocks.3.attn1.to_q"},
        {"base_model.model.blocks.3.self_attn.q.lora_A.weight", "blocks.3.attn1.to_q"},
        {"base_model.model.blocks.3.attn1.to_q.lora_A.default.weight", "blocks.3.attn1.to_q"},
        {"base_model.model.diffusion_model.blocks.3.self_attn.q.lora_A.weight", "blocks.3.attn1.to_q"},
        {"base_model.model.transformer.blocks.3.attn1.to_q.lora_A.weight", "blocks.3.attn1.to_q"},
        {"lora_unet_blocks_12_cross_attn_k_img.lora_down.weight", "blocks.12.attn2.add_k_proj"},
        {"lora_unet_blocks_12_cross_attn_k.lora_down.weight", "blocks.12.attn2.to_k"},
        {"lora_unet_blocks_0_ffn_0.lora_down.weight", "blocks.0.ffn.net.0.proj"},
        {"transformer.blocks.0.ffn.net.2.lora_A.weight", "blocks.0.ffn.net.2"},
        {"diffusion_model.head.head.lora_A.weight", "proj_out"},
        {"lora_unet_time_projection_1.lora_down.weight", "condition_embedder.time_proj"},
        {"transformer.blocks.7.attn2.to_out.0.lora_A.weight", "blocks.7.attn2.to_out.0"},
    };
    char layer[DSVI_LORA_NAME_BYTES];
    DsviLoraPart part;
    (void)state;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        assert_true(dsvi_lora_name_parse(same[i][0], layer, &part));
        assert_string_equal(layer, same[i][1]);
        assert_int_equal(part, DSVI_LORA_A);
    }
}

static void other_names_are_no_layers(void **state)
{
    static const char *const other_names[] = {
        "",
        ".alpha",
        "lora_unet_blocks_3_self_attn_q",
        "diffusion_model.blocks.3.self_attn.q.weight",
        "diffusion_model.blocks.03.self_attn.q.lora_A.weight",
        "diffusion_model.blocks.12345.self_attn.q.lora_A.weight",
        "diffusion_model.blocks..self_attn.q.lora_A.weight",
        "diffusion_model.blocks.1.self_attn.lora_A.weight",
        "diffusion_model.blocks.1.self_attn.q.x.lora_A.weight",
        "diffusion_model.self_attn.q.lora_A.weight",
        "lora_te_blocks_3_self_attn_q.lora_down.weight",
        "diffusion_model.double_blocks.0.img_attn.qkv.lora_A.weight",
    };
    char layer[DSVI_LORA_NAME_BYTES], name[4096];
    DsviLoraPart part;
    (void)state;
    for (size_t i = 0; i < sizeof other_names / sizeof *other_names; i++)
        assert_false(dsvi_lora_name_parse(other_names[i], layer, &part));
    memset(name, 'x', sizeof name);
    strcpy(name + sizeof name - 7, ".alpha");
    assert_false(dsvi_lora_name_parse(name, layer, &part));
}

/* ---- files that are refused ---- */

static void broken_files_are_refused(void **state)
{
    File f;
    (void)state;
    fill_file(&f);
    f.tensor[0].name = "diffusion_model.blocks.0.self_attn.qq.lora_A.weight";
    open_fails(&f, DSV_E_FORMAT, "unknown key diffusion_model.blocks.0.self_attn.qq.lora_A.weight");
    fill_file(&f);
    f.tensor[1] = f.tensor[--f.count];
    open_fails(&f, DSV_E_SHAPE, "has no matrix B");
    fill_file(&f);
    f.tensor[1].shape[0] = WIDTH * RANK;
    f.tensor[1].shape[1] = 1;
    open_fails(&f, DSV_E_SHAPE, "are not matrices (rank, in) and (out, rank)");
    fill_file(&f);
    f.b[RANK * WIDTH - 1] = INFINITY;
    open_fails(&f, DSV_E_FORMAT, "self_attn.q.lora_B.weight has a value that is not finite");
    f.b[RANK * WIDTH - 1] = 0;
    f.alpha = NAN;
    open_fails(&f, DSV_E_FORMAT, "is not finite");
    fill_file(&f);
    f.tensor[3].name = "blocks.0.attn1.to_q.lora_A.weight";
    open_fails(&f, DSV_E_FORMAT, "the same tensor under two names");
    fill_file(&f);
    f.count = 0;
    open_fails(&f, DSV_E_FORMAT, "no tensors");
}

/* Other kinds of adapters are named, not only their keys. */
static void other_adapters_are_named(void **state)
{
    static const char *const OTHERS[][2] = {
        {"diffusion_model.blocks.0.self_attn.q.dora_scale", "is that of a DoRA"},
        {"base_model.model.blocks.0.self_attn.q.lora_magnitude_vector", "is that of a DoRA"},
        {"base_model.model.blocks.0.self_attn.q.lora_magnitude_vector.default.weight", "is that of a DoRA"},
        {"lora_unet_blocks_0_self_attn_q.hada_w1_a", "is that of a LoHa"},
        {"lora_unet_blocks_0_self_attn_q.lokr_w2", "is that of a LoKr"},
        {"diffusion_model.blocks.0.self_attn.q.set_weight", "is that of a file that replaces whole weights"},
        {"lora_te1_text_model_encoder_layers_0_mlp_fc1.lora_down.weight",
         "is that of a LoRA of a text encoder"},
        {"transformer_2.blocks.0.attn1.to_q.lora_A.weight", "is that of a file for two experts"},
    };
    File f;
    (void)state;
    for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++) {
        fill_file(&f);
        f.tensor[3].name = OTHERS[i][0];
        open_fails(&f, DSV_E_UNSUPPORTED, OTHERS[i][1]);
        assert_non_null(strstr(dsv_error_message(), OTHERS[i][0]));
    }
}

static void a_lora_of_another_model_is_refused(void **state)
{
    DsviParamTable table;
    DsviLora lora;
    File f;
    (void)state;
    make_table(&table);
    fill_file(&f);
    write_file(&f);
    assert_ok(dsvi_lora_open(path, &lora));
    assert_ok(dsvi_lora_check(&lora, &table));
    dsvi_lora_close(&lora);
    f.tensor[0].shape[1] = WIDTH / 2;
    f.tensor[0].count /= 2;
    f.tensor[0].bytes /= 2;
    write_file(&f);
    assert_ok(dsvi_lora_open(path, &lora));
    assert_fails(DSV_E_SHAPE, "lora_A.weight has 32 columns, expected 64", dsvi_lora_check(&lora, &table));
    dsvi_lora_close(&lora);
    fill_file(&f);
    f.tensor[3].name = "diffusion_model.blocks.2.norm3.diff";
    write_file(&f);
    assert_ok(dsvi_lora_open(path, &lora));
    assert_fails(DSV_E_SHAPE, "belongs to layer blocks.2.norm2, which the model lacks",
                 dsvi_lora_check(&lora, &table));
    dsvi_lora_close(&lora);
    dsvi_param_table_free(&table);
}

/* ---- adding and writing ---- */

/* What the LoRA of fill_file adds to element (o, i) of the q weight. */
static double q_change(const File *f, int o, int i, double scale)
{
    double sum = 0;
    for (int r = 0; r < RANK; r++)
        sum += (double)f->b[o * RANK + r] * (double)f->a[r * WIDTH + i];
    return scale * (double)f->alpha / RANK * sum;
}

static void add_to(const DsviLora *lora, const char *name, int64_t rows, int64_t count, double scale,
                   float *values)
{
    DsviLoraChange change;
    memset(values, 0, (size_t)count * sizeof *values);
    assert_ok(dsvi_lora_change(lora, name, rows, count, &change));
    if (change.layer)
        assert_ok(dsvi_lora_add(lora, &change, scale, values));
}

static void expect_q_change(const DsviLora *lora, const File *f, double scale)
{
    float *values = calloc(WIDTH * WIDTH, sizeof *values);
    add_to(lora, "blocks.0.self_attn.q.weight", WIDTH, WIDTH * WIDTH, scale, values);
    for (int o = 0; o < WIDTH; o++)
        for (int i = 0; i < WIDTH; i++)
            assert_error_below(fabs((double)values[o * WIDTH + i] - q_change(f, o, i, scale)), 1e-7,
                               "element %d, %d", o, i);
    free(values);
}

static void products_and_differences_are_added(void **state)
{
    DsviLora lora;
    File f;
    float values[WIDTH];
    (void)state;
    fill_file(&f);
    write_file(&f);
    assert_ok(dsvi_lora_open(path, &lora));
    expect_q_change(&lora, &f, 1);
    expect_q_change(&lora, &f, -0.75);
    add_to(&lora, "model.diffusion_model.blocks.1.norm3.weight", WIDTH, WIDTH, 2, values);
    for (int i = 0; i < WIDTH; i++)
        assert_true(values[i] == 2 * f.diff[i]);
    add_to(&lora, "blocks.1.attn2.to_out.0.bias", WIDTH, WIDTH, 1, values);
    assert_true(values[5] == f.diff[5]);
    add_to(&lora, "blocks.0.attn1.to_q.bias", WIDTH, WIDTH, 1, values);
    assert_true(values[5] == 0);
    dsvi_lora_close(&lora);
}

/* A LoRA that was written in a form changes the weights as before. */
static void written_forms_mean_the_same(void **state)
{
    DsviLora lora, back;
    File f;
    (void)state;
    fill_file(&f);
    f.count = 3;
    write_file(&f);
    assert_ok(dsvi_lora_open(path, &lora));
    for (int form = DSVI_LORA_COMFY; form <= DSVI_LORA_KOHYA; form++) {
        assert_ok(dsvi_lora_write(&lora, (DsviLoraForm)form, other));
        assert_ok(dsvi_lora_open(other, &back));
        assert_int_equal(back.count, 1);
        assert_true(back.layers[0].factor == 1);
        assert_true((back.layers[0].part[DSVI_LORA_ALPHA] != NULL) == (form == DSVI_LORA_KOHYA));
        expect_q_change(&back, &f, 1);
        dsvi_lora_close(&back);
    }
    dsvi_lora_close(&lora);
}

static void only_comfy_holds_differences(void **state)
{
    DsviLora lora, back;
    File f;
    float values[WIDTH];
    (void)state;
    fill_file(&f);
    write_file(&f);
    assert_ok(dsvi_lora_open(path, &lora));
    assert_fails(DSV_E_UNSUPPORTED, "only --to comfy can store",
                 dsvi_lora_write(&lora, DSVI_LORA_DIFFUSERS, other));
    assert_fails(DSV_E_UNSUPPORTED, "only --to comfy can store",
                 dsvi_lora_write(&lora, DSVI_LORA_KOHYA, other));
    assert_ok(dsvi_lora_write(&lora, DSVI_LORA_COMFY, other));
    assert_ok(dsvi_lora_open(other, &back));
    assert_int_equal(back.count, 3);
    add_to(&back, "blocks.1.norm2.weight", WIDTH, WIDTH, 1, values);
    assert_true(values[7] == f.diff[7]);
    dsvi_lora_close(&back);
    dsvi_lora_close(&lora);
}

static void a_negative_alpha_keeps_its_sign(void **state)
{
    DsviLora lora, back;
    File f;
    (void)state;
    fill_file(&f);
    f.alpha = -3;
    f.count = 3;
    write_file(&f);
    assert_ok(dsvi_lora_open(path, &lora));
    assert_ok(dsvi_lora_write(&lora, DSVI_LORA_COMFY, other));
    assert_ok(dsvi_lora_open(other, &back));
    expect_q_change(&back, &f, 1);
    dsvi_lora_close(&back);
    dsvi_lora_close(&lora);
}

/* Half numbers end at 65504: what the factor of a large alpha does not fit into them is refused. */
static void a_large_alpha_does_not_overflow(void **state)
{
    static uint16_t half[RANK * WIDTH];
    DsviLora lora;
    File f;
    (void)state;
    fill_file(&f);
    f.count = 3;
    f.alpha = 100 * RANK;
    for (int i = 0; i < RANK * WIDTH; i++)
        dsvi_store(DSVI_F16, half, i, 7000);
    f.tensor[0].dtype = DSVI_F16;
    f.tensor[0].bytes = sizeof half;
    f.tensor[0].data = half;
    write_file(&f);
    assert_ok(dsvi_lora_open(path, &lora));
    assert_fails(DSV_E_FORMAT,
                 "lora_A.weight, which alpha multiplies by 10, has a value that is too large for F16",
                 dsvi_lora_write(&lora, DSVI_LORA_COMFY, other));
    dsvi_lora_close(&lora);
}

static int make_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/lora.safetensors", folder);
    snprintf(other, sizeof other, "%s/other.safetensors", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    return dsvi_folder_remove(folder) == DSV_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_forms_name_the_same_layer),
        cmocka_unit_test(other_names_are_no_layers),
        cmocka_unit_test(broken_files_are_refused),
        cmocka_unit_test(other_adapters_are_named),
        cmocka_unit_test(a_lora_of_another_model_is_refused),
        cmocka_unit_test(products_and_differences_are_added),
        cmocka_unit_test(written_forms_mean_the_same),
        cmocka_unit_test(only_comfy_holds_differences),
        cmocka_unit_test(a_negative_alpha_keeps_its_sign),
        cmocka_unit_test(a_large_alpha_does_not_overflow),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
