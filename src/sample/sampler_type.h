/* The functions that each sampling method implements, and the state that sampler.c keeps for the method.
 * Only sampler*.c include this file. */
#ifndef DSVI_SAMPLER_TYPE_H
#define DSVI_SAMPLER_TYPE_H

#include "sample/sampler.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviSamplerType {
    const char *name;
    int64_t histories; /* number of arrays, as large as the state, that the method keeps from step to step */
    /* Fills sampler->sigma and sampler->timestep, the noise level and timestep of each step. */
    void (*schedule)(DsviSampler *sampler, double flow_shift);
    /* Advances `state` from step i to step i + 1. */
    void (*step)(DsviSampler *sampler, int64_t i, const float *velocity, float *state);
} DsviSamplerType;

struct DsviSampler {
    const DsviSamplerType *type;
    int64_t steps, elements;
    int64_t next;     /* number of the next step */
    double *sigma;    /* (steps + 1) noise levels, rounded to F32 as in diffusers; the last is 0 */
    double *timestep; /* (steps) */
    float *history;   /* (histories, elements) */
};

extern const DsviSamplerType dsvi_sampler_euler, dsvi_sampler_unipc;

/* Returns point i of n evenly spaced points from `first` to `last`, rounded like numpy.linspace. */
double dsvi_sampler_linspace(double first, double last, int64_t i, int64_t n);

#ifdef __cplusplus
}
#endif
#endif
