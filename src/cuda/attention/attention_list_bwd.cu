/* Portable attention backward over lists in BF16, for GPUs from Ampere on: one pass of five products for each
 * pair of a query tile and a key tile (Dao et al. 2022) on tensor cores, with keys gathered row by row.
 *
 * A thread block processes a tile of queries of one group, with Q and dO in shared memory and dQ in
 * registers. For each tile of its keys
 *     S = Q K^T, dP = dO V^T      P = exp(scale S - lse), dS = P (dP - delta)     to shared memory, in BF16
 *     dK += dS^T Q, dV += P^T dO                                                  to the sums of these keys
 *     dQ += dS K                                                                  in registers
 * while the rows of the next keys are copied to the other stage, and the key numbers of the tile after them
 * are fetched.
 *
 *                  queries  keys  warps   shared memory        serves
 *     Wide             128    64      8   D = 128: 161.5 KiB   groups of more than 64, D up to 128
 *     Middle            64    32      4   D = 128: 72.8 KiB    other groups with D up to 128, and small GPUs
 *     Narrow            32    16      4   D = 256: 66.4 KiB    D above 128
 * Half of the warps divide the rows of queries among them, so two warps have the same rows. For S and dP
 * these two warps divide the keys (Narrow has too few keys for two warps), for dQ the columns. For dK and dV,
 * each warp computes half the columns of one of the two. Products have 32 rows, except in Narrow: with Wide
 * and D = 128, S and dP are 32 x 32 each, dQ is 32 x 64, and dK or dV 32 x 64, all in the warp's 255
 * registers a thread.
 *
 * delta = out . dout is the diagonal of dO O^T, computed by the same products as dP: where one key has all
 * the weight, P is exactly 1 and dP - delta exactly 0. Scores are rounded as in the forward pass.
 *
 * The kernels with TAIL = true compute the tail (attention_tail.cuh), whose delta is an argument. */
#include <math.h>

#include "cuda/attention/attention_tile.cuh"

namespace dsvi {
namespace {

/* Number of key tiles whose key numbers are kept in shared memory at a time: a power of two above 2. */
constexpr int NUMBERS = 4;

/* Constants of the kernel for heads of up to DIM elements: shapes of products, layout of shared memory. */
template <int DIM_, int QUERIES_, int KEYS_, int WARPS> struct Config {
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
    static_assert(STAGE >= QUERIES * DIM * 2, "a stage holds O while delta is computed");
    static_assert(2 * KEYS <= THREADS, "the threads fetch the numbers of two tiles at once");
    static_assert(HALF % 16 == 0 && SCORE_KEYS % 16 == 0 && SUM_KEYS % 16 == 0 && ROWS % 16 == 0, "");
};

template <int DIM> using Wide = Config<DIM, 128, 64, 8>;
template <int DIM> using Middle = Config<DIM, 64, 32, 4>;
template <int DIM> using Narrow = Config<DIM, 32, 16, 4>;
static_assert(Wide<128>::SHARED <= 163 * 1024 - 512, "fits on an A100");
static_assert(Middle<128>::SHARED <= SHARED_LEAST && Narrow<256>::SHARED <= SHARED_LEAST, "fits everywhere");

/* Index, in the tile, of the first query that this warp processes. */
template <typename C> __device__ __forceinline__ int first_row()
{
    return threadIdx.x / WARP % C::ROW_WARPS * C::ROWS;
}

/* Two warps have the same rows of queries. Returns 0 or 1: the half of the keys (for scores) or of the
 * columns (for dQ) that this warp computes. */
template <typename C> __device__ __forceinline__ int side()
{
    return threadIdx.x / WARP / C::ROW_WARPS;
}

/* Computes delta = out . dout of all queries of the tile, from dO and O in shared memory. */
template <typename C> __device__ __forceinline__ void find_delta(uint32_t dout, uint32_t out, float *delta)
{
    int lane = threadIdx.x % WARP, row = lane / 4;
    for (int block = threadIdx.x / WARP * 16; block < C::QUERIES; block += C::THREADS / WARP * 16) {
        float sum[1][2][4];
        multiply_rows<C::DIM>(sum, lanes_down<C::DIM>(dout, block), lanes_across<C::DIM>(out, block));
        if (lane % 4 == row / 2) { /* this lane holds the diagonal of both 8 x 8 blocks */
            delta[block + row] = row % 2 ? sum[0][0][1] : sum[0][0][0];
            delta[block + row + 8] = row % 2 ? sum[0][1][3] : sum[0][1][2];
        }
    }
}

/* lse and delta (out . dout) of the queries whose scores a lane holds: two queries in each block of 16. */
template <int M> struct Rows {
    float lse[M][2], delta[M][2];
};

/* Reads lse and delta (out . dout) of the queries whose scores this lane holds. For rows after the last query
 * lse is set to infinity, so that their probabilities P are 0. */
template <typename C, bool TAIL>
__device__ __forceinline__ void load_row_sums(const AttentionProblem &a, const Tile &tile, const float *delta,
                                              Rows<C::M> *rows)
{
    const float *lse = a.lse + (int64_t)tile.pair * a.queries + tile.first;
#pragma unroll
    for (int n = 0; n < 2 * C::M; n++) {
        int row = first_row<C>() + 8 * n + threadIdx.x % WARP / 4;
        float here = row < tile.rows ? lse[row] : INFINITY;
        rows->lse[n / 2][n % 2] = TAIL ? tail_lse(here) : here;
        rows->delta[n / 2][n % 2] = delta[row];
    }
}

/* Computes P and dS of this warp's queries and keys, and writes them to shared memory in BF16. The current
 * tile of keys has `count` keys from `from` on. */
template <typename C, bool TAIL>
__device__ __forceinline__ void differentiate(const AttentionProblem &a, const Tile &tile,
                                              unsigned char *shared, uint32_t stage, const Rows<C::M> &rows,
                                              int from, int count)
{
    uint32_t base = shared_address(shared);
    constexpr int DIM = C::DIM;
    int row = first_row<C>(), key = side<C>() * C::SCORE_KEYS, lane = threadIdx.x % WARP;
    float s[C::M][C::SCORES][4], dp[C::M][C::SCORES][4];
    multiply_rows<DIM>(s, lanes_down<DIM>(base, row), lanes_across<DIM>(stage, key));
    multiply_rows<DIM>(dp, lanes_down<DIM>(base + C::DOUT, row), lanes_across<DIM>(stage + C::V, key));
#pragma unroll
    for (int i = 0; i < C::M; i++) {
        scale_scores(s[i], a.scale);
        if constexpr (TAIL)
            add_biases(a, tile.pair, tile.first + row + 16 * i, from + key, s[i]);
#pragma unroll
        for (int n = 0; n < 2 * C::SCORES; n++) {
            int half = n % 2, first = key + n / 2 * 8;
            const float *score = &s[i][n / 2][2 * half], *product = &dp[i][n / 2][2 * half];
            float p[2], ds[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                p[e] = exp_weight(score[e] - rows.lse[i][half]);
                p[e] = first + lane % 4 * 2 + e < count ? p[e] : 0.f;
                ds[e] = p[e] * (product[e] - rows.delta[i][half]);
            }
            int at = chunk_at<C::KEYS>(row + 16 * i + 8 * half + lane / 4, first / 8) + lane % 4 * 4;
            *reinterpret_cast<uint32_t *>(shared + C::P + at) = pair_bits(p[0], p[1]);
            *reinterpret_cast<uint32_t *>(shared + C::DS + at) = pair_bits(ds[0], ds[1]);
        }
    }
}

/* Adds x, y, z and w to four floats of global memory at `to`, an address that is a multiple of 16 bytes. With
 * `alone`, no other thread adds to these floats at the same time, so no atomics are used. */
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

/* Computes what all queries of the tile contribute to dK, or to dV, of this warp's keys and columns, and adds
 * it to the F32 sums in global memory. */
template <typename C>
__device__ __forceinline__ void add_to_keys(const AttentionProblem &a, const Tile &tile, int slice,
                                            uint32_t base, const int *numbers, int count)
{
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, rows = tile.rows;
    int column = warp / 2 % 2 * C::HALF, key = warp / 4 * C::SUM_KEYS;
    bool dv = warp % 2;
    Lanes left = lanes_across<C::KEYS>(base + (dv ? C::P : C::DS), 0);
    Lanes right = lanes_down<C::DIM>(base + (dv ? C::DOUT : 0), 0);
    float sum[C::SUMS][C::COLUMNS][4] = {};
#pragma unroll
    for (int row = 0; row < C::QUERIES; row += 16) {
        uint32_t x[C::SUMS][4];
        if (row >= rows)
            break;
#pragma unroll
        for (int i = 0; i < C::SUMS; i++)
            load_block_transposed(x[i], block_at<C::KEYS>(left, row, key + 16 * i));
        multiply_add_block<C::DIM>(sum, x, right, row, column);
    }
    float *sums = sums_of(a, slice, dv, tile.pair) + column + lane % 4 * 4;
#pragma unroll
    for (int n = 0; n < 2 * C::SUMS; n++) {
        int block = n / 2, low = n % 2 * 2, at = key + 8 * n + lane / 4;
        if (at >= count)
            continue;
        float *to = sums + (int64_t)numbers[at] * a.pitch;
#pragma unroll
        for (int j = 0; j < C::COLUMNS; j += 2) {
            const float *x = &sum[block][j][low], *y = &sum[block][j + 1][low];
            if (column + 8 * j < a.pitch)
                add_four(to + 8 * j, x[0], x[1], y[0], y[1], a.alone);
        }
    }
}

/* dQ += dS K for this warp's queries and columns. */
template <typename C>
__device__ __forceinline__ void add_to_queries(float (&dq)[C::M][C::COLUMNS][4], uint32_t ds, uint32_t k)
{
    Lanes left = lanes_down<C::KEYS>(ds, first_row<C>()), right = lanes_down<C::DIM>(k, 0);
#pragma unroll
    for (int key = 0; key < C::KEYS; key += 16) {
        uint32_t x[C::M][4];
#pragma unroll
        for (int i = 0; i < C::M; i++)
            load_block(x[i], block_at<C::KEYS>(left, 16 * i, key));
        multiply_add_block<C::DIM>(dq, x, right, key, side<C>() * C::HALF);
    }
}

/* Enqueues copies of rows of K and V to the shared-memory buffers of stage `stage`, for the keys from
 * position `from` of the tile's key list on. */
template <typename C>
__device__ __forceinline__ void gather_keys(const AttentionProblem &a, const Tile &tile, int from,
                                            const int *numbers, uint32_t stage)
{
    int count = tile.keys - from;
    gather_rows<C::DIM, C::KEYS, C::THREADS>(a, a.k, tile, numbers, 0, count, stage);
    gather_rows<C::DIM, C::KEYS, C::THREADS>(a, a.v, tile, numbers, 0, count, stage + C::V);
}

template <typename C>
__device__ __forceinline__ void gather_queries(const AttentionProblem &a, const DsviHeads &rows,
                                               const Tile &tile, uint32_t to)
{
    gather_rows<C::DIM, C::QUERIES, C::THREADS>(a, rows, tile, nullptr, tile.first, tile.rows, to);
}

/* Loads Q, dO and the first keys to shared memory, and computes delta or, in a tail, reads it; waits until
 * all of these are in shared memory. */
template <typename C, bool TAIL>
__device__ __forceinline__ void begin_tile(const AttentionProblem &a, const Tile &tile, unsigned char *shared)
{
    uint32_t base = shared_address(shared), stages = base + C::STAGES;
    int *numbers = reinterpret_cast<int *>(shared + C::NUMBERS_AT), thread = threadIdx.x;
    if (thread < 2 * C::KEYS && thread < tile.keys)
        numbers[thread] = tile_key(a, tile, thread);
    gather_queries<C>(a, a.q, tile, base);
    gather_queries<C>(a, a.dout, tile, base + C::DOUT);
    if constexpr (!TAIL)
        gather_queries<C>(a, a.out, tile, stages + C::STAGE);
    __syncthreads();
    gather_keys<C>(a, tile, 0, numbers, stages);
    wait_copies();
    __syncthreads();
    float *delta = reinterpret_cast<float *>(shared + C::DELTA);
    if constexpr (!TAIL)
        find_delta<C>(base + C::DOUT, stages + C::STAGE, delta);
    else if (thread < C::QUERIES)
        delta[thread] = thread < tile.rows ? tail_delta(a, tile.pair, tile.first + thread) : 0.f;
    __syncthreads();
}

template <typename C, typename Out>
__device__ __forceinline__ void store_queries(const AttentionProblem &a, const Tile &tile,
                                              const float (&dq)[C::M][C::COLUMNS][4])
{
    int column = side<C>() * C::HALF;
    Out *to = rows_of<Out>(a.dq, tile) + tile.first * a.dq.token_stride + column;
#pragma unroll
    for (int n = 0; n < 2 * C::M; n++) {
        int row = first_row<C>() + 8 * n + threadIdx.x % WARP / 4;
        if (row < tile.rows)
            store_products(to + row * a.dq.token_stride, a.dim - column, a.couples, a.scale, dq[n / 2],
                           n % 2);
    }
}

/* Processes one tile of queries: writes its dq and adds to the sums of dK and dV. */
template <typename C, bool TAIL>
__device__ __forceinline__ void backward_tile(const AttentionProblem &a, const Tile &tile, int slice,
                                              unsigned char *shared)
{
    constexpr int KEYS = C::KEYS;
    uint32_t base = shared_address(shared), stages = base + C::STAGES;
    int *numbers = reinterpret_cast<int *>(shared + C::NUMBERS_AT);
    const int thread = threadIdx.x, keys = tile.keys;
    float dq[C::M][C::COLUMNS][4] = {};
    Rows<C::M> rows;
    begin_tile<C, TAIL>(a, tile, shared);
    load_row_sums<C, TAIL>(a, tile, reinterpret_cast<float *>(shared + C::DELTA), &rows);
    for (int n = 0; n * KEYS < keys; n++) {
        uint32_t stage = stages + n % 2 * C::STAGE, other = stages + (n + 1) % 2 * C::STAGE;
        int fetched = (n + 2) * KEYS + thread, number = 0;
        bool busy = first_row<C>() < tile.rows;
        wait_copies();
        __syncthreads();
        if ((n + 1) * KEYS < keys)
            gather_keys<C>(a, tile, (n + 1) * KEYS, numbers + (n + 1) % NUMBERS * KEYS, other);
        if (thread < KEYS && fetched < keys)
            number = tile_key(a, tile, fetched);
        if (busy && side<C>() < C::SCORE_WARPS)
            differentiate<C, TAIL>(a, tile, shared, stage, rows, n * KEYS, keys - n * KEYS);
        if (thread < KEYS)
            numbers[(n + 2) % NUMBERS * KEYS + thread] = number;
        __syncthreads();
        add_to_keys<C>(a, tile, slice, base, numbers + n % NUMBERS * KEYS, keys - n * KEYS);
        if (busy)
            add_to_queries<C>(dq, base + C::DS, stage);
    }
    store_queries<C, typename TailResult<TAIL>::Type>(a, tile, dq);
}

/* Grid: `walkers` thread blocks for each (batch, head). Each processes every walkers-th tile of queries of
 * the (batch, head). */
template <typename C, bool TAIL>
__global__ void __launch_bounds__(C::THREADS, 1)
    backward_kernel(const __grid_constant__ AttentionProblem a, int tiles, int walkers)
{
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ Tile tile; /* in shared memory, because the matrix products need the registers */
    int walker = blockIdx.x % walkers;
    for (int number = walker; number < tiles; number += walkers) {
        __syncthreads();
        if (threadIdx.x == 0)
            tile = tile_at(a, blockIdx.x / walkers, number, C::QUERIES);
        __syncthreads();
        if (tile.rows > 0)
            backward_tile<C, TAIL>(a, tile, a.alone ? walker : 0, shared);
    }
}

template <typename C, bool TAIL = false>
DsvStatus launch_backward_bf16(DsviStream *stream, const AttentionProblem &problem)
{
    int tiles = tiles_of(problem, C::QUERIES), walkers = problem.alone ? problem.slices : tiles;
    DSVI_CUDA_TRY(cudaFuncSetAttribute(backward_kernel<C, TAIL>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       C::SHARED));
    DSVI_CUDA_LAUNCH(stream, "attention backward", (backward_kernel<C, TAIL>),
                     (unsigned)(walkers * problem.pairs), C::THREADS, C::SHARED, problem, tiles, walkers);
    return DSV_OK;
}

/* Returns the launch function of configuration Wide if groups have more queries than a tile of Middle and the
 * GPU has enough shared memory, else of Middle. */
template <int DIM> auto *choose_launch(const DsviStream *stream, const AttentionProblem &problem)
{
    bool wide = problem.group > Middle<DIM>::QUERIES &&
                stream->shared_bytes >= (size_t)Wide<DIM>::SHARED + sizeof(Tile);
    return wide ? launch_backward_bf16<Wide<DIM>> : launch_backward_bf16<Middle<DIM>>;
}

} // namespace

DsvStatus attention_backward_bf16(DsviStream *stream, const AttentionProblem &problem)
{
    auto *launch = problem.dim <= 32    ? choose_launch<32>(stream, problem)
                   : problem.dim <= 64  ? choose_launch<64>(stream, problem)
                   : problem.dim <= 96  ? choose_launch<96>(stream, problem)
                   : problem.dim <= 128 ? choose_launch<128>(stream, problem)
                   : problem.dim <= 192 ? launch_backward_bf16<Narrow<192>>
                                        : launch_backward_bf16<Narrow<256>>;
    return launch(stream, problem);
}

DsvStatus attention_tail_backward_bf16(DsviStream *stream, const AttentionProblem &problem)
{
    auto *launch = problem.dim <= 64    ? launch_backward_bf16<Middle<64>, true>
                   : problem.dim <= 128 ? launch_backward_bf16<Middle<128>, true>
                                        : launch_backward_bf16<Narrow<256>, true>;
    return launch(stream, problem);
}

} // namespace dsvi
