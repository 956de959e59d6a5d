/* Attention scores of sampled queries against all keys, for the ops that need whole rows of scores (profile
 * and predictor_loss).
 *
 * Rows of BF16 that begin at multiples of 16 bytes use the tensor cores: a warp multiplies 16 keys, which it
 * loads into registers, with 32 queries in shared memory. Lane 4 k + q reads elements 8 q to 8 q + 7 of
 * every 32 elements of two keys, 16 bytes at a time; the elements may be in any order inside a product as
 * long as both factors use the same order. The products are exact. Every 32 of them are summed separately
 * and added to the score as floats, because tensor cores truncate where float additions round. The time is
 * bound by reading K, once per 32 queries, and by writing the scores: 200 MB for 16 heads, 32,768 keys of
 * 128 elements and 32 queries, which is 50 us at 4 TB/s. The heads of a token are neighbours in memory,
 * therefore blocks that run at the same time read the same tokens.
 *
 * For F32 rows and rows that are not aligned, a block computes 32 queries by 128 keys: a warp has 8 queries,
 * a lane 4 keys. Queries and keys are transposed in shared memory, SAMPLED_DEPTH elements at a time; a
 * thread loads one key. */
#ifndef DSVI_SAMPLED_SCORES_CUH
#define DSVI_SAMPLED_SCORES_CUH

#include "cuda/common/kernel.cuh"
#include "cuda/common/tensor_core.cuh"
#include "ops/attention.h"

namespace {

using namespace dsvi;

enum {
    SAMPLED_THREADS = 128,
    SAMPLED_KEYS = SAMPLED_THREADS, /* keys of a thread block */
    SAMPLED_QUERIES = 32,
    SAMPLED_DEPTH = 16
};

enum {
    TENSOR_WARPS = 8,
    TENSOR_THREADS = TENSOR_WARPS * WARP,
    TENSOR_BLOCKS = 2, /* thread blocks that a multiprocessor holds at the same time */
    TENSOR_TILE = 16,  /* keys that a warp multiplies at a time */
    TENSOR_KEYS = 4 * TENSOR_TILE * TENSOR_WARPS, /* keys of a thread block */
    TENSOR_CHUNK = 32, /* elements of a row that four lanes read in one access each */
    TENSOR_CHUNKS = 4, /* chunks of a row whose loads are in flight at a time */
    TENSOR_DIM = 256,  /* largest number of elements of a row for which the tensor-core kernel is used */
    TENSOR_PIECES = TENSOR_CHUNK / 8 *
                    SAMPLED_QUERIES /* pieces of 16 bytes that one chunk of all SAMPLED_QUERIES queries has */
};

/* Rows of heads (DsviHeads of ops/attention.h) with a typed pointer; strides are in elements. */
template <typename T> struct HeadRows {
    T *data;
    int64_t batch_stride, token_stride, head_stride;
};

template <typename T> HeadRows<T> head_rows_of(const DsviHeads &x)
{
    return {static_cast<T *>(x.data), x.batch_stride, x.token_stride, x.head_stride};
}

/* Returns whether every row begins at a multiple of 16 bytes and its length is a multiple of 16 bytes. */
template <typename T> bool head_rows_aligned(const HeadRows<T> &x, int64_t dim)
{
    return aligned(x.data, dim, 16) && aligned(x.data, x.batch_stride, 16) &&
           aligned(x.data, x.token_stride, 16) && aligned(x.data, x.head_stride, 16);
}

/* Returns row 0 (the first token) of the (batch, head) pair number `pair` = b * heads + h. */
template <typename T>
__device__ __forceinline__ T *rows_of_pair(const HeadRows<T> &x, int64_t pair, int heads)
{
    return x.data + pair / heads * x.batch_stride + pair % heads * x.head_stride;
}

/* What the kernels of this file compute: scores[(pair - first_pair) * samples + n][j] = factor times the dot
 * product of sampled query n and key j, for `pairs` (batch, head) pairs, starting with number first_pair. */
template <typename T> struct SampledScores {
    HeadRows<const T> q, k;
    const int32_t *sample;
    int64_t keys, first_pair;
    int samples, heads, dim;
    float factor;
    float *scores;
};

/* Loads into shared memory elements [d, d + SAMPLED_DEPTH) of this thread's key, and a quarter of the same
 * range of elements of one query. Elements past the end of a row become 0. If `key` (or `query`) is NULL, all
 * elements of the key (or query) become 0. */
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

/* Computes scores without tensor cores. Grid: x, tiles of SAMPLED_KEYS keys; y, tiles of SAMPLED_QUERIES
 * queries; z, (batch, head) pairs, starting with s.first_pair. */
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

template <typename T>
DsvStatus launch_plain_scores(DsviStream *stream, const SampledScores<T> &s, int64_t pairs)
{
    dim3 grid((unsigned)ceil_div(s.keys, SAMPLED_KEYS), (unsigned)ceil_div(s.samples, SAMPLED_QUERIES),
              (unsigned)pairs);
    if (head_rows_aligned(s.k, s.dim))
        DSVI_CUDA_LAUNCH(stream, "scores of sampled queries", sampled_scores_kernel<16 / sizeof(T)>, grid,
                         SAMPLED_THREADS, 0, s);
    else
        DSVI_CUDA_LAUNCH(stream, "scores of sampled queries", sampled_scores_kernel<1>, grid, SAMPLED_THREADS,
                         0, s);
    return DSV_OK;
}

/* ---- scores with tensor cores ---- */

typedef SampledScores<__nv_bfloat16> TensorScores;

/* Loads 32 sampled queries, starting with number `first`, into shared memory as (chunks, queries, 4) pieces
 * of 8 elements. Queries past the last sample and elements past the end of a row become 0. */
__device__ __forceinline__ void load_sampled_queries(const TensorScores &s, int64_t pair, int first,
                                                     uint4 *queries)
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

/* Adds to the scores the products of one chunk (TENSOR_CHUNK elements of each row) of 16 keys and 32
 * queries. `queries` points to this lane's piece of the chunk of query 0. sum[i][j] belongs to queries 16 i
 * .. 16 i + 15 and the 8 keys that the warp's lanes hold in key[j]. */
__device__ __forceinline__ void add_chunk(const uint4 *queries, const uint4 (&key)[2], float (&sum)[2][2][4])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint4 upper = queries[64 * i], lower = queries[64 * i + 32]; /* queries k and k + 8 of 16 queries i */
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

/* Computes the scores of 32 queries with 16 keys, starting with key number `key`; keys past the last count as
 * zeros. The scores of sum[.][j], column n, belong to key 4 (n / 2) + 2 j + n % 2 of the 16 keys. */
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

/* Writes the scores of 16 keys to the rows of up to 32 sampled queries. Lane 4 k + q has keys 4 q .. 4 q + 3
 * of queries k, k + 8, ... `vector_out` says that all rows of scores allow accesses of 16 bytes. */
__device__ __forceinline__ void store_scores(const TensorScores &s, float *scores, int first, int64_t key,
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
            /* __stwb, because the compiler would make four stores of an assignment */
            __stwb(reinterpret_cast<float4 *>(row), make_float4(x[0], x[1], x[2], x[3]));
            continue;
        }
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (mine + j < s.keys)
                row[j] = x[j];
    }
}

/* Computes scores with tensor cores. Grid: x, (batch, head) pairs from s.first_pair on, repeated for each
 * tile of TENSOR_KEYS keys; y, tiles of SAMPLED_QUERIES queries. */
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
    load_sampled_queries(s, pair, first, queries);
    __syncthreads();
    for (int64_t key = first_key + warp * TENSOR_TILE; key < end; key += TENSOR_WARPS * TENSOR_TILE) {
        float sum[2][2][4] = {};
        score_keys(s, rows, key, queries + lane, sum);
        store_scores(s, scores, first, key, vector_out, sum);
    }
}

/* ---- launching the tensor-core kernel or the general one, for `pairs` pairs from s.first_pair on ---- */

inline DsvStatus launch_sampled_scores(DsviStream *stream, const TensorScores &s, int64_t pairs)
{
    if (s.dim > TENSOR_DIM || !head_rows_aligned(s.q, s.dim) || !head_rows_aligned(s.k, s.dim))
        return launch_plain_scores(stream, s, pairs);
    dim3 grid((unsigned)(ceil_div(s.keys, TENSOR_KEYS) * pairs),
              (unsigned)ceil_div(s.samples, SAMPLED_QUERIES));
    DSVI_CUDA_LAUNCH(stream, "scores of sampled queries, tensor cores", tensor_scores_kernel, grid,
                     TENSOR_THREADS, 0, s, (unsigned)pairs, aligned(s.scores, s.keys, 16));
    return DSV_OK;
}

inline DsvStatus launch_sampled_scores(DsviStream *stream, const SampledScores<float> &s, int64_t pairs)
{
    return launch_plain_scores(stream, s, pairs);
}

/* Bytes of scores that are computed at a time, unless a single (batch, head) pair needs more. */
#define SAMPLED_BYTES ((int64_t)64 << 20)

/* Returns how many of `pairs` (batch, head) pairs to compute at a time if each sampled query has `rows` rows
 * of scores: as many as SAMPLED_BYTES holds, but at least 1 and at most 65535. */
inline int64_t sampled_pairs(int64_t pairs, int64_t samples, int64_t keys, int64_t rows)
{
    int64_t bytes = rows * samples * keys * (int64_t)sizeof(float),
            fit = bytes > 0 ? SAMPLED_BYTES / bytes : pairs;
    fit = fit < 1 ? 1 : fit > UINT16_MAX ? UINT16_MAX : fit;
    return fit < pairs ? fit : pairs;
}

/* Returns the bytes of workspace for the scores of as many pairs as sampled_pairs returns. The bytes never
 * shrink when there are more pairs or samples, so a workspace also serves calls with fewer pairs or samples.
 */
inline size_t sampled_bytes(int64_t pairs, int64_t samples, int64_t keys, int64_t rows)
{
    int64_t one = rows * samples * keys * (int64_t)sizeof(float), all = pairs * one;
    int64_t bytes_max = one > SAMPLED_BYTES ? one : SAMPLED_BYTES;
    return (size_t)(all < bytes_max ? all : bytes_max);
}

} // namespace

#endif
