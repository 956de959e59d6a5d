/* Sums over many rows, column by column, in an order that depends on nothing but the shapes and the device.
 *
 * Two stages: threads that walk some of the rows write one partial row each; then blocks of WARP columns by
 * STRANDS strands add the partial rows. A strand takes every STRANDS-th row. */
#ifndef DSVI_COLUMN_SUMS_CUH
#define DSVI_COLUMN_SUMS_CUH

#include "cuda/kernel.cuh"

namespace dsvi {

constexpr int STRANDS = 32;

constexpr int SUMS_MOST = 4;

/* `sets` sets of rows, each with `parts` partial rows for each of its `outs` sums:
 *     out[o][s stride[o] + c] += sum over p of partials[((s parts + p) outs + o) columns + c]
 * where stride[o] is 0, all sets add to the same row; where out[o] is NULL, the sum is nobody's. */
struct ColumnSums {
    const float *partials; /* (sets, parts, outs, columns) */
    int64_t sets, parts, outs, columns;
    float *out[SUMS_MOST];
    int64_t stride[SUMS_MOST];
};

/* Adds N sums over the threads of a block along y, of which there are COUNT, a power of two: those with
 * threadIdx.y 0 get the totals. All threads of the block take part; x has WARP of them. */
template <int COUNT, int N> __device__ __forceinline__ void sum_strands(float (&sum)[N])
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

static __global__ void __launch_bounds__(WARP *STRANDS)
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
            for (int64_t part = threadIdx.y; part < parts; part += STRANDS)
                sum[0] += partial[part * sums.outs * sums.columns];
        }
        sum_strands<STRANDS>(sum);
        if (threadIdx.y == 0 && column < sums.columns)
            out[set * stride + column] += sum[0];
    }
}

/* The second stage. */
static inline DsvStatus launch_add_partials(DsvStream *stream, const ColumnSums *sums)
{
    dim3 grid((unsigned)ceil_div(sums->columns, WARP), blocks_in_turn(sums->sets), (unsigned)sums->outs);
    add_partials<<<grid, dim3(WARP, STRANDS), 0, stream->handle>>>(*sums);
    DSVI_CUDA_LAUNCHED("add_partials");
    return DSV_OK;
}

} // namespace dsvi

#endif
