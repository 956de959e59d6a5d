/* From the histogram of a block's estimates (ops/select.h) to the threshold its lists are made with.
 *
 * The threshold is one for all heads of the block: heads and groups whose attention is wide then get the
 * keys they need from those whose attention is narrow, at the same total. A wanted mass is met, and exceeded
 * by less than a bin: its threshold is the lower edge of one. A wanted number of runs is met on the average:
 * inside the bin where it is reached estimates are taken to lie as the bins beside it suggest, for diffuse
 * attention puts a good part of all runs into one bin. */
#ifndef DSVI_THRESHOLD_H
#define DSVI_THRESHOLD_H

#include "ops/select.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvThreshold {
    float value;  /* runs whose estimate reaches it are chosen; 0 chooses all, INFINITY none */
    double count; /* share of all runs that reach it, or should */
    double mass;  /* share of the estimated mass that they hold, likewise */
} DsvThreshold;

/* count and mass are (heads, DSV_SELECT_BINS), host memory. The highest threshold whose runs hold at least
 * `share` of the mass; share >= 1 chooses every run, even those whose estimate is 0. */
DsvThreshold dsvi_threshold_for_mass(const double *count, const double *mass, int64_t heads, double share);

/* The threshold that `share` of the runs should reach; what it really chooses differs by less than a bin. */
DsvThreshold dsvi_threshold_for_count(const double *count, const double *mass, int64_t heads, double share);

#ifdef __cplusplus
}
#endif
#endif
