/* Helpers of tensor-core kernels on every GPU: addresses in shared memory, packed pairs of BF16, and
 * products. */
#ifndef DSVI_TENSOR_CORE_CUH
#define DSVI_TENSOR_CORE_CUH

#include <cuda_bf16.h>
#include <stdint.h>

namespace dsvi {

/* Returns the address of p in the shared-memory window, as inline PTX needs it. */
__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Returns two floats rounded to BF16 in one register, the first one in the lower half. */
__device__ __forceinline__ uint32_t pair_bits(float first, float second)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    return *reinterpret_cast<uint32_t *>(&pair);
}

/* sum (16 x 8) += a (16 x 16) b (16 x 8), with a and b in BF16. Lane 4 k + q holds
 *     a0, b0    elements 2 q and 2 q + 1 of row k of a, of column k of b
 *     a2, b1    elements 2 q + 8 and 2 q + 9 of row k of a, of column k of b
 *     a1, a3    the same elements as a0 and a2, of row k + 8 of a
 *     sum       columns 2 q and 2 q + 1 of row k, then of row k + 8 */
__device__ __forceinline__ void multiply_rows(float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                              uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

} // namespace dsvi

#endif
