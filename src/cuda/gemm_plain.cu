/* Matrix products without cuBLASLt, and the bias of products by it. See gemm_cublaslt.h.
 *
 * product:  a block makes TILE x TILE elements of C, one a thread, from tiles of A and B in shared memory.
 *           For what cuBLASLt does not take; nothing large is expected here.
 * add_bias: a thread has N neighbouring columns of BATCH rows, all of them in flight at a time. Neighbouring
 *           threads have neighbouring columns. */
#include "cuda/gemm_cublaslt.h"
#include "cuda/kernel.cuh"

namespace {

using namespace dsvi;

constexpr int TILE = 16;
constexpr int BIAS_THREADS = 128;
constexpr int BATCH = 4;

/* op(A) or op(B): element (row, col) is data[row * row_step + col * col_step]. */
template <typename T> struct Operand {
    const T *data;
    int64_t row_step, col_step;
};

template <typename T> Operand<T> operand(const void *data, int64_t pitch, bool transposed)
{
    return {(const T *)data, transposed ? 1 : pitch, transposed ? pitch : 1};
}

/* Block `x` makes tile (x / tiles, x % tiles) of C. */
template <typename T, typename C>
__global__ void __launch_bounds__(TILE * TILE)
product(Operand<T> a, Operand<T> b, int64_t m, int64_t n, int64_t k, int64_t tiles, const float *bias,
        bool accumulate, C *c, int64_t ldc)
{
    __shared__ float a_tile[TILE][TILE + 1], b_tile[TILE][TILE + 1];
    int x = threadIdx.x % TILE, y = threadIdx.x / TILE;
    int64_t row = blockIdx.x / tiles * TILE + y, col = blockIdx.x % tiles * TILE + x;
    float sum = 0;
    for (int64_t i = 0; i < k; i += TILE) {
        bool a_inside = row < m && i + x < k, b_inside = i + y < k && col < n;
        a_tile[y][x] = a_inside ? to_float(a.data[row * a.row_step + (i + x) * a.col_step]) : 0;
        b_tile[y][x] = b_inside ? to_float(b.data[(i + y) * b.row_step + col * b.col_step]) : 0;
        __syncthreads();
#pragma unroll
        for (int j = 0; j < TILE; j++)
            sum = fmaf(a_tile[y][j], b_tile[j][x], sum);
        __syncthreads();
    }
    if (row >= m || col >= n)
        return;
    if (bias)
        sum += bias[col];
    if (accumulate)
        sum += to_float(c[row * ldc + col]);
    c[row * ldc + col] = from_float<C>(sum);
}

template <typename T, typename C> DsvStatus launch_product(DsvStream *stream, const DsvGemmArgs *args)
{
    int64_t tiles = ceil_div(args->n, TILE), blocks = ceil_div(args->m, TILE) * tiles;
    product<T, C><<<(unsigned)blocks, TILE * TILE, 0, stream->handle>>>(
        operand<T>(args->a, args->lda, args->trans_a), operand<T>(args->b, args->ldb, args->trans_b), args->m,
        args->n, args->k, tiles, (const float *)args->bias, args->accumulate, (C *)args->c, args->ldc);
    DSVI_CUDA_LAUNCHED("gemm");
    return DSV_OK;
}

/* One access for four sums. That of `store` the compiler takes apart here, where rows lie a variable pitch
 * apart. */
__device__ __forceinline__ void put(float *c, const float (&x)[4])
{
    __stwb(reinterpret_cast<float4 *>(c), make_float4(x[0], x[1], x[2], x[3]));
}

__device__ __forceinline__ void put(__nv_bfloat16 *c, const float (&x)[4])
{
    __nv_bfloat162 pair[2] = {__floats2bfloat162_rn(x[0], x[1]), __floats2bfloat162_rn(x[2], x[3])};
    uint2 words;
    memcpy(&words, pair, sizeof words);
    __stwb(reinterpret_cast<uint2 *>(c), words);
}

template <typename C> __device__ __forceinline__ void put(C *c, const float (&x)[1])
{
    *c = from_float<C>(x[0]);
}

/* Block `x` has strip x % strips of columns and BATCH rows from x / strips * BATCH on. */
template <int N, typename C>
__global__ void __launch_bounds__(BIAS_THREADS)
add_bias(const float *sums, int64_t pitch, const float *bias, int64_t rows, int64_t n, unsigned strips, C *c,
         int64_t ldc)
{
    int64_t col = ((int64_t)(blockIdx.x % strips) * BIAS_THREADS + threadIdx.x) * N;
    int64_t first = (int64_t)(blockIdx.x / strips) * BATCH;
    float added[N], sum[BATCH][N];
    if (col >= n)
        return;
    load<N>(bias + col, added);
#pragma unroll
    for (int i = 0; i < BATCH; i++)
        if (first + i < rows)
            load<N>(sums + (first + i) * pitch + col, sum[i]);
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
        if (first + i >= rows)
            break;
#pragma unroll
        for (int j = 0; j < N; j++)
            sum[i][j] += added[j];
        put(c + (first + i) * ldc + col, sum[i]);
    }
}

template <int N, typename C>
DsvStatus launch_add_bias(DsvStream *stream, const float *sums, int64_t pitch, const float *bias,
                          int64_t rows, int64_t n, C *c, int64_t ldc)
{
    int64_t strips = ceil_div(n, (int64_t)BIAS_THREADS * N), blocks = strips * ceil_div(rows, BATCH);
    add_bias<N><<<(unsigned)blocks, BIAS_THREADS, 0, stream->handle>>>(sums, pitch, bias, rows, n,
                                                                       (unsigned)strips, c, ldc);
    DSVI_CUDA_LAUNCHED("gemm");
    return DSV_OK;
}

template <typename C>
DsvStatus rows_plus_bias(DsvStream *stream, const DsvGemmArgs *args, int64_t first, int64_t rows,
                         const float *sums, int64_t pitch)
{
    constexpr int N = 4;
    const float *bias = (const float *)args->bias;
    C *c = (C *)args->c + first * args->ldc;
    if (args->n % N == 0 && aligned(sums, pitch, N * sizeof(float)) && aligned(bias, 0, N * sizeof(float)) &&
        aligned(c, args->ldc, N * sizeof(C)))
        return launch_add_bias<N>(stream, sums, pitch, bias, rows, args->n, c, args->ldc);
    return launch_add_bias<1>(stream, sums, pitch, bias, rows, args->n, c, args->ldc);
}

} // namespace

DsvStatus dsvi_gemm_plain(DsvStream *stream, const DsvGemmArgs *args)
{
    if (args->c_dtype == DSV_F32)
        DSVI_FOR_ACT("gemm", args->ab_dtype, return (launch_product<T, float>(stream, args)));
    DSVI_FOR_ACT("gemm", args->ab_dtype, return (launch_product<T, T>(stream, args)));
}

DsvStatus dsvi_gemm_add_bias(DsvStream *stream, const DsvGemmArgs *args, int64_t first, int64_t rows,
                             const float *sums, int64_t pitch)
{
    DSVI_FOR_ACT("gemm", args->c_dtype, return rows_plus_bias<T>(stream, args, first, rows, sums, pitch));
}
