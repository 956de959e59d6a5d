/* Attention forward over lists in bf16: softmax online over key tiles (Milakov & Gimelshein 2018; Dao et al.
 * 2022) on tensor cores, keys gathered row by row.
 *
 * Four warps have a tile of queries of one group, 16 BLOCKS each: what a warp has of S = Q K^T, of P and of O
 * it holds in registers, and S becomes the left factor of P V where it lies. While the keys of one tile are
 * worked on, the rows of the next are copied into the other half of the buffers, and the numbers of those
 * after it are fetched.
 *     BLOCKS 2   128 queries, 64 keys    groups of more than 64, D to 128
 *     BLOCKS 1    64 queries, 32 keys    the others
 *     shared memory   Q, then two stages of K and V, then four of keys' numbers; D = 128: 97 and 48.5 KiB
 *     registers       O 4 BLOCKS D / 8 floats, S 4 BLOCKS keys / 8: 128 and 64 of the 255, D = 128
 * so that two such blocks of threads are on a multiprocessor, one in its softmax while the other multiplies.
 *
 * Scores are rounded once (__fmul_rn), here and in the backward pass, before anything is subtracted: the
 * weight of a query's only large score is 1 to the bit, however large it is. */
#include <math.h>

#include "cuda/attention_tile.cuh"

namespace dsvi {
namespace {

constexpr int WARPS = 4, THREADS = WARPS * WARP;
constexpr int NUMBERS = 4; /* tiles whose keys' numbers are kept: a power of two, above two */

template <int DIM, int BLOCKS> struct Plan {
    static constexpr int ROWS = 16 * BLOCKS; /* of a warp */
    static constexpr int QUERIES = WARPS * ROWS, KEYS = 32 * BLOCKS;
    static constexpr int QUERY_BYTES = QUERIES * DIM * 2, KEY_BYTES = KEYS * DIM * 2;
    static constexpr int NUMBERS_AT = QUERY_BYTES + 4 * KEY_BYTES;
    static constexpr int SHARED = NUMBERS_AT + NUMBERS * KEYS * (int)sizeof(int);
    static_assert(SHARED <= SHARED_LEAST, "a block of threads fits on every GPU served");
    static_assert(BLOCKS == 1 || DIM <= 128, "O of two blocks of wider heads does not fit in registers");
};

/* The softmax of a block of 16 queries so far: of rows lane / 4 and lane / 4 + 8. `total` is over the
 * columns that this lane has seen. */
struct Softmax {
    float largest[2], total[2];
};

/* Takes the scores of `count` keys in: s becomes p, `out` and the total are brought to the new scale. */
template <int KEYS, int N>
__device__ __forceinline__ void soften(float (&s)[KEYS / 8][4], float (&out)[N][4], Softmax *softmax,
                                       float scale, int count)
{
    int column = threadIdx.x % 4 * 2;
    float before[2] = {softmax->largest[0], softmax->largest[1]}, shrink[2];
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[n][i] = __fmul_rn(s[n][i], scale);
    if (count < KEYS) {
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[n][i] = 8 * n + column + i % 2 < count ? s[n][i] : -INFINITY;
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float now = before[half], sum = 0;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
            now = fmaxf(now, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
        now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 1));
        now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 2));
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
            s[n][2 * half] = exp_weight(s[n][2 * half] - now);
            s[n][2 * half + 1] = exp_weight(s[n][2 * half + 1] - now);
            sum += s[n][2 * half] + s[n][2 * half + 1];
        }
        shrink[half] = exp_weight(before[half] - now);
        softmax->total[half] = softmax->total[half] * shrink[half] + sum;
        softmax->largest[half] = now;
    }
    if (!__any_sync(0xffffffffu, shrink[0] != 1 || shrink[1] != 1))
        return;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            out[n][i] *= shrink[i / 2];
}

/* out += P V, P being where S was. */
template <int DIM, int BLOCKS, int KEYS>
__device__ __forceinline__ void add_values(float (&out)[BLOCKS][DIM / 8][4],
                                           const float (&p)[BLOCKS][KEYS / 8][4], Lanes v)
{
#pragma unroll
    for (int key = 0; key < KEYS; key += 16) {
        uint32_t left[BLOCKS][4];
#pragma unroll
        for (int i = 0; i < BLOCKS; i++)
#pragma unroll
            for (int n = 0; n < 4; n++) {
                const float *two = &p[i][key / 8 + n / 2][n % 2 * 2];
                left[i][n] = pair_bits(two[0], two[1]);
            }
        multiply_add_block<DIM>(out, left, v, key, 0);
    }
}

template <int DIM, int BLOCKS>
__device__ __forceinline__ void store_tile(const AttentionProblem &a, const Tile &tile,
                                           const float (&out)[BLOCKS][DIM / 8][4], Softmax (&softmax)[BLOCKS],
                                           int first_row)
{
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
        store_products(rows_of<__nv_bfloat16>(a.out, tile) + query * a.out.token_stride, a.dim, a.couples,
                       tile.keys > 0 ? 1 / total : 0.f, out[block], half);
        if (lane % 4 == 0)
            a.lse[(int64_t)tile.pair * a.queries + query] =
                tile.keys > 0 ? softmax[block].largest[half] + logf(total) : -INFINITY;
    }
}

/* Rows of K and V of the keys from `from` of the list on, into a stage. */
template <int DIM, int KEYS>
__device__ __forceinline__ void gather_keys(const AttentionProblem &a, const Tile &tile, int from,
                                            const int *numbers, uint32_t stage)
{
    int count = tile.keys - from;
    gather_rows<DIM, KEYS, THREADS>(a, a.k, tile, numbers, 0, count, stage);
    gather_rows<DIM, KEYS, THREADS>(a, a.v, tile, numbers, 0, count, stage + KEYS * DIM * 2);
}

/* Grid: tiles of a (batch, head), then (batch, head): neighbours share K and V in the L2 cache. */
template <int DIM, int BLOCKS>
__global__ void __launch_bounds__(THREADS, 2)
    forward_kernel(const __grid_constant__ AttentionProblem a, int tiles)
{
    using P = Plan<DIM, BLOCKS>;
    constexpr int KEYS = P::KEYS;
    extern __shared__ __align__(128) unsigned char shared[];
    int *numbers = reinterpret_cast<int *>(shared + P::NUMBERS_AT);
    uint32_t base = shared_address(shared), stages = base + P::QUERY_BYTES;
    int thread = threadIdx.x, first_row = thread / WARP * P::ROWS;
    __shared__ Tile tile; /* registers are for products */
    if (thread == 0)
        tile = tile_at(a, blockIdx.x / tiles, blockIdx.x % tiles, P::QUERIES);
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
    gather_rows<DIM, P::QUERIES, THREADS>(a, a.q, tile, nullptr, tile.first, tile.rows, base);
    gather_keys<DIM, KEYS>(a, tile, 0, numbers, stages);
    for (int n = 0; n * KEYS < keys; n++) {
        uint32_t stage = stages + n % 2 * 2 * P::KEY_BYTES, other = stages + (n + 1) % 2 * 2 * P::KEY_BYTES;
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
            for (int i = 0; i < BLOCKS; i++)
                soften<KEYS>(s[i], out[i], &softmax[i], a.scale, keys - n * KEYS);
            add_values<DIM, BLOCKS, KEYS>(out, s, lanes_down<DIM>(stage + P::KEY_BYTES, 0));
        }
        if (thread < KEYS)
            numbers[(n + 2) % NUMBERS * KEYS + thread] = number;
    }
    store_tile<DIM, BLOCKS>(a, tile, out, softmax, first_row);
}

template <int DIM, int BLOCKS> DsvStatus launch(DsvStream *stream, const AttentionProblem &problem)
{
    using P = Plan<DIM, BLOCKS>;
    int tiles = tiles_of(problem, P::QUERIES);
    DSVI_CUDA_TRY(cudaFuncSetAttribute(forward_kernel<DIM, BLOCKS>,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, P::SHARED));
    forward_kernel<DIM, BLOCKS><<<(unsigned)(tiles * problem.pairs), THREADS, P::SHARED, stream->handle>>>(
        problem, tiles);
    DSVI_CUDA_LAUNCHED("attention forward");
    return DSV_OK;
}

/* Two blocks where a group fills them. */
template <int DIM> DsvStatus launch_narrow(DsvStream *stream, const AttentionProblem &problem)
{
    return problem.group > Plan<DIM, 1>::QUERIES ? launch<DIM, 2>(stream, problem)
                                                 : launch<DIM, 1>(stream, problem);
}

} // namespace

DsvStatus attention_forward_bf16(DsvStream *stream, const AttentionProblem &problem)
{
    return problem.dim <= 32 ? launch_narrow<32>(stream, problem)
         : problem.dim <= 64 ? launch_narrow<64>(stream, problem)
         : problem.dim <= 96 ? launch_narrow<96>(stream, problem)
         : problem.dim <= 128 ? launch_narrow<128>(stream, problem)
         : problem.dim <= 192 ? launch<192, 1>(stream, problem)
                              : launch<256, 1>(stream, problem);
}

} // namespace dsvi
