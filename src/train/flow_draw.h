/* Drawing the times and the noise of flow matching. */
#ifndef DSVI_FLOW_DRAW_H
#define DSVI_FLOW_DRAW_H

#include <stdint.h>

#include "base/rng.h"
#include "dsv/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* sigma in (0, 1) of training sample `sample`: uniform, or the logistic of N(logit_mean, logit_std^2), then
 * shifted by flow_shift. A function of the settings, the seed among them, and the sample's number. */
double dsvi_flow_sigma(const DsvConfig *settings, uint64_t sample);

/* Losses are told apart by tenths of sigma: which one it lies in. */
enum { DSV_SIGMA_BINS = 10 };
int dsvi_sigma_bin(double sigma);

/* The noise of training sample `sample` is the normal numbers of this stream from 0 on. */
DsvRng dsvi_flow_noise(const DsvConfig *settings, uint64_t sample);

/* The same of held-out window `window`. */
DsvRng dsvi_flow_held_out_noise(const DsvConfig *settings, uint64_t window);

#ifdef __cplusplus
}
#endif
#endif
