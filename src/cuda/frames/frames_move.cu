/* frames_move: strided copies of arrays of frames, with scaling, shift, limits, conversion and enlargement
 * (ops/frames.h).
 *
 * A thread block moves a piece of a row of pixels. Where the channels of both arrays are dense and at
 * multiples of 16 bytes, a thread moves vectors of N channels of a pixel. Otherwise a thread moves single
 * elements, and neighbouring threads have neighbouring channels, or neighbouring pixels if these are nearer
 * to each other in x. */
#include "cuda/common/cuda.h"
#include "cuda/common/elementwise.cuh"

namespace dsvi {
namespace {

/* What the threads of a block move next to each other. */
enum Order { CHANNELS_FIRST, PIXELS_FIRST };

__device__ __forceinline__ int64_t row_offset(const DsviFrames &f, int64_t t, int64_t h)
{
    return t * f.frame + h * f.row;
}

/* Returns i / n, for i of at most `most` plus the elements of a piece. A division of 64 bits takes as long as
 * moving a vector. */
__device__ __forceinline__ int64_t quotient(int64_t i, int64_t n, int64_t most)
{
    return most < INT32_MAX ? (int64_t)((uint32_t)i / (uint32_t)n) : i / n;
}

/* Applies scale, shift and limit to N channels from channel c on. */
template <int N>
__device__ __forceinline__ void move_values(const DsviFramesMoveArgs &args, int64_t c, float (&x)[N])
{
    const float *scale = (const float *)args.scale, *shift = (const float *)args.shift;
    float limit = (float)args.limit;
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (scale)
            x[i] *= scale[c + i];
        if (shift)
            x[i] += shift[c + i];
        if (limit > 0)
            x[i] = fminf(fmaxf(x[i], -limit), limit);
    }
}

/* Grid: pieces of BLOCK_ELEMENTS<N> elements of rows of x; `pieces` is the number of pieces of one row,
 * `all` of all rows. The elements of a row are numbered in ORDER. */
template <typename X, typename Y, int N, Order ORDER>
__global__ void __launch_bounds__(ELEMENT_THREADS)
    frames_move_kernel(const DsviFramesMoveArgs args, int64_t pieces, int64_t all)
{
    int64_t u = args.upscale, elements = args.width * args.channels;
    for (int64_t piece = blockIdx.x; piece < all; piece += gridDim.x) {
        int64_t row = piece / pieces, part = piece - row * pieces, t = row / args.height;
        int64_t h = row - t * args.height, at[VECTORS], c[VECTORS];
        const X *x = (const X *)args.x.data + row_offset(args.x, t, h);
        Y *y = (Y *)args.y.data + row_offset(args.y, t, h * u);
        float value[VECTORS][N];
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            int64_t i = vector_start<N>(part, v);
            bool pixels = ORDER == PIXELS_FIRST;
            int64_t fastest = pixels ? args.width : args.channels, slow = quotient(i, fastest, elements);
            int64_t w = pixels ? i - slow * fastest : slow;
            c[v] = pixels ? slow : i - slow * fastest;
            at[v] = i < elements ? w * u * args.y.pixel + c[v] * args.y.channel : -1;
            if (i < elements)
                load<N>(x + w * args.x.pixel + c[v] * args.x.channel, value[v]);
        }
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            if (at[v] < 0)
                continue;
            move_values<N>(args, c[v], value[v]);
            for (int64_t i = 0; i < u; i++)
                for (int64_t j = 0; j < u; j++)
                    store<N>(y + at[v] + i * args.y.row + j * args.y.pixel, value[v]);
        }
    }
}

template <typename X, typename Y, int N, Order ORDER>
DsvStatus launch_frames_move(DsviStream *stream, const DsviFramesMoveArgs *args)
{
    int64_t pieces = ceil_div(args->width * args->channels, BLOCK_ELEMENTS<N>);
    int64_t all = args->frames * args->height * pieces;
    DSVI_CUDA_LAUNCH(stream, "frames_move", (frames_move_kernel<X, Y, N, ORDER>),
                     (unsigned)(all < INT32_MAX ? all : INT32_MAX), ELEMENT_THREADS, 0, *args, pieces, all);
    return DSV_OK;
}

/* Returns whether the channels of an array are dense, and vectors of n elements at multiples of their size.
 */
template <typename T> bool is_vectors(const DsviFrames &f, int64_t n)
{
    size_t bytes = (size_t)n * sizeof(T);
    return f.channel == 1 && aligned((const T *)f.data, f.pixel, bytes) &&
           aligned((const T *)nullptr, f.row, bytes) && aligned((const T *)nullptr, f.frame, bytes);
}

template <typename X, typename Y> DsvStatus frames_move_of(DsviStream *stream, const DsviFramesMoveArgs *args)
{
    constexpr int N = VECTOR<X, Y>;
    if (args->channels % N == 0 && is_vectors<X>(args->x, N) && is_vectors<Y>(args->y, N))
        return launch_frames_move<X, Y, N, CHANNELS_FIRST>(stream, args);
    if (args->x.pixel < args->x.channel)
        return launch_frames_move<X, Y, 1, PIXELS_FIRST>(stream, args);
    return launch_frames_move<X, Y, 1, CHANNELS_FIRST>(stream, args);
}

template <typename X> DsvStatus frames_move_from(DsviStream *stream, const DsviFramesMoveArgs *args)
{
    DSVI_FOR_ACT("frames_move", args->y.dtype, return (frames_move_of<X, T>(stream, args)));
}

DsvStatus cuda_frames_move(DsviStream *stream, const DsviFramesMoveArgs *args)
{
    if (args->acc != DSVI_F32)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "frames_move: this variant computes in F32, not %s",
                         dsvi_dtype_name(args->acc));
    if (args->frames * args->height * args->width * args->channels == 0)
        return DSV_OK;
    DSVI_FOR_ACT("frames_move", args->x.dtype, return frames_move_from<T>(stream, args));
}

} // namespace
} // namespace dsvi

void dsvi_cuda_fill_frames_move(DsviOps *ops)
{
    DSVI_OPS_SET(ops, frames_move, dsvi::cuda_frames_move, "cuda");
}
