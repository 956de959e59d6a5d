/* The random numbers of base/rng.h on the device: Philox 4x32-10, with the same results as on the host. */
#ifndef DSVI_RNG_CUH
#define DSVI_RNG_CUH

#include <stdint.h>

#include "base/rng.h"

namespace dsvi {

/* Returns the same four random words as dsvi_rng_words of base/rng.h. */
__device__ __forceinline__ uint4 rng_words(DsviRng rng, uint64_t index)
{
    uint32_t key0 = (uint32_t)rng.seed, key1 = (uint32_t)(rng.seed >> 32);
    uint4 c = make_uint4((uint32_t)index, (uint32_t)(index >> 32), rng.purpose, rng.stream);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint64_t product0 = (uint64_t)0xD2511F53u * c.x;
        uint64_t product1 = (uint64_t)0xCD9E8D57u * c.z;
        c = make_uint4((uint32_t)(product1 >> 32) ^ c.y ^ key0, (uint32_t)product1,
                       (uint32_t)(product0 >> 32) ^ c.w ^ key1, (uint32_t)product0);
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return c;
}

/* Returns a double in [0, 1) made of 53 of the random bits in `high` and `low`. */
__device__ __forceinline__ double rng_unit(uint32_t high, uint32_t low)
{
    return (double)(((uint64_t)high << 32 | low) >> 11) * 0x1p-53;
}

} // namespace dsvi

#endif
