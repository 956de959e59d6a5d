/* scheduler_config.json: what published folders contain is read, and every setting that would change the
 * result is refused by name. */
#include "test.h"

#include "base/scratch.h"
#include "base/fs.h"
#include "sample/scheduler_config.h"

#define UNIPC                                                                                  \
    "\"_class_name\": \"UniPCMultistepScheduler\", \"prediction_type\": \"flow_prediction\", " \
    "\"use_flow_sigmas\": true"
#define EULER "\"_class_name\": \"FlowMatchEulerDiscreteScheduler\""

static DsvStatus read_scheduler(const char *text, DsviSchedulerConfig *out)
{
    const char *path = scratch_path("scheduler_config.json");
    assert_ok(dsvi_file_write(path, text, strlen(text)));
    return dsvi_scheduler_config_read(path, out);
}

static void accepted(void **state)
{
    static const struct {
        const char *text, *sampler;
        double shift;
    } CASES[] = {
        {"{" UNIPC
         ", \"flow_shift\": 3.0, \"solver_order\": 2, \"disable_corrector\": [], \"solver_p\": null}",
         "unipc", 3},
        {"{" UNIPC ", \"sigma_max\": null, \"beta_end\": 0.02, \"use_karras_sigmas\": false}", "unipc", 1},
        {"{" EULER ", \"shift\": 5, \"use_dynamic_shifting\": false, \"base_shift\": 0.5}", "euler", 5},
        {"{" EULER ", \"flow_shift\": 7}", "euler", 1}, /* not a key of this class */
    };
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        DsviSchedulerConfig config;
        assert_ok(read_scheduler(CASES[i].text, &config));
        assert_string_equal(config.sampler, CASES[i].sampler);
        assert_true(config.flow_shift == CASES[i].shift);
    }
}

static void refused(void **state)
{
    static const struct {
        DsvStatus status;
        const char *words, *text;
    } CASES[] = {
        {DSV_E_FORMAT, "not a JSON object", "[]"},
        {DSV_E_UNSUPPORTED, "_class_name is missing", "{}"},
        {DSV_E_UNSUPPORTED, "_class_name is LCMScheduler", "{\"_class_name\": \"LCMScheduler\"}"},
        {DSV_E_UNSUPPORTED, "solver_order is 3, dsv implements only 2", "{" UNIPC ", \"solver_order\": 3}"},
        {DSV_E_UNSUPPORTED, "predict_x0 is false", "{" UNIPC ", \"predict_x0\": false}"},
        {DSV_E_UNSUPPORTED, "solver_type is \"bh1\"", "{" UNIPC ", \"solver_type\": \"bh1\"}"},
        {DSV_E_UNSUPPORTED, "final_sigmas_type is \"sigma_min\"",
         "{" UNIPC ", \"final_sigmas_type\": \"sigma_min\"}"},
        {DSV_E_UNSUPPORTED, "disable_corrector is [0]", "{" UNIPC ", \"disable_corrector\": [0]}"},
        {DSV_E_UNSUPPORTED, "thresholding is true", "{" UNIPC ", \"thresholding\": true}"},
        {DSV_E_UNSUPPORTED, "use_karras_sigmas is not false", "{" UNIPC ", \"use_karras_sigmas\": true}"},
        {DSV_E_UNSUPPORTED, "use_dynamic_shifting is not false",
         "{" EULER ", \"use_dynamic_shifting\": true}"},
        {DSV_E_UNSUPPORTED, "prediction_type is \"epsilon\" because the key is absent",
         "{\"_class_name\": \"UniPCMultistepScheduler\", \"use_flow_sigmas\": true}"},
        {DSV_E_UNSUPPORTED, "shift_terminal is 0.1", "{" EULER ", \"shift_terminal\": 0.1}"},
        {DSV_E_UNSUPPORTED, "stochastic_sampling is true", "{" EULER ", \"stochastic_sampling\": true}"},
        {DSV_E_UNSUPPORTED, "num_train_timesteps is 500", "{" EULER ", \"num_train_timesteps\": 500}"},
        {DSV_E_FORMAT, "key shift is not a number", "{" EULER ", \"shift\": \"3\"}"},
        {DSV_E_FORMAT, "key flow_shift is not a number", "{" UNIPC ", \"flow_shift\": 0}"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        DsviSchedulerConfig config;
        assert_fails(CASES[i].status, CASES[i].words, read_scheduler(CASES[i].text, &config));
        assert_non_null(strstr(dsv_error_message(), "scheduler_config.json"));
    }
}

/* The configurations of the golden files, which diffusers wrote. */
static void written_by_diffusers(void **state)
{
    DsviSchedulerConfig config;
    (void)state;
    if (!dsvi_path_exists(shared_path("fixtures/schedulers/unipc/config.json")))
        skip();
    assert_ok(dsvi_scheduler_config_read(shared_path("fixtures/schedulers/unipc/config.json"), &config));
    assert_string_equal(config.sampler, "unipc");
    assert_true(config.flow_shift == 3);
    assert_ok(dsvi_scheduler_config_read(shared_path("fixtures/schedulers/euler/config.json"), &config));
    assert_string_equal(config.sampler, "euler");
    assert_true(config.flow_shift == 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepted),
        cmocka_unit_test(refused),
        cmocka_unit_test(written_by_diffusers),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
