/* Helpers that all kernels share: conversion between the activation types and float, accesses of several
 * elements, sums over a warp or a block, and checked launches.
 *
 * Kernels take the activation type act as template parameter T: float (F32) or __nv_bfloat16 (BF16). They
 * compute in float. A row may begin at any element; kernels use accesses of 16 bytes only where
 * dsvi::aligned says that all rows begin at multiples of 16 bytes. */
#ifndef DSVI_KERNEL_CUH
#define DSVI_KERNEL_CUH

#include <cuda_bf16.h>
#include <stdint.h>

#include "base/dtype.h"
#include "cuda/device_cuda.h"

/* Returns DSV_E_DEVICE or DSV_E_NO_MEMORY from the calling function if the kernel launch just before failed.
 * Code uses DSVI_CUDA_LAUNCH, which contains this check. A kernel runs asynchronously, so a fault inside the
 * kernel is reported only by the next call that waits for the stream. */
#define DSVI_CUDA_LAUNCHED(name)                                                              \
    do {                                                                                      \
        cudaError_t dsvi_cuda_error = cudaGetLastError();                                     \
        if (dsvi_cuda_error != cudaSuccess)                                                   \
            return dsvi_cuda_fail_at(__FILE__, __LINE__, dsvi_cuda_error, "launch of " name); \
    } while (0)

/* Launches `kernel` with the arguments that follow `shared`; tools/check_style refuses any other launch in
 * src. `stream` is a DsviStream *, `grid` and `block` are the numbers of blocks and of threads (integer or
 * dim3), `shared` is the dynamic shared memory of a block in bytes, and `name` is a string literal for the
 * error message. Returns from the calling function, which must return DsvStatus, if the launch fails.
 * Write a kernel with several template arguments in parentheses: (kernel<T, 4>). This is a macro so that it
 * adds no frame to a host backtrace. */
#define DSVI_CUDA_LAUNCH(stream, name, kernel, grid, block, shared, ...)      \
    do {                                                                      \
        kernel<<<(grid), (block), (shared), (stream)->handle>>>(__VA_ARGS__); \
        DSVI_CUDA_LAUNCHED(name);                                             \
    } while (0)

/* Runs `statement` with T defined as the C++ type of the dtype `act`. Returns DSV_E_UNSUPPORTED from the
 * calling function if `act` is neither F32 nor BF16; the message begins with the string `op`. */
#define DSVI_FOR_ACT(op, act, statement)                                                             \
    do {                                                                                             \
        if ((act) == DSVI_F32) {                                                                     \
            using T = float;                                                                         \
            statement;                                                                               \
        } else if ((act) == DSVI_BF16) {                                                             \
            using T = __nv_bfloat16;                                                                 \
            statement;                                                                               \
        } else {                                                                                     \
            return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: this variant takes F32 and BF16, not %s", (op), \
                             dsvi_dtype_name(act));                                                  \
        }                                                                                            \
    } while (0)

namespace dsvi {

constexpr int WARP = 32;

__host__ __device__ constexpr int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Returns the number of blocks along y or z of a grid for n items: n, but at most 65535, which CUDA allows.
 * A kernel must loop with a stride of gridDim to reach the items beyond. */
constexpr unsigned blocks_in_turn(int64_t n)
{
    return n < 65535 ? (unsigned)n : 65535u;
}

__device__ __forceinline__ float to_float(float x)
{
    return x;
}

__device__ __forceinline__ float to_float(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

template <typename T> __device__ __forceinline__ T from_float(float x);

template <> __device__ __forceinline__ float from_float<float>(float x)
{
    return x;
}

/* Rounds to the nearest BF16, ties to even. */
template <> __device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x)
{
    return __float2bfloat16_rn(x);
}

/* Returns whether the elements p[0], p[step], p[2 step] ... all begin at multiples of `bytes` bytes. If p is
 * NULL, returns whether `step` elements are a multiple of `bytes` bytes. */
template <typename T> __host__ inline bool aligned(const T *p, int64_t step, size_t bytes)
{
    return (uintptr_t)p % bytes == 0 && (size_t)step * sizeof(T) % bytes == 0;
}

/* N consecutive elements that are read or written in one access of at most 16 bytes (4 floats, 8 BF16). */
template <int N, typename T> struct alignas(N * sizeof(T)) Vector {
    static_assert(N * sizeof(T) <= 16, "one access is 16 bytes at most");
    T element[N];
};

/* Converts a vector to floats. The vector is passed by value: through a reference to memory the compiler
 * would read its elements one by one. */
template <int N, typename T> __device__ __forceinline__ void unpack(Vector<N, T> vector, float (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = to_float(vector.element[i]);
}

/* Reads N consecutive elements as floats in one access; the address p must be a multiple of N * sizeof(T). */
template <int N, typename T> __device__ __forceinline__ void load(const T *p, float (&x)[N])
{
    Vector<N, T> vector = *reinterpret_cast<const Vector<N, T> *>(p);
    unpack<N>(vector, x);
}

template <int N, typename T> __device__ __forceinline__ void store(T *p, const float (&x)[N])
{
    Vector<N, T> vector;
#pragma unroll
    for (int i = 0; i < N; i++)
        vector.element[i] = from_float<T>(x[i]);
    *reinterpret_cast<Vector<N, T> *>(p) = vector;
}

/* Number of elements of each access when N elements are read in accesses of at most 16 bytes. */
template <int N, typename T> constexpr int vector_piece = N * sizeof(T) <= 16 ? N : 16 / (int)sizeof(T);

/* Reads N consecutive elements as floats, in accesses of vector_piece<N, T> elements, which are at most 16
 * bytes each. */
template <int N, typename T> __device__ __forceinline__ void load_vector(const T *p, float (&x)[N])
{
    constexpr int PIECE = vector_piece<N, T>;
#pragma unroll
    for (int i = 0; i < N; i += PIECE) {
        float piece[PIECE];
        load<PIECE>(p + i, piece);
#pragma unroll
        for (int j = 0; j < PIECE; j++)
            x[i + j] = piece[j];
    }
}

template <int N, typename T> __device__ __forceinline__ void store_vector(T *p, const float (&x)[N])
{
    constexpr int PIECE = vector_piece<N, T>;
#pragma unroll
    for (int i = 0; i < N; i += PIECE) {
        float piece[PIECE];
#pragma unroll
        for (int j = 0; j < PIECE; j++)
            piece[j] = x[i + j];
        store<PIECE>(p + i, piece);
    }
}

/* Returns to every lane the sum of x over the warp. All lanes add in the same order and get the same bits.
 * X is float or double. All 32 lanes must call. */
template <typename X> __device__ __forceinline__ X warp_sum(X x)
{
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

__device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

/* Returns to every thread the sum of x over the block, added in a fixed order. `shared` is shared memory
 * with one X per warp. All threads of the block must call. The caller must not write `shared` again before
 * its next __syncthreads. */
template <typename X> __device__ __forceinline__ X block_sum(X x, X *shared)
{
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = (int)ceil_div(blockDim.x, WARP);
    x = warp_sum(x);
    if (lane == 0)
        shared[warp] = x;
    __syncthreads();
    return warp_sum(lane < warps ? shared[lane] : X(0));
}

} // namespace dsvi

#endif
