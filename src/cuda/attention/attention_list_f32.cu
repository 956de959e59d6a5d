/* Attention over lists in full F32 accuracy, for parity with other implementations: forward and backward
 * without tensor cores. The same kernels with TAIL = true compute the tail (attention_tail.cuh).
 *
 * A thread block processes a tile of ROWS queries of one (batch, head) against the tile's keys, ROWS at a
 * time, all in shared memory. Eight threads share a query: thread `part` computes its scores with keys part,
 * part + 8 ..., and the columns 4 part + 32 n to 4 part + 32 n + 3 of its sums. For dK and dV eight threads
 * share a key.
 *     shared memory, D = 128   4 tiles of (32, 132) floats, 2 of (32, 33): 76 KiB; forward 3 and 1
 *     D = 256                  the same with 16 rows: 67 KiB
 * Rows are padded by 4 floats, so that the float4 of 8 keys are in different banks.
 *
 * Products over D are summed column by column, products over keys key by key, and a pair of a query and a key
 * gives the same bits in both passes: where one key has all the weight, P is exactly 1 and dP - delta exactly
 * 0. Scale times score is rounded (__fmul_rn) before anything is subtracted. */
#include <math.h>

#include "cuda/attention/attention_list.cuh"
#include "cuda/attention/attention_tail.cuh"

namespace dsvi {
namespace {

constexpr int PARTS = 8; /* number of threads that process one query, or one key, together */

/* Constants of the kernels for heads of up to DIM elements. */
template <int DIM> struct Config {
    static constexpr int ROWS = DIM <= 128 ? 32 : 16;
    static constexpr int THREADS = ROWS * PARTS;
    static constexpr int PITCH = DIM + 4;
    static constexpr int SCORES_PITCH = ROWS + 1;
    static constexpr int TILE = ROWS * PITCH, SCORES = ROWS * SCORES_PITCH;
    static constexpr int KEYS_EACH = ROWS / PARTS; /* number of scores that a thread computes for its query */
    static constexpr int FOURS = DIM / (4 * PARTS); /* number of float4 of a row that one thread processes */
    static constexpr int FORWARD = (3 * TILE + SCORES) * (int)sizeof(float);
    static constexpr int BACKWARD = (4 * TILE + 2 * SCORES) * (int)sizeof(float);
    static_assert(BACKWARD <= 99 * 1024 - 1024, "shared memory of the smallest supported GPU");
};

/* Copies `count` rows of a tensor to a tile in shared memory: rows token[0], ..., token[count - 1], or first,
 * ..., first + count - 1 if token is NULL. Other rows of the tile, and columns from D on, become 0. */
template <int DIM>
__device__ void load_rows(float *tile, const DsviHeads &rows, const Tile &at, const int *token, int first,
                          int count, int dim)
{
    const float *from = rows_of<float>(rows, at);
    for (int n = threadIdx.x; n < Config<DIM>::ROWS * DIM; n += Config<DIM>::THREADS) {
        int row = n / DIM, d = n % DIM;
        bool there = row < count && d < dim;
        int64_t number = !there ? 0 : token ? token[row] : first + row;
        tile[row * Config<DIM>::PITCH + d] = there ? from[number * rows.token_stride + d] : 0.f;
    }
}

/* Loads keys [from, from + ROWS) of the list: writes the numbers of the keys to `token`, and their rows of K
 * and V to `k` and `v`. */
template <int DIM>
__device__ void load_keys(const AttentionProblem &a, const Tile &tile, int from, int count, int *token,
                          float *k, float *v)
{
    __syncthreads();
    if ((int)threadIdx.x < count)
        token[threadIdx.x] = tile_key(a, tile, from + (int)threadIdx.x);
    __syncthreads();
    load_rows<DIM>(k, a.k, tile, token, 0, count, a.dim);
    load_rows<DIM>(v, a.v, tile, token, 0, count, a.dim);
    __syncthreads();
}

__device__ __forceinline__ float4 four_at(const float *row, int d)
{
    return *reinterpret_cast<const float4 *>(row + d);
}

__device__ __forceinline__ float dot_on(float4 x, float4 y, float sum)
{
    return fmaf(x.w, y.w, fmaf(x.z, y.z, fmaf(x.y, y.y, fmaf(x.x, y.x, sum))));
}

__device__ __forceinline__ void add_scaled(float4 *sum, float weight, float4 x)
{
    sum->x = fmaf(weight, x.x, sum->x);
    sum->y = fmaf(weight, x.y, sum->y);
    sum->z = fmaf(weight, x.z, sum->z);
    sum->w = fmaf(weight, x.w, sum->w);
}

__device__ __forceinline__ void scale_by(float4 *x, float factor)
{
    x->x *= factor;
    x->y *= factor;
    x->z *= factor;
    x->w *= factor;
}

/* Computes in s the dot products of `row`, one query, with the keys of which this thread computes scores:
 * part, part + 8 ... where part = threadIdx.x % 8. */
template <int DIM>
__device__ __forceinline__ void dot_keys(const float *row, const float *keys,
                                         float (&s)[Config<DIM>::KEYS_EACH])
{
    int part = threadIdx.x % PARTS;
#pragma unroll
    for (int n = 0; n < Config<DIM>::KEYS_EACH; n++)
        s[n] = 0;
#pragma unroll 4
    for (int d = 0; d < DIM; d += 4) {
        float4 x = four_at(row, d);
#pragma unroll
        for (int n = 0; n < Config<DIM>::KEYS_EACH; n++)
            s[n] = dot_on(x, four_at(keys + (part + PARTS * n) * Config<DIM>::PITCH, d), s[n]);
    }
}

/* sum += weight[stride * j] * row j, over rows j in [0, count) of a tile, for the columns that this thread
 * sums. */
template <int DIM>
__device__ __forceinline__ void add_rows(const float *weight, int stride, const float *rows, int count,
                                         float4 (&sum)[Config<DIM>::FOURS])
{
    int column = threadIdx.x % PARTS * 4;
    for (int j = 0; j < count; j++) {
        float w = weight[stride * j];
#pragma unroll
        for (int n = 0; n < Config<DIM>::FOURS; n++)
            add_scaled(&sum[n], w, four_at(rows + j * Config<DIM>::PITCH, column + 4 * PARTS * n));
    }
}

/* Writes `factor` times the sums of this thread's columns to a row of `dim` elements in global memory. */
template <int FOURS>
__device__ __forceinline__ void store_row(float *row, int dim, float factor, const float4 (&sum)[FOURS])
{
    int column = threadIdx.x % PARTS * 4;
#pragma unroll
    for (int n = 0; n < FOURS; n++) {
        int d = column + 4 * PARTS * n;
        float x[4] = {sum[n].x, sum[n].y, sum[n].z, sum[n].w};
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (d + i < dim)
                row[d + i] = x[i] * factor;
    }
}

/* parts_max returns the largest x, and parts_sum the sum of x, over the eight threads that share a row. */
__device__ __forceinline__ float parts_max(float x)
{
#pragma unroll
    for (int step = PARTS / 2; step > 0; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

__device__ __forceinline__ float parts_sum(float x)
{
#pragma unroll
    for (int step = PARTS / 2; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

/* Multiplies the dot products s of query `row` of the tile, with keys from `from` on of which `count` exist,
 * by the scale; the scores of other keys become -inf. In a tail, adds the logarithm of the weight of each
 * key. */
template <bool TAIL, int N>
__device__ __forceinline__ void finish_scores(const AttentionProblem &a, const Tile &tile, int row, int from,
                                              int count, float (&s)[N])
{
#pragma unroll
    for (int n = 0; n < N; n++) {
        int key = threadIdx.x % PARTS + PARTS * n;
        s[n] = key < count ? __fmul_rn(s[n], a.scale) : -INFINITY;
        if (TAIL && key < count)
            s[n] += tail_bias(a, tile.pair, tile.first + row, from + key);
    }
}

/* Adds scores to the online softmax of a query. Each score is replaced by exp(score - largest score so far),
 * which is also written to `p`. Returns the factor by which sums over earlier keys must be multiplied. */
template <bool TAIL, int N>
__device__ __forceinline__ float online_softmax(float (&s)[N], float *p, float *largest, float *total)
{
    int part = threadIdx.x % PARTS;
    float now = *largest, sum = 0;
#pragma unroll
    for (int n = 0; n < N; n++)
        now = fmaxf(now, s[n]);
    now = parts_max(now);
    float subtracted = TAIL ? tail_largest(now) : now;
#pragma unroll
    for (int n = 0; n < N; n++) {
        s[n] = expf(s[n] - subtracted);
        sum += s[n];
        p[part + PARTS * n] = s[n];
    }
    float rescale = expf(*largest - subtracted);
    *total = *total * rescale + parts_sum(sum);
    *largest = now;
    return rescale;
}

/* Grid: one thread block for each tile of queries; the `tiles` tiles of a (batch, head) are consecutive. */
template <int DIM, bool TAIL>
__global__ void __launch_bounds__(Config<DIM>::THREADS, 2)
    forward_kernel(const __grid_constant__ AttentionProblem a, int tiles)
{
    using C = Config<DIM>;
    extern __shared__ __align__(16) float shared[];
    __shared__ int token[C::ROWS];
    float *q = shared, *k = q + C::TILE, *v = k + C::TILE;
    int row = threadIdx.x / PARTS;
    float *p = v + C::TILE + row * C::SCORES_PITCH;
    Tile tile = tile_at(a, blockIdx.x / tiles, blockIdx.x % tiles, C::ROWS);
    if (tile.rows == 0)
        return;
    float largest = -INFINITY, total = 0, s[C::KEYS_EACH];
    float4 sum[C::FOURS] = {};
    load_rows<DIM>(q, a.q, tile, nullptr, tile.first, tile.rows, a.dim);
    for (int from = 0; from < tile.keys; from += C::ROWS) {
        int count = min(C::ROWS, tile.keys - from);
        load_keys<DIM>(a, tile, from, count, token, k, v);
        dot_keys<DIM>(q + row * C::PITCH, k, s);
        finish_scores<TAIL>(a, tile, row, from, count, s);
        float rescale = online_softmax<TAIL>(s, p, &largest, &total);
#pragma unroll
        for (int n = 0; n < C::FOURS; n++)
            scale_by(&sum[n], rescale);
        __syncwarp();
        add_rows<DIM>(p, 1, v, count, sum);
    }
    if (row >= tile.rows)
        return;
    int64_t query = tile.first + row;
    bool attends = TAIL ? total != 0 : tile.keys > 0;
    store_row(rows_of<float>(a.out, tile) + query * a.out.token_stride, a.dim, attends ? 1 / total : 0.f,
              sum);
    if (threadIdx.x % PARTS == 0)
        a.lse[(int64_t)tile.pair * a.queries + query] = attends ? largest + logf(total) : -INFINITY;
}

/* Adds this thread's columns to one row of the F32 sums of dK or dV in global memory. The order of columns in
 * these sums is described in attention_list.cuh. */
template <int FOURS>
__device__ __forceinline__ void add_to_sums(float *row, int pitch, bool alone, const float4 (&sum)[FOURS])
{
    int column = threadIdx.x % PARTS * 4;
#pragma unroll
    for (int n = 0; n < FOURS; n++) {
        int d = column + 4 * PARTS * n;
        if (d >= pitch)
            continue;
        float x[4] = {sum[n].x, sum[n].y, sum[n].z, sum[n].w};
        float *to = row + d / 16 * 16 + d % 8 * 2 + d % 16 / 8 * 2;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float *one = to + i / 2 * 4 + i % 2;
            if (alone)
                *one += x[i];
            else
                atomicAdd(one, x[i]);
        }
    }
}

/* Computes the probabilities p, and the gradients ds of the scores, of query `row` with the keys of this
 * thread, among `count` keys from `from` on, and writes them to `p` and `ds`. */
template <int DIM, bool TAIL>
__device__ __forceinline__ void differentiate(const AttentionProblem &a, const Tile &tile, int row, int from,
                                              int count, const float *shared, float lse, float delta,
                                              float *p, float *ds)
{
    using C = Config<DIM>;
    const float *q = shared + row * C::PITCH, *dout = q + C::TILE;
    const float *k = shared + 2 * C::TILE, *v = k + C::TILE;
    int part = threadIdx.x % PARTS;
    float s[C::KEYS_EACH], dp[C::KEYS_EACH];
    dot_keys<DIM>(q, k, s);
    dot_keys<DIM>(dout, v, dp);
    finish_scores<TAIL>(a, tile, row, from, count, s);
#pragma unroll
    for (int n = 0; n < C::KEYS_EACH; n++) {
        int key = part + PARTS * n;
        float weight = key < count ? expf(s[n] - lse) : 0.f;
        p[key] = weight;
        ds[key] = weight * (dp[n] - delta);
    }
}

/* Returns delta of query `row` of the tile, whose dO is in shared memory: the dot product of dO and O, for
 * which O is loaded to the tile `out` of shared memory. A tail's delta is an argument. */
template <int DIM, bool TAIL>
__device__ __forceinline__ float find_delta(const AttentionProblem &a, const Tile &tile, int row,
                                            const float *dout, float *out)
{
    float delta = 0;
    if (TAIL) {
        __syncthreads();
        return row < tile.rows ? tail_delta(a, tile.pair, tile.first + row) : 0.f;
    }
    load_rows<DIM>(out, a.out, tile, nullptr, tile.first, tile.rows, a.dim);
    __syncthreads();
    for (int d = 0; d < DIM; d += 4)
        delta = dot_on(four_at(dout + row * Config<DIM>::PITCH, d),
                       four_at(out + row * Config<DIM>::PITCH, d), delta);
    return delta;
}

/* Processes one tile of queries: writes its dq and adds to the sums of dK and dV. */
template <int DIM, bool TAIL>
__device__ void backward_tile(const AttentionProblem &a, const Tile &tile, int slice, float *shared,
                              int *token)
{
    using C = Config<DIM>;
    float *q = shared, *dout = q + C::TILE, *k = dout + C::TILE, *v = k + C::TILE;
    float *p = v + C::TILE, *ds = p + C::SCORES;
    int row = threadIdx.x / PARTS, scores_at = row * C::SCORES_PITCH;
    int64_t query = tile.first + row;
    float lse = row < tile.rows ? a.lse[(int64_t)tile.pair * a.queries + query] : INFINITY;
    float4 dq[C::FOURS] = {};
    if (TAIL)
        lse = tail_lse(lse);
    load_rows<DIM>(q, a.q, tile, nullptr, tile.first, tile.rows, a.dim);
    load_rows<DIM>(dout, a.dout, tile, nullptr, tile.first, tile.rows, a.dim);
    float delta = find_delta<DIM, TAIL>(a, tile, row, dout, k);
    for (int from = 0; from < tile.keys; from += C::ROWS) {
        int count = min(C::ROWS, tile.keys - from);
        load_keys<DIM>(a, tile, from, count, token, k, v);
        differentiate<DIM, TAIL>(a, tile, row, from, count, shared, lse, delta, p + scores_at,
                                 ds + scores_at);
        __syncthreads();
        add_rows<DIM>(ds + scores_at, 1, k, count, dq);
        if (row < count) {
            float4 dk[C::FOURS] = {}, dv[C::FOURS] = {};
            int64_t to = (int64_t)token[row] * a.pitch;
            add_rows<DIM>(ds + row, C::SCORES_PITCH, q, tile.rows, dk);
            add_rows<DIM>(p + row, C::SCORES_PITCH, dout, tile.rows, dv);
            add_to_sums(sums_of(a, slice, false, tile.pair) + to, a.pitch, a.alone, dk);
            add_to_sums(sums_of(a, slice, true, tile.pair) + to, a.pitch, a.alone, dv);
        }
    }
    if (row < tile.rows)
        store_row(rows_of<float>(a.dq, tile) + query * a.dq.token_stride, a.dim, a.scale, dq);
}

/* Grid: `walkers` thread blocks for each (batch, head). Each processes every walkers-th tile of queries of
 * the (batch, head). */
template <int DIM, bool TAIL>
__global__ void __launch_bounds__(Config<DIM>::THREADS, 1)
    backward_kernel(const __grid_constant__ AttentionProblem a, int tiles, int walkers)
{
    extern __shared__ __align__(16) float shared[];
    __shared__ int token[Config<DIM>::ROWS];
    int walker = blockIdx.x % walkers;
    for (int number = walker; number < tiles; number += walkers) {
        Tile tile = tile_at(a, blockIdx.x / walkers, number, Config<DIM>::ROWS);
        __syncthreads();
        if (tile.rows > 0)
            backward_tile<DIM, TAIL>(a, tile, a.alone ? walker : 0, shared, token);
    }
}

template <int DIM, bool TAIL>
DsvStatus launch_forward_f32(DsviStream *stream, const AttentionProblem &problem)
{
    using C = Config<DIM>;
    int tiles = tiles_of(problem, C::ROWS);
    DSVI_CUDA_TRY(cudaFuncSetAttribute(forward_kernel<DIM, TAIL>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       C::FORWARD));
    DSVI_CUDA_LAUNCH(stream, "attention forward in F32", (forward_kernel<DIM, TAIL>),
                     (unsigned)(tiles * problem.pairs), C::THREADS, C::FORWARD, problem, tiles);
    return DSV_OK;
}

template <int DIM, bool TAIL>
DsvStatus launch_backward_f32(DsviStream *stream, const AttentionProblem &problem)
{
    using C = Config<DIM>;
    int tiles = tiles_of(problem, C::ROWS), walkers = problem.alone ? problem.slices : tiles;
    DSVI_CUDA_TRY(cudaFuncSetAttribute(backward_kernel<DIM, TAIL>,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, C::BACKWARD));
    DSVI_CUDA_LAUNCH(stream, "attention backward in F32", (backward_kernel<DIM, TAIL>),
                     (unsigned)(walkers * problem.pairs), C::THREADS, C::BACKWARD, problem, tiles, walkers);
    return DSV_OK;
}

template <bool TAIL> DsvStatus forward_f32(DsviStream *stream, const AttentionProblem &problem)
{
    return problem.dim <= 64    ? launch_forward_f32<64, TAIL>(stream, problem)
           : problem.dim <= 128 ? launch_forward_f32<128, TAIL>(stream, problem)
                                : launch_forward_f32<256, TAIL>(stream, problem);
}

template <bool TAIL> DsvStatus backward_f32(DsviStream *stream, const AttentionProblem &problem)
{
    return problem.dim <= 64    ? launch_backward_f32<64, TAIL>(stream, problem)
           : problem.dim <= 128 ? launch_backward_f32<128, TAIL>(stream, problem)
                                : launch_backward_f32<256, TAIL>(stream, problem);
}

} // namespace

DsvStatus attention_forward_f32(DsviStream *stream, const AttentionProblem &problem)
{
    return forward_f32<false>(stream, problem);
}

DsvStatus attention_backward_f32(DsviStream *stream, const AttentionProblem &problem)
{
    return backward_f32<false>(stream, problem);
}

DsvStatus attention_tail_forward_f32(DsviStream *stream, const AttentionProblem &problem)
{
    return forward_f32<true>(stream, problem);
}

DsvStatus attention_tail_backward_f32(DsviStream *stream, const AttentionProblem &problem)
{
    return backward_f32<true>(stream, problem);
}

} // namespace dsvi
