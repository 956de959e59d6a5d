/* Convolution in F32 without tensor cores (conv.cuh): fused multiply-adds over tiles of 128 pixels and 96
 * channels of y.
 *
 * A step of the sum has STEP products. Both factors of a step are in shared memory, transposed: a line has
 * one product of all pixels, or of all channels. Two stages alternate, and the next step is loaded to
 * registers while the current one is multiplied. A thread has eight pixels and six channels. */
#include "cuda/conv/conv.cuh"

namespace dsvi {
namespace {

constexpr int F32_THREADS = 256, F32_PIXELS = 128, F32_WIDTH = 96, F32_STEP = 16;
constexpr int PART = 8;  /* consecutive products of one pixel or channel that a thread loads for a step */
constexpr int PAD = 4;   /* floats between the lines of a factor */
constexpr int SIDE = 16; /* threads of a block along pixels, and along channels */

struct F32Stage {
    float pixel[F32_STEP][F32_PIXELS + PAD], channel[F32_STEP][F32_WIDTH + PAD];
};

/* What a thread loads: PART products from `place` on, of one pixel and of one channel. */
struct F32Loader {
    ConvPlace place;
    ConvCorner corner;
    int line;            /* pixel of the tile */
    int column;          /* channel of the tile, or negative: this thread loads no channel */
    int first;           /* first product of the thread's parts within a step */
    int channel_number;  /* first product of the channel's part */
    const float *weight; /* of the channel; NULL: none */
    float pixel[PART], channel[PART];
};

__device__ __forceinline__ F32Loader f32_loader(const ConvProblem &p, int64_t first_pixel, int first_channel)
{
    F32Loader loader;
    int thread = threadIdx.x;
    loader.line = thread % F32_PIXELS;
    loader.first = thread / F32_PIXELS * PART;
    loader.place = place_at(p, loader.first);
    loader.corner = corner_at(p, first_pixel + loader.line);
    loader.column = thread < 2 * F32_WIDTH ? thread % F32_WIDTH : -1;
    loader.channel_number = thread / F32_WIDTH * PART;
    int channel = first_channel + loader.column;
    bool there = loader.column >= 0 && channel < p.out_channels;
    loader.weight = there ? (const float *)p.weight + (int64_t)channel * p.depth : nullptr;
    return loader;
}

/* Loads the parts of the next step to registers. */
template <bool WHOLE> __device__ __forceinline__ void load_parts(const ConvProblem &p, F32Loader *loader)
{
    const float *x = (const float *)p.x;
#pragma unroll
    for (int i = 0; i < PART; i += WHOLE ? 4 : 1) {
        bool there = holds(p, loader->corner, loader->place);
        const float *from = x + (there ? loader->corner.offset + place_offset(p, loader->place) : 0);
        float4 four = make_float4(0, 0, 0, 0);
        if (WHOLE && there)
            four = *reinterpret_cast<const float4 *>(from);
        else if (there)
            four.x = *from;
        loader->pixel[i] = four.x;
        if (WHOLE) {
            loader->pixel[i + 1] = four.y;
            loader->pixel[i + 2] = four.z;
            loader->pixel[i + 3] = four.w;
        }
        advance_place(p, WHOLE ? 4 : 1, &loader->place);
    }
    advance_place(p, F32_STEP - PART, &loader->place);
#pragma unroll
    for (int i = 0; i < PART; i++) {
        bool there = loader->weight && loader->channel_number + i < p.depth;
        loader->channel[i] = there ? loader->weight[loader->channel_number + i] : 0.f;
    }
    loader->channel_number += F32_STEP;
}

__device__ __forceinline__ void store_parts(const F32Loader &loader, F32Stage *stage)
{
#pragma unroll
    for (int i = 0; i < PART; i++)
        stage->pixel[loader.first + i][loader.line] = loader.pixel[i];
    if (loader.column < 0)
        return;
    int first = threadIdx.x / F32_WIDTH * PART;
#pragma unroll
    for (int i = 0; i < PART; i++)
        stage->channel[first + i][loader.column] = loader.channel[i];
}

/* A thread's pixels are 4 (thread / SIDE) + i % 4 + 64 (i / 4), its channels 2 (thread % SIDE) + j % 2 + 32
 * (j / 2). */
__device__ __forceinline__ void multiply_stage(const F32Stage &stage, float (&sum)[8][6])
{
    int down = threadIdx.x / SIDE * 4, across = threadIdx.x % SIDE * 2;
#pragma unroll
    for (int k = 0; k < F32_STEP; k++) {
        float a[8], b[6];
        *reinterpret_cast<float4 *>(a) = *reinterpret_cast<const float4 *>(&stage.pixel[k][down]);
        *reinterpret_cast<float4 *>(a + 4) = *reinterpret_cast<const float4 *>(&stage.pixel[k][down + 64]);
#pragma unroll
        for (int j = 0; j < 6; j += 2) {
            float2 two = *reinterpret_cast<const float2 *>(&stage.channel[k][across + 16 * j]);
            b[j] = two.x;
            b[j + 1] = two.y;
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int j = 0; j < 6; j++)
                sum[i][j] = fmaf(a[i], b[j], sum[i][j]);
    }
}

__device__ __forceinline__ void store_f32(const ConvProblem &p, int64_t at, int first, const float (&sum)[6])
{
    const float *add = (const float *)p.add + at;
    float *y = (float *)p.y + at, out[6];
#pragma unroll
    for (int j = 0; j < 6; j++) {
        int channel = first + threadIdx.x % SIDE * 2 + j % 2 + j / 2 * 32;
        out[j] = sum[j];
        if (channel >= p.out_channels)
            continue;
        if (p.bias)
            out[j] += p.bias[channel];
        if (p.add)
            out[j] += add[channel];
    }
#pragma unroll
    for (int j = 0; j < 6; j++) {
        int channel = first + threadIdx.x % SIDE * 2 + j % 2 + j / 2 * 32;
        if (channel < p.out_channels)
            y[channel] = out[j];
    }
}

/* Grid: tiles; the `across` tiles of the same pixels are neighbours. */
template <bool WHOLE>
__global__ void __launch_bounds__(F32_THREADS, 2)
    conv_f32_kernel(const __grid_constant__ ConvProblem p, int across)
{
    __shared__ __align__(16) F32Stage stage[2];
    int64_t first_pixel = (int64_t)(blockIdx.x / across) * F32_PIXELS;
    int first_channel = (int)(blockIdx.x % across) * F32_WIDTH;
    int steps = (p.depth + F32_STEP - 1) / F32_STEP;
    float sum[8][6] = {};
    F32Loader loader = f32_loader(p, first_pixel, first_channel);
    load_parts<WHOLE>(p, &loader);
    store_parts(loader, &stage[0]);
    for (int step = 0; step < steps; step++) {
        __syncthreads();
        if (step + 1 < steps)
            load_parts<WHOLE>(p, &loader);
        multiply_stage(stage[step % 2], sum);
        if (step + 1 < steps)
            store_parts(loader, &stage[(step + 1) % 2]);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int64_t pixel = first_pixel + threadIdx.x / SIDE * 4 + i % 4 + i / 4 * 64;
        if (pixel < p.pixels)
            store_f32(p, output_offset(p, pixel), first_channel, sum[i]);
    }
}

} // namespace

DsvStatus conv_f32(DsviStream *stream, const ConvProblem &problem)
{
    int64_t across = ceil_div(problem.out_channels, F32_WIDTH);
    int64_t tiles = ceil_div(problem.pixels, F32_PIXELS) * across;
    auto *kernel = problem.chunks ? conv_f32_kernel<true> : conv_f32_kernel<false>;
    if (tiles > INT32_MAX)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "conv: %lld tiles of y, expected at most %d", (long long)tiles,
                         INT32_MAX);
    DSVI_CUDA_LAUNCH(stream, "conv in F32", kernel, (unsigned)tiles, F32_THREADS, 0, problem, (int)across);
    return DSV_OK;
}

} // namespace dsvi
