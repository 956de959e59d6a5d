/* Implements flow_draw.h: draws noise levels and noise. */
#include "train/flow_draw.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "sample/sampler.h"

double dsvi_flow_sigma(const DsvConfig *settings, uint64_t sample)
{
    DsviRng rng = {(uint64_t)settings->seed, DSVI_RNG_TIMESTEP, 0};
    double sigma;
    if (strcmp(settings->weighting_scheme, "uniform") == 0) {
        /* Adding half of 2^-53 keeps sigma strictly between 0 and 1. */
        sigma = dsvi_rng_uniform(rng, sample) + 0x1p-54;
    } else {
        double logit = settings->logit_mean + settings->logit_std * dsvi_rng_normal(rng, sample);
        sigma = 1 / (1 + exp(-logit));
    }
    return dsvi_sampler_shifted(sigma, settings->flow_shift);
}

int dsvi_sigma_bin(double sigma)
{
    int bin = (int)(sigma * DSVI_SIGMA_BINS);
    return bin < DSVI_SIGMA_BINS ? bin : DSVI_SIGMA_BINS - 1; /* sigma may have been rounded up to 1 */
}

/* A stream number has 32 bits. The upper 32 bits of `number` are added to the seed, so that two numbers that
 * differ only there have different streams. */
static DsviRng flow_draw_rng(const DsvConfig *settings, DsviRngPurpose purpose, uint64_t number)
{
    return (DsviRng){(uint64_t)settings->seed + (number >> 32), purpose, (uint32_t)number};
}

DsviRng dsvi_flow_noise(const DsvConfig *settings, uint64_t sample)
{
    return flow_draw_rng(settings, DSVI_RNG_NOISE, sample);
}

DsviRng dsvi_flow_held_out_noise(const DsvConfig *settings, uint64_t window)
{
    return flow_draw_rng(settings, DSVI_RNG_HELD_OUT, window);
}
