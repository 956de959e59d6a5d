/* Portable attention forward over lists in BF16, for GPUs from Ampere on: online softmax over tiles of keys
 * (Milakov & Gimelshein 2018; Dao et al. 2022) on tensor cores, with keys gathered row by row.
 *
 * Four warps process a tile of queries of one group, 16 BLOCKS queries each. A warp holds its part of S = Q
 * K^T, of P and of O in registers; P, which replaces S, is the left factor of P V without a copy. While one
 * tile of keys is processed, the rows of the next one are copied to the other stage, and the key numbers of
 * the one after that are fetched.
 *     BLOCKS 2   128 queries, 64 keys    groups of more than 64, D up to 128
 *     BLOCKS 1    64 queries, 32 keys    all others
 *     shared memory   Q, then two stages of K and V, then key numbers of four tiles; D = 128: 97 and 48.5 KiB
 *     registers       O 4 BLOCKS D / 8 floats, S 4 BLOCKS keys / 8: 128 and 64 of the 255, D = 128
 * Two such thread blocks fit on a multiprocessor, and one multiplies while the other computes its softmax.
 *
 * Scale times score is rounded (__fmul_rn) before anything is subtracted, here and in the backward pass. So
 * the weight of a query's only large score is exactly 1, however large the score is.
 *
 * The kernel with TAIL = true computes the tail (attention_tail.cuh). */
#include <math.h>

#include "cuda/attention/attention_softmax.cuh"

namespace dsvi {
namespace {

constexpr int WARPS = 4, THREADS = WARPS * WARP;
/* Number of key tiles whose key numbers are kept in shared memory at a time: a power of two above 2. */
constexpr int NUMBERS = 4;

/* Constants of the kernel for heads of up to DIM elements. */
template <int DIM, int BLOCKS> struct Config {
    static constexpr int ROWS = 16 * BLOCKS; /* number of queries of one warp */
    static constexpr int QUERIES = WARPS * ROWS, KEYS = 32 * BLOCKS;
    static constexpr int QUERY_BYTES = QUERIES * DIM * 2, KEY_BYTES = KEYS * DIM * 2;
    static constexpr int NUMBERS_AT = QUERY_BYTES + 4 * KEY_BYTES;
    static constexpr int SHARED = NUMBERS_AT + NUMBERS * KEYS * (int)sizeof(int);
    static_assert(SHARED <= SHARED_LEAST, "a thread block fits on every supported GPU");
    static_assert(BLOCKS == 1 || DIM <= 128, "O of two blocks of wider heads does not fit in registers");
};

/* Writes out and lse of a warp's rows; with an empty list out is 0 and lse -inf. */
template <int DIM, int BLOCKS, bool TAIL>
__device__ __forceinline__ void store_tile(const AttentionProblem &a, const Tile &tile,
                                           const float (&out)[BLOCKS][DIM / 8][4], Softmax (&softmax)[BLOCKS],
                                           int first_row)
{
    using Out = typename TailResult<TAIL>::Type;
    int lane = threadIdx.x % WARP;
#pragma unroll
    for (int n = 0; n < 2 * BLOCKS; n++) {
        int block = n / 2, half = n % 2, row = first_row + 16 * block + 8 * half + lane / 4;
        float total = softmax[block].total[half];
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        total += __shfl_xor_sync(0xffffffffu, total, 2);
        if (row >= tile.rows)
            continue;
        int64_t query = tile.first + row;
        bool attends = TAIL ? total != 0 : tile.keys > 0;
        store_products(rows_of<Out>(a.out, tile) + query * a.out.token_stride, a.dim, a.couples,
                       attends ? 1 / total : 0.f, out[block], half);
        if (lane % 4 == 0)
            a.lse[(int64_t)tile.pair * a.queries + query] = attends
                                                                ? softmax[block].largest[half] + logf(total)
                                                                : -INFINITY;
    }
}

/* Enqueues copies of rows of K and V to the shared-memory buffers of stage `stage`, for the keys from
 * position `from` of the tile's key list on. */
template <int DIM, int KEYS>
__device__ __forceinline__ void gather_keys(const AttentionProblem &a, const Tile &tile, int from,
                                            const int *numbers, uint32_t stage)
{
    int count = tile.keys - from;
    gather_rows<DIM, KEYS, THREADS>(a, a.k, tile, numbers, 0, count, stage);
    gather_rows<DIM, KEYS, THREADS>(a, a.v, tile, numbers, 0, count, stage + KEYS * DIM * 2);
}

/* Grid: one thread block for each tile of queries. The `tiles` tiles of a (batch, head) are consecutive, so
 * that they share K and V in the L2 cache. */
template <int DIM, int BLOCKS, bool TAIL>
__global__ void __launch_bounds__(THREADS, 2)
    forward_kernel(const __grid_constant__ AttentionProblem a, int tiles)
{
    using C = Config<DIM, BLOCKS>;
    constexpr int KEYS = C::KEYS;
    extern __shared__ __align__(128) unsigned char shared[];
    int *numbers = reinterpret_cast<int *>(shared + C::NUMBERS_AT);
    uint32_t base = shared_address(shared), stages = base + C::QUERY_BYTES;
    int thread = threadIdx.x, first_row = thread / WARP * C::ROWS;
    __shared__ Tile tile; /* in shared memory, because the matrix products need the registers */
    if (thread == 0)
        tile = tile_at(a, blockIdx.x / tiles, blockIdx.x % tiles, C::QUERIES);
    __syncthreads();
    if (tile.rows == 0)
        return;
    const int keys = tile.keys;
    float out[BLOCKS][DIM / 8][4] = {};
    Softmax softmax[BLOCKS];
#pragma unroll
    for (int i = 0; i < BLOCKS; i++)
        softmax[i] = {{-INFINITY, -INFINITY}, {0, 0}};
    if (thread < 2 * KEYS && thread < keys)
        numbers[thread] = tile_key(a, tile, thread);
    __syncthreads();
    gather_rows<DIM, C::QUERIES, THREADS>(a, a.q, tile, nullptr, tile.first, tile.rows, base);
    gather_keys<DIM, KEYS>(a, tile, 0, numbers, stages);
    for (int n = 0; n * KEYS < keys; n++) {
        uint32_t stage = stages + n % 2 * 2 * C::KEY_BYTES, other = stages + (n + 1) % 2 * 2 * C::KEY_BYTES;
        int fetched = (n + 2) * KEYS + thread, number = 0;
        wait_copies();
        __syncthreads();
        if ((n + 1) * KEYS < keys)
            gather_keys<DIM, KEYS>(a, tile, (n + 1) * KEYS, numbers + (n + 1) % NUMBERS * KEYS, other);
        if (thread < KEYS && fetched < keys)
            number = tile_key(a, tile, fetched);
        if (first_row < tile.rows) {
            float s[BLOCKS][KEYS / 8][4];
            multiply_rows<DIM>(s, lanes_down<DIM>(base, first_row), lanes_across<DIM>(stage, 0));
#pragma unroll
            for (int i = 0; i < BLOCKS; i++) {
                scale_scores(s[i], a.scale);
                if constexpr (TAIL)
                    add_biases(a, tile.pair, tile.first + first_row + 16 * i, n * KEYS, s[i]);
                online_softmax<KEYS, TAIL>(s[i], out[i], &softmax[i], keys - n * KEYS);
            }
            add_values<DIM, BLOCKS, KEYS>(out, s, lanes_down<DIM>(stage + C::KEY_BYTES, 0));
        }
        if (thread < KEYS)
            numbers[(n + 2) % NUMBERS * KEYS + thread] = number;
    }
    store_tile<DIM, BLOCKS, TAIL>(a, tile, out, softmax, first_row);
}

template <int DIM, int BLOCKS, bool TAIL = false>
DsvStatus launch_forward_bf16(DsviStream *stream, const AttentionProblem &problem)
{
    using C = Config<DIM, BLOCKS>;
    int tiles = tiles_of(problem, C::QUERIES);
    DSVI_CUDA_TRY(cudaFuncSetAttribute(forward_kernel<DIM, BLOCKS, TAIL>,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, C::SHARED));
    DSVI_CUDA_LAUNCH(stream, "attention forward", (forward_kernel<DIM, BLOCKS, TAIL>),
                     (unsigned)(tiles * problem.pairs), THREADS, C::SHARED, problem, tiles);
    return DSV_OK;
}

} // namespace

DsvStatus attention_forward_bf16(DsviStream *stream, const AttentionProblem &problem)
{
    /* The template argument BLOCKS is 2 if groups have more queries than a tile with BLOCKS = 1 has. */
    bool two = problem.group > Config<128, 1>::QUERIES;
    auto *launch = problem.dim <= 32    ? (two ? launch_forward_bf16<32, 2> : launch_forward_bf16<32, 1>)
                   : problem.dim <= 64  ? (two ? launch_forward_bf16<64, 2> : launch_forward_bf16<64, 1>)
                   : problem.dim <= 96  ? (two ? launch_forward_bf16<96, 2> : launch_forward_bf16<96, 1>)
                   : problem.dim <= 128 ? (two ? launch_forward_bf16<128, 2> : launch_forward_bf16<128, 1>)
                   : problem.dim <= 192 ? launch_forward_bf16<192, 1>
                                        : launch_forward_bf16<256, 1>;
    return launch(stream, problem);
}

DsvStatus attention_tail_forward_bf16(DsviStream *stream, const AttentionProblem &problem)
{
    auto *launch = problem.dim <= 64    ? launch_forward_bf16<64, 1, true>
                   : problem.dim <= 128 ? launch_forward_bf16<128, 1, true>
                                        : launch_forward_bf16<256, 1, true>;
    return launch(stream, problem);
}

} // namespace dsvi
