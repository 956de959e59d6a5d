/* dsv_forward_lora compared with PyTorch and peft: output, loss and gradients of a LoRA on a small model. */
#include "test.h"

#include "base/fs.h"
#include "base/safetensors.h"
#include "dsv/dsv.h"

static char folder[] = "/tmp/dsv-forward-lora-XXXXXX";
static char out[64], merged[64];

static DsviSafetensors *open_shared(const char *relative)
{
    DsviSafetensors *file;
    assert_ok(dsvi_safetensors_open(shared_path(relative), &file));
    return file;
}

static double error_of(const DsviSafetensors *ours, const char *prefix, const DsviStoredTensor *wanted)
{
    char name[192];
    const DsviStoredTensor *found;
    snprintf(name, sizeof name, "%s%s", prefix, wanted->name);
    assert_ok(dsvi_safetensors_require(ours, name, wanted->ndim, wanted->shape, &found));
    return relative_l2(found->dtype, found->data, wanted->dtype, wanted->data, wanted->count);
}

static void exact_settings(DsvConfig *settings)
{
    dsv_config_defaults(settings);
    assert_ok(dsv_config_set(settings, "mixed_precision=no"));
    assert_ok(dsv_config_set(settings, "sparse.enabled=false"));
}

static void output_and_gradients_match_peft(void **state)
{
    DsvConfig settings;
    DsviSafetensors *ours, *expected = open_shared("fixtures/lora_a/expected.safetensors");
    DsviSafetensors *grads = open_shared("fixtures/lora_a/grads.safetensors");
    (void)state;
    exact_settings(&settings);
    assert_ok(dsv_forward_lora(
        shared_path("fixtures/dit_a"), shared_path("fixtures/lora_a/adapter_comfy.safetensors"),
        shared_path("fixtures/dit_a/b2_5x6x6/inputs.safetensors"), out, true, &settings));
    assert_ok(dsvi_safetensors_open(out, &ours));
    for (size_t i = 0; i < dsvi_safetensors_count(expected); i++)
        assert_error_below(error_of(ours, "", dsvi_safetensors_at(expected, i)), 1e-5, "%s",
                           dsvi_safetensors_at(expected, i)->name);
    for (size_t i = 0; i < dsvi_safetensors_count(grads); i++)
        assert_error_below(error_of(ours, "grad.", dsvi_safetensors_at(grads, i)), 1e-4, "%s",
                           dsvi_safetensors_at(grads, i)->name);
    assert_int_equal(dsvi_safetensors_count(ours), dsvi_safetensors_count(grads) + 2);
    dsvi_safetensors_close(&ours);
    dsvi_safetensors_close(&expected);
    dsvi_safetensors_close(&grads);
}

static void a_merged_model_gives_the_same_output(void **state)
{
    DsvConfig settings;
    DsviSafetensors *ours, *expected = open_shared("fixtures/lora_a/expected.safetensors");
    (void)state;
    exact_settings(&settings);
    assert_ok(dsv_lora_merge(shared_path("fixtures/dit_a"),
                             shared_path("fixtures/lora_a/adapter_comfy.safetensors"), 1, merged));
    assert_ok(dsv_forward(merged, shared_path("fixtures/dit_a/b2_5x6x6/inputs.safetensors"), out, false,
                          &settings));
    assert_ok(dsvi_safetensors_open(out, &ours));
    assert_error_below(error_of(ours, "", dsvi_safetensors_find(expected, "output")), 1e-5, "output");
    assert_fails(DSV_E_USAGE, "expected a new or empty folder",
                 dsv_lora_merge(shared_path("fixtures/dit_a"),
                                shared_path("fixtures/lora_a/adapter_comfy.safetensors"), 1, merged));
    dsvi_safetensors_close(&ours);
    dsvi_safetensors_close(&expected);
}

static int make_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(out, sizeof out, "%s/out.safetensors", folder);
    snprintf(merged, sizeof merged, "%s/merged", folder);
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
        cmocka_unit_test(output_and_gradients_match_peft),
        cmocka_unit_test(a_merged_model_gives_the_same_output),
    };
    skip_without_shared("fixtures/lora_a/grads.safetensors");
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
