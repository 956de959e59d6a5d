/* Scores of sampled queries against all keys, for the ops that look at whole rows (profile, predictor_loss).
 *
 * Aligned rows of BF16 are for the tensor cores: a warp takes 16 keys at a time, which go from memory into
 * its registers, against 32 queries, which lie in shared memory. Lane 4 k + q reads elements 8 q to 8 q + 7
 * of every 32 of two keys, 16 bytes each: which elements a product calls neighbours is free as long as both
 * its sides agree. Products are exact. Each 32 of them are a sum of their own, added to the score as floats
 * are, since tensor cores cut what floats would round. What bounds it is reading K, once for each 32
 * queries, and writing the scores: 200 MB for 16 heads of 32,768 keys of 128 elements and 32 queries, 50 us
 * at 4 TB/s. Heads lie side by side in memory, so blocks of threads that run at the same time take the same
 * tokens.
 *
 * Of other rows a block of threads makes 32 queries by 128 keys: a warp has 8 queries, a lane 4 keys. Both
 * pass through shared memory, transposed, SAMPLED_DEPTH elements at a time; a thread brings one key's. */
#ifndef DSVI_SAMPLED_SCORES_CUH
#define DSVI_SAMPLED_SCORES_CUH

#include "cuda/kernel.cuh"
#include "cuda/tensor_core.cuh"
#include "ops/attention.h"

namespace {

using namespace dsvi;

enum {
    SAMPLED_THREADS = 128,
    SAMPLED_KEYS = SAMPLED_THREADS, /* of a tile */
    SAMPLED_QUERIES = 32,
    SAMPLED_DEPTH = 16
};

enum {
    TENSOR_WARPS = 8,
    TENSOR_THREADS = TENSOR_WARPS * WARP,
    TENSOR_BLOCKS = 2,  /* of threads that a multiprocessor holds */
    TENSOR_TILE = 16,   /* keys of a warp at a time */
    TENSOR_KEYS = 4 * TENSOR_TILE * TENSOR_WARPS, /* of a block of threads */
    TENSOR_CHUNK = 32,  /* elements of a row that four lanes read in one access */
    TENSOR_CHUNKS = 4,  /* that are on their way at a time */
    TENSOR_DIM = 256,   /* head sizes up to it */
    TENSOR_PIECES = TENSOR_CHUNK / 8 * SAMPLED_QUERIES /* of 16 bytes, in a chunk of all queries */
};

/* Rows of DsvHeads. */
template <typename T> struct HeadRows {
    T *data;
    int64_t batch_stride, token_stride, head_stride;
};

template <typename T> HeadRows<T> head_rows(const DsvHeads &x)
{
    return {static_cast<T *>(x.data), x.batch_stride, x.token_stride, x.head_stride};
}

/* Whether all rows begin at a multiple of 16 bytes and are whole pieces of 16 bytes. */
template <typename T> bool rows_aligned(const HeadRows<T> &x, int64_t dim)
{
    return aligned(x.data, dim, 16) && aligned(x.data, x.batch_stride, 16) &&
           aligned(x.data, x.token_stride, 16) && aligned(x.data, x.head_stride, 16);
}

/* Row 0 of (b, h) = pair. */
template <typename T>
__device__ __forceinline__ T *rows_of_pair(const HeadRows<T> &x, int64_t pair, int heads)
{
    return x.data + pair / heads * x.batch_stride + pair % heads * x.head_stride;
}

/* scores[(pair - first_pair) * samples + n][j] = factor q_sample[n] . k_j */
template <typename T> struct SampledScores {
    HeadRows<const T> q, k;
    const int32_t *sample;
    int64_t keys, first_pair;
    int samples, heads, dim;
    float factor;
    float *scores;
};

/* Elements [d, d + SAMPLED_DEPTH) of this thread's key and of a quarter of one query, zeros beyond the edges.
 */
template <int VEC, typename T>
__device__ __forceinline__ void load_depth(const SampledScores<T> &s, const T *key, const T *query, int d,
                                           float (*k)[SAMPLED_KEYS], float (*q)[SAMPLED_QUERIES])
{
    constexpr int EACH = SAMPLED_DEPTH / (SAMPLED_THREADS / SAMPLED_QUERIES);
    int n = threadIdx.x % SAMPLED_QUERIES, begin = threadIdx.x / SAMPLED_QUERIES * EACH;
#pragma unroll
    for (int i = 0; i < SAMPLED_DEPTH; i += VEC) {
        float x[VEC] = {};
        if (key && d + i < s.dim)
            load(key + d + i, x);
#pragma unroll
        for (int v = 0; v < VEC; v++)
            k[i + v][threadIdx.x] = x[v];
    }
#pragma unroll
    for (int i = begin; i < begin + EACH; i++)
        q[i][n] = query && d + i < s.dim ? to_float(query[d + i]) : 0.f;
}

/* Grid: tiles of keys, tiles of queries, (batch, head) from first_pair on. */
template <int VEC, typename T>
__global__ __launch_bounds__(SAMPLED_THREADS) void sampled_scores_kernel(SampledScores<T> s)
{
    __shared__ __align__(16) float k[SAMPLED_DEPTH][SAMPLED_KEYS], q[SAMPLED_DEPTH][SAMPLED_QUERIES];
    int64_t pair = s.first_pair + blockIdx.z, first_key = (int64_t)blockIdx.x * SAMPLED_KEYS;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, first = blockIdx.y * SAMPLED_QUERIES;
    int mine = first + threadIdx.x % SAMPLED_QUERIES;
    const T *key = rows_of_pair(s.k, pair, s.heads) + (first_key + threadIdx.x) * s.k.token_stride;
    const T *query = mine < s.samples ? rows_of_pair(s.q, pair, s.heads) + s.sample[mine] * s.q.token_stride
                                      : nullptr;
    float acc[8][4] = {};
    key = first_key + threadIdx.x < s.keys ? key : nullptr;
    for (int d = 0; d < s.dim; d += SAMPLED_DEPTH) {
        load_depth<VEC>(s, key, query, d, k, q);
        __syncthreads();
#pragma unroll
        for (int r = 0; r < SAMPLED_DEPTH; r++) {
            float a[2][4], b[4];
            load(&q[r][8 * warp], a[0]);
            load(&q[r][8 * warp + 4], a[1]);
            load(&k[r][4 * lane], b);
#pragma unroll
            for (int n = 0; n < 32; n++)
                acc[n / 4][n % 4] = fmaf(a[n / 16][n / 4 % 4], b[n % 4], acc[n / 4][n % 4]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int n = first + 8 * warp + i;
        float *row = s.scores + ((int64_t)blockIdx.z * s.samples + n) * s.keys + first_key;
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (n < s.samples && first_key + 4 * lane + j < s.keys)
                row[4 * lane + j] = acc[i][j] * s.factor;
    }
}

template <typename T> DsvStatus plain_scores(DsvStream *stream, const SampledScores<T> &s, int64_t pairs)
{
    dim3 grid((unsigned)ceil_div(s.keys, SAMPLED_KEYS), (unsigned)ceil_div(s.samples, SAMPLED_QUERIES),
              (unsigned)pairs);
    if (rows_aligned(s.k, s.dim))
        sampled_scores_kernel<16 / sizeof(T)><<<grid, SAMPLED_THREADS, 0, stream->handle>>>(s);
    else
        sampled_scores_kernel<1><<<grid, SAMPLED_THREADS, 0, stream->handle>>>(s);
    DSVI_CUDA_LAUNCHED("scores of sampled queries");
    return DSV_OK;
}

/* ---- by tensor cores ---- */

typedef SampledScores<__nv_bfloat16> TensorScores;

/* 32 queries from `first` on: (chunks, queries, 4) pieces of 8 elements, zeros beyond the edges. */
__device__ __forceinline__ void load_queries(const TensorScores &s, int64_t pair, int first, uint4 *queries)
{
    const __nv_bfloat16 *rows = rows_of_pair(s.q, pair, s.heads);
    int pieces = (int)ceil_div(s.dim, TENSOR_CHUNK) * TENSOR_PIECES;
    for (int i = threadIdx.x; i < pieces; i += TENSOR_THREADS) {
        int n = first + i / 4 % SAMPLED_QUERIES, d = i / TENSOR_PIECES * TENSOR_CHUNK + i % 4 * 8;
        queries[i] = make_uint4(0, 0, 0, 0);
        if (n < s.samples && d < s.dim)
            queries[i] = *reinterpret_cast<const uint4 *>(rows + s.sample[n] * s.q.token_stride + d);
    }
}

/* Adds a chunk of 16 keys. `queries`: this lane's piece of the chunk of query 0. sum[i][j]: queries
 * 16 i ... 16 i + 15 by the 8 keys that are key[j] of some lane. */
__device__ __forceinline__ void add_chunk(const uint4 *queries, const uint4 (&key)[2], float (&sum)[2][2][4])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint4 upper = queries[64 * i], lower = queries[64 * i + 32]; /* queries k and k + 8 of the 16 */
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float part[4] = {};
            multiply_rows(part, upper.x, lower.x, upper.y, lower.y, key[j].x, key[j].y);
            multiply_rows(part, upper.z, lower.z, upper.w, lower.w, key[j].z, key[j].w);
#pragma unroll
            for (int n = 0; n < 4; n++)
                sum[i][j][n] += part[n];
        }
    }
}

/* Keys from `key` on, as far as there are so many. Column n of products j is key 4 (n / 2) + 2 j + n % 2. */
__device__ __forceinline__ void score_keys(const TensorScores &s, const __nv_bfloat16 *rows, int64_t key,
                                           const uint4 *queries, float (&sum)[2][2][4])
{
    int column = threadIdx.x % WARP / 4, q = threadIdx.x % 4;
    int64_t mine = key + column / 2 * 4 + column % 2;
    const __nv_bfloat16 *from = rows + mine * s.k.token_stride + 8 * q;
    for (int first = 0; first < s.dim; first += TENSOR_CHUNKS * TENSOR_CHUNK) {
        uint4 keys[TENSOR_CHUNKS][2];
#pragma unroll
        for (int c = 0; c < TENSOR_CHUNKS; c++) {
            int d = first + c * TENSOR_CHUNK;
#pragma unroll
            for (int j = 0; j < 2; j++) {
                keys[c][j] = make_uint4(0, 0, 0, 0);
                if (mine + 2 * j < s.keys && d + 8 * q < s.dim)
                    keys[c][j] = *reinterpret_cast<const uint4 *>(from + 2 * j * s.k.token_stride + d);
            }
        }
#pragma unroll
        for (int c = 0; c < TENSOR_CHUNKS; c++)
            if (first + c * TENSOR_CHUNK < s.dim)
                add_chunk(queries + (first / TENSOR_CHUNK + c) * TENSOR_PIECES, keys[c], sum);
    }
}

/* `scores`: rows of the pair's samples. This lane has keys 4 q ... 4 q + 3 of queries k, k + 8, ... */
__device__ __forceinline__ void put_scores(const TensorScores &s, float *scores, int first, int64_t key,
                                           bool vector_out, const float (&sum)[2][2][4])
{
    int64_t mine = key + threadIdx.x % 4 * 4;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int n = first + 8 * i + threadIdx.x % WARP / 4;
        float *row = scores + n * s.keys + mine, x[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            x[j] = sum[i / 2][j / 2][i % 2 * 2 + j % 2] * s.factor;
        if (n >= s.samples || mine >= s.keys)
            continue;
        if (vector_out) {
            /* an assignment comes out as four stores */
            __stwb(reinterpret_cast<float4 *>(row), make_float4(x[0], x[1], x[2], x[3]));
            continue;
        }
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (mine + j < s.keys)
                row[j] = x[j];
    }
}

/* Grid: `pairs` (batch, head) from s.first_pair on by tiles of keys, the first fastest; tiles of queries. */
__global__ __launch_bounds__(TENSOR_THREADS, TENSOR_BLOCKS) void tensor_scores_kernel(TensorScores s,
                                                                                      unsigned pairs,
                                                                                      bool vector_out)
{
    __shared__ uint4 queries[TENSOR_DIM / TENSOR_CHUNK * TENSOR_PIECES];
    int64_t pair = s.first_pair + blockIdx.x % pairs, first_key = (int64_t)(blockIdx.x / pairs) * TENSOR_KEYS;
    int first = blockIdx.y * SAMPLED_QUERIES, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const __nv_bfloat16 *rows = rows_of_pair(s.k, pair, s.heads);
    float *scores = s.scores + (int64_t)(blockIdx.x % pairs) * s.samples * s.keys;
    int64_t end = first_key + TENSOR_KEYS < s.keys ? first_key + TENSOR_KEYS : s.keys;
    load_queries(s, pair, first, queries);
    __syncthreads();
    for (int64_t key = first_key + warp * TENSOR_TILE; key < end; key += TENSOR_WARPS * TENSOR_TILE) {
        float sum[2][2][4] = {};
        score_keys(s, rows, key, queries + lane, sum);
        put_scores(s, scores, first, key, vector_out, sum);
    }
}

/* ---- either: of `pairs` (batch, head) from s.first_pair on ---- */

inline DsvStatus sampled_scores(DsvStream *stream, const TensorScores &s, int64_t pairs)
{
    if (s.dim > TENSOR_DIM || !rows_aligned(s.q, s.dim) || !rows_aligned(s.k, s.dim))
        return plain_scores(stream, s, pairs);
    dim3 grid((unsigned)(ceil_div(s.keys, TENSOR_KEYS) * pairs),
              (unsigned)ceil_div(s.samples, SAMPLED_QUERIES));
    tensor_scores_kernel<<<grid, TENSOR_THREADS, 0, stream->handle>>>(s, (unsigned)pairs,
                                                                      aligned(s.scores, s.keys, 16));
    DSVI_CUDA_LAUNCHED("scores of sampled queries, tensor cores");
    return DSV_OK;
}

inline DsvStatus sampled_scores(DsvStream *stream, const SampledScores<float> &s, int64_t pairs)
{
    return plain_scores(stream, s, pairs);
}

/* So many (batch, head) at a time that their rows of scores, `rows` for each sample, take SAMPLED_BYTES or
 * little more. */
#define SAMPLED_BYTES ((int64_t)64 << 20)
inline int64_t sampled_pairs(int64_t pairs, int64_t samples, int64_t keys, int64_t rows)
{
    int64_t bytes = rows * samples * keys * (int64_t)sizeof(float),
            fit = bytes > 0 ? SAMPLED_BYTES / bytes : pairs;
    fit = fit < 1 ? 1 : fit > UINT16_MAX ? UINT16_MAX : fit;
    return fit < pairs ? fit : pairs;
}

/* Room for these rows, in bytes: what is enough for so many (batch, head) and samples is for fewer. */
inline size_t sampled_bytes(int64_t pairs, int64_t samples, int64_t keys, int64_t rows)
{
    int64_t one = rows * samples * keys * (int64_t)sizeof(float), all = pairs * one;
    int64_t most = one > SAMPLED_BYTES ? one : SAMPLED_BYTES;
    return (size_t)(all < most ? all : most);
}

} // namespace

#endif
