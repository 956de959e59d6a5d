/* What a solver implements, and what sampler.c keeps for it. Included by sampler*.c alone. */
#ifndef DSVI_SAMPLER_TYPE_H
#define DSVI_SAMPLER_TYPE_H

#include "sample/sampler.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvSamplerType {
    const char *name;
    int64_t histories; /* arrays of a state's size that it keeps from step to step */
    /* Fills sigma and timestep. */
    void (*schedule)(DsvSampler *sampler, double flow_shift);
    void (*step)(DsvSampler *sampler, int64_t i, const float *velocity, float *state);
} DsvSamplerType;

struct DsvSampler {
    const DsvSamplerType *type;
    int64_t steps, elements;
    int64_t next;     /* the step to come */
    double *sigma;    /* (steps + 1), rounded to F32 as diffusers keeps them; the last is 0 */
    double *timestep; /* (steps) */
    float *history;   /* (histories, elements) */
};

extern const DsvSamplerType dsvi_sampler_euler, dsvi_sampler_unipc;

/* Point i of n points spread evenly from `first` to `last`, rounded as numpy.linspace rounds. */
double dsvi_sampler_spread(double first, double last, int64_t i, int64_t n);

#ifdef __cplusplus
}
#endif
#endif
