/* The ring of stages through which a producer warpgroup hands matrices to consumers, on Hopper. */
#ifndef DSVI_HOPPER_RING_CUH
#define DSVI_HOPPER_RING_CUH

#include <stdint.h>

namespace dsvi::hopper {

/* Position in a ring of shared-memory buffers (stages), which are filled again in each round. `parity` is the
 * number of the round modulo 2: the phase of a stage's "full" barrier for which to wait. */
template <int STAGES> struct Ring {
    int stage;
    uint32_t parity;
};

template <int STAGES> __device__ __forceinline__ void advance(Ring<STAGES> *ring)
{
    if (++ring->stage == STAGES) {
        ring->stage = 0;
        ring->parity ^= 1;
    }
}

/* Returns lane 0's x in all lanes of the warp. Because of the shuffle, the compiler knows that the result is
 * the same in the whole warp. */
__device__ __forceinline__ int agreed(int x)
{
    return __shfl_sync(0xffffffffu, x, 0);
}

} // namespace dsvi::hopper

#endif
