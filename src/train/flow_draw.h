/* Random noise levels (sigma) and random noise for flow matching. */
#ifndef DSVI_FLOW_DRAW_H
#define DSVI_FLOW_DRAW_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rng.h"
#include "base/status.h"
#include "dsv/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the noise level sigma in (0, 1) of training sample `sample`: uniform, or the logistic function of a
 * draw from N(logit_mean, logit_std^2), then shifted by `shift`. Draws outside [sigma_min, sigma_max] are
 * repeated; after 1000 of them the last is scaled into the range. The value depends only on the options
 * (which include the seed) and on the sample's number. */
double dsvi_flow_sigma(const DsvConfig *settings, double shift, uint64_t sample);
/* Returns the shift for clips with `pixels` pixels in a frame: flow_shift, multiplied by
 * sqrt(pixels / flow_shift_pixels) unless flow_shift_pixels is 0. The root is how noise levels of equal
 * difficulty are related at two resolutions (Esser et al. 2024, "Scaling Rectified Flow Transformers",
 * section 5.3.2). */
double dsvi_flow_shift(const DsvConfig *settings, int64_t pixels);
/* Fails with DSV_E_USAGE if sigma_min is not below sigma_max. */
DsvStatus dsvi_flow_check(const DsvConfig *settings);
/* Returns whether samples have different factors (option loss_weight). */
bool dsvi_flow_weighs(const DsvConfig *settings);
/* Returns the factor of a sample's gradient (option loss_weight): 1, or for `bell`
 * (exp(-2 (sigma - 1/2)^2) - exp(-1/2)) / Z, where Z gives the mean 1 over sigma uniform in [0, 1]. */
double dsvi_flow_weight(const DsvConfig *settings, double sigma);

/* Losses are recorded separately for ten equal intervals (bins) of sigma. Returns the bin of `sigma`. */
enum { DSVI_SIGMA_BINS = 10 };
int dsvi_sigma_bin(double sigma);

/* Returns the random stream of training sample `sample`. The sample's noise is the normal numbers 0, 1, 2,
 * and so on of this stream. */
DsviRng dsvi_flow_noise(const DsvConfig *settings, uint64_t sample);

/* Returns the random stream for the noise of held-out window `window`. */
DsviRng dsvi_flow_held_out_noise(const DsvConfig *settings, uint64_t window);

#ifdef __cplusplus
}
#endif
#endif
