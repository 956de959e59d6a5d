/* Helpers of element-wise kernels: a thread processes VECTORS vectors of N elements, ELEMENT_THREADS * N
 * elements apart, and loads all of them before it stores one. The last vector of a tensor may be
 * incomplete. */
#ifndef DSVI_ELEMENTWISE_CUH
#define DSVI_ELEMENTWISE_CUH

#include "cuda/common/kernel.cuh"

namespace dsvi {

constexpr int ELEMENT_THREADS = 256;
constexpr int VECTORS = 2;

/* Elements in 16 bytes of the wider of the types X and Y. Kernels for tensors that are not aligned to 16
 * bytes use N = 1. */
template <typename X, typename Y = X>
constexpr int VECTOR = 16 / (int)(sizeof(X) > sizeof(Y) ? sizeof(X) : sizeof(Y));

/* Elements that a thread block processes. */
template <int N> constexpr int64_t BLOCK_ELEMENTS = (int64_t)ELEMENT_THREADS *VECTORS *N;

/* Returns the index of the first element of this thread's vector number `v` in thread block `block`. */
template <int N> __device__ __forceinline__ int64_t vector_start(int64_t block, int v)
{
    return ((block * VECTORS + v) * ELEMENT_THREADS + threadIdx.x) * N;
}

/* Loads at most N elements of p[first .. n); elements of x past the end of the array keep their values. */
template <int N, typename T>
__device__ __forceinline__ void load_upto(const T *p, int64_t first, int64_t n, float (&x)[N])
{
    if (first + N <= n) {
        load<N>(p + first, x);
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        if (first + i < n)
            x[i] = to_float(p[first + i]);
}

/* Stores x to p[first .. n): N elements, or fewer at the end of the array. */
template <int N, typename T>
__device__ __forceinline__ void store_upto(T *p, int64_t first, int64_t n, const float (&x)[N])
{
    if (first + N <= n) {
        store<N>(p + first, x);
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        if (first + i < n)
            p[first + i] = from_float<T>(x[i]);
}

/* Returns the number of thread blocks that process n elements. */
template <int N> static inline unsigned element_blocks(int64_t n)
{
    return (unsigned)ceil_div(n, BLOCK_ELEMENTS<N>);
}

} // namespace dsvi

#endif
