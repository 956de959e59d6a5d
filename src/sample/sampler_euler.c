/* Euler's method, with the schedule of diffusers' FlowMatchEulerDiscreteScheduler. */
#include "sample/sampler_type.h"

enum { TRAIN_STEPS = 1000 };

/* Returns the noise level `sigma` (first or last of the training schedule) after the shift, computed in F32
 * as in diffusers. */
static double shifted_end(float sigma, float shift)
{
    float above = shift * sigma, below = 1 + (shift - 1) * sigma;
    return above / below;
}

/* The noise levels are evenly spaced between the ends of the shifted training schedule, and are then shifted
 * again. The end near 0 is therefore shifted twice, as in diffusers. */
static void sampler_euler_schedule(DsviSampler *s, double flow_shift)
{
    double first = shifted_end(1, (float)flow_shift) * TRAIN_STEPS;
    double last = shifted_end(1.0f / TRAIN_STEPS, (float)flow_shift) * TRAIN_STEPS;
    for (int64_t i = 0; i < s->steps; i++) {
        double sigma = dsvi_sampler_linspace(first, last, i, s->steps) / TRAIN_STEPS;
        s->sigma[i] = (float)dsvi_sampler_shifted(sigma, flow_shift);
        s->timestep[i] = (float)(s->sigma[i] * TRAIN_STEPS);
    }
}

static void sampler_euler_step(DsviSampler *s, int64_t i, const float *velocity, float *state)
{
    double length = s->sigma[i + 1] - s->sigma[i];
    for (int64_t e = 0; e < s->elements; e++)
        state[e] = (float)(state[e] + length * velocity[e]);
}

const DsviSamplerType dsvi_sampler_euler = {
    .name = "euler", .schedule = sampler_euler_schedule, .step = sampler_euler_step};
