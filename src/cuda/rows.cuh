/* Kernels over rows of channels that stay in registers between the passes over them.
 *
 * The x threads of a block share a row, each with ROW_CHANNELS of its channels in vectors of N: vector v of
 * thread t begins at channel N (v x + t), the same in every row that the block walks, so that what belongs to
 * a channel stays with its thread. Short rows are a warp's, and the warps of a block, along y, walk rows of
 * their own without barriers. */
#ifndef DSVI_ROWS_CUH
#define DSVI_ROWS_CUH

#include "cuda/kernel.cuh"

namespace dsvi {

constexpr int ROW_CHANNELS = 16; /* of a thread */
/* Threads of a row at most: what the registers of 65536 allow kernels that hold one row, and two (or one and
 * its angles). */
constexpr int ROW_THREADS = 1024;
constexpr int TWO_ROWS_THREADS = 512;
constexpr int ROW_WARPS = 4;     /* of a block whose rows are a warp's */

/* For any row at all: its threads where it is read anew for each pass. */
constexpr int LONG_ROW_THREADS = 256;

/* A row of this thread's channels. */
template <int N> using RowPart = float[ROW_CHANNELS / N][N];

template <int N> __device__ __forceinline__ int row_channel(int vector)
{
    return (vector * (int)blockDim.x + (int)threadIdx.x) * N;
}

/* The tokens of a sample that this thread walks: from the first on, a step apart. */
__device__ __forceinline__ int64_t row_first_token()
{
    return (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
}

__device__ __forceinline__ int64_t row_token_step()
{
    return (int64_t)gridDim.x * blockDim.y;
}

/* This thread's channels of `row`, 0 past its end; channels is a multiple of N. */
template <int N, typename T>
__device__ __forceinline__ void load_row(const T *row, int channels, RowPart<N> &x)
{
#pragma unroll
    for (int v = 0; v < ROW_CHANNELS / N; v++) {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[v][i] = 0.f;
        if (row_channel<N>(v) < channels)
            load_vector<N>(row + row_channel<N>(v), x[v]);
    }
}

template <int N, typename T>
__device__ __forceinline__ void store_row(T *row, int channels, const RowPart<N> &x)
{
#pragma unroll
    for (int v = 0; v < ROW_CHANNELS / N; v++)
        if (row_channel<N>(v) < channels)
            store_vector<N>(row + row_channel<N>(v), x[v]);
}

/* A row of this thread's channels as it lies in memory: nothing waits for it before it is unpacked. */
template <int N, typename T> struct RawPart {
    Vector<N, T> vector[ROW_CHANNELS / N];
};

template <int N, typename T>
__device__ __forceinline__ void load_raw(const T *row, int channels, RawPart<N, T> &x)
{
#pragma unroll
    for (int v = 0; v < ROW_CHANNELS / N; v++) {
        x.vector[v] = Vector<N, T>();
        if (row_channel<N>(v) < channels)
            x.vector[v] = *reinterpret_cast<const Vector<N, T> *>(row + row_channel<N>(v));
    }
}

template <int N, typename T>
__device__ __forceinline__ void unpack_row(const RawPart<N, T> &raw, RowPart<N> &x)
{
#pragma unroll
    for (int v = 0; v < ROW_CHANNELS / N; v++)
        unpack<N>(raw.vector[v], x[v]);
}

/* This thread's channels of `row` become `x`. */
template <int N> __device__ __forceinline__ void fill_row(float *row, int channels, float x)
{
    RowPart<N> all;
#pragma unroll
    for (int v = 0; v < ROW_CHANNELS / N; v++)
#pragma unroll
        for (int i = 0; i < N; i++)
            all[v][i] = x;
    store_row<N>(row, channels, all);
}

/* Copies this thread's channels of `row`, plus `offset`, to shared memory. No other thread reads them there:
 * no barrier is wanted. */
template <int N>
__device__ __forceinline__ void keep_row(float *shared, const float *row, int channels, float offset)
{
    RowPart<N> x;
    load_row<N>(row, channels, x);
#pragma unroll
    for (int v = 0; v < ROW_CHANNELS / N; v++)
#pragma unroll
        for (int i = 0; i < N; i++)
            x[v][i] += offset;
    store_row<N>(shared, channels, x);
}

/* Every thread of a row gets the sum over its threads. All threads of the block take part; `shared` holds a
 * float for each warp and may be used again after the next barrier. */
__device__ __forceinline__ float row_sum(float x, float *shared)
{
    return blockDim.x == WARP ? warp_sum(x) : block_sum(x, shared);
}

/* Two sums for one barrier. */
__device__ __forceinline__ float2 row_sum(float2 x, float2 *shared)
{
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    x = make_float2(warp_sum(x.x), warp_sum(x.y));
    if (blockDim.x == WARP)
        return x;
    if (lane == 0)
        shared[warp] = x;
    __syncthreads();
    x = lane < warps ? shared[lane] : make_float2(0.f, 0.f);
    return make_float2(warp_sum(x.x), warp_sum(x.y));
}

/* The threads of a block: along x those of a row, along y rows. */
static inline dim3 row_block(int64_t channels)
{
    int64_t threads = ceil_div(ceil_div(channels, ROW_CHANNELS), WARP) * WARP;
    return dim3((unsigned)threads, threads == WARP ? ROW_WARPS : 1);
}

/* Bytes of shared memory that keep `count` rows for each row that a block walks at once. */
static inline size_t kept_bytes(int64_t channels, int64_t count)
{
    return (size_t)(count * channels * row_block(channels).y) * sizeof(float);
}

/* Whether rows go through registers: vectors of N, `threads` to a row at most, `kept` bytes of shared memory
 * beside the little that kernels declare themselves. */
static inline bool row_fits(const DsvStream *stream, int64_t channels, int64_t n, int64_t threads,
                            size_t kept)
{
    return channels <= threads * ROW_CHANNELS && channels % n == 0 && kept + 1024 <= stream->shared_bytes;
}

/* A grid that the device holds all at once, of `most` blocks at most: samples along y, shares of their tokens
 * along x. There may be more samples than blocks. `kernel` takes `shared` bytes that it is launched with. */
template <typename Kernel>
static DsvStatus row_grid(const DsvStream *stream, Kernel kernel, dim3 block, size_t shared, int64_t samples,
                          int64_t tokens, int64_t most, dim3 *grid)
{
    int resident = 0;
    if (shared > 0)
        DSVI_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    DSVI_CUDA_TRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, (int)(block.x * block.y),
                                                                shared));
    int64_t blocks = (int64_t)resident * stream->multiprocessors;
    blocks = blocks < most ? blocks : most;
    blocks = blocks > 1 ? blocks : 1;
    int64_t y = samples < blocks ? samples : blocks, x = ceil_div(tokens, block.y);
    y = blocks_in_turn(y);
    *grid = dim3((unsigned)(x < blocks / y ? x : blocks / y), (unsigned)y);
    return DSV_OK;
}

/* Blocks for `rows` rows of any length. */
static inline unsigned long_row_blocks(const DsvStream *stream, int64_t rows)
{
    int64_t most = (int64_t)8 * stream->multiprocessors;
    return (unsigned)(rows < most ? rows : most);
}

} // namespace dsvi

#endif
