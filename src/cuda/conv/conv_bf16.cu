/* Convolution in BF16 on tensor cores, for GPUs from Ampere on (conv.cuh): a tile of pixels and channels of y
 * for each thread block, and a ring of stages in shared memory that cp.async fills ahead of the products.
 *
 * A step of the sum has STEP products. A thread copies the same chunk of eight products of several pixels, so
 * it walks through taps and channels once for all of them. A step may hold several taps, and a tap any number
 * of channels. If x is not whole chunks of 16 bytes, for example with three channels, threads copy single
 * elements through registers.
 *
 *     tile (pixels x channels)   warps (their tiles)     shared memory    for channels of y
 *     128 x 192                  2 x 4 (64 x 48)         80 KiB           192, 384, 768
 *     128 x 96                   2 x 2 (64 x 48)         56 KiB           96
 *     256 x 32                   8 x 1 (32 x 32)         72 KiB           1 to 32 */
#include "cuda/common/tensor_tile.cuh"
#include "cuda/conv/conv.cuh"

namespace dsvi {
namespace {

constexpr int STEP = 32, STAGES = 4, CHUNKS = STEP / 8;

/* Constants of a tile of DOWN x ACROSS warps. A warp has 16 BLOCKS pixels and 8 COLUMNS channels. */
template <int DOWN, int ACROSS, int BLOCKS_, int COLUMNS_> struct ConvTile {
    static constexpr int BLOCKS = BLOCKS_, COLUMNS = COLUMNS_, THREADS = DOWN * ACROSS * WARP;
    static constexpr int WARPS_DOWN = DOWN, PIXELS = DOWN * BLOCKS * 16, WIDTH = ACROSS * COLUMNS * 8;
    static constexpr int LEFT_BYTES = PIXELS * STEP * 2, STAGE_BYTES = LEFT_BYTES + WIDTH * STEP * 2;
    static constexpr int SHARED = STAGES * STAGE_BYTES, LINES = THREADS / CHUNKS;
    static_assert(SHARED <= SHARED_LEAST, "a thread block fits on every supported GPU");
    static_assert(PIXELS % LINES == 0 && (WIDTH % LINES == 0 || WIDTH < LINES),
                  "threads copy the same number of lines");
    static_assert(COLUMNS % 2 == 0, "a load from shared memory has 16 columns");
};

using Wide = ConvTile<2, 4, 4, 6>;
using Middle = ConvTile<2, 2, 4, 6>;
using Narrow = ConvTile<8, 1, 2, 4>;

/* Copies eight elements, from a place of the sum on, that are at any alignment in x. */
__device__ __forceinline__ void copy_places(const ConvProblem &p, const ConvCorner &corner, ConvPlace place,
                                            uint32_t to)
{
    const unsigned short *x = (const unsigned short *)p.x;
    uint32_t bits[4] = {};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (holds(p, corner, place))
            bits[i / 2] |= (uint32_t)x[corner.offset + place_offset(p, place)] << i % 2 * 16;
        advance_place(p, 1, &place);
    }
    store_chunk(to, bits);
}

/* What a thread copies: the chunk of eight products from `place` on, for lines of pixels and of channels. */
template <typename C> struct Copier {
    ConvPlace place;
    int number; /* of the first product of the chunk */
    int line, chunk, first_channel;
    ConvCorner corner[C::PIXELS / C::LINES];
};

template <typename C>
__device__ __forceinline__ void begin_copies(const ConvProblem &p, int64_t first_pixel, int first_channel,
                                             Copier<C> *copier)
{
    copier->line = threadIdx.x / CHUNKS;
    copier->chunk = threadIdx.x % CHUNKS;
    copier->first_channel = first_channel;
    copier->number = copier->chunk * 8;
    copier->place = place_at(p, copier->number);
#pragma unroll
    for (int i = 0; i < C::PIXELS / C::LINES; i++)
        copier->corner[i] = corner_at(p, first_pixel + copier->line + i * C::LINES);
}

/* Begins the copies of the next step to a stage. */
template <typename C, bool WHOLE>
__device__ __forceinline__ void copy_step(const ConvProblem &p, uint32_t stage, Copier<C> *copier)
{
    int64_t offset = place_offset(p, copier->place);
#pragma unroll
    for (int i = 0; i < C::PIXELS / C::LINES; i++) {
        uint32_t to = stage + chunk_at<STEP>(copier->line + i * C::LINES, copier->chunk);
        const ConvCorner &corner = copier->corner[i];
        bool there = WHOLE && holds(p, corner, copier->place);
        if (WHOLE)
            copy_shared_chunk(to, (const __nv_bfloat16 *)p.x + (there ? corner.offset + offset : 0), there);
        else
            copy_places(p, corner, copier->place, to);
    }
#pragma unroll
    for (int i = 0; i < (C::WIDTH + C::LINES - 1) / C::LINES; i++) {
        int line = copier->line + i * C::LINES, channel = copier->first_channel + line;
        if (line >= C::WIDTH)
            continue;
        uint32_t to = stage + C::LEFT_BYTES + chunk_at<STEP>(line, copier->chunk);
        int count = channel < p.out_channels ? p.depth - copier->number : 0;
        const __nv_bfloat16 *from = (const __nv_bfloat16 *)p.weight;
        if (count > 0)
            from += (int64_t)channel * p.depth + copier->number;
        if (WHOLE)
            copy_chunk(to, from, count > 0);
        else
            copy_elements(to, from, count < 8 ? count : 8);
    }
    copier->number += STEP;
    advance_place(p, STEP, &copier->place);
}

/* Adds the products of one step to the sums of a warp. The blocks of the second half of the step are loaded
 * before the first half is multiplied. */
template <typename C>
__device__ __forceinline__ void multiply_step(float (&sum)[C::BLOCKS][C::COLUMNS][4], Lanes left, Lanes right)
{
    uint32_t a[STEP / 16][C::BLOCKS][4], b[STEP / 16][C::COLUMNS / 2][4];
#pragma unroll
    for (int k = 0; k < STEP / 16; k++) {
#pragma unroll
        for (int i = 0; i < C::BLOCKS; i++)
            load_block(a[k][i], block_at<STEP>(left, 16 * i, 16 * k));
#pragma unroll
        for (int j = 0; j < C::COLUMNS / 2; j++)
            load_block(b[k][j], block_at<STEP>(right, 16 * j, 16 * k));
    }
#pragma unroll
    for (int k = 0; k < STEP / 16; k++)
#pragma unroll
        for (int j = 0; j < C::COLUMNS; j++)
#pragma unroll
            for (int i = 0; i < C::BLOCKS; i++)
                multiply_add(sum[i][j], a[k][i], b[k][j / 2][j % 2 * 2], b[k][j / 2][j % 2 * 2 + 1]);
}

/* Grid: tiles; the `across` tiles of the same pixels are neighbours, so that they share x in the L2 cache. */
template <typename C, bool WHOLE>
__global__ void __launch_bounds__(C::THREADS)
    conv_bf16_kernel(const __grid_constant__ ConvProblem p, int across)
{
    extern __shared__ __align__(128) unsigned char shared[];
    uint32_t base = shared_address(shared);
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int down = warp % C::WARPS_DOWN * C::BLOCKS * 16, right = warp / C::WARPS_DOWN * C::COLUMNS * 8;
    int64_t first_pixel = (int64_t)(blockIdx.x / across) * C::PIXELS;
    int first_channel = (int)(blockIdx.x % across) * C::WIDTH;
    int steps = (p.depth + STEP - 1) / STEP;
    float sum[C::BLOCKS][C::COLUMNS][4] = {};
    Copier<C> copier;
    begin_copies(p, first_pixel, first_channel, &copier);
    for (int step = 0; step < STAGES - 1; step++) {
        if (step < steps)
            copy_step<C, WHOLE>(p, base + step * C::STAGE_BYTES, &copier);
        close_copies();
    }
    for (int step = 0; step < steps; step++) {
        uint32_t stage = base + step % STAGES * C::STAGE_BYTES;
        wait_for_copies<STAGES - 2>();
        __syncthreads();
        if (step + STAGES - 1 < steps)
            copy_step<C, WHOLE>(p, base + (step + STAGES - 1) % STAGES * C::STAGE_BYTES, &copier);
        close_copies();
        multiply_step<C>(sum, lanes_down<STEP>(stage, down),
                         lanes_across<STEP>(stage + C::LEFT_BYTES, right));
    }
#pragma unroll
    for (int i = 0; i < 2 * C::BLOCKS; i++) {
        int64_t pixel = first_pixel + down + 8 * i + lane / 4;
        float row[C::COLUMNS][2];
#pragma unroll
        for (int j = 0; j < 2 * C::COLUMNS; j++)
            row[j / 2][j % 2] = sum[i / 2][j / 2][i % 2 * 2 + j % 2];
        if (pixel < p.pixels)
            store_pixel(p, first_channel + right, output_offset(p, pixel) + first_channel + right, row);
    }
}

template <typename C> DsvStatus launch_conv_bf16(DsviStream *stream, const ConvProblem &p)
{
    auto *kernel = p.chunks ? conv_bf16_kernel<C, true> : conv_bf16_kernel<C, false>;
    int64_t across = ceil_div(p.out_channels, C::WIDTH), tiles = ceil_div(p.pixels, C::PIXELS) * across;
    if (tiles > INT32_MAX)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "conv: %lld tiles of y, expected at most %d", (long long)tiles,
                         INT32_MAX);
    DSVI_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, C::SHARED));
    DSVI_CUDA_LAUNCH(stream, "conv in BF16", kernel, (unsigned)tiles, C::THREADS, C::SHARED, p, (int)across);
    return DSV_OK;
}

} // namespace

DsvStatus conv_bf16(DsviStream *stream, const ConvProblem &problem)
{
    int width = tile_width(problem, {Narrow::WIDTH, Middle::WIDTH, Wide::WIDTH});
    auto *launch = width == Wide::WIDTH     ? launch_conv_bf16<Wide>
                   : width == Middle::WIDTH ? launch_conv_bf16<Middle>
                                            : launch_conv_bf16<Narrow>;
    return launch(stream, problem);
}

} // namespace dsvi
