/* From the histogram of a block's estimates (ops/select.h) to the threshold its lists are made with.
 *
 * The threshold is one for all heads of the block: heads and groups whose attention is wide then get the
 * keys they need from those whose attention is narrow, at the same total. Inside a bin nothing is known,
 * so a threshold is always the lower edge of a bin: a wanted mass is met or exceeded by less than a bin, a
 * wanted number of runs is never exceeded. */
#ifndef DSVI_THRESHOLD_H
#define DSVI_THRESHOLD_H

#include "ops/select.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvThreshold {
    float value;  /* runs whose estimate reaches it are chosen; 0 chooses all, INFINITY none */
    double count; /* share of all runs that reach it */
    double mass;  /* share of the estimated mass that they hold */
} DsvThreshold;

/* count and mass are (heads, DSV_SELECT_BINS), host memory. The highest threshold whose runs hold at least
 * `share` of the mass; share >= 1 chooses every run, even those whose estimate is 0. */
DsvThreshold dsvi_threshold_for_mass(const double *count, const double *mass, int64_t heads, double share);

/* The lowest threshold that at most `share` of the runs reach. */
DsvThreshold dsvi_threshold_for_count(const double *count, const double *mass, int64_t heads, double share);

#ifdef __cplusplus
}
#endif
#endif
