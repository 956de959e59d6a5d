/* Creates samplers by name, and implements what all samplers share: memory for the noise levels and for
 * arrays kept between steps, and checks of each step. */
#include "sample/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sample/sampler_type.h"

static const DsviSamplerType *const types[] = {&dsvi_sampler_euler, &dsvi_sampler_unipc};

static const DsviSamplerType *find_type(const char *name)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i]->name, name) == 0)
            return types[i];
    return NULL;
}

DsvStatus dsvi_sampler_create(const char *name, int64_t steps, double flow_shift, int64_t elements,
                              DsviSampler **out)
{
    const DsviSamplerType *type = find_type(name);
    *out = NULL;
    if (!type)
        return DSVI_FAIL(DSV_E_USAGE, "sampler=%s: no such sampler, expected euler or unipc", name);
    if (steps < 1)
        return DSVI_FAIL(DSV_E_USAGE, "num_inference_steps=%lld: expected at least 1", (long long)steps);
    DsviSampler *s = calloc(1, sizeof *s);
    if (!s)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a sampler");
    s->type = type;
    s->steps = steps;
    s->elements = elements;
    s->sigma = calloc((size_t)steps + 1, sizeof *s->sigma);
    s->timestep = calloc((size_t)steps, sizeof *s->timestep);
    s->history = calloc((size_t)(type->histories * elements) + 1, sizeof *s->history);
    if (!s->sigma || !s->timestep || !s->history) {
        dsvi_sampler_free(&s);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the history of the sampler %s", name);
    }
    type->schedule(s, flow_shift);
    *out = s;
    return DSV_OK;
}

void dsvi_sampler_free(DsviSampler **sampler)
{
    DsviSampler *s = *sampler;
    if (!s)
        return;
    free(s->sigma);
    free(s->timestep);
    free(s->history);
    free(s);
    *sampler = NULL;
}

double dsvi_sampler_timestep(const DsviSampler *s, int64_t i)
{
    DSVI_ASSERT(i >= 0 && i < s->steps);
    return s->timestep[i];
}

double dsvi_sampler_sigma(const DsviSampler *s, int64_t i)
{
    DSVI_ASSERT(i >= 0 && i <= s->steps);
    return s->sigma[i];
}

DsvStatus dsvi_sampler_step(DsviSampler *s, int64_t i, const float *velocity, float *state)
{
    DSVI_ASSERT(i == s->next && i < s->steps);
    for (int64_t e = 0; e < s->elements; e++)
        if (!isfinite(velocity[e]))
            return DSVI_FAIL(DSV_E_DIVERGED, "sampling step %lld of %lld: the model's output is not finite",
                             (long long)i + 1, (long long)s->steps);
    s->type->step(s, i, velocity, state);
    s->next++;
    return DSV_OK;
}

double dsvi_sampler_linspace(double first, double last, int64_t i, int64_t n)
{
    return n > 1 ? (double)i * ((last - first) / (double)(n - 1)) + first : first;
}

double dsvi_sampler_shifted(double sigma, double shift)
{
    return shift * sigma / (1 + (shift - 1) * sigma);
}
