/* Image-to-video models of Wan 2.1, which attend states of pictures (I2V, FLF2V): dsv_sample_clips against
 * diffusers' WanImageToVideoPipeline, and what is said about pictures and parts that are missing. */
#include "wan_case.h"

static void latents_are_those_of_diffusers(void **state)
{
    (void)state;
    wan_case_make("pipe_clip");
    wan_case_compare_all("pipe_clip", NULL, NULL);
    assert_non_null(strstr(wan_case_log, "before it the image encoder takes"));
    wan_case_make("pipe_flf");
    wan_case_compare_all("pipe_flf", NULL, NULL);
}

static void settings_of(DsvConfig *settings)
{
    bool found;
    dsv_config_defaults(settings);
    assert_ok(dsv_config_of_run(scratch_path("model"), settings, &found));
    assert_ok(dsv_config_set(settings, "mixed_precision=no"));
    settings->height = 32;
    settings->width = 16;
    settings->num_frames = 9;
    settings->num_inference_steps = 1;
}

/* Samples a clip of one step from the golden folder `set`, with its pictures. */
static DsvStatus sample(const char *set, bool first, bool last, const DsvConfig *settings)
{
    char inputs[DSVI_PATH_MAX], picture[2][DSVI_PATH_MAX], name[64];
    DsvSampleArgs args;
    snprintf(name, sizeof name, "%s/cases/guided.safetensors", set);
    snprintf(inputs, sizeof inputs, "%s", golden_path(name));
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "%s/%s.png", set, i ? "last" : "first");
        snprintf(picture[i], sizeof picture[i], "%s", golden_path(name));
    }
    dsv_sample_args_defaults(&args);
    args.image_path = first ? picture[0] : NULL;
    args.last_image_path = last ? picture[1] : NULL;
    return wan_case_sample(inputs, &args, settings);
}

static void pictures_must_be_those_of_the_model(void **state)
{
    DsvConfig settings;
    (void)state;
    wan_case_make("pipe_clip");
    settings_of(&settings);
    assert_ok(sample("pipe_clip", true, false, &settings));
    assert_fails(DSV_E_USAGE,
                 "is an image-to-video model, expected a picture of the first frame (--image FILE)",
                 sample("pipe_clip", false, false, &settings));
    assert_fails(DSV_E_USAGE, "takes a picture of the first frame only, and not of the last frame",
                 sample("pipe_clip", true, true, &settings));
    wan_case_make("pipe_flf");
    assert_fails(DSV_E_USAGE,
                 "makes a clip between two pictures, expected one of the last frame, too (--last-image FILE)",
                 sample("pipe_flf", true, false, &settings));
}

static void parts_must_fit(void **state)
{
    DsvConfig settings;
    (void)state;
    wan_case_make("pipe_clip");
    settings_of(&settings);
    wan_case_link("pipe_flf/image_encoder", "model/image_encoder");
    assert_fails(DSV_E_SHAPE, "image_encoder: an image encoder with states of 16, expected 24, the image_dim",
                 sample("pipe_clip", true, false, &settings));
    wan_case_link("pipe_flf/image_processor", "model/image_processor");
    wan_case_link("pipe_clip/image_encoder", "model/image_encoder");
    assert_fails(DSV_E_SHAPE, "preprocessor_config.json: crop_size is 10, expected 20, the image_size of",
                 sample("pipe_clip", true, false, &settings));
    assert_int_equal(unlink(scratch_path("model/image_encoder")), 0);
    assert_fails(DSV_E_NOT_FOUND, "model: the image encoder is missing, expected ",
                 sample("pipe_clip", true, false, &settings));
    wan_case_make("pipe_clip");
    assert_int_equal(unlink(scratch_path("model/image_processor")), 0);
    assert_fails(DSV_E_NOT_FOUND, "model: the image processor is missing, expected ",
                 sample("pipe_clip", true, false, &settings));
    wan_case_make("pipe_flf");
    wan_case_link("vit/quick_gelu", "model/image_encoder");
    assert_fails(DSV_E_SHAPE, "that gives 52 rows for two pictures, expected 10, the pos_embed_seq_len of",
                 sample("pipe_flf", true, true, &settings));
}

/* Writes a LoRA of rank 1 for one layer of width 32, whose B is zero; `difference`: of a weight instead. */
static void write_lora(const char *layer, int64_t difference)
{
    static const float numbers[1 << 13];
    static char names[2][128];
    DsviStoredTensor tensors[2];
    for (int i = 0; i < 2; i++) {
        tensors[i] = (DsviStoredTensor){.name = names[i], .dtype = DSVI_F32, .ndim = 2, .data = numbers};
        tensors[i].shape[i] = 1;
        tensors[i].shape[1 - i] = 32;
        tensors[i].count = 32;
        snprintf(names[i], sizeof names[i], "diffusion_model.%s.lora_%c.weight", layer, i ? 'B' : 'A');
    }
    if (difference > 0) {
        tensors[0] = (DsviStoredTensor){.name = names[0],
                                        .dtype = DSVI_F32,
                                        .ndim = 5,
                                        .data = numbers,
                                        .shape = {32, difference, 1, 2, 2},
                                        .count = 32 * difference * 4};
        snprintf(names[0], sizeof names[0], "diffusion_model.%s.diff", layer);
    }
    for (int i = 0; i < 2; i++)
        tensors[i].bytes = (size_t)tensors[i].count * sizeof *numbers;
    assert_ok(
        dsvi_safetensors_replace(scratch_path("lora.safetensors"), tensors, difference > 0 ? 1 : 2, NULL, 0));
}

static DsvStatus sample_with_lora(const char *set, const char *inputs_of)
{
    char inputs[DSVI_PATH_MAX], picture[DSVI_PATH_MAX], lora[DSVI_PATH_MAX];
    const char *loras[] = {lora};
    DsvSampleArgs args;
    DsvConfig settings;
    wan_case_make(set);
    settings_of(&settings);
    if (strcmp(set, "pipe_experts") == 0) /* its noise is that of a shorter clip */
        settings.num_frames = 5;
    snprintf(lora, sizeof lora, "%s", scratch_path("lora.safetensors"));
    snprintf(inputs, sizeof inputs, "%s", golden_path(inputs_of));
    snprintf(picture, sizeof picture, "%s", golden_path("pipe_clip/first.png"));
    dsv_sample_args_defaults(&args);
    args.image_path = strcmp(set, "pipe_clip") == 0 ? picture : NULL;
    args.lora_paths = loras;
    args.lora_count = 1;
    return wan_case_sample(inputs, &args, &settings);
}

/* A LoRA of a text-to-video model has no matrices for states of pictures, which then stay as they are, but a
 * difference of its patch embedding fits no more channels. A LoRA of an image-to-video model fits no other.
 */
static void loras_of_the_other_kind_are_told_apart(void **state)
{
    static const char GUIDED[] = "pipe_clip/cases/guided.safetensors";
    (void)state;
    write_lora("blocks.0.self_attn.q", 0);
    assert_ok(sample_with_lora("pipe_clip", GUIDED));
    assert_non_null(strstr(wan_case_log, "lora.safetensors has no matrices for the states of pictures"));
    write_lora("blocks.0.cross_attn.k_img", 0);
    assert_ok(sample_with_lora("pipe_clip", GUIDED));
    assert_null(strstr(wan_case_log, "has no matrices for the states of pictures"));
    assert_fails(DSV_E_SHAPE, "belongs to layer blocks.0.attn2.add_k_proj, which the model lacks",
                 sample_with_lora("pipe_experts", "pipe_experts/cases/unipc.safetensors"));
    write_lora("patch_embedding", 16);
    assert_fails(DSV_E_SHAPE, "diffusion_model.patch_embedding.diff has 2048 elements, expected 4608",
                 sample_with_lora("pipe_clip", GUIDED));
}

static void inspection_lists_the_image_encoder(void **state)
{
    (void)state;
    wan_case_make("pipe_clip");
    wan_case_log[0] = 0;
    assert_ok(dsv_inspect(scratch_path("model"), wan_case_keep, NULL));
    assert_non_null(strstr(wan_case_log, "an image-to-video model: dsv sample needs --image\n"));
    assert_non_null(strstr(wan_case_log, "CLIP, 3 layers, 2 heads x 12, 17 rows of 24 for a picture"));
    assert_non_null(strstr(wan_case_log, "image processor is sound"));
    wan_case_make("pipe_flf");
    wan_case_log[0] = 0;
    assert_ok(dsv_inspect(scratch_path("model"), wan_case_keep, NULL));
    assert_non_null(strstr(wan_case_log, "dsv sample needs --image and --last-image\n"));
    assert_ok(dsv_inspect(scratch_path("model/image_encoder"), wan_case_keep, NULL));
    assert_ok(dsv_inspect(scratch_path("model/image_processor"), wan_case_keep, NULL));
}

static int run_all(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(latents_are_those_of_diffusers),
        cmocka_unit_test(pictures_must_be_those_of_the_model),
        cmocka_unit_test(parts_must_fit),
        cmocka_unit_test(inspection_lists_the_image_encoder),
        cmocka_unit_test(loras_of_the_other_kind_are_told_apart),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}

int main(void)
{
    return golden_run("pipe_clip", run_all);
}
