/* Defines which spans select_histogram counts (ops/select.h); included by C and CUDA.
 *
 * The histogram counts a sample of all spans. Spans form pairs of neighbours: pair p is spans 2 p and 2 p +
 * 1. `stride` consecutive pairs form a stratum, and a list counts one pair of each stratum. Groups form tiles
 * of DSVI_COUNTED_GROUPS; the groups of a tile count the same pairs. A hash of the stratum's number scatters
 * the position of the counted pair, so that the choice cannot coincide with a period in the tokens. From each
 * tile to the next the position advances by one pair. Any `stride` consecutive tiles therefore count every
 * span exactly once: a key to which all groups attend has exactly its weight, and any other key has its
 * weight on average. Different heads, steps and transformer blocks start at different positions. */
#ifndef DSVI_SELECT_COUNTED_H
#define DSVI_SELECT_COUNTED_H

#include <stdint.h>

/* constexpr functions can also be called in CUDA device code. */
#ifdef __cplusplus
#define DSVI_COUNTED_INLINE static constexpr
#else
#define DSVI_COUNTED_INLINE static inline
#endif

enum {
    DSVI_COUNTED_SPANS = 2, /* spans of a pair */
    DSVI_COUNTED_GROUPS = 8 /* groups of a tile */
};

/* Hashes x with the finaliser of MurmurHash3: every bit of x affects every bit of the result. */
DSVI_COUNTED_INLINE uint32_t dsvi_counted_mix(uint32_t x)
{
    x = (x ^ x >> 16) * 0x85EBCA6Bu;
    x = (x ^ x >> 13) * 0xC2B2AE35u;
    return x ^ x >> 16;
}

/* Returns by how many pairs the counted positions of a tile of groups are shifted. `pair` is batch * heads +
 * head, and `tile` is the first group / DSVI_COUNTED_GROUPS; both are numbered over all ranks that share a
 * clip. `turn` differs from step to step and from block to block. */
DSVI_COUNTED_INLINE uint32_t dsvi_counted_rotation(uint32_t stride, uint32_t turn, uint32_t pair,
                                                   uint32_t tile)
{
    return (uint32_t)(((uint64_t)dsvi_counted_mix(pair) + turn + tile) % stride);
}

/* Returns the pair of spans that is counted in a stratum. In the last stratum, which may be short, the
 * returned pair may not exist. */
DSVI_COUNTED_INLINE uint32_t dsvi_counted_pair(uint32_t stratum, uint32_t stride, uint32_t rotation)
{
    uint32_t place = (uint32_t)((uint64_t)dsvi_counted_mix(stratum) * stride >> 32) + rotation;
    return stratum * stride + (place < stride ? place : place - stride);
}

#endif
