/* Turns the weights of a list into numbers of repeats. */
#ifndef DSVI_LIST_WEIGHTS_H
#define DSVI_LIST_WEIGHTS_H

#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sets the repeats (count, 1 to DSVI_REPEATS_MAX) of entries such that an epoch uses them in proportion to
 * weight (count, finite, above 0): the smallest numbers that differ from the proportion by at most 0.1 %. If
 * there are no such numbers, the numbers that differ least. Fails with DSV_E_USAGE if the largest weight is
 * more than DSVI_REPEATS_MAX times the smallest. */
DsvStatus dsvi_list_weights_apply(const double *weight, int64_t count, int64_t *repeats);

#ifdef __cplusplus
}
#endif
#endif
