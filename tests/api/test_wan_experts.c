/* Models of two experts (Wan 2.2 A14B): dsv_sample_clips against diffusers' WanPipeline, dsv_inspect, and
 * what is said about an expert that is missing or has another shape, and about training. */
#include "wan_case.h"

static void make_model(double ratio)
{
    char text[32];
    snprintf(text, sizeof text, "%g", ratio);
    wan_case_make("pipe_experts");
    wan_case_index("WanPipeline", WAN_CASE_PART, text);
}

static void both_experts_ran(void)
{
    assert_non_null(strstr(wan_case_log, "the expert for high noise (transformer) runs now"));
    assert_non_null(strstr(wan_case_log, "the expert for low noise (transformer_2) runs now"));
    assert_string_equal(wan_case_unit, "low noise, step");
}

static void latents_are_those_of_diffusers(void **state)
{
    (void)state;
    wan_case_compare_all("pipe_experts", make_model, both_experts_ran);
}

static DsvStatus sample(const char *inputs, const DsvConfig *settings)
{
    DsvSampleArgs args;
    dsv_sample_args_defaults(&args);
    return wan_case_sample(inputs, &args, settings);
}

static void inspection_names_both_experts(void **state)
{
    (void)state;
    make_model(0.875);
    wan_case_log[0] = 0;
    assert_ok(dsv_inspect(scratch_path("model"), wan_case_keep, NULL));
    assert_non_null(strstr(wan_case_log, "transformer from timestep 875 on, transformer_2 below"));
    assert_non_null(strstr(wan_case_log, "transformer is sound"));
    assert_non_null(strstr(wan_case_log, "transformer_2 is sound"));
}

static void faults(void **state)
{
    DsvConfig settings;
    bool found;
    char inputs[DSVI_PATH_MAX];
    (void)state;
    make_model(0.875);
    snprintf(inputs, sizeof inputs, "%s", golden_path("pipe_experts/cases/unipc.safetensors"));
    dsv_config_defaults(&settings);
    assert_ok(dsv_config_of_run(scratch_path("model"), &settings, &found));
    snprintf(settings.model_path, sizeof settings.model_path, "%s", scratch_path("model"));
    assert_ok(dsv_config_set(&settings, "codec.name=haar"));
    assert_fails(DSV_E_UNSUPPORTED, "the two experts of Wan 2.2", dsv_train(&settings, NULL, NULL));
    settings.model_path[0] = 0;
    wan_case_link("pipe_a/transformer", "model/transformer_2");
    assert_fails(DSV_E_SHAPE, "both experts need the sizes of transformer", sample(inputs, &settings));
    assert_int_equal(unlink(scratch_path("model/transformer_2")), 0);
    assert_fails(DSV_E_NOT_FOUND, "the transformer_2 is missing", sample(inputs, &settings));
    wan_case_index("WanPipeline", "[null, null]", "0.875");
    assert_fails(DSV_E_FORMAT, "boundary_ratio is set and transformer_2 is not", sample(inputs, &settings));
    wan_case_index("WanPipeline", WAN_CASE_PART, "null");
    assert_fails(DSV_E_FORMAT, "transformer_2 is set and boundary_ratio is not", sample(inputs, &settings));
    wan_case_index("WanPipeline", WAN_CASE_PART, "2");
    assert_fails(DSV_E_FORMAT, "boundary_ratio is not a number from 0 to 1", sample(inputs, &settings));
    wan_case_index("WanPipeline", "[null, null]", "null");
    settings.guidance_scale_2 = 3;
    assert_fails(DSV_E_USAGE, "has one transformer, and no second expert", sample(inputs, &settings));
}

static int run_all(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(latents_are_those_of_diffusers),
        cmocka_unit_test(inspection_names_both_experts),
        cmocka_unit_test(faults),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}

int main(void)
{
    return golden_run("pipe_experts", run_all);
}
