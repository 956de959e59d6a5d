/* rms_norm: RMS norm of rows in F32 (ops/encoder.h). common/rows.cuh describes how the threads of a block
 * divide a row. A row stays in registers, so memory is read once; a thread also keeps the weight of its
 * channels. The kernel named `long` serves rows that are too long for registers or do not begin at multiples
 * of 16 bytes. */
#include "cuda/common/cuda.h"
#include "cuda/common/rows.cuh"

namespace dsvi {
namespace {

__device__ __forceinline__ float rms_norm_rstd(float square, const DsviRmsNormArgs &args)
{
    return 1.f / sqrtf(square / (float)args.channels + (float)args.eps);
}

template <typename T, int N = ROW_VECTOR<T>>
__global__ void __launch_bounds__(TWO_ROWS_THREADS) rms_norm_kernel(const DsviRmsNormArgs args)
{
    __shared__ float sums[2][WARP]; /* used for rows in turn, so that one barrier per row suffices */
    int channels = (int)args.channels, turn = 0;
    RowPart<N> weight;
    load_row<N>((const float *)args.weight, channels, weight);
    /* A block has one row or, without barriers, one row for each warp. */
    for (int64_t row = row_first_token(); row < args.rows; row += row_token_step(), turn ^= 1) {
        RowPart<N> x;
        float square = 0.f;
        load_row<N>((const float *)args.x + row * channels, channels, x);
#pragma unroll
        for (int i = 0; i < ROW_CHANNELS; i++)
            square += x[i / N][i % N] * x[i / N][i % N];
        float rstd = rms_norm_rstd(row_sum(square, sums[turn]), args);
#pragma unroll
        for (int i = 0; i < ROW_CHANNELS; i++)
            x[i / N][i % N] *= rstd * weight[i / N][i % N];
        store_row<N>((T *)args.y + row * channels, channels, x);
    }
}

template <typename T>
__global__ void __launch_bounds__(LONG_ROW_THREADS) rms_norm_long_kernel(const DsviRmsNormArgs args)
{
    __shared__ float sums[2][WARP];
    int turn = 0;
    for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x, turn ^= 1) {
        const float *x = (const float *)args.x + row * args.channels;
        T *y = (T *)args.y + row * args.channels;
        float square = 0.f;
        for (int64_t c = threadIdx.x; c < args.channels; c += blockDim.x)
            square += x[c] * x[c];
        float rstd = rms_norm_rstd(row_sum(square, sums[turn]), args);
        for (int64_t c = threadIdx.x; c < args.channels; c += blockDim.x)
            y[c] = from_float<T>(x[c] * (rstd * ((const float *)args.weight)[c]));
    }
}

template <typename T> DsvStatus rms_norm_of_type(DsviStream *stream, const DsviRmsNormArgs *args)
{
    constexpr int N = ROW_VECTOR<T>;
    if (row_fits(stream, args->channels, N, TWO_ROWS_THREADS, 0) &&
        aligned((const float *)args->x, args->channels, 16) &&
        aligned((const T *)args->y, args->channels, 16) && aligned((const float *)args->weight, 0, 16)) {
        dim3 block = row_block(args->channels), grid;
        DSVI_TRY(row_grid(stream, rms_norm_kernel<T>, block, 0, 1, args->rows, args->rows, &grid));
        DSVI_CUDA_LAUNCH(stream, "rms_norm", rms_norm_kernel<T>, grid, block, 0, *args);
    } else {
        DSVI_CUDA_LAUNCH(stream, "rms_norm", rms_norm_long_kernel<T>, long_row_blocks(stream, args->rows),
                         LONG_ROW_THREADS, 0, *args);
    }
    return DSV_OK;
}

DsvStatus cuda_rms_norm(DsviStream *stream, const DsviRmsNormArgs *args)
{
    if (args->acc != DSVI_F32)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "rms_norm: this variant computes in F32, not %s",
                         dsvi_dtype_name(args->acc));
    if (args->rows * args->channels == 0)
        return DSV_OK;
    DSVI_FOR_ACT("rms_norm", args->act, return rms_norm_of_type<T>(stream, args));
}

} // namespace
} // namespace dsvi

void dsvi_cuda_fill_rms_norm(DsviOps *ops)
{
    DSVI_OPS_SET(ops, rms_norm, dsvi::cuda_rms_norm, "cuda");
}
