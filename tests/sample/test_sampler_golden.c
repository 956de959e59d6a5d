/* Samplers against diffusers' schedulers: schedules to the bit, walks step by step. */
#include "test.h"

#include "base/safetensors.h"
#include "sample/sampler.h"

static const char *const names[] = {"euler", "unipc"};
static const int64_t steps_of[] = {10, 50};
static const double shifts[] = {3, 5};

/* Both sides keep sigmas and the timesteps of euler as F32: they must agree to the bit. */
static void check_schedule(const DsvSampler *sampler, const DsvSafetensors *file, int64_t steps)
{
    const DsvStoredTensor *sigmas = dsvi_safetensors_find(file, "sigmas");
    const DsvStoredTensor *timesteps = dsvi_safetensors_find(file, "timesteps");
    assert_non_null(sigmas);
    assert_non_null(timesteps);
    assert_int_equal(sigmas->count, steps + 1);
    assert_int_equal(timesteps->count, steps);
    for (int64_t i = 0; i <= steps; i++)
        if (!(dsvi_sampler_sigma(sampler, i) == ((const float *)sigmas->data)[i]))
            fail_msg("sigma %d is %.9g, diffusers has %.9g", (int)i, dsvi_sampler_sigma(sampler, i),
                     (double)((const float *)sigmas->data)[i]);
    for (int64_t i = 0; i < steps; i++) {
        double wanted = timesteps->dtype == DSV_I64 ? (double)((const int64_t *)timesteps->data)[i]
                                                    : (double)((const float *)timesteps->data)[i];
        if (!(dsvi_sampler_timestep(sampler, i) == wanted))
            fail_msg("timestep %d is %.9g, diffusers has %.9g", (int)i, dsvi_sampler_timestep(sampler, i),
                     wanted);
    }
}

/* diffusers computes in F32, we in F64 over a state of F32: what differs is its rounding, 6e-8 for each of
 * about ten operations a step, carried along for up to 50 steps without growing (every weight is at most
 * about 1). If it all pointed one way that were 3e-5; it does not, and a third of it is allowed. */
static void check_walk(DsvSampler *sampler, const DsvSafetensors *file, int64_t steps)
{
    const DsvStoredTensor *outputs = dsvi_safetensors_find(file, "model_outputs");
    const DsvStoredTensor *samples = dsvi_safetensors_find(file, "samples");
    assert_non_null(outputs);
    assert_non_null(samples);
    int64_t n = outputs->count / steps;
    float *state = malloc((size_t)n * sizeof *state);
    memcpy(state, samples->data, (size_t)n * sizeof *state);
    for (int64_t i = 0; i < steps; i++) {
        assert_ok(dsvi_sampler_step(sampler, i, (const float *)outputs->data + i * n, state));
        double error = relative_l2(DSV_F32, state, DSV_F32, (const float *)samples->data + (i + 1) * n, n);
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
                DsvSafetensors *file;
                DsvSampler *sampler;
                snprintf(path, sizeof path, "fixtures/schedulers/%s/%s_shift%d_steps%d.safetensors",
                         names[name], names[name], (int)shifts[shift], (int)steps);
                assert_ok(dsvi_safetensors_open(shared_path(path), &file));
                int64_t elements = dsvi_safetensors_find(file, "start")->count;
                assert_ok(dsvi_sampler_create(names[name], steps, shifts[shift], elements, &sampler));
                check_schedule(sampler, file, steps);
                check_walk(sampler, file, steps);
                dsvi_sampler_free(&sampler);
                dsvi_safetensors_close(&file);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_against_diffusers)};
    skip_without_shared("fixtures/schedulers/fixture.json");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
