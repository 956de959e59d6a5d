/* The predictor's loss and gradient (ops/predictor_loss.h; its truth tells the formulas): rows of both scores
 * of the sampled queries, some (batch, head) at a time.
 *
 * A block of threads a row makes of them, in double, the row's loss and du = d loss / d u. From du a thread
 * sums dkl of one key over the samples, in order; a block of threads sums dql of SAMPLES_AT_ONCE samples over
 * the keys. Those become rows of dql at the end, for a query may be sampled twice. */
#include <math.h>

#include "cuda/block_sums.cuh"
#include "cuda/cuda.h"
#include "cuda/sampled_scores.cuh"
#include "ops/predictor_loss.h"

namespace {

enum {
    ROW_THREADS = 256,
    KEY_THREADS = 128,     /* a key each */
    QUERY_THREADS = 256,
    FILL_THREADS = 256,
    RANK_TILE = 16,        /* elements of a row of ql or kl made at a time */
    SAMPLES_AT_ONCE = 2,
    SAMPLES_KEPT = 32      /* rows of ql in shared memory */
};

struct Predictor {
    int64_t queries, keys, first_pair, pairs; /* pairs: from first_pair on */
    int samples, heads, rank;
    bool centred;
    double cos_weight, norm_weight, rows;     /* rows: of all the batch */
    const int32_t *sample;
    HeadRows<const float> ql, kl;
    HeadRows<float> dql, dkl;
    float *t, *u;      /* (pairs, samples, keys) scores; u then du */
    float *sampled;    /* (batch, heads, samples, rank) dql of the samples */
    double *losses;    /* (batch, heads, samples) */
};

/* ---- a row's loss, and du ---- */

/* The norm of a centred row, 0 where it is too small to count. */
__device__ __forceinline__ double norm_of(double squares, double mean, double keys)
{
    double norm = sqrt(squares), least = DSV_PREDICTOR_LEAST_SHARE * fabs(mean) * sqrt(keys);
    return norm < fmax(least, DSV_PREDICTOR_LEAST_NORM) ? 0. : norm;
}

__global__ __launch_bounds__(ROW_THREADS) void row_kernel(Predictor w)
{
    __shared__ double sums[5][ROW_THREADS / WARP];
    const float *t = w.t + (int64_t)blockIdx.x * w.keys;
    float *u = w.u + (int64_t)blockIdx.x * w.keys;
    double keys = (double)w.keys, t_mean = 0, u_mean = 0, tt = 0, uu = 0, tu = 0;
    for (int64_t j = threadIdx.x; w.centred && j < w.keys; j += ROW_THREADS) {
        t_mean += t[j];
        u_mean += u[j];
    }
    t_mean = block_sum(t_mean, sums[0]) / keys;
    u_mean = block_sum(u_mean, sums[1]) / keys;
    for (int64_t j = threadIdx.x; j < w.keys; j += ROW_THREADS) {
        double x = t[j] - t_mean, y = u[j] - u_mean;
        tt += x * x;
        uu += y * y;
        tu += x * y;
    }
    double t_norm = norm_of(block_sum(tt, sums[2]), t_mean, keys);
    double u_norm = norm_of(block_sum(uu, sums[3]), u_mean, keys);
    tu = block_sum(tu, sums[4]);
    bool t_counts = t_norm != 0, u_counts = u_norm != 0, both = t_counts && u_counts; /* NaN counts */
    double cosine = both ? tu / (t_norm * u_norm) : 0;
    double slope = -(w.cos_weight + 2 * w.norm_weight / keys) / (u_norm * sqrt((double)w.rank) * w.rows);
    for (int64_t j = threadIdx.x; j < w.keys; j += ROW_THREADS) {
        double x = (t[j] - t_mean) / t_norm, y = (u[j] - u_mean) / u_norm;
        u[j] = both ? (float)(slope * (x - cosine * y)) : 0.f;
    }
    if (threadIdx.x == 0)
        w.losses[w.first_pair * w.samples + blockIdx.x] =
            w.cos_weight * (1 - cosine) + w.norm_weight * (t_counts + u_counts - 2 * cosine) / keys;
}

/* ---- dkl ---- */

/* Elements [first, first + RANK_TILE) of a row, zeros beyond the last. VEC of them are one access. */
template <int VEC>
__device__ __forceinline__ void load_tile(const float *row, int first, int rank, float (&x)[RANK_TILE])
{
#pragma unroll
    for (int r = 0; r < RANK_TILE; r += VEC) {
        float part[VEC] = {};
        if (first + r < rank)
            load(row + first + r, part);
#pragma unroll
        for (int i = 0; i < VEC; i++)
            x[r + i] = part[i];
    }
}

/* Grid: tiles of keys, tiles of the rank, (batch, head) from first_pair on. */
__global__ __launch_bounds__(KEY_THREADS) void keys_kernel(Predictor w)
{
    __shared__ float ql[SAMPLES_KEPT][RANK_TILE];
    int64_t pair = w.first_pair + blockIdx.z, j = (int64_t)blockIdx.x * KEY_THREADS + threadIdx.x;
    int first = blockIdx.y * RANK_TILE;
    const float *queries = rows_of_pair(w.ql, pair, w.heads);
    const float *du = w.u + (int64_t)blockIdx.z * w.samples * w.keys + j;
    float sum[RANK_TILE] = {};
    for (int begin = 0; begin < w.samples; begin += SAMPLES_KEPT) {
        int count = w.samples - begin < SAMPLES_KEPT ? w.samples - begin : (int)SAMPLES_KEPT;
        __syncthreads();
        for (int i = threadIdx.x; i < count * RANK_TILE; i += KEY_THREADS) {
            int r = first + i % RANK_TILE;
            const float *query = queries + w.sample[begin + i / RANK_TILE] * w.ql.token_stride;
            ql[i / RANK_TILE][i % RANK_TILE] = r < w.rank ? query[r] : 0.f;
        }
        __syncthreads();
        for (int n = 0; n < count && j < w.keys; n++) {
            float slope = du[(begin + n) * w.keys];
#pragma unroll
            for (int r = 0; r < RANK_TILE; r++)
                sum[r] = fmaf(slope, ql[n][r], sum[r]);
        }
    }
    float *dkl = rows_of_pair(w.dkl, pair, w.heads) + j * w.dkl.token_stride + first;
#pragma unroll
    for (int r = 0; r < RANK_TILE; r++)
        if (j < w.keys && first + r < w.rank)
            dkl[r] = sum[r];
}

/* ---- dql ---- */

/* Grid: SAMPLES_AT_ONCE samples, tiles of the rank, (batch, head) from first_pair on. */
template <int VEC> __global__ __launch_bounds__(QUERY_THREADS) void queries_kernel(Predictor w)
{
    __shared__ double sums[SAMPLES_AT_ONCE][RANK_TILE][QUERY_THREADS / WARP];
    int64_t pair = w.first_pair + blockIdx.z;
    int begin = blockIdx.x * SAMPLES_AT_ONCE, first = blockIdx.y * RANK_TILE;
    int count = w.samples - begin < SAMPLES_AT_ONCE ? w.samples - begin : (int)SAMPLES_AT_ONCE;
    const float *du = w.u + ((int64_t)blockIdx.z * w.samples + begin) * w.keys;
    const float *keys = rows_of_pair(w.kl, pair, w.heads);
    float sum[SAMPLES_AT_ONCE][RANK_TILE] = {};
    for (int64_t j = threadIdx.x; j < w.keys; j += QUERY_THREADS) {
        float kl[RANK_TILE];
        load_tile<VEC>(keys + j * w.kl.token_stride, first, w.rank, kl);
#pragma unroll
        for (int n = 0; n < SAMPLES_AT_ONCE; n++) {
            float slope = n < count ? du[n * w.keys + j] : 0.f;
#pragma unroll
            for (int r = 0; r < RANK_TILE; r++)
                sum[n][r] = fmaf(slope, kl[r], sum[n][r]);
        }
    }
#pragma unroll
    for (int n = 0; n < SAMPLES_AT_ONCE; n++) {
#pragma unroll
        for (int r = 0; r < RANK_TILE; r++) {
            double all = warp_sum((double)sum[n][r]);
            if (threadIdx.x % WARP == 0)
                sums[n][r][threadIdx.x / WARP] = all;
        }
    }
    __syncthreads();
    int n = threadIdx.x / RANK_TILE, r = threadIdx.x % RANK_TILE;
    if (n >= count || first + r >= w.rank)
        return;
    double all = 0;
    for (int warp = 0; warp < QUERY_THREADS / WARP; warp++)
        all += sums[n][r][warp];
    w.sampled[((pair * w.samples) + begin + n) * w.rank + first + r] = (float)all;
}

/* A thread an element of dql: zero. */
__global__ void zero_kernel(Predictor w, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    int64_t row = i / w.rank;
    rows_of_pair(w.dql, row / w.queries, w.heads)[row % w.queries * w.dql.token_stride + i % w.rank] = 0.f;
}

/* A thread an element of `sampled`. The first of the samples of one query adds them all, in order. */
__global__ void spread_kernel(Predictor w, int64_t elements)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= elements)
        return;
    int r = (int)(i % w.rank), n = (int)(i / w.rank % w.samples), query = w.sample[n];
    int64_t pair = i / w.rank / w.samples;
    const float *mine = w.sampled + pair * w.samples * w.rank + r;
    float sum = 0.f;
    for (int other = 0; other < w.samples; other++) {
        if (w.sample[other] != query)
            continue;
        if (other < n)
            return;
        sum += mine[(int64_t)other * w.rank];
    }
    rows_of_pair(w.dql, pair, w.heads)[query * w.dql.token_stride + r] = sum;
}

/* One block of threads: the mean of the rows' losses. */
__global__ __launch_bounds__(ROW_THREADS) void loss_kernel(const double *losses, int64_t rows, float *loss)
{
    __shared__ double sums[ROW_THREADS / WARP];
    double sum = 0;
    for (int64_t row = threadIdx.x; row < rows; row += ROW_THREADS)
        sum += losses[row];
    sum = block_sum(sum, sums);
    if (threadIdx.x == 0)
        *loss = rows > 0 ? (float)(sum / (double)rows) : 0.f;
}

/* ---- the op ---- */

struct Layout {
    int64_t pairs_at_once;
    int64_t scores;  /* floats of t (or u) */
    size_t bytes;
};

Layout layout(const DsvPredictorLossArgs *args)
{
    Layout l;
    int64_t pairs = args->batch * args->heads;
    l.pairs_at_once = sampled_pairs(pairs, args->samples, args->keys, 2);
    l.scores = l.pairs_at_once * args->samples * args->keys;
    l.bytes = (size_t)(pairs * args->samples) * sizeof(double) +
              sampled_bytes(pairs, args->samples, args->keys, 2) +
              (size_t)(pairs * args->samples * args->rank) * sizeof(float);
    return l;
}

size_t workspace(DsvStream *stream, const DsvPredictorLossArgs *args)
{
    (void)stream;
    return layout(args).bytes;
}

Predictor predictor_of(const DsvPredictorLossArgs *args)
{
    Predictor w = {};
    Layout l = layout(args);
    w.queries = args->queries;
    w.keys = args->keys;
    w.samples = (int)args->samples;
    w.heads = (int)args->heads;
    w.rank = (int)args->rank;
    w.centred = args->centred;
    w.cos_weight = args->cos_weight;
    w.norm_weight = args->norm_weight;
    w.rows = (double)(args->batch * args->heads * args->samples);
    w.sample = args->sample;
    w.ql = head_rows<const float>(args->ql);
    w.kl = head_rows<const float>(args->kl);
    w.dql = head_rows<float>(args->dql);
    w.dkl = head_rows<float>(args->dkl);
    w.losses = static_cast<double *>(args->workspace);
    w.t = reinterpret_cast<float *>(w.losses + args->batch * args->heads * args->samples);
    w.u = w.t + l.scores;
    w.sampled = w.u + l.scores;
    return w;
}

template <typename T>
SampledScores<T> scores_of(const Predictor &w, const DsvHeads &q, const DsvHeads &k, int64_t dim,
                           float *scores)
{
    return {head_rows<const T>(q), head_rows<const T>(k), w.sample, w.keys, w.first_pair, w.samples, w.heads,
            (int)dim, (float)(1 / sqrt((double)dim)), scores};
}

/* Rows of w.pairs (batch, head) and what they say to dkl and dql. */
template <typename T>
DsvStatus sample_pairs(DsvStream *stream, const DsvPredictorLossArgs *args, const Predictor &w)
{
    unsigned tiles = (unsigned)ceil_div(w.rank, RANK_TILE), pairs = (unsigned)w.pairs;
    if (w.samples > 0) {
        DSVI_TRY(sampled_scores(stream, scores_of<T>(w, args->q, args->k, args->head_dim, w.t), w.pairs));
        DSVI_TRY(sampled_scores(stream, scores_of<float>(w, args->ql, args->kl, args->rank, w.u), w.pairs));
        row_kernel<<<pairs * w.samples, ROW_THREADS, 0, stream->handle>>>(w);
        DSVI_CUDA_LAUNCHED("predictor_loss, rows");
        dim3 samples((unsigned)ceil_div(w.samples, SAMPLES_AT_ONCE), tiles, pairs);
        if (rows_aligned(w.kl, w.rank))
            queries_kernel<4><<<samples, QUERY_THREADS, 0, stream->handle>>>(w);
        else
            queries_kernel<1><<<samples, QUERY_THREADS, 0, stream->handle>>>(w);
        DSVI_CUDA_LAUNCHED("predictor_loss, dql");
    }
    dim3 grid((unsigned)ceil_div(w.keys, KEY_THREADS), tiles, pairs);
    keys_kernel<<<grid, KEY_THREADS, 0, stream->handle>>>(w);
    DSVI_CUDA_LAUNCHED("predictor_loss, dkl");
    return DSV_OK;
}

template <typename T> DsvStatus sample_all(DsvStream *stream, const DsvPredictorLossArgs *args, Predictor *w)
{
    int64_t all = args->batch * args->heads, most = layout(args).pairs_at_once;
    for (w->first_pair = 0; w->first_pair < all; w->first_pair += most) {
        w->pairs = all - w->first_pair < most ? all - w->first_pair : most;
        DSVI_TRY(sample_pairs<T>(stream, args, *w));
    }
    return DSV_OK;
}

/* Rows of dql, from those of the samples. */
DsvStatus put_queries(DsvStream *stream, const DsvPredictorLossArgs *args, const Predictor &w)
{
    int64_t elements = args->batch * args->heads * w.queries * w.rank;
    int64_t sampled = args->batch * args->heads * w.samples * w.rank;
    if (elements == 0)
        return DSV_OK;
    zero_kernel<<<(unsigned)ceil_div(elements, FILL_THREADS), FILL_THREADS, 0, stream->handle>>>(w, elements);
    DSVI_CUDA_LAUNCHED("predictor_loss, dql zero");
    if (sampled == 0)
        return DSV_OK;
    spread_kernel<<<(unsigned)ceil_div(sampled, FILL_THREADS), FILL_THREADS, 0, stream->handle>>>(w, sampled);
    DSVI_CUDA_LAUNCHED("predictor_loss, dql of samples");
    return DSV_OK;
}

DsvStatus find_rows(DsvStream *stream, const DsvPredictorLossArgs *args, Predictor *w)
{
    DSVI_FOR_ACT("predictor_loss", args->act, return sample_all<T>(stream, args, w));
}

DsvStatus predictor_loss(DsvStream *stream, const DsvPredictorLossArgs *args)
{
    if (args->acc != DSV_F32)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "predictor_loss: this variant takes F32 sums, not %s",
                         dsvi_dtype_name(args->acc));
    if (args->workspace_bytes < workspace(stream, args))
        return DSVI_FAIL(DSV_E_SHAPE, "predictor_loss: workspace has %zu bytes, wanted %zu",
                         args->workspace_bytes, workspace(stream, args));
    Predictor w = predictor_of(args);
    if (args->batch * args->heads * args->keys > 0)
        DSVI_TRY(find_rows(stream, args, &w));
    DSVI_TRY(put_queries(stream, args, w));
    loss_kernel<<<1, ROW_THREADS, 0, stream->handle>>>(w.losses, args->batch * args->heads * args->samples,
                                                       static_cast<float *>(args->loss));
    DSVI_CUDA_LAUNCHED("predictor_loss");
    return DSV_OK;
}

} // namespace

void dsvi_cuda_fill_predictor_loss(DsvOps *ops)
{
    DSVI_OPS_SET_WITH_WORKSPACE(ops, predictor_loss, predictor_loss, workspace, "cuda");
}
