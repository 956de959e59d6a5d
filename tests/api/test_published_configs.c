/* Folders with the config.json files of all published Wan models and no weights: dsv_inspect recognises the
 * model, and dsv_train_preview plans its real shapes. */
#include <stdio.h>

#include "base/scratch.h"
#include "dsv/dsv.h"
#include "test.h"

/* The parameters are those of diffusers' WanTransformer3DModel. */
typedef struct Published {
    const char *name, *sizes, *index, *expert;
    int64_t parameters;
    int64_t height, width, frames;
    const char *latents;
} Published;

#define WIDE "\"num_attention_heads\": 40, \"num_layers\": 40, \"ffn_dim\": 13824, \"out_channels\": 16, "
#define OF_PICTURES "\"in_channels\": 36, \"image_dim\": 1280, \"added_kv_proj_dim\": 5120, "
#define EXPERTS "\"transformer_2\": [\"diffusers\", \"WanTransformer3DModel\"], \"boundary_ratio\": "

static const Published MODELS[] = {
    {"Wan2.1-T2V-1.3B",
     "\"num_attention_heads\": 12, \"num_layers\": 30, \"ffn_dim\": 8960, \"in_channels\": 16, "
     "\"out_channels\": 16, ",
     "", "none", 1418996800, 480, 832, 81, "16 x 21 x 60 x 104"},
    {"Wan2.1-T2V-14B", WIDE "\"in_channels\": 16, ", "", "none", 14288491584, 720, 1280, 81,
     "16 x 21 x 90 x 160"},
    {"Wan2.1-I2V-14B (480P and 720P)", WIDE OF_PICTURES, "", "none", 16394878784, 480, 832, 81,
     "16 x 21 x 60 x 104"},
    {"Wan2.1-I2V-14B (480P and 720P)", WIDE OF_PICTURES, "", "none", 16394878784, 720, 1280, 81,
     "16 x 21 x 90 x 160"},
    {"Wan2.1-FLF2V-14B", WIDE OF_PICTURES "\"pos_embed_seq_len\": 514, ", "", "none", 16395536704, 720, 1280,
     81, "16 x 21 x 90 x 160"},
    {"Wan2.2-T2V-A14B", WIDE "\"in_channels\": 16, ", EXPERTS "0.875, ", "high", 14288491584, 480, 832, 81,
     "16 x 21 x 60 x 104"},
    {"Wan2.2-I2V-A14B", WIDE "\"in_channels\": 36, ", EXPERTS "0.9, ", "low", 14288901184, 480, 832, 81,
     "16 x 21 x 60 x 104"},
    {"Wan2.2-TI2V-5B",
     "\"num_attention_heads\": 24, \"num_layers\": 30, \"ffn_dim\": 14336, \"in_channels\": 48, "
     "\"out_channels\": 48, ",
     "\"expand_timesteps\": true, ", "none", 4999787712, 704, 1280, 121, "48 x 31 x 44 x 80"},
};

static char text[1 << 14];

static void keep(void *context, const char *line)
{
    size_t used = strlen(text);
    (void)context;
    snprintf(text + used, sizeof text - used, "%s\n", line);
}

static void put(const char *name, const char *content)
{
    assert_ok(dsvi_file_write(scratch_path(name), content, strlen(content)));
}

/* Appends `count` numbers to a JSON list. */
static void append_list(char *out, size_t room, const char *key, int count, const char *number)
{
    snprintf(out + strlen(out), room - strlen(out), ", \"%s\": [", key);
    for (int i = 0; i < count; i++)
        snprintf(out + strlen(out), room - strlen(out), "%s%s", i ? ", " : "", number);
    snprintf(out + strlen(out), room - strlen(out), "]");
}

static void put_vae(bool wide)
{
    char out[4096];
    snprintf(out, sizeof out,
             "{\"_class_name\": \"AutoencoderKLWan\", \"dim_mult\": [1, 2, 4, 4], \"num_res_blocks\": 2, "
             "\"temperal_downsample\": [false, true, true], \"attn_scales\": [], %s",
             wide ? "\"base_dim\": 160, \"decoder_base_dim\": 256, \"z_dim\": 48, \"is_residual\": true, "
                    "\"in_channels\": 12, \"out_channels\": 12, \"patch_size\": 2, "
                    "\"scale_factor_spatial\": 16, \"scale_factor_temporal\": 4"
                  : "\"base_dim\": 96, \"z_dim\": 16");
    append_list(out, sizeof out, "latents_mean", wide ? 48 : 16, "0.0");
    append_list(out, sizeof out, "latents_std", wide ? 48 : 16, "1.0");
    snprintf(out + strlen(out), sizeof out - strlen(out), "}");
    put("model/vae/config.json", out);
}

static void put_model(const Published *m)
{
    static const char *const FOLDERS[] = {"model", "model/transformer", "model/transformer_2", "model/vae"};
    char out[2048];
    bool two = strcmp(m->expert, "none") != 0;
    for (int i = 0; i < 4; i++)
        assert_ok(dsvi_folder_make(scratch_path(FOLDERS[i])));
    snprintf(
        out, sizeof out,
        "{\"_class_name\": \"WanTransformer3DModel\", %s\"attention_head_dim\": 128, \"text_dim\": 4096, "
        "\"freq_dim\": 256, \"patch_size\": [1, 2, 2], \"eps\": 1e-06, \"rope_max_seq_len\": 1024, "
        "\"cross_attn_norm\": true, \"qk_norm\": \"rms_norm_across_heads\"}",
        m->sizes);
    put("model/transformer/config.json", out);
    if (two)
        put("model/transformer_2/config.json", out);
    snprintf(out, sizeof out,
             "{\"_class_name\": \"WanPipeline\", %s\"vae\": [\"diffusers\", \"AutoencoderKLWan\"]}",
             m->index);
    put("model/model_index.json", out);
    put_vae(strstr(m->index, "expand_timesteps"));
}

static void every_model_is_recognised_and_planned(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof MODELS / sizeof *MODELS; i++) {
        const Published *m = &MODELS[i];
        DsvConfig settings;
        char line[256];
        void *folder = NULL;
        assert_int_equal(scratch_make(&folder), 0);
        put_model(m);
        text[0] = 0;
        assert_fails(DSV_E_FORMAT, "of its", dsv_inspect(scratch_path("model"), keep, NULL));
        snprintf(line, sizeof line, "the sizes are those of %s\n", m->name);
        if (!strstr(text, line))
            fail_msg("%s: not recognised: %s", m->name, text);
        snprintf(line, sizeof line, "Wan transformer, %lld parameters", (long long)m->parameters);
        assert_non_null(strstr(text, line));
        dsv_config_defaults(&settings);
        snprintf(line, sizeof line, "model.path=%s", scratch_path("model"));
        assert_ok(dsv_config_set(&settings, line));
        snprintf(line, sizeof line, "model.expert=%s", m->expert);
        assert_ok(dsv_config_set(&settings, line));
        assert_ok(dsv_config_set(&settings, "codec.name=wan"));
        assert_ok(dsv_config_set(&settings, "lora_rank=32"));
        assert_ok(dsv_config_set(&settings, "validation_at_end=false"));
        settings.height = m->height;
        settings.width = m->width;
        settings.num_frames = m->frames;
        text[0] = 0;
        DsvStatus status = dsv_train_preview(&settings, keep, NULL);
        assert_true(status == DSV_OK || status == DSV_E_NO_MEMORY);
        snprintf(line, sizeof line, "model: %lld parameters, %d blocks, latents %s", (long long)m->parameters,
                 strstr(m->name, "14B") ? 40 : 30, m->latents);
        if (!strstr(text, line))
            fail_msg("%s: not planned: %s", m->name, text);
        assert_non_null(strstr(text, "memory: "));
        assert_int_equal(scratch_remove(&folder), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_model_is_recognised_and_planned)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
