/* Which runs select_histogram counts, for C and for CUDA (ops/select.h).
 *
 * Runs are counted in pairs of neighbours: pair p is runs 2 p and 2 p + 1. Each `stride` consecutive pairs
 * are a stratum, of which a list counts one pair. Groups are counted in tiles of DSVI_COUNTED_GROUPS,
 * which count the same pairs. Which pair of a stratum a tile counts is scattered over the strata, so that
 * no rhythm of the tokens can coincide with the choice, and moves on by one pair from each tile to the
 * next. So any `stride` consecutive tiles count every run exactly once: a key that all groups attend to
 * has its right weight, and any other key has its right weight on average. Heads, steps and blocks of the
 * model begin elsewhere. */
#ifndef DSVI_SELECT_COUNTED_H
#define DSVI_SELECT_COUNTED_H

#include <stdint.h>

/* What nvcc compiles for the device as well. */
#ifdef __cplusplus
#define DSVI_COUNTED_INLINE static constexpr
#else
#define DSVI_COUNTED_INLINE static inline
#endif

enum {
    DSVI_COUNTED_RUNS = 2,  /* of a pair */
    DSVI_COUNTED_GROUPS = 8 /* of a tile */
};

/* MurmurHash3's finaliser: every bit of x moves every bit of the result. */
DSVI_COUNTED_INLINE uint32_t dsvi_counted_mix(uint32_t x)
{
    x = (x ^ x >> 16) * 0x85EBCA6Bu;
    x = (x ^ x >> 13) * 0xC2B2AE35u;
    return x ^ x >> 16;
}

/* Where in its strata a tile of groups counts. `pair` is batch * heads + head and `tile` the first group /
 * DSVI_COUNTED_GROUPS, both of the whole that ranks share; `turn` is another number for each step. */
DSVI_COUNTED_INLINE uint32_t dsvi_counted_rotation(uint32_t stride, uint32_t turn, uint32_t pair,
                                                   uint32_t tile)
{
    return (uint32_t)(((uint64_t)dsvi_counted_mix(pair) + turn + tile) % stride);
}

/* The pair of runs that is counted in a stratum. In the last stratum there may be no such pair. */
DSVI_COUNTED_INLINE uint32_t dsvi_counted_pair(uint32_t stratum, uint32_t stride, uint32_t rotation)
{
    uint32_t place = (uint32_t)((uint64_t)dsvi_counted_mix(stratum) * stride >> 32) + rotation;
    return stratum * stride + (place < stride ? place : place - stride);
}

#endif
