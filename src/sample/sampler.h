/* Samplers: solvers of the differential equation of flow matching, equal to diffusers' schedulers for Wan.
 *
 * A sampler goes from noise to a latent in a number of steps. At step i the caller evaluates the model at
 * dsvi_sampler_timestep(i) on the current state (the noisy latent), and passes the velocity to
 * dsvi_sampler_step. State and velocity are host arrays of F32; the arithmetic is in double. */
#ifndef DSVI_SAMPLER_H
#define DSVI_SAMPLER_H

#include "base/status.h"
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviSampler DsviSampler;

/* Creates a sampler. name: "euler" (diffusers' FlowMatchEulerDiscreteScheduler) or "unipc"
 * (UniPCMultistepScheduler of order 2, bh2, with flow sigmas). `elements`: number of elements of the state,
 * the latent. DSV_E_USAGE for other names or less than 1 step. */
DsvStatus dsvi_sampler_create(const char *name, int64_t steps, double flow_shift, int64_t elements,
                              DsviSampler **out);
void dsvi_sampler_free(DsviSampler **sampler);

/* Returns the timestep at which the model is evaluated at step i, 0 <= i < steps. unipc truncates it to an
 * integer. */
double dsvi_sampler_timestep(const DsviSampler *sampler, int64_t i);
/* Returns the noise level sigma at step i, 0 <= i <= steps; the last noise level is 0. Tests use this
 * function. */
double dsvi_sampler_sigma(const DsviSampler *sampler, int64_t i);
/* Returns the shifted noise level shift sigma / (1 + (shift - 1) sigma). Training shifts the noise levels
 * that it draws in the same way. */
double dsvi_sampler_shifted(double sigma, double shift);
/* Advances `state` from step i to step i + 1 with the velocity at step i. Steps must be called in order from
 * 0. DSV_E_DIVERGED if the velocity is not finite. */
DsvStatus dsvi_sampler_step(DsviSampler *sampler, int64_t i, const float *velocity, float *state);

#ifdef __cplusplus
}
#endif
#endif
