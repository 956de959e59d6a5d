/* Implements the two functions of gemm_cublaslt.h that do not use cuBLASLt: matrix products, and the copy of
 * a bias for cuBLASLt.
 *
 * A block computes TILE x TILE elements of C, one per thread, from tiles of A and B in shared memory. These
 * kernels serve the products that cuBLASLt refuses; these products are expected to be small. */
#include "cuda/gemm/gemm_cublaslt.h"
#include "cuda/common/kernel.cuh"

namespace {

using namespace dsvi;

constexpr int TILE = 16;
constexpr int BIAS_THREADS = 128;

/* A or B of a matrix product, transposed or not: element (row, col) is data[row * row_step + col *
 * col_step]. */
template <typename T> struct Operand {
    const T *data;
    int64_t row_step, col_step;
};

template <typename T> Operand<T> operand_of(const void *data, int64_t pitch, bool transposed)
{
    return {(const T *)data, transposed ? 1 : pitch, transposed ? pitch : 1};
}

/* Computes C = A B. Thread block number b computes tile (b / tiles, b % tiles) of C, where `tiles` is the
 * number of tiles along a row of C. */
template <typename T, typename C>
__global__ void __launch_bounds__(TILE *TILE)
    gemm_plain_kernel(Operand<T> a, Operand<T> b, int64_t m, int64_t n, int64_t k, int64_t tiles,
                      const float *bias, bool accumulate, C *c, int64_t ldc)
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

template <typename T, typename C> DsvStatus launch_gemm_plain(DsviStream *stream, const DsviGemmArgs *args)
{
    int64_t tiles = ceil_div(args->n, TILE), blocks = ceil_div(args->m, TILE) * tiles;
    DSVI_CUDA_LAUNCH(stream, "gemm", (gemm_plain_kernel<T, C>), (unsigned)blocks, TILE * TILE, 0,
                     operand_of<T>(args->a, args->lda, args->trans_a),
                     operand_of<T>(args->b, args->ldb, args->trans_b), args->m, args->n, args->k, tiles,
                     (const float *)args->bias, args->accumulate, (C *)args->c, args->ldc);
    return DSV_OK;
}

template <typename C>
__global__ void __launch_bounds__(BIAS_THREADS) stage_bias_kernel(const float *bias, int64_t n, C *staged)
{
    int64_t i = (int64_t)blockIdx.x * BIAS_THREADS + threadIdx.x;
    if (i < n)
        staged[i] = from_float<C>(bias[i]);
}

} // namespace

DsvStatus dsvi_gemm_plain(DsviStream *stream, const DsviGemmArgs *args)
{
    if (args->c_dtype == DSVI_F32)
        DSVI_FOR_ACT("gemm", args->ab_dtype, return (launch_gemm_plain<T, float>(stream, args)));
    DSVI_FOR_ACT("gemm", args->ab_dtype, return (launch_gemm_plain<T, T>(stream, args)));
}

DsvStatus dsvi_gemm_stage_bias(DsviStream *stream, const DsviGemmArgs *args)
{
    unsigned blocks = (unsigned)ceil_div(args->n, BIAS_THREADS);
    DSVI_FOR_ACT("gemm", args->c_dtype,
                 DSVI_CUDA_LAUNCH(stream, "bias of gemm", stage_bias_kernel<T>, blocks, BIAS_THREADS, 0,
                                  (const float *)args->bias, args->n, (T *)stream->partials));
    return DSV_OK;
}
