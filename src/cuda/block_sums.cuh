/* Sums over the threads of a block, in a fixed order: in double, and of all threads before one. */
#ifndef DSVI_BLOCK_SUMS_CUH
#define DSVI_BLOCK_SUMS_CUH

#include "cuda/kernel.cuh"

namespace dsvi {

__device__ __forceinline__ double warp_sum(double x)
{
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

/* As block_sum of floats: `shared` holds a double for each warp. */
__device__ __forceinline__ double block_sum(double x, double *shared)
{
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = (int)ceil_div(blockDim.x, WARP);
    x = warp_sum(x);
    if (lane == 0)
        shared[warp] = x;
    __syncthreads();
    return warp_sum(lane < warps ? shared[lane] : 0.);
}

/* The sum of x over all threads before this one; *all is that over the whole block, of full warps. `shared`
 * holds an X for each warp, and may be used again after the next barrier. */
template <typename X> __device__ __forceinline__ X block_before(X x, X *shared, X *all)
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
