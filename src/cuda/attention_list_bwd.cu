/* Attention backward over lists in bf16, on tensor cores: one pass of five products for each pair of a query
 * tile and a key tile (Dao et al. 2022), keys gathered row by row.
 *
 * A block of threads has a tile of queries of one group, Q and dO in shared memory, dQ in registers. For each
 * tile of its keys
 *     S = Q K^T, dP = dO V^T      P = exp(scale S - lse), dS = P (dP - delta)     to shared memory, in bf16
 *     dK += dS^T Q, dV += P^T dO                                                  to the sums of these keys
 *     dQ += dS K                                                                  in registers
 * while the rows of the next keys are copied into the other stage, and the numbers of those behind fetched.
 *
 *                  queries  keys  warps   shared memory        serves
 *     wide             128    64      8   D = 128: 161.5 KiB   groups of more than 64, D to 128
 *     middle            64    32      4   D = 128: 72.8 KiB    the others to 128, and small GPUs
 *     narrow            32    16      4   D = 256: 66.4 KiB    D beyond 128
 * Half the warps stand over the rows of queries, two side by side: for S and dP they share the keys (the
 * narrow plan has too few for two), for dQ the columns. For dK and dV a warp makes one of the two, half its
 * columns. Products are 32 rows high but in the narrow plan: S and dP 32 x 32 each, dQ 32 x 64, dK or dV
 * 32 x 64 of 255 registers' floats, wide and D = 128.
 *
 * delta = out . dout is the diagonal of dO O^T, made by the very products that make dP: where one key has all
 * the weight, p is 1 and dp - delta is 0 to the bit. Scores are rounded as in the forward pass. */
#include <math.h>

#include "cuda/attention_tile.cuh"

namespace dsvi {
namespace {

constexpr int NUMBERS = 4; /* tiles whose keys' numbers are kept: a power of two, above two */

template <int DIM_, int QUERIES_, int KEYS_, int WARPS> struct Plan {
    static constexpr int DIM = DIM_, QUERIES = QUERIES_, KEYS = KEYS_, THREADS = WARPS * WARP;
    static constexpr int ROW_WARPS = WARPS / 2, ROWS = QUERIES / ROW_WARPS;
    static constexpr int SCORE_WARPS = KEYS < 32 ? 1 : 2, SCORE_KEYS = KEYS / SCORE_WARPS;
    static constexpr int SUM_KEYS = KEYS / (WARPS / 4);
    static constexpr int HALF = DIM / 2;
    static constexpr int M = ROWS / 16, SCORES = SCORE_KEYS / 8, SUMS = SUM_KEYS / 16, COLUMNS = HALF / 8;

    static constexpr int DOUT = QUERIES * DIM * 2, STAGES = 2 * DOUT, V = KEYS * DIM * 2, STAGE = 2 * V;
    static constexpr int P = STAGES + 2 * STAGE, DS = P + QUERIES * KEYS * 2;
    static constexpr int NUMBERS_AT = DS + QUERIES * KEYS * 2;
    static constexpr int DELTA = NUMBERS_AT + NUMBERS * KEYS * (int)sizeof(int);
    static constexpr int SHARED = DELTA + QUERIES * (int)sizeof(float);
    static_assert(STAGE >= QUERIES * DIM * 2, "O lies in a stage while delta is made");
    static_assert(2 * KEYS <= THREADS, "the threads fetch the numbers of two tiles at once");
    static_assert(HALF % 16 == 0 && SCORE_KEYS % 16 == 0 && SUM_KEYS % 16 == 0 && ROWS % 16 == 0, "");
};

template <int DIM> using Wide = Plan<DIM, 128, 64, 8>;
template <int DIM> using Middle = Plan<DIM, 64, 32, 4>;
template <int DIM> using Narrow = Plan<DIM, 32, 16, 4>;
static_assert(Wide<128>::SHARED <= 163 * 1024 - 512, "fits on an A100");
static_assert(Middle<128>::SHARED <= SHARED_LEAST && Narrow<256>::SHARED <= SHARED_LEAST, "fits everywhere");

/* The place of this warp: rows of queries, and the keys (of scores) or the columns (of dQ) beside it. */
template <typename P> __device__ __forceinline__ int first_row()
{
    return threadIdx.x / WARP % P::ROW_WARPS * P::ROWS;
}

template <typename P> __device__ __forceinline__ int side()
{
    return threadIdx.x / WARP / P::ROW_WARPS;
}

/* delta of all rows, from the tiles of dO and O. */
template <typename P> __device__ __forceinline__ void find_delta(uint32_t dout, uint32_t out, float *delta)
{
    int lane = threadIdx.x % WARP, row = lane / 4;
    for (int block = threadIdx.x / WARP * 16; block < P::QUERIES; block += P::THREADS / WARP * 16) {
        float sum[1][2][4];
        multiply_rows<P::DIM>(sum, lanes_down<P::DIM>(dout, block), lanes_across<P::DIM>(out, block));
        if (lane % 4 == row / 2) { /* this lane has the diagonal of both 8 x 8 blocks */
            delta[block + row] = row % 2 ? sum[0][0][1] : sum[0][0][0];
            delta[block + row + 8] = row % 2 ? sum[0][1][3] : sum[0][1][2];
        }
    }
}

/* What a lane keeps of its rows of queries, each block's two. */
template <int M> struct Rows {
    float lse[M][2], delta[M][2];
};

/* lse is infinite, and p zero, beyond the last query. */
template <typename P>
__device__ __forceinline__ void load_row_sums(const AttentionProblem &a, const Tile &tile, const float *delta,
                                              Rows<P::M> *rows)
{
    const float *lse = a.lse + (int64_t)tile.pair * a.queries + tile.first;
#pragma unroll
    for (int n = 0; n < 2 * P::M; n++) {
        int row = first_row<P>() + 8 * n + threadIdx.x % WARP / 4;
        rows->lse[n / 2][n % 2] = row < tile.rows ? lse[row] : INFINITY;
        rows->delta[n / 2][n % 2] = delta[row];
    }
}

/* P and dS of this warp's queries and keys, into shared memory; `count` keys are in the tile. */
template <typename P>
__device__ __forceinline__ void differentiate(unsigned char *shared, uint32_t stage, const Rows<P::M> &rows,
                                              float scale, int count)
{
    uint32_t base = shared_address(shared);
    constexpr int DIM = P::DIM;
    int row = first_row<P>(), key = side<P>() * P::SCORE_KEYS, lane = threadIdx.x % WARP;
    float s[P::M][P::SCORES][4], dp[P::M][P::SCORES][4];
    multiply_rows<DIM>(s, lanes_down<DIM>(base, row), lanes_across<DIM>(stage, key));
    multiply_rows<DIM>(dp, lanes_down<DIM>(base + P::DOUT, row), lanes_across<DIM>(stage + P::V, key));
#pragma unroll
    for (int i = 0; i < P::M; i++)
#pragma unroll
        for (int n = 0; n < 2 * P::SCORES; n++) {
            int half = n % 2, first = key + n / 2 * 8;
            const float *score = &s[i][n / 2][2 * half], *product = &dp[i][n / 2][2 * half];
            float p[2], ds[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                p[e] = exp_weight(__fmul_rn(score[e], scale) - rows.lse[i][half]);
                p[e] = first + lane % 4 * 2 + e < count ? p[e] : 0.f;
                ds[e] = p[e] * (product[e] - rows.delta[i][half]);
            }
            int at = chunk_at<P::KEYS>(row + 16 * i + 8 * half + lane / 4, first / 8) + lane % 4 * 4;
            *reinterpret_cast<uint32_t *>(shared + P::P + at) = pair_bits(p[0], p[1]);
            *reinterpret_cast<uint32_t *>(shared + P::DS + at) = pair_bits(ds[0], ds[1]);
        }
}

/* Four sums more, at a multiple of 16 bytes; `alone`: nobody else adds there meanwhile. */
__device__ __forceinline__ void add_four(float *to, float x, float y, float z, float w, bool alone)
{
    if (alone) {
        float4 *sum = reinterpret_cast<float4 *>(to);
        float4 before = *sum;
        *sum = make_float4(before.x + x, before.y + y, before.z + z, before.w + w);
        return;
    }
#if __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x), "f"(y), "f"(z), "f"(w)
                 : "memory");
#else
    atomicAdd(to, x);
    atomicAdd(to + 1, y);
    atomicAdd(to + 2, z);
    atomicAdd(to + 3, w);
#endif
}

/* dK, or dV, of this warp's keys and columns from all queries of the tile, to their sums. */
template <typename P>
__device__ __forceinline__ void add_to_keys(const AttentionProblem &a, const Tile &tile, int slice,
                                            uint32_t base, const int *numbers, int count)
{
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, rows = tile.rows;
    int column = warp / 2 % 2 * P::HALF, key = warp / 4 * P::SUM_KEYS;
    bool dv = warp % 2;
    Lanes left = lanes_across<P::KEYS>(base + (dv ? P::P : P::DS), 0);
    Lanes right = lanes_down<P::DIM>(base + (dv ? P::DOUT : 0), 0);
    float sum[P::SUMS][P::COLUMNS][4] = {};
#pragma unroll
    for (int row = 0; row < P::QUERIES; row += 16) {
        uint32_t x[P::SUMS][4];
        if (row >= rows)
            break;
#pragma unroll
        for (int i = 0; i < P::SUMS; i++)
            load_block_turned(x[i], block_at<P::KEYS>(left, row, key + 16 * i));
        multiply_add_block<P::DIM>(sum, x, right, row, column);
    }
    float *sums = sums_of(a, slice, dv, tile.pair) + column + lane % 4 * 4;
#pragma unroll
    for (int n = 0; n < 2 * P::SUMS; n++) {
        int block = n / 2, low = n % 2 * 2, at = key + 8 * n + lane / 4;
        if (at >= count)
            continue;
        float *to = sums + (int64_t)numbers[at] * a.pitch;
#pragma unroll
        for (int j = 0; j < P::COLUMNS; j += 2) {
            const float *x = &sum[block][j][low], *y = &sum[block][j + 1][low];
            if (column + 8 * j < a.pitch)
                add_four(to + 8 * j, x[0], x[1], y[0], y[1], a.alone);
        }
    }
}

/* dQ += dS K for this warp's queries and columns. */
template <typename P>
__device__ __forceinline__ void add_to_queries(float (&dq)[P::M][P::COLUMNS][4], uint32_t ds, uint32_t k)
{
    Lanes left = lanes_down<P::KEYS>(ds, first_row<P>()), right = lanes_down<P::DIM>(k, 0);
#pragma unroll
    for (int key = 0; key < P::KEYS; key += 16) {
        uint32_t x[P::M][4];
#pragma unroll
        for (int i = 0; i < P::M; i++)
            load_block(x[i], block_at<P::KEYS>(left, 16 * i, key));
        multiply_add_block<P::DIM>(dq, x, right, key, side<P>() * P::HALF);
    }
}

/* Rows of K and V of the keys from `from` of the list on, into a stage. */
template <typename P>
__device__ __forceinline__ void gather_keys(const AttentionProblem &a, const Tile &tile, int from,
                                            const int *numbers, uint32_t stage)
{
    int count = tile.keys - from;
    gather_rows<P::DIM, P::KEYS, P::THREADS>(a, a.k, tile, numbers, 0, count, stage);
    gather_rows<P::DIM, P::KEYS, P::THREADS>(a, a.v, tile, numbers, 0, count, stage + P::V);
}

template <typename P>
__device__ __forceinline__ void gather_queries(const AttentionProblem &a, const DsvHeads &rows,
                                               const Tile &tile, uint32_t to)
{
    gather_rows<P::DIM, P::QUERIES, P::THREADS>(a, rows, tile, nullptr, tile.first, tile.rows, to);
}

/* Q, dO, the first keys, and delta: all there when it returns. */
template <typename P>
__device__ __forceinline__ void begin_tile(const AttentionProblem &a, const Tile &tile, unsigned char *shared)
{
    uint32_t base = shared_address(shared), stages = base + P::STAGES;
    int *numbers = reinterpret_cast<int *>(shared + P::NUMBERS_AT), thread = threadIdx.x;
    if (thread < 2 * P::KEYS && thread < tile.keys)
        numbers[thread] = tile_key(a, tile, thread);
    gather_queries<P>(a, a.q, tile, base);
    gather_queries<P>(a, a.dout, tile, base + P::DOUT);
    gather_queries<P>(a, a.out, tile, stages + P::STAGE);
    __syncthreads();
    gather_keys<P>(a, tile, 0, numbers, stages);
    wait_copies();
    __syncthreads();
    find_delta<P>(base + P::DOUT, stages + P::STAGE, reinterpret_cast<float *>(shared + P::DELTA));
    __syncthreads();
}

template <typename P>
__device__ __forceinline__ void store_queries(const AttentionProblem &a, const Tile &tile,
                                              const float (&dq)[P::M][P::COLUMNS][4])
{
    int column = side<P>() * P::HALF;
    __nv_bfloat16 *to = rows_of<__nv_bfloat16>(a.dq, tile) + tile.first * a.dq.token_stride + column;
#pragma unroll
    for (int n = 0; n < 2 * P::M; n++) {
        int row = first_row<P>() + 8 * n + threadIdx.x % WARP / 4;
        if (row < tile.rows)
            store_products(to + row * a.dq.token_stride, a.dim - column, a.couples, a.scale, dq[n / 2],
                           n % 2);
    }
}

/* One tile of queries: its dq, and what it adds to dK and dV. */
template <typename P>
__device__ __forceinline__ void backward_tile(const AttentionProblem &a, const Tile &tile, int slice,
                                              unsigned char *shared)
{
    constexpr int KEYS = P::KEYS;
    uint32_t base = shared_address(shared), stages = base + P::STAGES;
    int *numbers = reinterpret_cast<int *>(shared + P::NUMBERS_AT);
    const int thread = threadIdx.x, keys = tile.keys;
    float dq[P::M][P::COLUMNS][4] = {};
    Rows<P::M> rows;
    begin_tile<P>(a, tile, shared);
    load_row_sums<P>(a, tile, reinterpret_cast<float *>(shared + P::DELTA), &rows);
    for (int n = 0; n * KEYS < keys; n++) {
        uint32_t stage = stages + n % 2 * P::STAGE, other = stages + (n + 1) % 2 * P::STAGE;
        int fetched = (n + 2) * KEYS + thread, number = 0;
        bool busy = first_row<P>() < tile.rows;
        wait_copies();
        __syncthreads();
        if ((n + 1) * KEYS < keys)
            gather_keys<P>(a, tile, (n + 1) * KEYS, numbers + (n + 1) % NUMBERS * KEYS, other);
        if (thread < KEYS && fetched < keys)
            number = tile_key(a, tile, fetched);
        if (busy && side<P>() < P::SCORE_WARPS)
            differentiate<P>(shared, stage, rows, a.scale, keys - n * KEYS);
        if (thread < KEYS)
            numbers[(n + 2) % NUMBERS * KEYS + thread] = number;
        __syncthreads();
        add_to_keys<P>(a, tile, slice, base, numbers + n % NUMBERS * KEYS, keys - n * KEYS);
        if (busy)
            add_to_queries<P>(dq, base + P::DS, stage);
    }
    store_queries<P>(a, tile, dq);
}

/* Grid: `walkers` of a (batch, head), then (batch, head). */
template <typename P>
__global__ void __launch_bounds__(P::THREADS, 1)
    backward_kernel(const __grid_constant__ AttentionProblem a, int tiles, int walkers)
{
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ Tile tile; /* registers are for products */
    int walker = blockIdx.x % walkers;
    for (int number = walker; number < tiles; number += walkers) {
        __syncthreads();
        if (threadIdx.x == 0)
            tile = tile_at(a, blockIdx.x / walkers, number, P::QUERIES);
        __syncthreads();
        if (tile.rows > 0)
            backward_tile<P>(a, tile, a.alone ? walker : 0, shared);
    }
}

template <typename P> DsvStatus launch(DsvStream *stream, const AttentionProblem &problem)
{
    int tiles = tiles_of(problem, P::QUERIES), walkers = problem.alone ? problem.slices : tiles;
    DSVI_CUDA_TRY(cudaFuncSetAttribute(backward_kernel<P>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       P::SHARED));
    backward_kernel<P><<<(unsigned)(walkers * problem.pairs), P::THREADS, P::SHARED, stream->handle>>>(
        problem, tiles, walkers);
    DSVI_CUDA_LAUNCHED("attention backward");
    return DSV_OK;
}

template <int DIM> DsvStatus launch_wide(DsvStream *stream, const AttentionProblem &problem)
{
    bool wide = problem.group > Middle<DIM>::QUERIES &&
                stream->shared_bytes >= (size_t)Wide<DIM>::SHARED + sizeof(Tile);
    return wide ? launch<Wide<DIM>>(stream, problem) : launch<Middle<DIM>>(stream, problem);
}

} // namespace

DsvStatus attention_backward_bf16(DsvStream *stream, const AttentionProblem &problem)
{
    return problem.dim <= 32 ? launch_wide<32>(stream, problem)
         : problem.dim <= 64 ? launch_wide<64>(stream, problem)
         : problem.dim <= 96 ? launch_wide<96>(stream, problem)
         : problem.dim <= 128 ? launch_wide<128>(stream, problem)
         : problem.dim <= 192 ? launch<Narrow<192>>(stream, problem)
                              : launch<Narrow<256>>(stream, problem);
}

} // namespace dsvi
