/* What the convolution kernels of dsv share. The convolution is a matrix product: the rows of the left factor
 * are the pixels of y, the columns of the right factor are its channels, and the sum runs over the `depth`
 * products of one element, numbered in the order of the weight: frame tap, row tap, column tap, channel.
 *
 * All kernels here sum each element of y in an order that depends only on the kernel and its channels, and
 * multiply by zero where a tap is outside x. So the bits of an element do not depend on the sizes of x and y,
 * as conv.h requires of deterministic devices. */
#ifndef DSVI_CONV_CUH
#define DSVI_CONV_CUH

#include "cuda/common/kernel.cuh"
#include "ops/conv.h"

namespace dsvi {

struct ConvProblem {
    int frames, height, width, out_frames, out_height, out_width;
    int channels, out_channels;
    int kernel[3], stride[3], pad[3];
    int depth;      /* number of products of an element of y */
    int64_t pixels; /* of y */
    const void *x, *weight, *add;
    const float *bias;
    void *y;
    int64_t x_frame, x_row, y_frame, y_row;
    bool chunks;  /* x and the weight allow copies of 16 bytes: any tap of any pixel begins at a multiple */
    bool couples; /* y and `add` allow accesses of two neighbouring elements */
};

/* Checks the arguments of the op and fills *problem. */
DsvStatus conv_problem(const DsviConvArgs *args, ConvProblem *problem);

/* Each function enqueues one convolution of at least one element. */
DsvStatus conv_bf16(DsviStream *stream, const ConvProblem &problem);
DsvStatus conv_f32(DsviStream *stream, const ConvProblem &problem);
/* Sets *refused instead of enqueuing work if TMA does not support the strides of x. */
DsvStatus conv_sm90(DsviStream *stream, const ConvProblem &problem, bool *refused);

/* What a tile of y costs besides its channels, because it reads its pixels of x: about as much as so many
 * channels. */
constexpr int PIXELS_COST = 32;

/* Returns which of the `widths`, ascending, tiles of y should have: the one that costs least. Few wide tiles
 * may cost less than many narrow ones although they exceed the channels of y. */
template <int N> int tile_width(const ConvProblem &p, const int (&widths)[N])
{
    int best = 0;
    int64_t least = INT64_MAX;
    for (int width : widths) {
        int64_t cost = ceil_div(p.out_channels, width) * (width + PIXELS_COST);
        best = cost <= least ? width : best;
        least = cost <= least ? cost : least;
    }
    return best;
}

/* A place in the sum of an element: a tap and a channel. */
struct ConvPlace {
    int tap[3], channel;
};

__device__ __forceinline__ ConvPlace place_at(const ConvProblem &p, int number)
{
    int tap = number / p.channels, row = tap / p.kernel[2];
    return {{row / p.kernel[1], row % p.kernel[1], tap % p.kernel[2]}, number % p.channels};
}

__device__ __forceinline__ void advance_place(const ConvProblem &p, int by, ConvPlace *place)
{
    place->channel += by;
    while (place->channel >= p.channels) {
        place->channel -= p.channels;
        if (++place->tap[2] < p.kernel[2])
            continue;
        place->tap[2] = 0;
        if (++place->tap[1] < p.kernel[1])
            continue;
        place->tap[1] = 0;
        place->tap[0]++;
    }
}

/* Where a tap at (0, 0, 0) reads x for a pixel of y: frame, row and column, and the offset in elements. */
struct ConvCorner {
    int t, h, w;
    int64_t offset;
};

/* A frame number that is outside x with every tap. */
constexpr int NOWHERE = -(1 << 30);

/* Returns the corner of pixel number `pixel` of y, counted along columns, rows and frames; of a pixel past
 * the last, a corner all of whose taps are outside x. */
__device__ __forceinline__ ConvCorner corner_at(const ConvProblem &p, int64_t pixel)
{
    if (pixel >= p.pixels)
        return {NOWHERE, 0, 0, 0};
    int64_t row = pixel / p.out_width;
    int w = (int)(pixel - row * p.out_width), t = (int)(row / p.out_height);
    int h = (int)(row - (int64_t)t * p.out_height);
    ConvCorner corner = {t * p.stride[0] - p.pad[0], h * p.stride[1] - p.pad[1], w * p.stride[2] - p.pad[2],
                         0};
    corner.offset = corner.t * p.x_frame + corner.h * p.x_row + (int64_t)corner.w * p.channels;
    return corner;
}

/* Returns whether x holds this tap of the pixel. */
__device__ __forceinline__ bool holds(const ConvProblem &p, const ConvCorner &corner, const ConvPlace &place)
{
    return place.tap[0] < p.kernel[0] && (unsigned)(corner.t + place.tap[0]) < (unsigned)p.frames &&
           (unsigned)(corner.h + place.tap[1]) < (unsigned)p.height &&
           (unsigned)(corner.w + place.tap[2]) < (unsigned)p.width;
}

/* Returns the offset in elements from a corner to a place. */
__device__ __forceinline__ int64_t place_offset(const ConvProblem &p, const ConvPlace &place)
{
    return place.tap[0] * p.x_frame + place.tap[1] * p.x_row + (int64_t)place.tap[2] * p.channels +
           place.channel;
}

/* Returns the offset in elements of pixel number `pixel` in y. */
__device__ __forceinline__ int64_t output_offset(const ConvProblem &p, int64_t pixel)
{
    int64_t row = pixel / p.out_width, t = row / p.out_height;
    return t * p.y_frame + (row - t * p.out_height) * p.y_row + (pixel - row * p.out_width) * p.out_channels;
}

/* Columns of a tile that a lane stores: columns 2 (lane % 4) and the next of each of N groups of eight, of
 * one pixel. `sum` has the products, and `at` is the offset in y of channel `first` of the pixel. All of
 * `add` is read before y is written, which may be the same memory: otherwise the compiler would have to wait
 * for each read before the next write. */
template <int N>
__device__ __forceinline__ void store_pixel(const ConvProblem &p, int first, int64_t at,
                                            const float (&sum)[N][2])
{
    const __nv_bfloat16 *add = (const __nv_bfloat16 *)p.add + at;
    __nv_bfloat16 *y = (__nv_bfloat16 *)p.y + at;
    int column = threadIdx.x % 4 * 2, left = p.out_channels - first - column;
    float addend[N][2];
#pragma unroll
    for (int n = 0; n < N; n++) {
        addend[n][0] = addend[n][1] = 0;
        if (!p.add)
            continue;
        if (p.couples && 8 * n < left)
            load<2>(add + 8 * n + column, addend[n]);
        else if (8 * n < left)
            addend[n][0] = to_float(add[8 * n + column]);
        if (!p.couples && 8 * n + 1 < left)
            addend[n][1] = to_float(add[8 * n + column + 1]);
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
        float out[2];
        if (8 * n >= left)
            continue;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float bias = p.bias && 8 * n + i < left ? p.bias[first + 8 * n + column + i] : 0.f;
            out[i] = sum[n][i] + bias + addend[n][i];
        }
        if (p.couples) {
            store<2>(y + 8 * n + column, out);
            continue;
        }
        y[8 * n + column] = from_float<__nv_bfloat16>(out[0]);
        if (8 * n + 1 < left)
            y[8 * n + column + 1] = from_float<__nv_bfloat16>(out[1]);
    }
}

} // namespace dsvi

#endif
