/* Kernels over consecutive elements: a thread takes VECTORS vectors of N, a block apart, loads them all and
 * then stores. The last vector of a tensor may be a part of one. */
#ifndef DSVI_ELEMENTWISE_CUH
#define DSVI_ELEMENTWISE_CUH

#include "cuda/kernel.cuh"

namespace dsvi {

constexpr int ELEMENT_THREADS = 256;
constexpr int VECTORS = 2;

/* Elements in 16 bytes of the wider of the types; where tensors are not aligned so, vectors are of 1. */
template <typename X, typename Y = X>
constexpr int VECTOR = 16 / (int)(sizeof(X) > sizeof(Y) ? sizeof(X) : sizeof(Y));

/* Elements of a block. */
template <int N> constexpr int64_t BLOCK_ELEMENTS = (int64_t)ELEMENT_THREADS * VECTORS * N;

/* The first element of the thread's vector `v` in block `block`. */
template <int N> __device__ __forceinline__ int64_t vector_start(int64_t block, int v)
{
    return ((block * VECTORS + v) * ELEMENT_THREADS + threadIdx.x) * N;
}

/* Elements [first, n), N at most; the others stay as they are. */
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

template <int N> static inline unsigned element_blocks(int64_t n)
{
    return (unsigned)ceil_div(n, BLOCK_ELEMENTS<N>);
}

} // namespace dsvi

#endif
