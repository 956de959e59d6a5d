/* attention_error: relative error of attention over lists on sampled queries (interface:
 * ops/attention_error.h). The (batch, head) pairs are handled a few at a time: sampled_scores.cuh computes
 * one row of scores per sampled query; proxy_scores_kernel, if chunks have several queries, one row per chunk
 * of a sampled query. Then one thread block handles both rows of a query. It replaces the scores by the
 * weights that the values have in the exact output and in the output over lists and tail, and adds up both
 * outputs. All sums have a fixed order.
 *
 * The time is bound by reading V, and K if chunks have several queries, once per sampled query, mostly from
 * the L2 cache. */
#include <math.h>

#include "cuda/common/cuda.h"
#include "cuda/select/sampled_scores.cuh"
#include "ops/attention_error.h"

namespace {

enum {
    ERROR_THREADS = 512,
    ERROR_WARPS = ERROR_THREADS / WARP,
    PROXY_THREADS = 256,
    PROXY_WARPS = PROXY_THREADS / WARP,
    PROXY_KEYS = 1024 /* keys of a thread block of proxy_scores_kernel */
};

/* What the kernels receive. A pair is a (batch, head). Row number (pair - first_pair) * samples + n of
 * `exact` and `listed` belongs to sampled query n. */
template <typename T> struct ErrorWork {
    HeadRows<const T> q, k, v;
    const int32_t *sample;
    int64_t queries, keys, first_pair, chunk, run; /* chunk 0: no tail */
    int samples, heads, dim;
    float factor;
    float *exact, *listed; /* (rows, keys) scores, then weights */
    float *error, *norm;
    const int64_t *offsets;
    const int32_t *spans;
    int64_t group, groups, grain;
};

/* ---- scores of the mean query of each sampled query's chunk ---- */

template <typename T>
__device__ void load_chunk_mean(const ErrorWork<T> &w, int64_t pair, int64_t query, float *mean)
{
    int64_t first = query / w.chunk * w.chunk, end = first + w.chunk;
    end = end < w.queries ? end : w.queries;
    const T *rows = rows_of_pair(w.q, pair, w.heads);
    for (int d = threadIdx.x; d < w.dim; d += blockDim.x) {
        float sum = 0;
        for (int64_t i = first; i < end; i++)
            sum += to_float(rows[i * w.q.token_stride + d]);
        mean[d] = sum / (float)(end - first);
    }
}

/* Grid: x, rows; y, tiles of PROXY_KEYS keys. A warp computes one score at a time. */
template <typename T> __global__ __launch_bounds__(PROXY_THREADS) void proxy_scores_kernel(ErrorWork<T> w)
{
    __shared__ float mean[DSVI_HEAD_DIM_MAX];
    int64_t row = blockIdx.x, pair = w.first_pair + row / w.samples;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const T *keys = rows_of_pair(w.k, pair, w.heads);
    load_chunk_mean(w, pair, w.sample[row % w.samples], mean);
    __syncthreads();
    int64_t first = (int64_t)blockIdx.y * PROXY_KEYS;
    int64_t end = first + PROXY_KEYS < w.keys ? first + PROXY_KEYS : w.keys;
    for (int64_t j = first + warp; j < end; j += PROXY_WARPS) {
        float sum = 0;
        for (int d = lane; d < w.dim; d += WARP)
            sum += mean[d] * to_float(keys[j * w.k.token_stride + d]);
        sum = warp_sum(sum);
        if (lane == 0)
            w.listed[row * w.keys + j] = sum * w.factor;
    }
}

/* ---- weights ---- */

/* The key list of one query: `count` spans of `grain` keys. */
struct ErrorList {
    const int32_t *spans;
    int64_t count, grain, keys;
};

template <typename T>
__device__ __forceinline__ ErrorList error_list_of(const ErrorWork<T> &w, int64_t pair, int64_t query)
{
    int64_t list = pair * w.groups + query / w.group, begin = w.offsets[list];
    return {w.spans + begin, w.offsets[list + 1] - begin, w.grain, w.keys};
}

/* Returns the number of listed keys below `key`, by bisection over the spans. */
__device__ int64_t listed_below(const ErrorList &list, int64_t key)
{
    int64_t span = key / list.grain, low = 0, high = list.count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (list.spans[middle] < span)
            low = middle + 1;
        else
            high = middle;
    }
    int64_t part = low < list.count && list.spans[low] == span ? key - span * list.grain : 0;
    return low * list.grain + part;
}

/* Returns the largest of x over the block to all threads. `shared` has one float per warp. */
__device__ float block_max(float x, float *shared)
{
    int lane = threadIdx.x % WARP;
    x = warp_max(x);
    if (lane == 0)
        shared[threadIdx.x / WARP] = x;
    __syncthreads();
    return warp_max(lane < ERROR_WARPS ? shared[lane] : -INFINITY);
}

/* Sets in `listed` the weights of all keys in the tail, relative to exp(largest), from the scores of the mean
 * query with the keys. The score of a run's mean key is the mean of the scores of its keys. A warp handles a
 * run, or a thread if runs are shorter than a warp. */
template <typename T>
__device__ void weigh_tail(const ErrorWork<T> &w, const ErrorList &list, float largest, const float *scores,
                           float *listed)
{
    int team = w.run < WARP ? 1 : WARP, lane = threadIdx.x % team;
    for (int64_t r = threadIdx.x / team; r * w.run < w.keys; r += ERROR_THREADS / team) {
        int64_t first = r * w.run, end = first + w.run < w.keys ? first + w.run : w.keys;
        float sum = 0, count = (float)(end - first);
        float left = count - (float)(listed_below(list, end) - listed_below(list, first));
        for (int64_t j = first + lane; j < end; j += team)
            sum += scores[j];
        sum = team == WARP ? warp_sum(sum) : sum;
        float weight = left * expf(sum / count - largest) / count;
        for (int64_t j = first + lane; j < end; j += team)
            listed[j] = weight;
    }
}

/* Replaces both rows of scores by weights, which are relative to exp(largest). With chunks of one query the
 * mean query is the query itself, and `listed` has no scores. */
template <typename T>
__device__ void weigh(const ErrorWork<T> &w, const ErrorList &list, float largest, float *exact,
                      float *listed)
{
    if (w.chunk > 0)
        weigh_tail(w, list, largest, w.chunk == 1 ? exact : listed, listed);
    for (int64_t j = threadIdx.x; j < w.keys && w.chunk == 0; j += ERROR_THREADS)
        listed[j] = 0;
    __syncthreads();
    for (int64_t j = threadIdx.x; j < w.keys; j += ERROR_THREADS)
        exact[j] = expf(exact[j] - largest);
    __syncthreads();
    for (int64_t i = threadIdx.x; i < list.count * list.grain; i += ERROR_THREADS) {
        int64_t j = (int64_t)list.spans[i / list.grain] * list.grain + i % list.grain;
        if (j < w.keys)
            listed[j] += exact[j];
    }
    __syncthreads();
}

/* ---- outputs ---- */

/* Adds to the sums of both outputs VEC elements, those at `values`, of the rows part, part + parts, ... */
template <int VEC, typename T>
__device__ __forceinline__ void add_values(const ErrorWork<T> &w, const T *values, int part, int parts,
                                           const float *exact, const float *listed, float (&out)[2][VEC])
{
#pragma unroll 4
    for (int64_t j = part; j < w.keys; j += parts) {
        float value[VEC], of_exact = exact[j], of_listed = listed[j];
        load(values + j * w.v.token_stride, value);
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            out[0][i] = fmaf(of_exact, value[i], out[0][i]);
            out[1][i] = fmaf(of_listed, value[i], out[1][i]);
        }
    }
}

/* Computes the results of one sampled query from the weights of all values. `width` threads share the
 * elements of a value, VEC each; the values are divided among `parts` such teams. */
template <int VEC, typename T>
__device__ void compare_outputs(const ErrorWork<T> &w, int64_t row, int64_t pair, const float *exact,
                                const float *listed, float *shared)
{
    __shared__ float sum[2][ERROR_THREADS * VEC];
    int width = w.dim / VEC, parts = ERROR_THREADS / width, part = threadIdx.x / width;
    float out[2][VEC] = {}, total[2] = {0, 0}, difference = 0, expected = 0;
    for (int64_t j = threadIdx.x; j < w.keys; j += ERROR_THREADS) {
        total[0] += exact[j];
        total[1] += listed[j];
    }
    for (int i = 0; i < 2; i++) {
        total[i] = block_sum(total[i], shared);
        __syncthreads();
    }
    if (part < parts)
        add_values<VEC>(w, rows_of_pair(w.v, pair, w.heads) + threadIdx.x % width * VEC, part, parts, exact,
                        listed, out);
    for (int i = 0; i < 2; i++)
        for (int d = 0; d < VEC; d++)
            sum[i][threadIdx.x * VEC + d] = out[i][d];
    __syncthreads();
    if (threadIdx.x < w.dim) {
        float element[2] = {0, 0};
        for (int p = 0; p < parts; p++) {
            element[0] += sum[0][p * w.dim + threadIdx.x];
            element[1] += sum[1][p * w.dim + threadIdx.x];
        }
        expected = element[0] / total[0];
        difference = (total[1] > 0 ? element[1] / total[1] : 0) - expected;
    }
    float error = block_sum(difference * difference, shared);
    __syncthreads();
    float norm = block_sum(expected * expected, shared);
    if (threadIdx.x == 0) {
        w.error[w.first_pair * w.samples + row] = error;
        w.norm[w.first_pair * w.samples + row] = norm;
    }
}

/* Grid: one block per row. VEC divides the number of elements of a value. */
template <int VEC, typename T> __global__ __launch_bounds__(ERROR_THREADS) void error_kernel(ErrorWork<T> w)
{
    __shared__ float shared[ERROR_WARPS];
    int64_t row = blockIdx.x, pair = w.first_pair + row / w.samples;
    float *exact = w.exact + row * w.keys, *listed = w.listed + row * w.keys, largest = -INFINITY;
    ErrorList list = error_list_of(w, pair, w.sample[row % w.samples]);
    for (int64_t j = threadIdx.x; j < w.keys; j += ERROR_THREADS)
        largest = fmaxf(largest, w.chunk > 1 ? fmaxf(exact[j], listed[j]) : exact[j]);
    largest = block_max(largest, shared);
    __syncthreads();
    weigh(w, list, largest, exact, listed);
    compare_outputs<VEC>(w, row, pair, exact, listed, shared);
}

/* ---- launching ---- */

size_t cuda_error_workspace(DsviStream *stream, const DsviAttentionErrorArgs *args)
{
    (void)stream;
    return sampled_bytes(args->batch * args->heads, args->samples, args->keys, 2);
}

template <typename T> DsvStatus error_pairs(DsviStream *stream, const DsviAttentionErrorArgs *args)
{
    const DsviLists *lists = args->lists;
    int64_t all = args->batch * args->heads;
    int64_t pairs_max = sampled_pairs(all, args->samples, args->keys, 2);
    float *exact = static_cast<float *>(args->workspace);
    ErrorWork<T> w = {head_rows_of<const T>(args->q),
                      head_rows_of<const T>(args->k),
                      head_rows_of<const T>(args->v),
                      args->sample,
                      args->queries,
                      args->keys,
                      0,
                      args->chunk,
                      args->run,
                      (int)args->samples,
                      (int)args->heads,
                      (int)args->head_dim,
                      (float)args->scale,
                      exact,
                      exact + pairs_max * args->samples * args->keys,
                      args->error,
                      args->norm,
                      lists->offsets,
                      lists->spans,
                      lists->group,
                      lists->groups,
                      lists->grain};
    auto *kernel = head_rows_aligned(w.v, w.dim) ? error_kernel<16 / sizeof(T), T> : error_kernel<1, T>;
    SampledScores<T> s = {w.q, w.k, w.sample, w.keys, 0, w.samples, w.heads, w.dim, w.factor, exact};
    for (int64_t first = 0; first < all; first += pairs_max) {
        int64_t pairs = all - first < pairs_max ? all - first : pairs_max;
        unsigned rows = (unsigned)(pairs * args->samples);
        w.first_pair = s.first_pair = first;
        DSVI_TRY(launch_sampled_scores(stream, s, pairs));
        if (args->chunk > 1)
            DSVI_CUDA_LAUNCH(stream, "scores of mean queries", proxy_scores_kernel,
                             dim3(rows, (unsigned)ceil_div(args->keys, PROXY_KEYS)), PROXY_THREADS, 0, w);
        DSVI_CUDA_LAUNCH(stream, "attention error", kernel, rows, ERROR_THREADS, 0, w);
    }
    return DSV_OK;
}

DsvStatus cuda_attention_error(DsviStream *stream, const DsviAttentionErrorArgs *args)
{
    DSVI_TRY(dsvi_attention_error_check(args, cuda_error_workspace(stream, args)));
    if (args->batch * args->heads * args->samples * args->keys == 0)
        return DSV_OK;
    DSVI_FOR_ACT("attention error", args->act, return error_pairs<T>(stream, args));
}

} // namespace

void dsvi_cuda_fill_attention_error(DsviOps *ops)
{
    DSVI_OPS_SET_WITH_WORKSPACE(ops, attention_error, cuda_attention_error, cuda_error_workspace, "cuda");
}
