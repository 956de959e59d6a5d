/* Samplers compared with diffusers' schedulers: schedules bit for bit, and states step by step. */
#include "test.h"

#include "base/safetensors.h"
#include "golden/golden_files.h"
#include "sample/sampler.h"

static const char *const names[] = {"euler", "unipc"};
static const int64_t steps_of[] = {10, 50};
static const double shifts[] = {3, 5};

/* Both implementations store sigmas and euler's timesteps as F32, so they must be equal to the bit. */
static void check_schedule(const DsviSampler *sampler, const DsviSafetensors *file, int64_t steps)
{
    const DsviStoredTensor *sigmas = dsvi_safetensors_find(file, "sigmas");
    const DsviStoredTensor *timesteps = dsvi_safetensors_find(file, "timesteps");
    assert_non_null(sigmas);
    assert_non_null(timesteps);
    assert_int_equal(sigmas->count, steps + 1);
    assert_int_equal(timesteps->count, steps);
    for (int64_t i = 0; i <= steps; i++)
        if (!(dsvi_sampler_sigma(sampler, i) == ((const float *)sigmas->data)[i]))
            fail_msg("sigma %d is %.9g, diffusers has %.9g", (int)i, dsvi_sampler_sigma(sampler, i),
                     (double)((const float *)sigmas->data)[i]);
    for (int64_t i = 0; i < steps; i++) {
        double wanted = timesteps->dtype == DSVI_I64 ? (double)((const int64_t *)timesteps->data)[i]
                                                     : (double)((const float *)timesteps->data)[i];
        if (!(dsvi_sampler_timestep(sampler, i) == wanted))
            fail_msg("timestep %d is %.9g, diffusers has %.9g", (int)i, dsvi_sampler_timestep(sampler, i),
                     wanted);
    }
}

/* diffusers computes in F32, dsv in F64 with a state in F32. The difference is diffusers' rounding: 6e-8 for
 * about ten operations per step, over up to 50 steps, without growth (every weight is at most about 1). If
 * all errors had one sign the sum would be 3e-5; a third of this is allowed. */
static void check_walk(DsviSampler *sampler, const DsviSafetensors *file, int64_t steps)
{
    const DsviStoredTensor *outputs = dsvi_safetensors_find(file, "model_outputs");
    const DsviStoredTensor *samples = dsvi_safetensors_find(file, "samples");
    assert_non_null(outputs);
    assert_non_null(samples);
    int64_t n = outputs->count / steps;
    float *state = malloc((size_t)n * sizeof *state);
    memcpy(state, samples->data, (size_t)n * sizeof *state);
    for (int64_t i = 0; i < steps; i++) {
        assert_ok(dsvi_sampler_step(sampler, i, (const float *)outputs->data + i * n, state));
        double error = relative_l2(DSVI_F32, state, DSVI_F32, (const float *)samples->data + (i + 1) * n, n);
        assert_error_below(error, 1e-5, "after step %d of %d", (int)i + 1, (int)steps);
    }
    free(state);
}

static void test_against_diffusers(void **unused)
{
    (void)unused;
    for (int name = 0; name < 2; name++)
        for (int shift = 0; shift < 2; shift++)
            for (int count = 0; count < 2; count++) {
                char path[128];
                int64_t steps = steps_of[count];
                DsviSafetensors *file;
                DsviSampler *sampler;
                snprintf(path, sizeof path, "schedulers/%s/%s_shift%d_steps%d.safetensors", names[name],
                         names[name], (int)shifts[shift], (int)steps);
                assert_ok(dsvi_safetensors_open(golden_path(path), &file));
                int64_t elements = dsvi_safetensors_find(file, "start")->count;
                assert_ok(dsvi_sampler_create(names[name], steps, shifts[shift], elements, &sampler));
                check_schedule(sampler, file, steps);
                check_walk(sampler, file, steps);
                dsvi_sampler_free(&sampler);
                dsvi_safetensors_close(&file);
            }
}

static int run(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_against_diffusers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
    return golden_run("schedulers", run);
}
