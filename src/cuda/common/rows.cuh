/* Helpers of kernels that keep rows of channels in registers between several passes over them, such as norms.
 *
 * The blockDim.x threads along x share a row. Each has ROW_CHANNELS of its channels in vectors of N: vector v
 * of thread t begins at channel N (v blockDim.x + t). A thread has the same channels in every row that the
 * block processes, so it can keep sums and weights of its channels in registers. A short row has one warp,
 * and the warps of a block, along y, process different rows without barriers. */
#ifndef DSVI_ROWS_CUH
#define DSVI_ROWS_CUH

#include "cuda/common/kernel.cuh"

namespace dsvi {

constexpr int ROW_CHANNELS = 16; /* channels of a row that one thread holds */
/* Largest number of threads that share a row, limited by the 65536 registers of a multiprocessor:
 * ROW_THREADS for kernels that hold one row in registers, TWO_ROWS_THREADS for kernels that hold two (or one
 * and its rotation angles). */
constexpr int ROW_THREADS = 1024;
constexpr int TWO_ROWS_THREADS = 512;
constexpr int ROW_WARPS = 4; /* warps (and rows) of a thread block if each row has one warp */

/* Threads of a thread block for rows of any length, which do not fit in registers and are read again in each
 * pass. */
constexpr int LONG_ROW_THREADS = 256;

/* Channels in 16 bytes of a row of type T. A kernel with rows of T has N = ROW_VECTOR<T> as a parameter of
 * its template: a constant N in its body makes the front end of CUDA 12.8 crash at RowPart<N>. */
template <typename T> constexpr int ROW_VECTOR = 16 / (int)sizeof(T);

/* The channels of a row that one thread holds, in vectors of N. */
template <int N> using RowPart = float[ROW_CHANNELS / N][N];

/* Returns the first channel of this thread's vector number `vector`. */
template <int N> __device__ __forceinline__ int row_channel(int vector)
{
    return (vector * (int)blockDim.x + (int)threadIdx.x) * N;
}

/* The tokens of a sample of the batch that this thread processes begin with row_first_token and are
 * row_token_step apart. */
__device__ __forceinline__ int64_t row_first_token()
{
    return (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
}

__device__ __forceinline__ int64_t row_token_step()
{
    return (int64_t)gridDim.x * blockDim.y;
}

/* Loads this thread's channels of `row` into x; channels past the end of the row become 0. `channels` is the
 * length of the row, a multiple of N. */
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

/* This thread's channels of a row, in the type that memory has. No instruction waits for the loads until
 * unpack_row converts the channels. */
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

/* Sets this thread's channels of `row` to `x`. */
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

/* Copies this thread's channels of `row`, plus `offset`, to shared memory. Only this thread reads them from
 * shared memory, so no barrier is needed. */
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

/* Returns the sum of x over the threads that share a row. All threads of the block must call; `shared` has
 * room for a float for each warp and may be reused after the next barrier. */
__device__ __forceinline__ float row_sum(float x, float *shared)
{
    return blockDim.x == WARP ? warp_sum(x) : block_sum(x, shared);
}

/* Returns the largest x of the threads that share a row, like row_sum. */
__device__ __forceinline__ float row_max(float x, float *shared)
{
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    x = warp_max(x);
    if (blockDim.x == WARP)
        return x;
    if (lane == 0)
        shared[warp] = x;
    __syncthreads();
    return warp_max(lane < warps ? shared[lane] : x);
}

/* Returns the sums of x.x and of x.y over the threads that share a row, with one barrier for both sums. */
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

/* Returns the shape of a thread block for rows of `channels` channels: x is the number of threads that share
 * a row, y the number of rows. */
static inline dim3 row_block(int64_t channels)
{
    int64_t threads = ceil_div(ceil_div(channels, ROW_CHANNELS), WARP) * WARP;
    return dim3((unsigned)threads, threads == WARP ? ROW_WARPS : 1);
}

/* Returns the bytes of shared memory that hold `count` arrays of `channels` floats for each row that a
 * thread block processes at the same time. */
static inline size_t kept_bytes(int64_t channels, int64_t count)
{
    return (size_t)(count * channels * row_block(channels).y) * sizeof(float);
}

/* Returns whether rows of `channels` channels can be kept in registers, in vectors of n elements, with at
 * most `threads` threads for a row and `kept` bytes of dynamic shared memory. 1 KiB of shared memory is left
 * for what kernels declare statically. */
static inline bool row_fits(const DsviStream *stream, int64_t channels, int64_t n, int64_t threads,
                            size_t kept)
{
    return channels <= threads * ROW_CHANNELS && channels % n == 0 && kept + 1024 <= stream->shared_bytes;
}

/* Sets *grid to thread blocks that are all resident at the same time, at most `blocks_max` of them. x:
 * ranges of a sample's tokens; y: samples of the batch, of which there may be more than thread blocks, so
 * kernels loop over them. `shared` is the dynamic shared memory of `kernel` in bytes. */
template <typename Kernel>
static DsvStatus row_grid(const DsviStream *stream, Kernel kernel, dim3 block, size_t shared, int64_t samples,
                          int64_t tokens, int64_t blocks_max, dim3 *grid)
{
    int resident = 0;
    if (shared > 0)
        DSVI_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    DSVI_CUDA_TRY(
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, (int)(block.x * block.y), shared));
    int64_t blocks = (int64_t)resident * stream->multiprocessors;
    blocks = blocks < blocks_max ? blocks : blocks_max;
    blocks = blocks > 1 ? blocks : 1;
    int64_t y = samples < blocks ? samples : blocks, x = ceil_div(tokens, block.y);
    y = blocks_in_turn(y);
    *grid = dim3((unsigned)(x < blocks / y ? x : blocks / y), (unsigned)y);
    return DSV_OK;
}

/* Returns the number of thread blocks for `rows` rows that are too long for registers. */
static inline unsigned long_row_blocks(const DsviStream *stream, int64_t rows)
{
    int64_t blocks_max = (int64_t)8 * stream->multiprocessors;
    return (unsigned)(rows < blocks_max ? rows : blocks_max);
}

} // namespace dsvi

#endif
