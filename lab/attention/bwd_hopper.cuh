/* Sums that are added in memory straight from registers: cuda/hopper.cuh has what the product needs, and adds
 * through shared memory. */
#ifndef LAB_BWD_HOPPER_CUH
#define LAB_BWD_HOPPER_CUH

#include "cuda/hopper.cuh"

namespace dsvi::hopper {

/* Adds four floats, at a multiple of 16 bytes (PTX: red, vectors). */
__device__ __forceinline__ void add_four(float *to, float x, float y, float z, float w)
{
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x), "f"(y), "f"(z), "f"(w)
                 : "memory");
}

} // namespace dsvi::hopper

#endif
