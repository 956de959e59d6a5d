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
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}

int main(void)
{
    return golden_run("pipe_clip", run_all);
}
