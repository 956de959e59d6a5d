/* What kernels share: numbers in both compute dtypes, sums over warps and blocks, launches that are checked.
 *
 * act (F32 or BF16) is a template parameter T of a kernel, float or __nv_bfloat16; arithmetic is in float.
 * Rows may begin at any element: vectors of 16 bytes are for those that are aligned (dsvi::aligned). */
#ifndef DSVI_KERNEL_CUH
#define DSVI_KERNEL_CUH

#include <cuda_bf16.h>
#include <stdint.h>

#include "base/dtype.h"
#include "cuda/device_cuda.h"

/* After a launch: its failure as a sentence. Kernels of dsv are asynchronous; what goes wrong inside one is
 * told by the next wait. */
#define DSVI_CUDA_LAUNCHED(name)                                                     \
    do {                                                                             \
        cudaError_t dsvi_cuda_error = cudaGetLastError();                            \
        if (dsvi_cuda_error != cudaSuccess)                                          \
            return dsvi_cuda_fail_at(__FILE__, __LINE__, dsvi_cuda_error, "launch of " name); \
    } while (0)

/* Runs `statement` with T the type of `act`; any other dtype is refused in the name of `op`. */
#define DSVI_FOR_ACT(op, act, statement)                                                                  \
    do {                                                                                                  \
        if ((act) == DSV_F32) {                                                                           \
            using T = float;                                                                              \
            statement;                                                                                    \
        } else if ((act) == DSV_BF16) {                                                                   \
            using T = __nv_bfloat16;                                                                      \
            statement;                                                                                    \
        } else {                                                                                          \
            return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: this variant takes F32 and BF16, not %s", (op),      \
                             dsvi_dtype_name(act));                                                       \
        }                                                                                                 \
    } while (0)

namespace dsvi {

constexpr int WARP = 32;

__host__ __device__ constexpr int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Blocks along y or z for n things: a grid has so many at most, and kernels take things beyond in turn. */
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

/* Rounds to nearest even. */
template <> __device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x)
{
    return __float2bfloat16_rn(x);
}

/* Whether elements 0, step, 2 step ... from `p` on all begin at a multiple of `bytes`. */
template <typename T> __host__ inline bool aligned(const T *p, int64_t step, size_t bytes)
{
    return (uintptr_t)p % bytes == 0 && (size_t)step * sizeof(T) % bytes == 0;
}

/* N consecutive elements, one access: 4 floats or 8 bf16 are 16 bytes. */
template <int N, typename T> struct alignas(N * sizeof(T)) Vector {
    static_assert(N * sizeof(T) <= 16, "one access is 16 bytes at most");
    T element[N];
};

/* By value: of one that lies in memory the elements would be read one by one. */
template <int N, typename T> __device__ __forceinline__ void unpack(Vector<N, T> vector, float (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = to_float(vector.element[i]);
}

/* N consecutive elements as floats, where p is a multiple of their size. */
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

/* Elements in one access of 16 bytes, or N. */
template <int N, typename T> constexpr int vector_piece = N * sizeof(T) <= 16 ? N : 16 / (int)sizeof(T);

/* N elements in as many accesses as they take. */
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

/* Every lane gets the sum over the warp, added in the same order by all. X is float or double. */
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

/* Every thread of the block gets the sum; `shared` holds an X for each warp. All threads take part, and
 * `shared` may be used again after the next barrier. */
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
