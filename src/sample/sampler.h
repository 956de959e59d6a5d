/* Solvers of the flow's differential equation, as diffusers' schedulers for Wan do it.
 *
 * A sampler walks from noise to a latent in a number of steps. At step i the model is evaluated at
 * timestep(i) on the current state and its velocity is handed to dsvi_sampler_step. State and velocity
 * are host F32 arrays; the arithmetic is in double. */
#ifndef DSVI_SAMPLER_H
#define DSVI_SAMPLER_H

#include "base/status.h"
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvSampler DsvSampler;

/* name: "euler" (FlowMatchEulerDiscreteScheduler) or "unipc" (UniPCMultistepScheduler, order 2, bh2,
 * flow sigmas). `elements` of the state. */
DsvStatus dsvi_sampler_create(const char *name, int64_t steps, double flow_shift, int64_t elements,
                              DsvSampler **out);
void dsvi_sampler_free(DsvSampler **sampler);

/* What the network is given at step i, 0 <= i < steps: unipc truncates to an integer. */
double dsvi_sampler_timestep(const DsvSampler *sampler, int64_t i);
/* sigma of step i, 0 <= i <= steps; the last is 0. */
double dsvi_sampler_sigma(const DsvSampler *sampler, int64_t i);
/* sigma' = shift sigma / (1 + (shift - 1) sigma): also how training shifts the times it draws. */
double dsvi_sampler_shifted(double sigma, double shift);
/* Takes the velocity at step i and moves `state` on to step i + 1. Steps come in order from 0. */
DsvStatus dsvi_sampler_step(DsvSampler *sampler, int64_t i, const float *velocity, float *state);

#ifdef __cplusplus
}
#endif
#endif
