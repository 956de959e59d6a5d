/* Exclusive prefix sums over the threads of a thread block, in a fixed order. */
#ifndef DSVI_BLOCK_SUMS_CUH
#define DSVI_BLOCK_SUMS_CUH

#include "cuda/common/kernel.cuh"

namespace dsvi {

/* Returns the sum of x over all threads before this one, and in *all the sum over the thread block. All
 * threads must call, and the block must consist of full warps. `shared` has room for one value of type X for
 * each warp and may be reused after the next barrier. */
template <typename X> __device__ __forceinline__ X block_exclusive_sum(X x, X *shared, X *all)
{
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    X upto = x, before = 0, sum = 0;
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        X other = __shfl_up_sync(0xffffffffu, upto, step);
        upto += lane >= step ? other : 0;
    }
    if (lane == WARP - 1)
        shared[warp] = upto;
    __syncthreads();
    for (int w = 0; w < warps; w++) {
        before += w < warp ? shared[w] : 0;
        sum += shared[w];
    }
    *all = sum;
    return before + upto - x;
}

} // namespace dsvi

#endif
