/* softmax of rows in F32 (ops/encoder.h). common/rows.cuh describes how the threads of a block divide a row.
 * A row stays in registers, so memory is read once. The kernel named `long` serves rows that are too long for
 * registers or do not begin at multiples of 16 bytes: it reads a row three times. */
#include <math.h>

#include "cuda/common/activation.cuh"
#include "cuda/common/cuda.h"
#include "cuda/common/rows.cuh"

namespace dsvi {
namespace {

template <typename T, int N = ROW_VECTOR<T>>
__global__ void __launch_bounds__(ROW_THREADS) softmax_kernel(const DsviSoftmaxArgs args)
{
    __shared__ float largest[2][WARP], sums[2][WARP]; /* used for rows in turn */
    int cols = (int)args.cols, turn = 0;
    float scale = (float)args.scale;
    for (int64_t row = row_first_token(); row < args.rows; row += row_token_step(), turn ^= 1) {
        RowPart<N> x;
        float most = -INFINITY, sum = 0;
        load_row<N>((const float *)args.x + row * cols, cols, x);
#pragma unroll
        for (int i = 0; i < ROW_CHANNELS; i++) {
            x[i / N][i % N] = row_channel<N>(i / N) < cols ? x[i / N][i % N] * scale : -INFINITY;
            most = fmaxf(most, x[i / N][i % N]);
        }
        most = row_max(most, largest[turn]);
#pragma unroll
        for (int i = 0; i < ROW_CHANNELS; i++) {
            x[i / N][i % N] = exp_for<T>(x[i / N][i % N] - most);
            sum += row_channel<N>(i / N) < cols ? x[i / N][i % N] : 0.f;
        }
        float factor = 1.f / row_sum(sum, sums[turn]);
#pragma unroll
        for (int i = 0; i < ROW_CHANNELS; i++)
            x[i / N][i % N] *= factor;
        store_row<N>((T *)args.y + row * cols, cols, x);
    }
}

/* y may be x: a thread reads an element for the last time before it writes it. */
template <typename T>
__global__ void __launch_bounds__(LONG_ROW_THREADS) softmax_long_kernel(const DsviSoftmaxArgs args)
{
    __shared__ float largest[2][WARP], sums[2][WARP];
    float scale = (float)args.scale;
    int turn = 0;
    for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x, turn ^= 1) {
        const float *x = (const float *)args.x + row * args.cols;
        T *y = (T *)args.y + row * args.cols;
        float most = -INFINITY, sum = 0;
        for (int64_t c = threadIdx.x; c < args.cols; c += blockDim.x)
            most = fmaxf(most, x[c] * scale);
        most = row_max(most, largest[turn]);
        for (int64_t c = threadIdx.x; c < args.cols; c += blockDim.x)
            sum += exp_for<T>(x[c] * scale - most);
        float factor = 1.f / row_sum(sum, sums[turn]);
        for (int64_t c = threadIdx.x; c < args.cols; c += blockDim.x)
            y[c] = from_float<T>(exp_for<T>(x[c] * scale - most) * factor);
    }
}

template <typename T> DsvStatus softmax_of_type(DsviStream *stream, const DsviSoftmaxArgs *args)
{
    constexpr int N = ROW_VECTOR<T>;
    if (row_fits(stream, args->cols, N, ROW_THREADS, 0) && aligned((const float *)args->x, args->cols, 16) &&
        aligned((const T *)args->y, args->cols, 16)) {
        dim3 block = row_block(args->cols), grid;
        DSVI_TRY(row_grid(stream, softmax_kernel<T>, block, 0, 1, args->rows, args->rows, &grid));
        DSVI_CUDA_LAUNCH(stream, "softmax", softmax_kernel<T>, grid, block, 0, *args);
    } else {
        DSVI_CUDA_LAUNCH(stream, "softmax", softmax_long_kernel<T>, long_row_blocks(stream, args->rows),
                         LONG_ROW_THREADS, 0, *args);
    }
    return DSV_OK;
}

DsvStatus cuda_softmax(DsviStream *stream, const DsviSoftmaxArgs *args)
{
    if (args->acc != DSVI_F32)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "softmax: this variant computes in F32, not %s",
                         dsvi_dtype_name(args->acc));
    if (args->rows * args->cols == 0)
        return DSV_OK;
    DSVI_FOR_ACT("softmax", args->act, return softmax_of_type<T>(stream, args));
}

} // namespace
} // namespace dsvi

void dsvi_cuda_fill_softmax(DsviOps *ops)
{
    DSVI_OPS_SET(ops, softmax, dsvi::cuda_softmax, "cuda");
}
