/* dsv_forward with an image encoder, against the states that transformers computed (golden files vit). */
#include "test.h"

#include "../base/scratch.h"
#include "base/safetensors.h"
#include "dsv/dsv.h"
#include "golden/golden_files.h"

static const char *device_setting = "device=cpu";

static DsvStatus forward(const char *model, const char *in, const char *precision, bool grad)
{
    DsvConfig settings;
    dsv_config_defaults(&settings);
    assert_ok(dsv_config_set(&settings, device_setting));
    assert_ok(dsv_config_set(&settings, precision));
    return dsv_forward(golden_path(model), golden_path(in), scratch_path("out.safetensors"), grad, &settings);
}

/* States in F32 differ by the order of sums, in BF16 by rounding. */
static void states_are_those_of_transformers(void **state)
{
    static const char *const ENCODERS[] = {"gelu", "quick_gelu"};
    static const struct {
        const char *precision;
        double bound;
    } WAYS[] = {{"mixed_precision=no", 1e-5}, {"mixed_precision=bf16", 2e-2}};
    char model[64], name[64];
    DsviSafetensors *golden, *ours;
    const DsviStoredTensor *found, *wanted;
    (void)state;
    assert_ok(dsvi_safetensors_open(golden_path("vit/expected.safetensors"), &golden));
    for (int i = 0; i < 4; i++) {
        snprintf(model, sizeof model, "vit/%s", ENCODERS[i / 2]);
        snprintf(name, sizeof name, "hidden_states_%s", ENCODERS[i / 2]);
        assert_ok(forward(model, "vit/expected.safetensors", WAYS[i % 2].precision, false));
        assert_ok(dsvi_safetensors_open(scratch_path("out.safetensors"), &ours));
        assert_non_null(wanted = dsvi_safetensors_find(golden, name));
        assert_ok(dsvi_safetensors_require(ours, "hidden_states", 3, wanted->shape, &found));
        assert_error_below(relative_l2(found->dtype, found->data, wanted->dtype, wanted->data, wanted->count),
                           WAYS[i % 2].bound, "%s with %s", model, WAYS[i % 2].precision);
        dsvi_safetensors_close(&ours);
    }
    dsvi_safetensors_close(&golden);
}

static void unusable_inputs_are_named(void **state)
{
    DsvConfig settings;
    (void)state;
    dsv_config_defaults(&settings);
    assert_fails(DSV_E_NOT_FOUND, "pixel_values",
                 forward("vit/gelu", "vit/gelu/model.safetensors", "mixed_precision=no", false));
    assert_fails(DSV_E_UNSUPPORTED, "an image encoder, which has no backward pass",
                 forward("vit/gelu", "vit/expected.safetensors", "mixed_precision=no", true));
    assert_fails(DSV_E_USAGE, "is an encoder, expected a transformer for the LoRA lora.safetensors",
                 dsv_forward_lora(golden_path("vit/gelu"), "lora.safetensors", "in.safetensors",
                                  scratch_path("none.safetensors"), false, &settings));
}

/* On a GPU, if there is one, only the states are compared. */
static int run_cuda(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(states_are_those_of_transformers)};
    device_setting = "device=cuda";
    scratch_make(NULL);
    DsvStatus status = forward("vit/gelu", "vit/expected.safetensors", "mixed_precision=no", false);
    scratch_remove(NULL);
    if (status == DSV_E_UNSUPPORTED) {
        fprintf(stderr, "SKIPPED: %s\n", dsv_error_message());
        return SKIPPED;
    }
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}

static int run_cpu(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_are_those_of_transformers),
        cmocka_unit_test(unusable_inputs_are_named),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}

/* test_image_encoder [cuda] */
int main(int argc, char **argv)
{
    return golden_run("vit", argc == 2 && strcmp(argv[1], "cuda") == 0 ? run_cuda : run_cpu);
}
