/* Configurations of transformers: presets, config.json with original and diffusers names, and what is
 * refused. */
#include "test.h"

#include <unistd.h>

#include "base/fs.h"
#include "model/dit/dit_config.h"
#include "model/weights/weights.h"

static char folder[] = "/tmp/dsv-dit-config-XXXXXX";
static char path[128];

static int make_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/config.json", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    return dsvi_folder_remove(folder) == DSV_OK ? 0 : -1;
}

static DsviDitConfig preset(const char *name)
{
    DsvConfig settings;
    DsviDitConfig config;
    dsv_config_defaults(&settings);
    snprintf(settings.model_preset, sizeof settings.model_preset, "%s", name);
    assert_ok(dsvi_dit_config_make(&settings, &config));
    return config;
}

static int64_t parameters(const DsviDitConfig *config)
{
    DsviParamTable table;
    assert_ok(dsvi_param_table_make(config, &table));
    int64_t count = table.parameters;
    dsvi_param_table_free(&table);
    return count;
}

static void presets_have_published_sizes(void **state)
{
    (void)state;
    DsviDitConfig config = preset("wan1.3b");
    assert_int_equal(parameters(&config), INT64_C(1418996800));
    config = preset("wan14b");
    assert_int_equal(parameters(&config), INT64_C(14288491584));
    config = preset("dsv0.8b");
    assert_int_equal(dsvi_dit_width(&config), 1152);
    config = preset("dsv2.7b");
    assert_int_equal(dsvi_dit_width(&config), 2048);
    config = preset("dsv30b");
    assert_int_equal(dsvi_dit_width(&config), 6144);
    config = preset("demo");
    assert_true(parameters(&config) < 20000000);
}

static void settings_override_presets(void **state)
{
    DsvConfig settings;
    DsviDitConfig config;
    (void)state;
    dsv_config_defaults(&settings);
    assert_ok(dsv_config_set(&settings, "model.preset=wan1.3b"));
    assert_ok(dsv_config_set(&settings, "model.num_layers=2"));
    assert_ok(dsv_config_set(&settings, "model.text_len=9"));
    assert_ok(dsvi_dit_config_make(&settings, &config));
    assert_int_equal(config.num_layers, 2);
    assert_int_equal(config.text_len, 9);
    assert_int_equal(config.ffn_dim, 8960);
    settings.model_attention_head_dim = 33;
    assert_fails(DSV_E_USAGE, "attention_head_dim is 33", dsvi_dit_config_make(&settings, &config));
    settings.model_attention_head_dim = 16;
    assert_fails(DSV_E_USAGE, "attention_head_dim is 16, expected 32 to 256",
                 dsvi_dit_config_make(&settings, &config));
}

static void survives_writing(void **state)
{
    static const char *const NAMES[] = {"demo", "wan1.3b", "wan14b", "dsv0.8b", "dsv2.7b", "dsv30b"};
    (void)state;
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        DsviDitConfig config = preset(NAMES[i]), back;
        config.in_channels = config.out_channels = 48;
        config.patch[0] = 2;
        config.eps = 1e-5;
        assert_ok(dsvi_dit_config_write(path, &config));
        assert_ok(dsvi_dit_config_read(path, &back));
        assert_memory_equal(&config, &back, sizeof config);
    }
}

/* Reads `text` as the contents of a config.json. */
static DsvStatus read_text(const char *text, DsviDitConfig *config)
{
    assert_ok(dsvi_file_write(path, text, strlen(text)));
    return dsvi_dit_config_read(path, config);
}

static void reads_original_naming(void **state)
{
    DsviDitConfig config, expected = preset("wan1.3b");
    (void)state;
    assert_ok(read_text("{\"_class_name\": \"WanModel\", \"model_type\": \"t2v\", \"dim\": 1536, "
                        "\"ffn_dim\": 8960, \"freq_dim\": 256, \"in_dim\": 16, \"out_dim\": 16, "
                        "\"num_heads\": 12, \"num_layers\": 30, \"text_len\": 512, \"eps\": 1e-06, "
                        "\"window_size\": [-1, -1], \"qk_norm\": true}",
                        &config));
    assert_memory_equal(&config, &expected, sizeof config);
}

/* A config.json as diffusers writes it, without text_len. */
static void reads_diffusers_naming(void **state)
{
    DsviDitConfig config, expected = preset("wan1.3b");
    (void)state;
    assert_ok(read_text("{\"_class_name\": \"WanTransformer3DModel\", \"_diffusers_version\": \"0.33.0\", "
                        "\"added_kv_proj_dim\": null, \"attention_head_dim\": 128, "
                        "\"cross_attn_norm\": true, \"eps\": 1e-06, \"ffn_dim\": 8960, \"freq_dim\": 256, "
                        "\"image_dim\": null, \"in_channels\": 16, \"num_attention_heads\": 12, "
                        "\"num_layers\": 30, \"out_channels\": 16, \"patch_size\": [1, 2, 2], "
                        "\"qk_norm\": \"rms_norm_across_heads\", \"rope_max_seq_len\": 1024, "
                        "\"text_dim\": 4096}",
                        &config));
    assert_memory_equal(&config, &expected, sizeof config);
}

/* Wan2.2-I2V-A14B with diffusers' names. Only the number of channels shows that the model takes an image. */
static void reads_image_channels(void **state)
{
    DsviDitConfig config;
    (void)state;
    assert_ok(read_text("{\"_class_name\": \"WanTransformer3DModel\", "
                        "\"_diffusers_version\": \"0.35.0.dev0\", \"added_kv_proj_dim\": null, "
                        "\"attention_head_dim\": 128, \"cross_attn_norm\": true, \"eps\": 1e-06, "
                        "\"ffn_dim\": 13824, \"freq_dim\": 256, \"image_dim\": null, "
                        "\"in_channels\": 36, \"num_attention_heads\": 40, \"num_layers\": 40, "
                        "\"out_channels\": 16, \"patch_size\": [1, 2, 2], \"pos_embed_seq_len\": null, "
                        "\"qk_norm\": \"rms_norm_across_heads\", \"rope_max_seq_len\": 1024, "
                        "\"text_dim\": 4096}",
                        &config));
    assert_int_equal(config.in_channels, 36);
    assert_int_equal(config.out_channels, 16);
}

#define SMALL                                                                                     \
    "\"num_attention_heads\": 2, \"attention_head_dim\": 32, \"num_layers\": 2, \"ffn_dim\": 8, " \
    "\"in_channels\": 4, \"out_channels\": 4"

static void refuses(void **state)
{
    static const struct {
        DsvStatus status;
        const char *words, *text;
    } CASES[] = {
        {DSV_E_FORMAT, "not a JSON object", "[1, 2]"},
        {DSV_E_FORMAT, "not a JSON object", "{\"dim\": 64"},
        {DSV_E_FORMAT, "not the shape of a Wan transformer", "{\"hidden_size\": 64}"},
        {DSV_E_FORMAT, "key num_layers is missing", "{\"num_attention_heads\": 2}"},
        {DSV_E_FORMAT, "key num_layers is not a whole number",
         "{\"num_attention_heads\": 2, \"num_layers\": 2.5}"},
        {DSV_E_FORMAT, "key num_layers is not a whole number",
         "{\"num_attention_heads\": 2, \"num_layers\": \"2\"}"},
        {DSV_E_FORMAT, "not a multiple of num_heads",
         "{\"dim\": 100, \"num_heads\": 3, \"num_layers\": 1, \"ffn_dim\": 8, \"in_dim\": 4, "
         "\"out_dim\": 4}"},
        {DSV_E_UNSUPPORTED, "added_kv_proj_dim is 0, expected 64", "{" SMALL ", \"image_dim\": 1280}"},
        {DSV_E_USAGE, "pos_embed_seq_len is 514", "{" SMALL ", \"pos_embed_seq_len\": 514}"},
        {DSV_E_FORMAT, "image_dim is not a whole number", "{" SMALL ", \"image_dim\": \"x\"}"},
        {DSV_E_UNSUPPORTED, "added_kv_proj_dim", "{" SMALL ", \"added_kv_proj_dim\": 64}"},
        {DSV_E_UNSUPPORTED, "in_dim is 16 and out_dim is 36: expected as many input as output channels",
         "{\"dim\": 64, \"num_heads\": 2, \"num_layers\": 1, \"ffn_dim\": 8, \"in_dim\": 16, "
         "\"out_dim\": 36}"},
        {DSV_E_UNSUPPORTED, "qk_norm", "{" SMALL ", \"qk_norm\": \"rms_norm\"}"},
        {DSV_E_UNSUPPORTED, "cross_attn_norm", "{" SMALL ", \"cross_attn_norm\": false}"},
        {DSV_E_UNSUPPORTED, "model_type is vace", "{" SMALL ", \"model_type\": \"vace\"}"},
        {DSV_E_UNSUPPORTED, "_class_name is VaceWanModel", "{" SMALL ", \"_class_name\": \"VaceWanModel\"}"},
        {DSV_E_UNSUPPORTED, "window_size", "{" SMALL ", \"window_size\": [8, 8]}"},
        {DSV_E_FORMAT, "patch_size is not a list", "{" SMALL ", \"patch_size\": [1, 2]}"},
        {DSV_E_FORMAT, "patch_size[2]", "{" SMALL ", \"patch_size\": [1, 2, 0]}"},
        {DSV_E_FORMAT, "key eps", "{" SMALL ", \"eps\": \"small\"}"},
        {DSV_E_USAGE, "eps is 2", "{" SMALL ", \"eps\": 2}"},
        {DSV_E_USAGE, "freq_dim is 7", "{" SMALL ", \"freq_dim\": 7}"},
    };
    DsviDitConfig config;
    (void)state;
    assert_ok(read_text("{" SMALL "}", &config)); /* valid; each case adds one fault to it */
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        assert_fails(CASES[i].status, CASES[i].words, read_text(CASES[i].text, &config));
        assert_non_null(strstr(dsv_error_message(), path));
    }
    assert_fails(DSV_E_NOT_FOUND, "absent.json", dsvi_dit_config_read("/tmp/absent.json", &config));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(presets_have_published_sizes),
        cmocka_unit_test(settings_override_presets),
        cmocka_unit_test(survives_writing),
        cmocka_unit_test(reads_original_naming),
        cmocka_unit_test(reads_diffusers_naming),
        cmocka_unit_test(reads_image_channels),
        cmocka_unit_test(refuses),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
