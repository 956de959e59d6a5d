/* See flow_draw.h. */
#include "train/flow_draw.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "sample/sampler.h"

double dsvi_flow_sigma(const DsvConfig *settings, uint64_t sample)
{
    DsvRng rng = {(uint64_t)settings->seed, DSV_RNG_TIMESTEP, 0};
    double sigma;
    if (strcmp(settings->weighting_scheme, "uniform") == 0) {
        /* The middle of one of 2^53 cells: neither 0 nor 1. */
        sigma = dsvi_rng_uniform(rng, sample) + 0x1p-54;
    } else {
        double logit = settings->logit_mean + settings->logit_std * dsvi_rng_normal(rng, sample);
        sigma = 1 / (1 + exp(-logit));
    }
    return dsvi_sampler_shifted(sigma, settings->flow_shift);
}

int dsvi_sigma_bin(double sigma)
{
    int bin = (int)(sigma * DSV_SIGMA_BINS);
    return bin < DSV_SIGMA_BINS ? bin : DSV_SIGMA_BINS - 1; /* rounding may have made it 1 */
}

/* The stream holds 32 bits of the number and the seed takes the rest, so that no two share numbers. */
static DsvRng rng_of(const DsvConfig *settings, DsvRngPurpose purpose, uint64_t number)
{
    return (DsvRng){(uint64_t)settings->seed + (number >> 32), purpose, (uint32_t)number};
}

DsvRng dsvi_flow_noise(const DsvConfig *settings, uint64_t sample)
{
    return rng_of(settings, DSV_RNG_NOISE, sample);
}

DsvRng dsvi_flow_held_out_noise(const DsvConfig *settings, uint64_t window)
{
    return rng_of(settings, DSV_RNG_HELD_OUT, window);
}
