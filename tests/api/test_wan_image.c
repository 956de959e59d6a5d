/* Image-to-video models of Wan 2.2: dsv_sample_clips against diffusers' WanImageToVideoPipeline, and what is
 * said about pictures that are missing, faulty or too many. */
#include "wan_case.h"

static void latents_are_those_of_diffusers(void **state)
{
    (void)state;
    wan_case_make("pipe_i2v");
    wan_case_compare_all("pipe_i2v", NULL, NULL);
}

/* Makes the folder "model" that of a TI2V-5B model. */
static void make_ti2v(void)
{
    wan_case_make("pipe_ti2v");
    wan_case_link("pipe_ti2v/vae", "model/vae");
}

static void ti2v_latents_are_those_of_diffusers(void **state)
{
    (void)state;
    make_ti2v();
    wan_case_compare_all("pipe_ti2v", NULL, NULL);
    assert_null(strstr(wan_case_log, "to encode the picture")); /* the last case has none */
}

static void ti2v_faults(void **state)
{
    char first[DSVI_PATH_MAX], noise[DSVI_PATH_MAX];
    DsvSampleArgs args;
    DsvConfig settings;
    bool found;
    (void)state;
    make_ti2v();
    wan_case_log[0] = 0;
    assert_ok(dsv_inspect(scratch_path("model"), wan_case_keep, NULL));
    assert_non_null(strstr(wan_case_log, "dsv sample takes --image"));
    snprintf(first, sizeof first, "%s", golden_path("pipe_ti2v/first.png"));
    snprintf(noise, sizeof noise, "%s", golden_path("pipe_ti2v/cases/picture.safetensors"));
    dsv_config_defaults(&settings);
    assert_ok(dsv_config_of_run(scratch_path("model"), &settings, &found));
    settings.height = settings.width = 32;
    settings.num_inference_steps = settings.num_frames = 1;
    dsv_sample_args_defaults(&args);
    args.model_path = scratch_path("model");
    args.output_path = scratch_path("clip.safetensors");
    args.text_path = noise;
    assert_ok(dsv_sample_clips(&args, &settings, NULL));
    args.image_path = first;
    assert_fails(DSV_E_USAGE, "first.png: a clip of num_frames=1 has no frame beside its first",
                 dsv_sample_clips(&args, &settings, NULL));
    args.last_image_path = first;
    assert_fails(DSV_E_USAGE, "takes a picture of the first frame and none of the last",
                 dsv_sample_clips(&args, &settings, NULL));
}

static void inspection_says_what_the_model_takes(void **state)
{
    (void)state;
    wan_case_make("pipe_i2v");
    wan_case_log[0] = 0;
    assert_ok(dsv_inspect(scratch_path("model"), wan_case_keep, NULL));
    assert_non_null(strstr(wan_case_log, "an image-to-video model: dsv sample needs --image"));
    assert_non_null(strstr(wan_case_log, "latent channels 36 in, 16 out"));
    assert_non_null(strstr(wan_case_log, "transformer_2 is sound"));
}

/* Samples a clip of one step with the pictures. */
static DsvStatus sample(const char *first, const char *last, int64_t frames)
{
    char inputs[DSVI_PATH_MAX];
    DsvSampleArgs args;
    DsvConfig settings;
    bool found;
    dsv_config_defaults(&settings);
    assert_ok(dsv_config_of_run(scratch_path("model"), &settings, &found));
    settings.height = 32;
    settings.width = 16;
    settings.num_frames = frames;
    settings.num_inference_steps = 1;
    dsv_sample_args_defaults(&args);
    args.image_path = first;
    args.last_image_path = last;
    snprintf(inputs, sizeof inputs, "%s", golden_path("pipe_i2v/cases/first.safetensors"));
    return wan_case_sample(inputs, &args, &settings);
}

static void faults(void **state)
{
    DsvConfig settings;
    char first[DSVI_PATH_MAX], half[DSVI_PATH_MAX];
    char *bytes;
    size_t count;
    (void)state;
    snprintf(first, sizeof first, "%s", golden_path("pipe_i2v/first.png"));
    snprintf(half, sizeof half, "%s", scratch_path("half.png"));
    assert_ok(dsvi_file_read(first, 1 << 20, &bytes, &count));
    assert_ok(dsvi_file_write(half, bytes, count / 2));
    free(bytes);
    wan_case_make("pipe_i2v");
    assert_ok(sample(first, NULL, 9));
    assert_fails(DSV_E_USAGE,
                 "is an image-to-video model, expected a picture of the first frame (--image FILE)",
                 sample(NULL, NULL, 9));
    assert_fails(DSV_E_USAGE, "expected a picture of the first frame", sample(NULL, first, 9));
    assert_fails(DSV_E_FORMAT, "half.png: ", sample(half, NULL, 9));
    assert_fails(DSV_E_FORMAT, "half.png: ", sample(first, half, 9));
    assert_fails(DSV_E_NOT_FOUND, "absent.png", sample("absent.png", NULL, 9));
    assert_fails(DSV_E_FORMAT, "expected a picture whose name ends", sample("cat.webp", NULL, 9));
    wan_case_link("pipe_experts/transformer", "model/transformer");
    assert_fails(DSV_E_SHAPE, "both experts need the sizes of transformer", sample(first, NULL, 9));

    dsv_config_defaults(&settings);
    snprintf(settings.model_path, sizeof settings.model_path, "%s", golden_path("pipe_i2v/transformer"));
    assert_fails(DSV_E_UNSUPPORTED, "an image-to-video model, which takes a picture in 20 channels",
                 dsv_train(&settings, NULL, NULL));
    wan_case_make("pipe_experts");
    assert_fails(DSV_E_USAGE, "is a text-to-video model, which takes no picture", sample(first, NULL, 9));
    assert_fails(DSV_E_USAGE, "is a text-to-video model, which takes no picture", sample(NULL, first, 9));
}

static void a_clip_of_one_frame_has_no_last_frame(void **state)
{
    char first[DSVI_PATH_MAX], noise[DSVI_PATH_MAX];
    DsvSampleArgs args;
    DsvConfig settings;
    bool found;
    (void)state;
    wan_case_make("pipe_i2v");
    snprintf(first, sizeof first, "%s", golden_path("pipe_i2v/first.png"));
    snprintf(noise, sizeof noise, "%s", golden_path("pipe_i2v/cases/first.safetensors"));
    dsv_config_defaults(&settings);
    assert_ok(dsv_config_of_run(scratch_path("model"), &settings, &found));
    settings.height = settings.width = 64; /* not the picture's size */
    settings.num_frames = settings.num_inference_steps = 1;
    dsv_sample_args_defaults(&args);
    args.model_path = scratch_path("model");
    args.output_path = scratch_path("clip.safetensors");
    args.text_path = noise;
    args.image_path = first;
    assert_ok(dsv_sample_clips(&args, &settings, NULL));
    args.last_image_path = first;
    assert_fails(DSV_E_USAGE, "a clip of num_frames=1 has no last frame",
                 dsv_sample_clips(&args, &settings, NULL));
}

static int run_all(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(latents_are_those_of_diffusers),
        cmocka_unit_test(ti2v_latents_are_those_of_diffusers),
        cmocka_unit_test(ti2v_faults),
        cmocka_unit_test(inspection_says_what_the_model_takes),
        cmocka_unit_test(faults),
        cmocka_unit_test(a_clip_of_one_frame_has_no_last_frame),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}

int main(void)
{
    return golden_run("pipe_i2v", run_all);
}
