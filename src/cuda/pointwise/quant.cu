/* f8_decode: weights in F8_E4M3 with a scale per block to F32 or BF16. A thread decodes N codes, which are in
 * one block; element 0 begins a block. */
#include "cuda/common/cuda.h"
#include "cuda/common/kernel.cuh"

namespace {

using namespace dsvi;

constexpr int THREADS = 256;
constexpr int N = 4;
static_assert(DSVI_F8_BLOCK % N == 0, "the codes of a thread have one scale");

/* The exponent 15 with the fraction 7 is NaN; exponent 0 is for multiples of 2^-9. */
__device__ __forceinline__ float f8_value(uint32_t code)
{
    uint32_t exponent = code >> 3 & 15, fraction = code & 7;
    float magnitude = exponent == 0 ? (float)fraction * 0x1p-9f
                                    : __uint_as_float((exponent + 120) << 23 | fraction << 20);
    magnitude = (code & 0x7f) == 0x7f ? __uint_as_float(0x7fffffffu) : magnitude;
    return code & 0x80 ? -magnitude : magnitude;
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    f8_decode(const uint8_t *code, const float *scale, T *out, int64_t n)
{
    int64_t first = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N;
    if (first >= n)
        return;
    float factor = scale[first / DSVI_F8_BLOCK];
#pragma unroll
    for (int i = 0; i < N; i++)
        if (first + i < n)
            out[first + i] = from_float<T>(factor * f8_value(code[first + i]));
}

DsvStatus cuda_f8_decode(DsviStream *stream, const DsviF8DecodeArgs *args)
{
    unsigned blocks = (unsigned)ceil_div(args->n, (int64_t)THREADS * N);
    if (args->n == 0)
        return DSV_OK;
    DSVI_FOR_ACT("f8_decode", args->out_dtype, {
        DSVI_CUDA_LAUNCH(stream, "f8_decode", f8_decode<T>, blocks, THREADS, 0, (const uint8_t *)args->code,
                         args->scale, (T *)args->out, args->n);
        return DSV_OK;
    });
}

} // namespace

void dsvi_cuda_fill_quant(DsviOps *ops)
{
    DSVI_OPS_SET(ops, f8_decode, cuda_f8_decode, "cuda");
}
