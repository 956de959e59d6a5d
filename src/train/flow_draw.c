/* Implements flow_draw.h: draws noise levels and noise. */
#include "train/flow_draw.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "sample/sampler.h"

/* Number of draws after which a range of noise levels counts as empty. */
enum { DRAWS_MAX = 1000 };

/* Draw number `draw` of a sample: each draw has its own stream. */
static double flow_draw_sigma(const DsvConfig *settings, double shift, uint64_t sample, uint32_t draw)
{
    DsviRng rng = {(uint64_t)settings->seed, DSVI_RNG_TIMESTEP, draw};
    double sigma;
    if (strcmp(settings->weighting_scheme, "uniform") == 0) {
        /* Adding half of 2^-53 keeps sigma strictly between 0 and 1. */
        sigma = dsvi_rng_uniform(rng, sample) + 0x1p-54;
    } else {
        double logit = settings->logit_mean + settings->logit_std * dsvi_rng_normal(rng, sample);
        sigma = 1 / (1 + exp(-logit));
    }
    return dsvi_sampler_shifted(sigma, shift);
}

double dsvi_flow_shift(const DsvConfig *settings, int64_t pixels)
{
    if (settings->flow_shift_pixels == 0)
        return settings->flow_shift;
    return settings->flow_shift * sqrt((double)pixels / (double)settings->flow_shift_pixels);
}

double dsvi_flow_sigma(const DsvConfig *settings, double shift, uint64_t sample)
{
    const double least = settings->sigma_min, most = settings->sigma_max;
    double sigma = 0;
    for (uint32_t draw = 0; draw < DRAWS_MAX; draw++) {
        sigma = flow_draw_sigma(settings, shift, sample, draw);
        if (sigma >= least && sigma <= most)
            return sigma;
    }
    return least + (most - least) * sigma;
}

DsvStatus dsvi_flow_check(const DsvConfig *settings)
{
    if (settings->sigma_min >= settings->sigma_max)
        return DSVI_FAIL(DSV_E_USAGE, "sigma_min is %g and sigma_max is %g, expected a smaller sigma_min",
                         settings->sigma_min, settings->sigma_max);
    return DSV_OK;
}

bool dsvi_flow_weighs(const DsvConfig *settings)
{
    return strcmp(settings->loss_weight, "none") != 0;
}

double dsvi_flow_weight(const DsvConfig *settings, double sigma)
{
    const double edge = exp(-0.5), mean = sqrt(acos(-1) / 2) * erf(sqrt(0.5)) - edge;
    if (!dsvi_flow_weighs(settings))
        return 1;
    return (exp(-2 * (sigma - 0.5) * (sigma - 0.5)) - edge) / mean;
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
