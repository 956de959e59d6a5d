/* SiLU and GELU (exact, or in one of two approximations) of one element. */
#ifndef DSVI_ACTIVATION_CUH
#define DSVI_ACTIVATION_CUH

#include "cuda/common/kernel.cuh"
#include "ops/pointwise.h"

namespace dsvi {

constexpr float GELU_SLOPE = 1.59576912f; /* 2 sqrt(2 / pi) */
constexpr float GELU_CUBIC = 0.044715f;
constexpr float GELU_QUICK_SLOPE = 1.702f;
constexpr float SQRT_HALF = 0.707106781f;

/* exp_for returns e^x and divide_for a quotient, as exact as results of type T require. With BF16 the exact
 * functions would make the kernels compute-bound instead of memory-bound. */
template <typename T> __device__ __forceinline__ float exp_for(float x)
{
    return sizeof(T) == sizeof(float) ? expf(x) : __expf(x);
}

template <typename T> __device__ __forceinline__ float divide_for(float x, float y)
{
    return sizeof(T) == sizeof(float) ? x / y : __fdividef(x, y);
}

/* Returns the argument `inner` of the logistic function s in the activation x s(inner), which is SiLU or
 * an approximation of GELU. */
template <DsviActivation KIND> __device__ __forceinline__ float inner_of(float x)
{
    if (KIND == DSVI_GELU_QUICK)
        return GELU_QUICK_SLOPE * x;
    return KIND == DSVI_SILU ? x : GELU_SLOPE * (x + GELU_CUBIC * x * x * x);
}

/* Returns the distribution function of N(0, 1), by which the exact GELU multiplies x. */
__device__ __forceinline__ float normal_below(float x)
{
    return 0.5f * erfcf(-SQRT_HALF * x);
}

template <typename T, DsviActivation KIND> __device__ __forceinline__ float activation(float x)
{
    if (KIND == DSVI_GELU_ERF)
        return x * normal_below(x);
    return divide_for<T>(x, 1.f + exp_for<T>(-inner_of<KIND>(x)));
}

} // namespace dsvi

#endif
