/* Column sums over many rows of float in two stages. In the first stage, which is part of another kernel,
 * each thread or block adds some of the rows and writes one partial row. The second stage, add_partials
 * here, adds the partial rows: a block of WARP x SUM_LINES threads has WARP columns, and the threads with
 * threadIdx.y = y add partial rows y, y + SUM_LINES, ... The order of all additions depends only on the
 * shapes and the number of partial rows, so the same call gives the same bits.
 *
 * Two other ops also sum in two stages, with another second stage because they add in another order and in
 * double: mse (pointwise/flow.cu) has one warp per sample, sum_squares (pointwise/optim.cu) one block. */
#ifndef DSVI_TWO_STAGE_SUM_CUH
#define DSVI_TWO_STAGE_SUM_CUH

#include "cuda/common/kernel.cuh"

namespace dsvi {

constexpr int SUM_LINES = 32; /* threads along y of a block that adds partial rows */

constexpr int SUM_OUTPUTS_MAX = 4;

/* Arguments of the second stage. There are `sets` groups of partial rows, each with `parts` partial rows for
 * each of `outs` output rows:
 *     out[o][s stride[o] + c] += sum over p of partials[((s parts + p) outs + o) columns + c]
 * stride[o] = 0 adds all sets to the same row. out[o] = NULL skips output o. */
struct ColumnSums {
    const float *partials; /* (sets, parts, outs, columns) F32 */
    int64_t sets, parts, outs, columns;
    float *out[SUM_OUTPUTS_MAX];
    int64_t stride[SUM_OUTPUTS_MAX]; /* elements */
};

/* Adds N sums over the COUNT threads along y of a block, pairwise; COUNT is a power of two and the block
 * has WARP threads along x. The threads with threadIdx.y = 0 get the totals in `sum`. All threads of the
 * block must call. */
template <int COUNT, int N> __device__ __forceinline__ void sum_along_y(float (&sum)[N])
{
    __shared__ float other[COUNT / 2][N][WARP];
    for (int half = COUNT / 2, y = (int)threadIdx.y; half > 0; half /= 2) {
        if (y >= half && y < 2 * half) {
#pragma unroll
            for (int i = 0; i < N; i++)
                other[y - half][i][threadIdx.x] = sum[i];
        }
        __syncthreads();
        if (y < half) {
#pragma unroll
            for (int i = 0; i < N; i++)
                sum[i] += other[y][i][threadIdx.x];
        }
        __syncthreads();
    }
}

/* The second stage of a two-stage sum: adds partial rows to the output rows. Grid: x, strips of WARP
 * columns; y, sets of partial rows (looped over beyond the grid); z, output rows. */
static __global__ void __launch_bounds__(WARP *SUM_LINES)
    add_partials(const __grid_constant__ ColumnSums sums)
{
    int64_t column = (int64_t)blockIdx.x * WARP + threadIdx.x, stride = sums.stride[blockIdx.z];
    int64_t sets = stride ? sums.sets : 1, parts = stride ? sums.parts : sums.sets * sums.parts;
    float *out = sums.out[blockIdx.z];
    if (!out)
        return;
    for (int64_t set = blockIdx.y; set < sets; set += gridDim.y) {
        int64_t first = set * parts * sums.outs + blockIdx.z;
        const float *partial = sums.partials + first * sums.columns + column;
        float sum[1] = {0.f};
        if (column < sums.columns) {
#pragma unroll 8
            for (int64_t part = threadIdx.y; part < parts; part += SUM_LINES)
                sum[0] += partial[part * sums.outs * sums.columns];
        }
        sum_along_y<SUM_LINES>(sum);
        if (threadIdx.y == 0 && column < sums.columns)
            out[set * stride + column] += sum[0];
    }
}

/* Launches add_partials, the second stage of a two-stage sum, on the partial rows that `sums` describes. */
static inline DsvStatus launch_add_partials(DsviStream *stream, const ColumnSums *sums)
{
    dim3 grid((unsigned)ceil_div(sums->columns, WARP), blocks_in_turn(sums->sets), (unsigned)sums->outs);
    DSVI_CUDA_LAUNCH(stream, "add_partials", add_partials, grid, dim3(WARP, SUM_LINES), 0, *sums);
    return DSV_OK;
}

} // namespace dsvi

#endif
