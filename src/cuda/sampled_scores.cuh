/* Scores of sampled queries against all keys, for the ops that look at whole rows (profile, predictor_loss).
 *
 * A block of threads makes 32 queries by 128 keys: a warp has 8 queries, a lane 4 keys. Both pass through
 * shared memory, transposed, SCORE_DEPTH elements at a time; a thread brings one key's. */
#ifndef DSVI_SAMPLED_SCORES_CUH
#define DSVI_SAMPLED_SCORES_CUH

#include "cuda/kernel.cuh"
#include "ops/attention.h"

namespace {

using namespace dsvi;

enum {
    SAMPLED_THREADS = 128,
    SAMPLED_KEYS = SAMPLED_THREADS, /* of a tile */
    SAMPLED_QUERIES = 32,
    SAMPLED_DEPTH = 16
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

/* Of `pairs` (batch, head) from s.first_pair on. */
template <typename T> DsvStatus sampled_scores(DsvStream *stream, const SampledScores<T> &s, int64_t pairs)
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
