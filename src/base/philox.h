/* Philox 4x32-10 as an inline function, for loops that draw many numbers: J. Salmon, M. Moraes, R. Dror,
 * D. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11, section 3.3 and its constants. */
#ifndef DSVI_PHILOX_H
#define DSVI_PHILOX_H

#include "base/rng.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviPhiloxWords {
    uint32_t word[4];
} DsviPhiloxWords;

/* Returns the words that dsvi_rng_words writes. */
static inline DsviPhiloxWords dsvi_philox(DsviRng rng, uint64_t index)
{
    uint32_t key0 = (uint32_t)rng.seed, key1 = (uint32_t)(rng.seed >> 32);
    uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32), c2 = rng.purpose, c3 = rng.stream;
    for (int round = 0; round < 10; round++) {
        uint64_t product0 = (uint64_t)0xD2511F53u * c0;
        uint64_t product1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(product1 >> 32) ^ c1 ^ key0;
        c1 = (uint32_t)product1;
        c2 = (uint32_t)(product0 >> 32) ^ c3 ^ key1;
        c3 = (uint32_t)product0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return (DsviPhiloxWords){{c0, c1, c2, c3}};
}

#ifdef __cplusplus
}
#endif
#endif
