/* Published folders of all layouts, made of files with one or two tensors: which part is found where, which
 * models are refused, and what is said about missing parts. */
#include "test.h"

#include "base/scratch.h"
#include "model/folder/wan_folder.h"
#include "model/weights/weights.h"

static DsvConfig settings;

static void put(const char *name, const char *text)
{
    char folder[DSVI_PATH_MAX];
    snprintf(folder, sizeof folder, "%s", scratch_path(name));
    *strrchr(folder, '/') = 0;
    assert_ok(dsvi_folder_make(folder));
    assert_ok(dsvi_file_write(scratch_path(name), text, strlen(text)));
}

/* Writes a safetensors file with one tensor of this name. */
static void put_tensor(const char *name, const char *tensor)
{
    float one = 1;
    DsviStoredTensor stored = {.name = tensor,
                               .dtype = DSVI_F32,
                               .ndim = 1,
                               .shape = {1},
                               .count = 1,
                               .bytes = sizeof one,
                               .data = &one};
    put(name, "");
    assert_ok(dsvi_safetensors_write(scratch_path(name), &stored, 1, NULL, 0));
}

static void clean(const char *name)
{
    assert_ok(dsvi_folder_remove(scratch_path(name)));
    dsv_config_defaults(&settings);
}

static DsviWanFolder *find(const char *name)
{
    static DsviWanFolder folder;
    bool found;
    assert_ok(dsvi_wan_folder_find(scratch_path(name), &settings, &folder, &found));
    assert_true(found);
    return &folder;
}

static void assert_part(const DsviWanFolder *folder, DsviWanPart part, const char *name)
{
    assert_string_equal(folder->part[part], name ? scratch_path(name) : "");
}

static void put_diffusers(void)
{
    put("d/model_index.json",
        "{\"_class_name\": \"WanPipeline\", \"boundary_ratio\": null, \"transformer_2\": "
        "[null, null], \"vae\": [\"diffusers\", \"AutoencoderKLWan\"]}");
    put("d/transformer/config.json", "{\"in_channels\": 16}");
    put("d/vae/config.json", "{\"z_dim\": 16}");
    put("d/text_encoder/config.json", "{}");
    put("d/tokenizer/spiece.model", "");
    put("d/scheduler/scheduler_config.json", "{}");
}

static void diffusers(void **state)
{
    (void)state;
    clean("d");
    put_diffusers();
    DsviWanFolder *folder = find("d");
    assert_string_equal(folder->layout, "diffusers");
    assert_ok(dsvi_wan_folder_check(folder));
    assert_part(folder, DSVI_WAN_TRANSFORMER, "d/transformer");
    assert_part(folder, DSVI_WAN_VAE, "d/vae");
    assert_part(folder, DSVI_WAN_TEXT_ENCODER, "d/text_encoder");
    assert_part(folder, DSVI_WAN_TOKENIZER, "d/tokenizer");
    assert_part(folder, DSVI_WAN_SCHEDULER, "d/scheduler/scheduler_config.json");

    assert_ok(dsvi_folder_remove(scratch_path("d/vae")));
    folder = find("d");
    assert_fails(DSV_E_NOT_FOUND, "d/vae; model.vae=PATH names one",
                 dsvi_wan_folder_require(folder, DSVI_WAN_VAE));
    put_tensor("elsewhere.safetensors", "decoder.conv_in.weight");
    snprintf(settings.model_vae, sizeof settings.model_vae, "%s", scratch_path("elsewhere.safetensors"));
    assert_part(find("d"), DSVI_WAN_VAE, "elsewhere.safetensors");
    bool found;
    snprintf(settings.model_vae, sizeof settings.model_vae, "%s", scratch_path("absent"));
    assert_fails(DSV_E_NOT_FOUND,
                 "model.vae=", dsvi_wan_folder_find(scratch_path("d"), &settings, folder, &found));
}

static void variants_are_refused(void **state)
{
    static const char *const CASES[][3] = {
        {"d/model_index.json",
         "{\"_class_name\": \"WanImageToVideoPipeline\", \"image_encoder\": [\"transformers\", "
         "\"SiglipVisionModel\"]}",
         "image_encoder is a SiglipVisionModel instead of a CLIPVisionModel"},
        {"d/model_index.json", "{\"_class_name\": \"WanVACEPipeline\"}", "VACE"},
        {"d/model_index.json", "{\"_class_name\": \"StableDiffusionPipeline\"}", "StableDiffusionPipeline"},
        {"d/model_index.json",
         "{\"_class_name\": \"WanPipeline\", \"vae\": [\"diffusers\", \"AutoencoderKL\"]}",
         "vae is a AutoencoderKL instead of a AutoencoderKLWan"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        clean("d");
        put_diffusers();
        put(CASES[i][0], CASES[i][1]);
        assert_fails(DSV_E_UNSUPPORTED, CASES[i][2], dsvi_wan_folder_check(find("d")));
    }
    clean("d");
    put_diffusers();
    put("d/model_index.json", "{\"_class_name\": \"WanPipeline\", \"expand_timesteps\": true}");
    put("d/transformer/config.json", "{\"in_channels\": 48}");
    put("d/vae/config.json", "{\"z_dim\": 48, \"is_residual\": true}");
    assert_ok(dsvi_wan_folder_check(find("d"))); /* TI2V-5B */
    put("d/model_index.json", "{\"_class_name\": \"WanImageToVideoPipeline\"}");
    put("d/transformer/config.json", "{\"num_attention_heads\": 1, \"attention_head_dim\": 32, "
                                     "\"num_layers\": 1, \"ffn_dim\": 8, \"in_channels\": 36, "
                                     "\"out_channels\": 16}");
    DsviDitConfig config;
    put_tensor("d/transformer/model.safetensors", "a");
    assert_ok(dsvi_wan_folder_config(find("d"), &config)); /* I2V-A14B */
    assert_int_equal(config.in_channels, 36);
    put("d/model_index.json", "{\"_class_name\": \"WanImageToVideoPipeline\", \"image_encoder\": "
                              "[\"transformers\", \"CLIPVisionModel\"]}");
    put("d/image_encoder/config.json", "{}");
    put("d/image_processor/preprocessor_config.json", "{}");
    assert_ok(dsvi_wan_folder_check(find("d"))); /* I2V and FLF2V of Wan 2.1 */
    assert_part(find("d"), DSVI_WAN_IMAGE_ENCODER, "d/image_encoder");
    assert_part(find("d"), DSVI_WAN_IMAGE_PROCESSOR, "d/image_processor/preprocessor_config.json");
    put("d/transformer/config.json", "{\"num_attention_heads\": 1, \"attention_head_dim\": 32, "
                                     "\"num_layers\": 1, \"ffn_dim\": 8, \"in_channels\": 33, "
                                     "\"out_channels\": 16}");
    assert_fails(DSV_E_UNSUPPORTED, "the transformer takes 33 and gives 16 channels",
                 dsvi_wan_folder_config(find("d"), &config));
    clean("d");
    put_diffusers();
    put("d/model_index.json", "[1]");
    DsviWanFolder folder;
    bool found;
    assert_fails(DSV_E_FORMAT, "model_index.json: not a JSON object",
                 dsvi_wan_folder_find(scratch_path("d"), &settings, &folder, &found));
    put("experts/high_noise_model/config.json", "{}");
    assert_fails(DSV_E_UNSUPPORTED, "two experts", dsvi_wan_folder_check(find("experts")));
}

/* The Wan repository's layout: pickles that the user must convert, and what is used once that is done. */
static void repository(void **state)
{
    (void)state;
    clean("w");
    put("w/config.json", "{\"in_dim\": 16}");
    put_tensor("w/diffusion_pytorch_model.safetensors", "patch_embedding.weight");
    put("w/Wan2.1_VAE.pth", "");
    put("w/models_t5_umt5-xxl-enc-bf16.pth", "");
    put("w/google/umt5-xxl/spiece.model", "");
    DsviWanFolder *folder = find("w");
    assert_string_equal(folder->layout, "Wan repository");
    assert_part(folder, DSVI_WAN_TRANSFORMER, "w");
    assert_part(folder, DSVI_WAN_TOKENIZER, "w/google/umt5-xxl");
    assert_fails(DSV_E_UNSUPPORTED, "Wan2.1_VAE.pth: the VAE is a Python pickle",
                 dsvi_wan_folder_require(folder, DSVI_WAN_VAE));
    assert_non_null(strstr(dsv_error_message(), "w/Wan2.1_VAE.safetensors')\""));
    assert_fails(DSV_E_UNSUPPORTED, "bf16.pth", dsvi_wan_folder_require(folder, DSVI_WAN_TEXT_ENCODER));
    put_tensor("w/Wan2.1_VAE.safetensors", "decoder.middle.0.residual.0.gamma");
    put_tensor("w/models_t5_umt5-xxl-enc-bf16.safetensors", "token_embedding.weight");
    folder = find("w");
    assert_part(folder, DSVI_WAN_VAE, "w/Wan2.1_VAE.safetensors");
    assert_part(folder, DSVI_WAN_TEXT_ENCODER, "w/models_t5_umt5-xxl-enc-bf16.safetensors");
    assert_ok(dsvi_wan_folder_require(folder, DSVI_WAN_VAE));
}

static void comfy(void **state)
{
    DsviWanFolder folder;
    bool found;
    (void)state;
    clean("c");
    put_tensor("c/diffusion_models/wan_t2v.safetensors", "model.diffusion_model.patch_embedding.weight");
    put_tensor("c/diffusion_models/flux.safetensors", "double_blocks.0.img_attn.qkv.weight");
    put_tensor("c/vae/wan_2.1_vae.safetensors", "decoder.middle.0.residual.0.gamma");
    put_tensor("c/vae/ae.safetensors", "decoder.conv_in.weight");
    put_tensor("c/text_encoders/umt5_xxl.safetensors", "encoder.block.0.layer.0.SelfAttention.q.weight");
    put_tensor("c/text_encoders/t5xxl.safetensors", "encoder.block.0.layer.0.SelfAttention.q.weight");
    for (int i = 0; i < 2; i++) { /* the whole folder, and the transformer's file */
        DsviWanFolder *whole = find(i ? "c/diffusion_models/wan_t2v.safetensors" : "c");
        assert_string_equal(whole->layout, "ComfyUI");
        assert_part(whole, DSVI_WAN_TRANSFORMER, "c/diffusion_models/wan_t2v.safetensors");
        assert_part(whole, DSVI_WAN_VAE, "c/vae/wan_2.1_vae.safetensors");
        assert_part(whole, DSVI_WAN_TEXT_ENCODER, "c/text_encoders/umt5_xxl.safetensors");
        assert_part(whole, DSVI_WAN_TOKENIZER, "c/text_encoders/umt5_xxl.safetensors");
        assert_part(whole, DSVI_WAN_SCHEDULER, NULL);
    }
    put_tensor("c/vae/wan_2.2_vae.safetensors", "decoder.conv_in.weight");
    assert_fails(DSV_E_USAGE, "3 files could be the VAE",
                 dsvi_wan_folder_find(scratch_path("c"), &settings, &folder, &found));
    assert_non_null(strstr(dsv_error_message(), "wan_2.1_vae.safetensors"));
    assert_non_null(strstr(dsv_error_message(), "model.vae=FILE"));
    snprintf(settings.model_vae, sizeof settings.model_vae, "%s",
             scratch_path("c/vae/wan_2.1_vae.safetensors"));
    assert_part(find("c"), DSVI_WAN_VAE, "c/vae/wan_2.1_vae.safetensors");
}

/* Text encoder and tokenizer are found in a folder that lacks the other parts, or has two VAEs. */
static void text_alone(void **state)
{
    static const char ENCODER[] = "{\"model_type\": \"umt5\"}";
    static const char *const CASES[][3] = {
        /* named by the user, encoder, tokenizer */
        {"t/d", "t/d/text_encoder", "t/d/tokenizer"},
        {"t/d/text_encoder", "t/d/text_encoder", "t/d/text_encoder/../tokenizer"},
        {"t/in", "t/in", "t/in/spiece.model"},
        {"t/w", "t/w/models_t5.safetensors", "t/w/google/umt5-xxl"},
        {"t/c", "t/c/text_encoders/umt5.safetensors", "t/c/text_encoders/umt5.safetensors"},
        {"t/c/text_encoders/umt5.safetensors", "t/c/text_encoders/umt5.safetensors",
         "t/c/text_encoders/umt5.safetensors"},
    };
    DsviWanFolder folder;
    (void)state;
    clean("t");
    put("t/d/text_encoder/config.json", ENCODER);
    put_tensor("t/d/text_encoder/model.safetensors", "token_embedding.weight");
    put("t/d/tokenizer/tokenizer.json", "");
    put("t/in/config.json", ENCODER);
    put("t/in/spiece.model", "");
    put("t/w/google/umt5-xxl/spiece.model", "");
    put("t/w/models_t5.pth", "");
    assert_fails(DSV_E_UNSUPPORTED, "models_t5.pth: the text encoder is a Python pickle",
                 dsvi_wan_folder_find_text(scratch_path("t/w"), &settings, &folder));
    assert_fails(DSV_E_UNSUPPORTED, "models_t5.pth: the text encoder is a Python pickle",
                 dsvi_wan_folder_find_text(scratch_path("t/w/models_t5.pth"), &settings, &folder));
    put_tensor("t/w/models_t5.safetensors", "token_embedding.weight");
    put_tensor("t/w/a.safetensors", "decoder.conv_in.weight");
    put_tensor("t/w/b.safetensors", "decoder.conv_in.weight");
    put_tensor("t/c/text_encoders/umt5.safetensors", "token_embedding.weight");
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        assert_ok(dsvi_wan_folder_find_text(scratch_path(CASES[i][0]), &settings, &folder));
        assert_part(&folder, DSVI_WAN_TEXT_ENCODER, CASES[i][1]);
        assert_part(&folder, DSVI_WAN_TOKENIZER, CASES[i][2]);
    }
    snprintf(settings.model_tokenizer, sizeof settings.model_tokenizer, "%s", scratch_path("t/in"));
    assert_ok(dsvi_wan_folder_find_text(scratch_path("t/d"), &settings, &folder));
    assert_part(&folder, DSVI_WAN_TOKENIZER, "t/in");
    assert_ok(dsvi_folder_make(scratch_path("t/none")));
    clean("t/d/tokenizer");
    assert_fails(DSV_E_NOT_FOUND, "t/d: the tokenizer is missing, expected ",
                 dsvi_wan_folder_find_text(scratch_path("t/d"), &settings, &folder));
    assert_fails(DSV_E_NOT_FOUND, "no text encoder, expected text_encoder/",
                 dsvi_wan_folder_find_text(scratch_path("t/none"), &settings, &folder));
}

/* Runs, checkpoints, transformers alone and other folders are no published models. */
static void not_published(void **state)
{
    static const char *const NAMES[] = {
        "n/empty",       "n/run/checkpoint-4",  "n/run/checkpoint-4/transformer",
        "n/transformer", "n/other.safetensors", "n/absent"};
    DsviWanFolder folder;
    bool found = true;
    (void)state;
    clean("n");
    assert_ok(dsvi_folder_make(scratch_path("n/empty")));
    put("n/run/checkpoint-4/manifest.json", "{}");
    put("n/run/checkpoint-4/transformer/config.json", "{}");
    put("n/transformer/config.json", "{}");
    put_tensor("n/transformer/diffusion_pytorch_model.safetensors", "patch_embedding.weight");
    put_tensor("n/other.safetensors", "weight");
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        assert_ok(dsvi_wan_folder_find(scratch_path(NAMES[i]), &settings, &folder, &found));
        if (found)
            fail_msg("%s is taken for a published model", NAMES[i]);
    }
    snprintf(settings.model_vae, sizeof settings.model_vae, "%s", scratch_path("n/other.safetensors"));
    assert_part(find("n/transformer/"), DSVI_WAN_TRANSFORMER, "n/transformer");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(diffusers), cmocka_unit_test(variants_are_refused), cmocka_unit_test(repository),
        cmocka_unit_test(comfy),     cmocka_unit_test(text_alone),           cmocka_unit_test(not_published),
    };
    dsv_config_defaults(&settings);
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
