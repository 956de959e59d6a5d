/* channel_norm: the norm over the channels of each pixel, optionally followed by SiLU (ops/frames.h).
 *
 * LANES lanes of a warp share a pixel, and each keeps PARTS vectors of 16 bytes of the pixel in registers, so
 * memory is read once. A thread block processes a piece of one row of pixels, PIXELS pixels for each group of
 * lanes. Pixels that are too long, or not at multiples of 16 bytes, have a warp each, which reads them twice,
 * element by element. */
#include "cuda/common/activation.cuh"
#include "cuda/common/cuda.h"

namespace dsvi {
namespace {

constexpr int NORM_THREADS = 256, PIXELS = 2, PARTS_MAX = 4;
constexpr float NORM_FLOOR = 1e-12f;

/* Returns the offset in elements of pixel `w` of row number `row`, counted through all frames. */
__device__ __forceinline__ int64_t pixel_offset(const DsviChannelNormArgs &args, int64_t row, int64_t w,
                                                int64_t frame_stride, int64_t row_stride)
{
    int64_t t = row / args.height;
    return t * frame_stride + (row - t * args.height) * row_stride + w * args.channels;
}

__device__ __forceinline__ float norm_factor(float square, int64_t channels)
{
    return sqrtf((float)channels) / fmaxf(sqrtf(square), NORM_FLOOR);
}

template <typename T> __device__ __forceinline__ float norm_result(float x, bool silu)
{
    return silu ? activation<T, DSVI_SILU>(x) : x;
}

/* Returns to each of the LANES lanes that share a pixel the sum of x over them. */
template <int LANES> __device__ __forceinline__ float lanes_sum(float x)
{
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

/* Grid: pieces of rows; `pieces` is the number of pieces of one row, `all` of all rows. */
template <typename T, int LANES, int PARTS>
__global__ void __launch_bounds__(NORM_THREADS)
    channel_norm_kernel(const DsviChannelNormArgs args, int64_t pieces, int64_t all)
{
    constexpr int N = 16 / (int)sizeof(T), GROUPS = NORM_THREADS / LANES;
    int lane = threadIdx.x % LANES, group = threadIdx.x / LANES, channels = (int)args.channels;
    for (int64_t piece = blockIdx.x; piece < all; piece += gridDim.x) {
        int64_t row = piece / pieces, first = (piece - row * pieces) * GROUPS * PIXELS + group;
        const T *x = (const T *)args.x + pixel_offset(args, row, first, args.x_frame, args.x_row);
        T *y = (T *)args.y + pixel_offset(args, row, first, args.y_frame, args.y_row);
        float value[PIXELS][PARTS][N] = {};
#pragma unroll
        for (int i = 0; i < PIXELS; i++)
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
                int c = (part * LANES + lane) * N;
                if (c < channels && first + i * GROUPS < args.width)
                    load<N>(x + (int64_t)i * GROUPS * channels + c, value[i][part]);
            }
#pragma unroll
        for (int i = 0; i < PIXELS; i++) {
            float square = 0;
#pragma unroll
            for (int j = 0; j < PARTS * N; j++)
                square += value[i][j / N][j % N] * value[i][j / N][j % N];
            float factor = norm_factor(lanes_sum<LANES>(square), channels);
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
                int c = (part * LANES + lane) * N;
                float gamma[N];
                if (c >= channels || first + i * GROUPS >= args.width)
                    continue;
                load_vector<N>((const float *)args.gamma + c, gamma);
#pragma unroll
                for (int j = 0; j < N; j++)
                    value[i][part][j] = norm_result<T>(value[i][part][j] * factor * gamma[j], args.silu);
                store<N>(y + (int64_t)i * GROUPS * channels + c, value[i][part]);
            }
        }
    }
}

/* A warp for each pixel; `pixels` is their number in all frames. y may be x: a lane reads an element again
 * before it writes it. */
template <typename T>
__global__ void __launch_bounds__(NORM_THREADS)
    channel_norm_any_kernel(const DsviChannelNormArgs args, int64_t pixels)
{
    constexpr int WARPS = NORM_THREADS / WARP;
    int lane = threadIdx.x % WARP;
    for (int64_t pixel = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP; pixel < pixels;
         pixel += (int64_t)gridDim.x * WARPS) {
        int64_t row = pixel / args.width, w = pixel - row * args.width;
        const T *x = (const T *)args.x + pixel_offset(args, row, w, args.x_frame, args.x_row);
        T *y = (T *)args.y + pixel_offset(args, row, w, args.y_frame, args.y_row);
        float square = 0;
        for (int64_t c = lane; c < args.channels; c += WARP)
            square += to_float(x[c]) * to_float(x[c]);
        float factor = norm_factor(warp_sum(square), args.channels);
        for (int64_t c = lane; c < args.channels; c += WARP)
            y[c] = from_float<T>(
                norm_result<T>(to_float(x[c]) * factor * ((const float *)args.gamma)[c], args.silu));
    }
}

template <typename T, int LANES, int PARTS>
DsvStatus launch_channel_norm(DsviStream *stream, const DsviChannelNormArgs *args)
{
    int64_t pieces = ceil_div(args->width, NORM_THREADS / LANES * PIXELS);
    int64_t all = args->frames * args->height * pieces;
    DSVI_CUDA_LAUNCH(stream, "channel_norm", (channel_norm_kernel<T, LANES, PARTS>),
                     (unsigned)(all < INT32_MAX ? all : INT32_MAX), NORM_THREADS, 0, *args, pieces, all);
    return DSV_OK;
}

/* Launches the kernel whose lanes keep `parts` vectors of a pixel, at most PARTS_MAX. */
template <typename T, int LANES>
DsvStatus launch_channel_norm_parts(DsviStream *stream, const DsviChannelNormArgs *args, int64_t parts)
{
    auto *launch = parts <= 1   ? launch_channel_norm<T, LANES, 1>
                   : parts == 2 ? launch_channel_norm<T, LANES, 2>
                   : parts == 3 ? launch_channel_norm<T, LANES, 3>
                                : launch_channel_norm<T, LANES, 4>;
    return launch(stream, args);
}

template <typename T> DsvStatus channel_norm_of_type(DsviStream *stream, const DsviChannelNormArgs *args)
{
    constexpr int N = 16 / (int)sizeof(T);
    int64_t pixels = args->frames * args->height * args->width, vectors = args->channels / N;
    bool whole = args->channels % N == 0 && vectors <= WARP * PARTS_MAX &&
                 aligned((const T *)args->x, args->x_frame, 16) &&
                 aligned((const T *)nullptr, args->x_row, 16) &&
                 aligned((const T *)args->y, args->y_frame, 16) &&
                 aligned((const T *)nullptr, args->y_row, 16) && aligned((const float *)args->gamma, 0, 16);
    if (!whole) {
        int64_t blocks = ceil_div(pixels, NORM_THREADS / WARP);
        DSVI_CUDA_LAUNCH(stream, "channel_norm", channel_norm_any_kernel<T>,
                         (unsigned)(blocks < INT32_MAX ? blocks : INT32_MAX), NORM_THREADS, 0, *args, pixels);
        return DSV_OK;
    }
    if (vectors <= 4 * PARTS_MAX)
        return launch_channel_norm_parts<T, 4>(stream, args, ceil_div(vectors, 4));
    if (vectors <= 8 * PARTS_MAX)
        return launch_channel_norm_parts<T, 8>(stream, args, ceil_div(vectors, 8));
    if (vectors <= 16 * PARTS_MAX)
        return launch_channel_norm_parts<T, 16>(stream, args, ceil_div(vectors, 16));
    return launch_channel_norm_parts<T, WARP>(stream, args, ceil_div(vectors, WARP));
}

DsvStatus cuda_channel_norm(DsviStream *stream, const DsviChannelNormArgs *args)
{
    if (args->acc != DSVI_F32)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "channel_norm: this variant computes in F32, not %s",
                         dsvi_dtype_name(args->acc));
    if (args->frames * args->height * args->width * args->channels == 0)
        return DSV_OK;
    DSVI_FOR_ACT("channel_norm", args->act, return channel_norm_of_type<T>(stream, args));
}

} // namespace
} // namespace dsvi

void dsvi_cuda_fill_channel_norm(DsviOps *ops)
{
    DSVI_OPS_SET(ops, channel_norm, dsvi::cuda_channel_norm, "cuda");
}
