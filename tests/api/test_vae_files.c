/* A VAE through the public interface: dsv_forward against the golden files, and dsv_decode against the video
 * that diffusers made of the same latents. */
#include "test.h"

#include "../base/scratch.h"
#include "base/safetensors.h"
#include "dsv/dsv.h"
#include "golden/golden_files.h"

static DsvConfig exact_settings(void)
{
    DsvConfig settings;
    dsv_config_defaults(&settings);
    assert_ok(dsv_config_set(&settings, "mixed_precision=no"));
    return settings;
}

static void assert_near(const DsviSafetensors *found, const DsviSafetensors *wanted, const char *name)
{
    const DsviStoredTensor *a, *b = dsvi_safetensors_find(wanted, name);
    assert_non_null(b);
    assert_ok(dsvi_safetensors_require(found, name, b->ndim, b->shape, &a));
    assert_error_below(relative_l2(a->dtype, a->data, b->dtype, b->data, b->count), 1e-5, "%s", name);
}

static void check_forward(const char *folder)
{
    static const char *const results[] = {"moments", "mode", "latents_normalized", "decoded",
                                          "decoded_random"};
    char names[GOLDEN_CASES_MAX][GOLDEN_NAME], in[128], out[128];
    DsvConfig settings = exact_settings();
    DsviSafetensors *found, *wanted;
    for (int i = 0; i < golden_cases(folder, names); i++) {
        snprintf(in, sizeof in, "%s/%s/inputs.safetensors", folder, names[i]);
        snprintf(out, sizeof out, "%s/%s/expected.safetensors", folder, names[i]);
        const char *written = scratch_path("out.safetensors");
        assert_ok(dsv_forward(golden_path(folder), golden_path(in), written, false, &settings));
        assert_ok(dsvi_safetensors_open(written, &found));
        assert_ok(dsvi_safetensors_open(golden_path(out), &wanted));
        assert_int_equal(dsvi_safetensors_count(found), sizeof results / sizeof *results);
        for (size_t r = 0; r < sizeof results / sizeof *results; r++)
            assert_near(found, wanted, results[r]);
        dsvi_safetensors_close(&found);
        dsvi_safetensors_close(&wanted);
    }
}

static void forward_gives_what_diffusers_gives(void **state)
{
    (void)state;
    check_forward("vae_a");
    check_forward("vae_b");
}

static void forward_refuses_inputs(void **state)
{
    const float zeros[3 * 2 * 8 * 8] = {0};
    DsvConfig settings = exact_settings();
    const char *in = scratch_path("in.safetensors"), *out = scratch_path("refused.safetensors");
    DsviStoredTensor tensor = {"other", DSVI_F32, 5, {1, 3, 1, 8, 8}, 192, 192 * sizeof(float), zeros};
    (void)state;
    assert_ok(dsvi_safetensors_write(in, &tensor, 1, NULL, 0));
    assert_fails(DSV_E_NOT_FOUND, "latents_random",
                 dsv_forward(golden_path("vae_a"), in, out, false, &settings));
    tensor.name = "latents_random";
    assert_ok(dsvi_safetensors_write(in, &tensor, 1, NULL, 0));
    assert_fails(DSV_E_SHAPE, "latents_random", dsv_forward(golden_path("vae_a"), in, out, false, &settings));
    tensor = (DsviStoredTensor){"video", DSVI_F32, 5, {1, 3, 2, 8, 8}, 384, 384 * sizeof(float), zeros};
    assert_ok(dsvi_safetensors_write(in, &tensor, 1, NULL, 0));
    assert_fails(DSV_E_SHAPE, "num_frames 2", dsv_forward(golden_path("vae_a"), in, out, false, &settings));
    assert_fails(DSV_E_UNSUPPORTED, "no backward pass",
                 dsv_forward(golden_path("vae_a"), in, out, true, &settings));
    assert_false(dsvi_path_exists(out));
}

static void decode_gives_the_pipelines_video(void **state)
{
    const char *model = golden_path("pipe_a"), *out = scratch_path("clip.safetensors");
    const char *latents = golden_path("pipe_a/cases/unipc/expected.safetensors");
    DsvConfig settings = exact_settings();
    DsviSafetensors *found, *wanted;
    DsvDecoded size;
    (void)state;
    assert_ok(dsv_decode(model, latents, out, &settings, &size));
    assert_ok(dsvi_safetensors_open(out, &found));
    assert_ok(dsvi_safetensors_open(latents, &wanted));
    assert_near(found, wanted, "video");
    const int64_t *shape = dsvi_safetensors_find(wanted, "video")->shape;
    assert_int_equal(size.frames, shape[1]);
    assert_int_equal(size.height, shape[3]);
    assert_int_equal(size.width, shape[4]);
    dsvi_safetensors_close(&found);
    dsvi_safetensors_close(&wanted);
    assert_ok(dsv_decode(golden_path("pipe_a/vae"), latents, scratch_path("clip.mp4"), &settings, NULL));
    assert_true(dsvi_path_exists(scratch_path("clip.mp4")));
}

static void decode_refuses_inputs(void **state)
{
    DsvConfig settings = exact_settings();
    const char *latents = golden_path("pipe_a/cases/unipc/expected.safetensors");
    const char *clip = scratch_path("refused.mp4"), *model = golden_path("pipe_a");
    (void)state;
    assert_fails(DSV_E_NOT_FOUND, "nowhere",
                 dsv_decode(scratch_path("nowhere"), latents, clip, &settings, NULL));
    assert_fails(DSV_E_NOT_FOUND, "nowhere",
                 dsv_decode(model, scratch_path("nowhere"), clip, &settings, NULL));
    assert_fails(DSV_E_SHAPE, "latents",
                 dsv_decode(golden_path("vae_a"), latents, clip, &settings, NULL)); /* 4 channels, not 16 */
    assert_fails(DSV_E_USAGE, "clip.png",
                 dsv_decode(model, latents, scratch_path("clip.png"), &settings, NULL));
    assert_ok(dsv_config_set(&settings, "memory_gib=0.00001"));
    assert_fails(DSV_E_NO_MEMORY, "expected at least", dsv_decode(model, latents, clip, &settings, NULL));
    assert_false(dsvi_path_exists(clip));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_gives_what_diffusers_gives),
        cmocka_unit_test(forward_refuses_inputs),
        cmocka_unit_test(decode_gives_the_pipelines_video),
        cmocka_unit_test(decode_refuses_inputs),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
