/* Convolution in BF16 on Hopper (conv.cuh), for strides of 1 along rows and columns, at most ROW_TAPS taps
 * along rows, and channels that are a multiple of 8. TMA copies boxes of x and of the weight to shared
 * memory and fills what is outside them with zeros, and two warpgroups multiply (wgmma).
 *
 * A tile of y has 16 x 16 pixels of one frame and WIDTH channels. The sum of an element runs, from the
 * outermost to the innermost loop, over
 *     frame taps, 64 channels of x at a time, column taps, row taps, 16 channels at a time
 * For one frame tap, 64 channels and one column tap, the producer copies a patch: a box of 16 columns and 16
 * + row taps - 1 rows of x. A row of the patch, 16 pixels of 64 channels, is two atoms (hopper.cuh), so the
 * left factor of row tap b begins 2 b atoms after the beginning of the patch: one patch serves all row taps.
 * For each row tap, the producer copies a slice of the weight: WIDTH channels of y, 64 channels of x.
 *
 *     shared memory   PATCHES stages of 36 KiB, SLICES stages of WIDTH x 128 bytes, barriers
 *     WIDTH 192       3 x 36 + 4 x 24 = 204 KiB, of 227
 *     warpgroups      one producer; two consumers with 8 rows of the tile each: two products of 64 pixels
 *     registers       a consumer thread has WIDTH for sums: 128 x (40 + 2 x 232) = 64512 of 65536
 *
 * One thread block stays resident on each multiprocessor and processes one tile after the other; tiles of the
 * same pixels are neighbours. The producer runs ahead into the next tile while consumers store a tile.
 *
 * Limits for WIDTH 192 and three row taps: a patch and its slices are 108 KiB for 18.9 MFLOP, 170 FLOPs a
 * byte. The L2 cache delivers about 5.5 TB/s, which allows more than the tensor cores' 990 TFLOP/s. */
#include "cuda/common/hopper.cuh"
#include "cuda/common/hopper_ring.cuh"
#include "cuda/common/tensor_map.cuh"
#include "cuda/conv/conv.cuh"

namespace dsvi {
namespace {

using namespace hopper;

constexpr int SIDE = 16, CONSUMERS = 2, THREADS = WARPGROUP * (1 + CONSUMERS), ROW_TAPS = 3;
constexpr int LINE_CHANNELS = LINE_BYTES / 2, PRODUCT_CHANNELS = 16;
constexpr int PATCH_ROW_BYTES = SIDE * LINE_BYTES, PATCH_BYTES = (SIDE + ROW_TAPS - 1) * PATCH_ROW_BYTES;
/* Bytes from 64 pixels of a patch to the next 64. */
constexpr int PRODUCT_BYTES = 64 * LINE_BYTES;
constexpr int PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232;

static_assert(WARPGROUP * (PRODUCER_REGISTERS + CONSUMERS * CONSUMER_REGISTERS) <= 65536,
              "registers of a multiprocessor");
static_assert(LINE_CHANNELS == 4 * PRODUCT_CHANNELS, "multiply_tap has cases for one to four products");
static_assert(SIDE / CONSUMERS * PATCH_ROW_BYTES == 2 * PRODUCT_BYTES, "a consumer has two products");
static_assert(PATCH_ROW_BYTES % ATOM_BYTES == 0 && PATCH_BYTES % ATOM_BYTES == 0, "patches are atoms");

/* Constants of tiles of WIDTH channels. */
template <int WIDTH_> struct Hopper {
    static constexpr int WIDTH = WIDTH_, PATCHES = 3, SLICES = WIDTH == 192 ? 4 : 6;
    static constexpr int SLICE_BYTES = WIDTH * LINE_BYTES, SLICES_AT = PATCHES * PATCH_BYTES;
    static constexpr int BARRIERS_AT = SLICES_AT + SLICES * SLICE_BYTES;
    static constexpr int SHARED = BARRIERS_AT + 2 * (PATCHES + SLICES) * 8;
    static_assert(SHARED <= 227 * 1024, "shared memory of a thread block");
    static_assert(SLICE_BYTES % ATOM_BYTES == 0, "slices are atoms");
};

/* TMA descriptors of x, a tensor (frames, rows, columns, channels), and of the weight, (channels of y, taps,
 * channels of x). */
struct ConvMaps {
    CUtensorMap x, weight;
};

/* Shared memory of a thread block. Each stage has a barrier "full", at which TMA arrives, and a barrier
 * "empty", at which the consumers' warps arrive. */
template <typename C> struct ConvMemory {
    uint32_t base;
    __device__ uint32_t patch(int stage) const { return base + stage * PATCH_BYTES; }
    __device__ uint32_t slice(int stage) const { return base + C::SLICES_AT + stage * C::SLICE_BYTES; }
    __device__ uint32_t patch_full(int stage) const { return base + C::BARRIERS_AT + 16 * stage; }
    __device__ uint32_t slice_full(int stage) const { return patch_full(C::PATCHES + stage); }
    /* Returns the barrier "empty" of the stage with this barrier "full". */
    __device__ static uint32_t empty_of(uint32_t full) { return full + 8; }
    /* Announces to the producer that this warp no longer reads a stage. */
    __device__ static void release(uint32_t full)
    {
        if (elected())
            barrier_arrive(empty_of(full));
    }
};

/* Numbers of tiles along each axis of y. */
struct ConvGrid {
    int channels, columns, rows, all;
};

/* First channel, column, row, and the frame of a tile of y. */
struct ConvTileAt {
    int channel, w, h, t;
};

template <typename C> __device__ __forceinline__ ConvTileAt tile_at(const ConvGrid &grid, int number)
{
    ConvTileAt tile;
    tile.channel = number % grid.channels * C::WIDTH;
    number /= grid.channels;
    tile.w = number % grid.columns * SIDE;
    number /= grid.columns;
    tile.h = number % grid.rows * SIDE;
    tile.t = number / grid.rows;
    return tile;
}

/* ---- producer: one thread ---- */

template <typename C>
__device__ void produce(const ConvProblem &p, const ConvGrid &grid, const ConvMaps &maps,
                        const ConvMemory<C> &memory)
{
    /* The "empty" barrier of a stage completes its first phase when the stage has been used once, so the wait
     * before the first use must pass at once: it is for the phase before the first, of parity 1. */
    Ring<C::PATCHES> patch = {0, 1};
    Ring<C::SLICES> slice = {0, 1};
    int patch_bytes = (SIDE + p.kernel[1] - 1) * PATCH_ROW_BYTES;
    for (int number = blockIdx.x; number < grid.all; number += gridDim.x) {
        ConvTileAt tile = tile_at<C>(grid, number);
        for (int a = 0; a < p.kernel[0]; a++) {
            for (int channel = 0; channel < p.channels; channel += LINE_CHANNELS) {
                for (int c = 0; c < p.kernel[2]; c++) {
                    uint32_t full = memory.patch_full(patch.stage);
                    barrier_wait(memory.empty_of(full), patch.parity);
                    barrier_arrive_expecting(full, patch_bytes);
                    copy_box(memory.patch(patch.stage), &maps.x, channel, tile.w + c - p.pad[2],
                             tile.h - p.pad[1], tile.t * p.stride[0] + a - p.pad[0], full);
                    advance(&patch);
                    for (int b = 0; b < p.kernel[1]; b++) {
                        full = memory.slice_full(slice.stage);
                        barrier_wait(memory.empty_of(full), slice.parity);
                        barrier_arrive_expecting(full, C::SLICE_BYTES);
                        copy_box(memory.slice(slice.stage), &maps.weight, channel,
                                 (a * p.kernel[1] + b) * p.kernel[2] + c, tile.channel, 0, full);
                        advance(&slice);
                    }
                }
            }
        }
    }
}

/* ---- consumers ---- */

/* Sums of a thread for the two products of 64 pixels of its warpgroup. */
template <typename C> using Sums = float[2][C::WIDTH / 2];

/* Issues the products of one row tap for 16 COUNT channels. `left` and `right` describe the patch's lines of
 * this warpgroup for the row tap, and the slice. */
template <typename C, int COUNT>
__device__ __forceinline__ void multiply_channels(Sums<C> &sum, uint64_t left, uint64_t right, bool add)
{
    products_begin();
#pragma unroll
    for (int k = 0; k < COUNT; k++) {
        uint32_t inside = k * PRODUCT_CHANNELS * 2 / 16;
        multiply(sum[0], left + inside, right + inside, add || k > 0);
        multiply(sum[1], left + PRODUCT_BYTES / 16 + inside, right + inside, add || k > 0);
    }
    products_commit();
}

/* Issues the products of one row tap for `count` times 16 channels, 1 <= count <= 4. */
template <typename C>
__device__ __forceinline__ void multiply_tap(Sums<C> &sum, uint64_t left, uint64_t right, int count, bool add)
{
    if (count == 4)
        multiply_channels<C, 4>(sum, left, right, add);
    else if (count == 3)
        multiply_channels<C, 3>(sum, left, right, add);
    else if (count == 2)
        multiply_channels<C, 2>(sum, left, right, add);
    else
        multiply_channels<C, 1>(sum, left, right, add);
}

/* Where a consumer is in the rings, and the stages that it has not released yet because products may still
 * read them. */
template <typename C> struct Consumer {
    Ring<C::PATCHES> patch;
    Ring<C::SLICES> slice;
};

/* Sums the products of a tile. The products of a row tap run while the next ones are issued; a stage is
 * released one row tap after the last products that read it were issued. */
template <typename C>
__device__ __forceinline__ void sum_tile(const ConvProblem &p, const ConvMemory<C> &memory, int rows_at,
                                         Sums<C> &sum, Consumer<C> *at)
{
    uint32_t read_slice = 0, read_patch = 0; /* barriers of the stages to release; 0: none */
    bool add = false;
    for (int outer = 0; outer < p.kernel[0]; outer++) {
        for (int channel = 0; channel < p.channels; channel += LINE_CHANNELS) {
            int count = (min(p.channels - channel, LINE_CHANNELS) + PRODUCT_CHANNELS - 1) / PRODUCT_CHANNELS;
            for (int c = 0; c < p.kernel[2]; c++) {
                uint32_t patch_full = memory.patch_full(at->patch.stage);
                uint32_t patch = memory.patch(at->patch.stage) + rows_at * PATCH_ROW_BYTES;
                barrier_wait_watched(patch_full, at->patch.parity);
                for (int b = 0; b < p.kernel[1]; b++) {
                    uint32_t slice_full = memory.slice_full(at->slice.stage);
                    barrier_wait_watched(slice_full, at->slice.parity);
                    hold(sum[0]);
                    hold(sum[1]);
                    multiply_tap<C>(sum, matrix_at(patch + b * PATCH_ROW_BYTES, ATOM_BYTES, ATOM_BYTES),
                                    matrix_at(memory.slice(at->slice.stage), ATOM_BYTES, ATOM_BYTES), count,
                                    add);
                    add = true;
                    products_wait<1>();
                    if (read_slice)
                        memory.release(read_slice);
                    if (read_patch)
                        memory.release(read_patch);
                    read_slice = slice_full;
                    read_patch = b + 1 == p.kernel[1] ? patch_full : 0;
                    advance(&at->slice);
                }
                advance(&at->patch);
            }
        }
    }
    products_wait<0>();
    hold(sum[0]);
    hold(sum[1]);
    memory.release(read_slice);
    memory.release(read_patch);
}

/* Stores a warp's part of a tile. A row of the tile is 16 pixels, which one warp has in each of its two
 * products. */
template <typename C>
__device__ __forceinline__ void store_sums(const ConvProblem &p, const ConvTileAt &tile, int rows_at,
                                           const Sums<C> &sum)
{
    constexpr int PART = C::WIDTH / 16; /* groups of eight channels that are stored together */
    int lane = threadIdx.x % WARP, warp = threadIdx.x % WARPGROUP / WARP;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int h = tile.h + rows_at + i / 2 * 4 + warp, w = tile.w + i % 2 * 8 + lane / 4;
        if (h >= p.out_height || w >= p.out_width)
            continue;
        int64_t at = tile.t * p.y_frame + h * p.y_row + (int64_t)w * p.out_channels + tile.channel;
#pragma unroll
        for (int part = 0; part < 2; part++) {
            float row[PART][2];
#pragma unroll
            for (int j = 0; j < 2 * PART; j++)
                row[j / 2][j % 2] = sum[i / 2][4 * (part * PART + j / 2) + i % 2 * 2 + j % 2];
            store_pixel(p, tile.channel + part * PART * 8, at + part * PART * 8, row);
        }
    }
}

template <typename C>
__device__ void consume(const ConvProblem &p, const ConvGrid &grid, const ConvMemory<C> &memory, int number)
{
    Consumer<C> at = {{0, 0}, {0, 0}};
    int rows_at = number * (SIDE / CONSUMERS);
    for (int tile = blockIdx.x; tile < grid.all; tile += gridDim.x) {
        Sums<C> sum = {};
        sum_tile<C>(p, memory, rows_at, sum, &at);
        store_sums<C>(p, tile_at<C>(grid, tile), rows_at, sum);
    }
}

template <typename C>
__global__ void __launch_bounds__(THREADS, 1)
    conv_sm90_kernel(const __grid_constant__ ConvProblem p, const __grid_constant__ ConvGrid grid,
                     const __grid_constant__ ConvMaps maps)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) unsigned char shared[];
    ConvMemory<C> memory = {shared_address(shared)};
    int warpgroup = agreed(threadIdx.x / WARPGROUP);
    if (threadIdx.x == 0) {
        if (memory.base % ATOM_BYTES != 0)
            __trap();
        for (int stage = 0; stage < C::PATCHES + C::SLICES; stage++) {
            barrier_init(memory.patch_full(stage), 1);
            barrier_init(memory.empty_of(memory.patch_full(stage)), CONSUMERS * WARPGROUP / WARP);
        }
        fence_fresh_barriers();
    }
    __syncthreads();
    if (warpgroup == 0) {
        give_registers<PRODUCER_REGISTERS>();
        if (threadIdx.x < WARP && elected())
            produce<C>(p, grid, maps, memory);
    } else {
        take_registers<CONSUMER_REGISTERS>();
        consume<C>(p, grid, memory, warpgroup - 1);
    }
#endif
}

/* Makes a descriptor of a tensor of four dimensions, channels first; `pitch` is in elements. Returns false
 * if TMA does not support it. */
bool make_conv_map(MapEncoder encode, const void *data, const int64_t (&size)[4], const int64_t (&pitch)[3],
                   const int (&box)[4], CUtensorMap *map)
{
    cuuint64_t sizes[4], pitches[3];
    cuuint32_t boxes[4], steps[4] = {1, 1, 1, 1};
    for (int i = 0; i < 4; i++) {
        sizes[i] = (cuuint64_t)size[i];
        boxes[i] = (cuuint32_t)box[i];
    }
    for (int i = 0; i < 3; i++) {
        if (pitch[i] <= 0)
            return false;
        pitches[i] = 2 * (cuuint64_t)pitch[i];
    }
    return encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, (void *)data, sizes, pitches, boxes, steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

bool make_conv_maps(const ConvProblem &p, int width, ConvMaps *maps)
{
    MapEncoder encode = find_encoder();
    int64_t taps = (int64_t)p.kernel[0] * p.kernel[1] * p.kernel[2];
    const int64_t size[4] = {p.channels, p.width, p.height, p.frames};
    const int64_t pitch[3] = {p.channels, p.height > 1 ? p.x_row : p.channels,
                              p.frames > 1 ? p.x_frame : p.channels};
    const int box[4] = {LINE_CHANNELS, SIDE, SIDE + p.kernel[1] - 1, 1};
    const int64_t weight_size[4] = {p.channels, taps, p.out_channels, 1};
    const int64_t weight_pitch[3] = {p.channels, p.depth, p.depth};
    const int weight_box[4] = {LINE_CHANNELS, 1, width, 1};
    return encode && make_conv_map(encode, p.x, size, pitch, box, &maps->x) &&
           make_conv_map(encode, p.weight, weight_size, weight_pitch, weight_box, &maps->weight);
}

template <typename C> DsvStatus launch_conv_sm90(DsviStream *stream, const ConvProblem &p, bool *refused)
{
    ConvMaps maps;
    ConvGrid grid;
    *refused = !make_conv_maps(p, C::WIDTH, &maps);
    if (*refused)
        return DSV_OK;
    grid.channels = (int)ceil_div(p.out_channels, C::WIDTH);
    grid.columns = (int)ceil_div(p.out_width, SIDE);
    grid.rows = (int)ceil_div(p.out_height, SIDE);
    int64_t all = (int64_t)grid.channels * grid.columns * grid.rows * p.out_frames;
    *refused = all > INT32_MAX / 2;
    if (*refused)
        return DSV_OK;
    grid.all = (int)all;
    int blocks = grid.all < stream->multiprocessors ? grid.all : stream->multiprocessors;
    DSVI_CUDA_TRY(
        cudaFuncSetAttribute(conv_sm90_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, C::SHARED));
    DSVI_CUDA_LAUNCH(stream, "conv on Hopper", conv_sm90_kernel<C>, (unsigned)blocks, THREADS, C::SHARED, p,
                     grid, maps);
    return DSV_OK;
}

} // namespace

DsvStatus conv_sm90(DsviStream *stream, const ConvProblem &p, bool *refused)
{
    *refused = p.kernel[1] > ROW_TAPS || p.stride[1] != 1 || p.stride[2] != 1 || !p.chunks;
    if (*refused)
        return DSV_OK;
    int width = tile_width(p, {32, 96, 128, 192});
    auto *launch = width == 192   ? launch_conv_sm90<Hopper<192>>
                   : width == 128 ? launch_conv_sm90<Hopper<128>>
                   : width == 96  ? launch_conv_sm90<Hopper<96>>
                                  : launch_conv_sm90<Hopper<32>>;
    return launch(stream, p, refused);
}

} // namespace dsvi
