/* predictor_loss: the loss and the gradient of the predictor (interface: ops/predictor_loss.h; formulas: the
 * reference implementation ops/predictor_loss_ref.c).
 *
 * The (batch, head) pairs are handled a few at a time. For each, sampled_scores.cuh computes a row of exact
 * scores t and a row of predicted scores u = ql . kl / sqrt(rank) per sampled query. Then one thread block
 * per row computes, in double, the row's loss and du = d loss / d u. From du, a thread sums the gradient dkl
 * of one key over the sampled queries, in order, and a thread block sums the gradient dql of SAMPLES_AT_ONCE
 * sampled queries over the keys. A query may be sampled twice, so the dql of the samples are added to the
 * rows of their queries at the end. */
#include <math.h>

#include "cuda/common/block_sums.cuh"
#include "cuda/common/cuda.h"
#include "cuda/select/sampled_scores.cuh"
#include "ops/predictor_loss.h"

namespace {

enum {
    ROW_THREADS = 256,
    KEY_THREADS = 128, /* one key per thread */
    QUERY_THREADS = 256,
    FILL_THREADS = 256,
    RANK_TILE = 16,      /* elements of a gradient row that are computed at a time */
    SAMPLES_AT_ONCE = 2, /* sampled queries per thread block of queries_kernel */
    SAMPLES_KEPT = 32    /* sampled query rows (ql) that keys_kernel has in shared memory at a time */
};

/* What all kernels of this file receive. A pair is a (batch, head). */
struct LossJob {
    int64_t queries, keys, first_pair, pairs; /* pairs: how many this launch computes, from first_pair on */
    int samples, heads, rank;
    bool centred;
    double cos_weight, norm_weight, rows; /* rows: batch * heads * samples */
    const int32_t *sample;
    HeadRows<const float> ql, kl;
    HeadRows<float> dql, dkl;
    float *t, *u;   /* (pairs, samples, keys) t: exact scores; u: predicted scores, later overwritten with d
                       loss / d u */
    float *sampled; /* (batch, heads, samples, rank) gradient of the low-rank row of each sampled query */
    double *losses; /* (batch, heads, samples) loss of each row of scores */
};

/* ---- loss and du of a row of scores ---- */

/* Returns the norm of a row of scores from its sum of squares; 0 if the norm is so small that
 * ops/predictor_loss.h treats the row as 0. `mean` is what was subtracted from every score of the row. */
__device__ __forceinline__ double norm_of(double squares, double mean, double keys)
{
    double norm = sqrt(squares), norm_min = DSVI_PREDICTOR_MIN_FRACTION * fabs(mean) * sqrt(keys);
    return norm < fmax(norm_min, DSVI_PREDICTOR_MIN_NORM) ? 0. : norm;
}

/* One thread block per sampled query: computes the loss of the query's row of scores, and overwrites the
 * row's predicted scores u with du = d loss / d u. */
__global__ __launch_bounds__(ROW_THREADS) void row_kernel(LossJob w)
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
    bool t_counts = t_norm != 0, u_counts = u_norm != 0,
         both = t_counts && u_counts; /* `both` (both norms count) is also true for NaN */
    double cosine = both ? tu / (t_norm * u_norm) : 0;
    double slope = -(w.cos_weight + 2 * w.norm_weight / keys) / (u_norm * sqrt((double)w.rank) * w.rows);
    for (int64_t j = threadIdx.x; j < w.keys; j += ROW_THREADS) {
        double x = (t[j] - t_mean) / t_norm, y = (u[j] - u_mean) / u_norm;
        u[j] = both ? (float)(slope * (x - cosine * y)) : 0.f;
    }
    if (threadIdx.x == 0)
        w.losses[w.first_pair * w.samples + blockIdx.x] = w.cos_weight * (1 - cosine) +
                                                          w.norm_weight * (t_counts + u_counts - 2 * cosine) /
                                                              keys;
}

/* ---- dkl: the gradient of the keys' low-rank rows ---- */

/* Loads elements [first, first + RANK_TILE) of a row that has `rank` elements, VEC elements per access.
 * Elements past the end of the row become 0. */
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

/* Writes dkl, the gradient of the keys' low-rank rows: the sum over the sampled queries of du (d loss / d
 * score) times the query's row ql. Grid: x, tiles of KEY_THREADS keys; y, tiles of RANK_TILE elements of a
 * row; z, (batch, head) pairs, starting with w.first_pair. */
__global__ __launch_bounds__(KEY_THREADS) void keys_kernel(LossJob w)
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

/* ---- dql: the gradient of the queries' low-rank rows ---- */

/* Writes dql, the gradient of its low-rank row, of every sampled query to w.sampled. Grid: x, SAMPLES_AT_ONCE
 * sampled queries per thread block; y, tiles of RANK_TILE elements of a row; z, (batch, head) pairs, starting
 * with w.first_pair. */
template <int VEC> __global__ __launch_bounds__(QUERY_THREADS) void queries_kernel(LossJob w)
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

/* Sets all n elements of dql, the gradient of the queries' low-rank rows, to 0; one thread per element. */
__global__ void clear_kernel(LossJob w, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    int64_t row = i / w.rank;
    rows_of_pair(w.dql, row / w.queries, w.heads)[row % w.queries * w.dql.token_stride + i % w.rank] = 0.f;
}

/* Adds the gradients of the sampled queries (w.sampled) to the rows of dql, the gradient of all queries'
 * low-rank rows; one thread per element of w.sampled. If a query was sampled several times, the thread of its
 * first sample adds all of them, in order, and the other threads return. */
__global__ void scatter_kernel(LossJob w, int64_t elements)
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

/* One thread block: *loss = the mean of `losses` over all `rows` rows of scores. */
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

/* How the workspace is divided: the arrays losses, t, u and sampled, one after the other. */
struct LossLayout {
    int64_t pairs_at_once;
    int64_t scores; /* number of exact scores t, and also of predicted scores u, in floats */
    size_t bytes;
};

LossLayout loss_layout(const DsviPredictorLossArgs *args)
{
    LossLayout l;
    int64_t pairs = args->batch * args->heads;
    l.pairs_at_once = sampled_pairs(pairs, args->samples, args->keys, 2);
    l.scores = l.pairs_at_once * args->samples * args->keys;
    l.bytes = (size_t)(pairs * args->samples) * sizeof(double) +
              sampled_bytes(pairs, args->samples, args->keys, 2) +
              (size_t)(pairs * args->samples * args->rank) * sizeof(float);
    return l;
}

size_t cuda_predictor_loss_workspace(DsviStream *stream, const DsviPredictorLossArgs *args)
{
    (void)stream;
    return loss_layout(args).bytes;
}

LossJob loss_job(const DsviPredictorLossArgs *args)
{
    LossJob w = {};
    LossLayout l = loss_layout(args);
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
    w.ql = head_rows_of<const float>(args->ql);
    w.kl = head_rows_of<const float>(args->kl);
    w.dql = head_rows_of<float>(args->dql);
    w.dkl = head_rows_of<float>(args->dkl);
    w.losses = static_cast<double *>(args->workspace);
    w.t = reinterpret_cast<float *>(w.losses + args->batch * args->heads * args->samples);
    w.u = w.t + l.scores;
    w.sampled = w.u + l.scores;
    return w;
}

template <typename T>
SampledScores<T> scores_job(const LossJob &w, const DsviHeads &q, const DsviHeads &k, int64_t dim,
                            float *scores)
{
    return {head_rows_of<const T>(q),
            head_rows_of<const T>(k),
            w.sample,
            w.keys,
            w.first_pair,
            w.samples,
            w.heads,
            (int)dim,
            (float)(1 / sqrt((double)dim)),
            scores};
}

/* Handles the w.pairs (batch, head) pairs that begin with number w.first_pair: computes their losses, the
 * gradient dkl of their keys' low-rank rows, and the gradient dql of their sampled queries' low-rank rows. */
template <typename T>
DsvStatus add_pairs(DsviStream *stream, const DsviPredictorLossArgs *args, const LossJob &w)
{
    unsigned tiles = (unsigned)ceil_div(w.rank, RANK_TILE), pairs = (unsigned)w.pairs;
    if (w.samples > 0) {
        DSVI_TRY(
            launch_sampled_scores(stream, scores_job<T>(w, args->q, args->k, args->head_dim, w.t), w.pairs));
        DSVI_TRY(launch_sampled_scores(stream, scores_job<float>(w, args->ql, args->kl, args->rank, w.u),
                                       w.pairs));
        DSVI_CUDA_LAUNCH(stream, "predictor_loss, rows", row_kernel, pairs * w.samples, ROW_THREADS, 0, w);
        dim3 samples((unsigned)ceil_div(w.samples, SAMPLES_AT_ONCE), tiles, pairs);
        if (head_rows_aligned(w.kl, w.rank))
            DSVI_CUDA_LAUNCH(stream, "predictor_loss, dql", queries_kernel<4>, samples, QUERY_THREADS, 0, w);
        else
            DSVI_CUDA_LAUNCH(stream, "predictor_loss, dql", queries_kernel<1>, samples, QUERY_THREADS, 0, w);
    }
    dim3 grid((unsigned)ceil_div(w.keys, KEY_THREADS), tiles, pairs);
    DSVI_CUDA_LAUNCH(stream, "predictor_loss, dkl", keys_kernel, grid, KEY_THREADS, 0, w);
    return DSV_OK;
}

template <typename T>
DsvStatus add_all_pairs(DsviStream *stream, const DsviPredictorLossArgs *args, LossJob *w)
{
    int64_t all = args->batch * args->heads, pairs_max = loss_layout(args).pairs_at_once;
    for (w->first_pair = 0; w->first_pair < all; w->first_pair += pairs_max) {
        w->pairs = all - w->first_pair < pairs_max ? all - w->first_pair : pairs_max;
        DSVI_TRY(add_pairs<T>(stream, args, *w));
    }
    return DSV_OK;
}

/* Writes all rows of dql, the gradient of the queries' low-rank rows: first zeros everywhere, then the
 * gradients of the sampled queries. */
DsvStatus write_dql(DsviStream *stream, const DsviPredictorLossArgs *args, const LossJob &w)
{
    int64_t elements = args->batch * args->heads * w.queries * w.rank;
    int64_t sampled = args->batch * args->heads * w.samples * w.rank;
    if (elements == 0)
        return DSV_OK;
    DSVI_CUDA_LAUNCH(stream, "predictor_loss, dql zero", clear_kernel,
                     (unsigned)ceil_div(elements, FILL_THREADS), FILL_THREADS, 0, w, elements);
    if (sampled == 0)
        return DSV_OK;
    DSVI_CUDA_LAUNCH(stream, "predictor_loss, dql of samples", scatter_kernel,
                     (unsigned)ceil_div(sampled, FILL_THREADS), FILL_THREADS, 0, w, sampled);
    return DSV_OK;
}

DsvStatus add_pairs_of_type(DsviStream *stream, const DsviPredictorLossArgs *args, LossJob *w)
{
    DSVI_FOR_ACT("predictor_loss", args->act, return add_all_pairs<T>(stream, args, w));
}

DsvStatus cuda_predictor_loss(DsviStream *stream, const DsviPredictorLossArgs *args)
{
    if (args->acc != DSVI_F32)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "predictor_loss: this variant takes F32 sums, not %s",
                         dsvi_dtype_name(args->acc));
    if (args->workspace_bytes < cuda_predictor_loss_workspace(stream, args))
        return DSVI_FAIL(DSV_E_SHAPE, "predictor_loss: workspace has %zu bytes, expected %zu",
                         args->workspace_bytes, cuda_predictor_loss_workspace(stream, args));
    LossJob w = loss_job(args);
    if (args->batch * args->heads * args->keys > 0)
        DSVI_TRY(add_pairs_of_type(stream, args, &w));
    DSVI_TRY(write_dql(stream, args, w));
    DSVI_CUDA_LAUNCH(stream, "predictor_loss", loss_kernel, 1, ROW_THREADS, 0, w.losses,
                     args->batch * args->heads * args->samples, static_cast<float *>(args->loss));
    return DSV_OK;
}

} // namespace

void dsvi_cuda_fill_predictor_loss(DsviOps *ops)
{
    DSVI_OPS_SET_WITH_WORKSPACE(ops, predictor_loss, cuda_predictor_loss, cuda_predictor_loss_workspace,
                                "cuda");
}
