/* What kernels over tensor cores share, on every GPU: addresses in shared memory, couples of bf16. */
#ifndef DSVI_TENSOR_CORE_CUH
#define DSVI_TENSOR_CORE_CUH

#include <cuda_bf16.h>
#include <stdint.h>

namespace dsvi {

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Two bf16, the first one below. */
__device__ __forceinline__ uint32_t pair_bits(float first, float second)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    return *reinterpret_cast<uint32_t *>(&pair);
}

} // namespace dsvi

#endif
