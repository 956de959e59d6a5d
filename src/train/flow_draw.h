/* Random noise levels (sigma) and random noise for flow matching. */
#ifndef DSVI_FLOW_DRAW_H
#define DSVI_FLOW_DRAW_H

#include <stdint.h>

#include "base/rng.h"
#include "dsv/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the noise level sigma in (0, 1) of training sample `sample`: uniform, or the logistic function of a
 * draw from N(logit_mean, logit_std^2), then shifted by flow_shift. The value depends only on the options
 * (which include the seed) and on the sample's number. */
double dsvi_flow_sigma(const DsvConfig *settings, uint64_t sample);

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
