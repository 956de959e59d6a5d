/* Vector additions to global memory directly from registers. The kernels of dsv add through shared memory
 * instead, with cuda/common/hopper.cuh. */
#ifndef LAB_BWD_HOPPER_CUH
#define LAB_BWD_HOPPER_CUH

#include "cuda/common/hopper.cuh"

namespace dsvi::hopper {

/* Adds four floats to memory at an address that is a multiple of 16 bytes (PTX: red with a vector). */
__device__ __forceinline__ void add_four(float *to, float x, float y, float z, float w)
{
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x), "f"(y), "f"(z), "f"(w)
                 : "memory");
}

} // namespace dsvi::hopper

#endif
