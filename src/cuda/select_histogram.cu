/* select_histogram: the lse of every proxy, and how count and mass of runs spread over log2 e (ops/select.h).
 *
 * Each warp keeps a running largest score and sum of powers of its 8 proxies, each lane its own; slices of
 * the runs are put together afterwards, in order. Then the counted runs pass again as estimates.
 * Bins are whole numbers, whose sums depend on no order: how many, and how far into the bin each was. Inside
 * a bin estimates differ by 1.1 %: 20 bits of that place tell an estimate better than a float does. */
#include "cuda/cuda.h"
#include "cuda/select_plan.cuh"

namespace {

enum {
    PLACE_BITS = 20,
    PLACE_BITS_LOWEST = 13, /* of bin 0, whose places run from 0 to 1 */
    PLACE_MOST = (1 << 14) - 1,
    VALUES_MOST = 1 << 18,  /* that a block of threads may add: their places fit into 32 bits */
    HISTOGRAM_SHARED = SCORE_SHARED + 2 * DSV_SELECT_BINS * (int)sizeof(uint32_t)
};

extern __shared__ float4 shared_memory[];

/* ---- lse ---- */

/* Adds one tile's scores to the lane's sums. */
__device__ __forceinline__ void add_scores(const float (&score)[TILE_ROWS][SLOTS],
                                           float (&largest)[TILE_ROWS], float (&sum)[TILE_ROWS])
{
#pragma unroll
    for (int i = 0; i < TILE_ROWS; i++) {
        float now = largest[i], powers = 0.f;
#pragma unroll
        for (int j = 0; j < SLOTS; j++)
            now = fmaxf(now, score[i][j]);
#pragma unroll
        for (int j = 0; j < SLOTS; j++)
            powers += exp2_near(score[i][j] - now);
        sum[i] = fmaf(sum[i], exp2_near(largest[i] - now), powers);
        largest[i] = now;
    }
}

__global__ __launch_bounds__(SCORE_THREADS, 2) void lse_kernel(SelectTiles t, float2 *sums)
{
    SelectPlace at = select_place(t, blockIdx.x);
    float *shared = reinterpret_cast<float *>(shared_memory);
    SelectFeed f = feed_begin(t, at, shared);
    float largest[TILE_ROWS], sum[TILE_ROWS] = {};
    /* not -inf: a lane may meet nothing but columns without a candidate, and -inf - -inf is NaN */
#pragma unroll
    for (int i = 0; i < TILE_ROWS; i++)
        largest[i] = -3e38f;
    for (int block = at.begin; block < at.end; block++) {
        for (int layer = 0; layer < t.layers; layer++) {
            float acc[TILE_ROWS][SLOTS], start[SLOTS];
            column_starts(t, block, layer, start);
#pragma unroll
            for (int i = 0; i < TILE_ROWS; i++)
#pragma unroll
                for (int j = 0; j < SLOTS; j++)
                    acc[i][j] = start[j];
            for (int depth = 0; depth < t.depths; depth++)
                score_step(t, shared, f, acc);
            add_scores(acc, largest, sum);
        }
    }
#pragma unroll
    for (int i = 0; i < TILE_ROWS; i++) {
        float most = warp_max(largest[i]);
        float all = warp_sum(sum[i] * exp2_near(largest[i] - most));
        if (threadIdx.x % WARP == 0)
            sums[(((int64_t)at.pair * t.sets + at.set) * TILE_ROWS + i) * t.slices + at.slice] =
                make_float2(most, all);
    }
}

/* A thread a proxy: the sums of its slices become its lse. */
__global__ void lse_finish_kernel(SelectRows r, const float2 *sums, int slices, int64_t proxies, float *lse)
{
    int64_t n = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (n >= proxies)
        return;
    int64_t pair = n / r.proxies, proxy = n % r.proxies, group = proxy / r.per_group;
    int64_t member = proxy % r.per_group;
    int groups_each = TILE_ROWS / r.rows_each;
    int64_t tile = (pair * r.sets + group / groups_each) * r.parts + member / r.rows_each;
    int64_t row = group % groups_each * r.rows_each + member % r.rows_each;
    const float2 *mine = sums + (tile * TILE_ROWS + row) * slices;
    float most = mine[0].x;
    double sum = 0;
    for (int slice = 1; slice < slices; slice++)
        most = fmaxf(most, mine[slice].x);
    for (int slice = 0; slice < slices; slice++)
        sum += (double)mine[slice].y * exp2((double)mine[slice].x - (double)most);
    lse[n] = (float)(((double)most + log2(sum)) / DSVI_LOG2_E);
}

/* ---- bins ---- */

struct HistogramSink {
    uint32_t *count, *places; /* (BINS), shared memory */
    int runs;
    int first_group, groups;  /* of the warp's set; that there are */
};

__device__ __forceinline__ void add_to_bin(const HistogramSink &sink, float estimate)
{
    float x = (__log2f(estimate) + DSV_SELECT_OCTAVES) * DSV_SELECT_PER_OCTAVE;
    int bin = (int)fminf(fmaxf(x, 0.f), (float)(DSV_SELECT_BINS - 1)); /* NaN goes to bin 0 */
    float place = estimate * exp2_near(DSV_SELECT_OCTAVES - (float)bin / DSV_SELECT_PER_OCTAVE);
    float scaled = bin > 0 ? (place - 1.f) * (1 << PLACE_BITS) : place * (1 << PLACE_BITS_LOWEST);
    atomicAdd(sink.count + bin, 1u);
    atomicAdd(sink.places + bin, (uint32_t)__float2int_rn(fminf(fmaxf(scaled, 0.f), (float)PLACE_MOST)));
}

template <int GROUPS> __device__ __forceinline__ void take(const HistogramSink &sink, int block,
                                                           const float (&e)[GROUPS][SLOTS])
{
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
        if (sink.first_group + g < sink.groups)
#pragma unroll
            for (int j = 0; j < SLOTS; j++)
                if (select_run(block, j) < sink.runs)
                    add_to_bin(sink, e[g][j]);
}

/* `bins`: (heads, 2, BINS), added to. */
template <int ROWS>
__global__ __launch_bounds__(SCORE_THREADS, 2) void histogram_kernel(SelectTiles t, int groups, int heads,
                                                                     unsigned long long *bins)
{
    SelectPlace at = select_place(t, blockIdx.x);
    uint32_t *count = reinterpret_cast<uint32_t *>(shared_memory) + SCORE_SHARED / sizeof(uint32_t);
    HistogramSink sink = {count, count + DSV_SELECT_BINS, t.runs, at.set * (TILE_ROWS / ROWS), groups};
    for (int bin = threadIdx.x; bin < 2 * DSV_SELECT_BINS; bin += SCORE_THREADS)
        count[bin] = 0;
    __syncthreads();
    walk_estimates<ROWS>(t, at, reinterpret_cast<float *>(shared_memory), sink);
    __syncthreads();
    for (int bin = threadIdx.x; bin < 2 * DSV_SELECT_BINS; bin += SCORE_THREADS)
        if (count[bin] > 0)
            atomicAdd(bins + (int64_t)(at.pair % heads) * 2 * DSV_SELECT_BINS + bin,
                      (unsigned long long)count[bin]);
}

/* A block of threads a head. */
__global__ void bins_kernel(const unsigned long long *bins, double *bin_count, double *bin_mass)
{
    const unsigned long long *mine = bins + (int64_t)blockIdx.x * 2 * DSV_SELECT_BINS;
    for (int bin = threadIdx.x; bin < DSV_SELECT_BINS; bin += blockDim.x) {
        double count = (double)mine[bin], places = (double)mine[DSV_SELECT_BINS + bin];
        double start = exp2((double)bin / DSV_SELECT_PER_OCTAVE - DSV_SELECT_OCTAVES);
        double relative = bin > 0 ? count + places / (1 << PLACE_BITS) : places / (1 << PLACE_BITS_LOWEST);
        bin_count[(int64_t)blockIdx.x * DSV_SELECT_BINS + bin] = count;
        bin_mass[(int64_t)blockIdx.x * DSV_SELECT_BINS + bin] = start * relative;
    }
}

/* ---- the op ---- */

size_t workspace(DsvStream *stream, const DsvSelectArgs *args)
{
    (void)stream;
    return select_plan(args, nullptr).bytes;
}

DsvStatus find_lse(DsvStream *stream, const DsvSelectArgs *args, const SelectPlan &p)
{
    int64_t blocks = select_row_blocks(p, p.lse) * p.lse.slices, proxies = p.pairs * p.rows.proxies;
    lse_kernel<<<(unsigned)blocks, SCORE_THREADS, SCORE_SHARED, stream->handle>>>(p.lse, p.sums);
    DSVI_CUDA_LAUNCHED("select lse");
    lse_finish_kernel<<<(unsigned)ceil_div(proxies, PREPARE_THREADS), PREPARE_THREADS, 0, stream->handle>>>(
        p.rows, p.sums, p.lse.slices, proxies, args->lse);
    DSVI_CUDA_LAUNCHED("select lse of all slices");
    return select_put_terms(stream, args, p);
}

template <int ROWS>
DsvStatus add_to_bins(DsvStream *stream, const DsvSelectArgs *args, const SelectPlan &p)
{
    SelectTiles t = p.counted;
    int64_t of_block = select_lists_of_block(p) * COLUMNS; /* values of a block of columns */
    int64_t slices = ceil_div(t.blocks, VALUES_MOST / of_block);
    t.slices = slices > t.slices ? (int)slices : t.slices;
    DSVI_CUDA_TRY(cudaFuncSetAttribute(histogram_kernel<ROWS>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       HISTOGRAM_SHARED));
    histogram_kernel<ROWS><<<(unsigned)(select_row_blocks(p, t) * t.slices), SCORE_THREADS, HISTOGRAM_SHARED,
                             stream->handle>>>(t, (int)p.groups, (int)args->heads, p.bins);
    DSVI_CUDA_LAUNCHED("select histogram");
    return DSV_OK;
}

DsvStatus fill_bins(DsvStream *stream, const DsvSelectArgs *args, const SelectPlan &p)
{
    size_t bytes = (size_t)args->heads * 2 * DSV_SELECT_BINS * sizeof *p.bins;
    DSVI_CUDA_TRY(cudaMemsetAsync(p.bins, 0, bytes, stream->handle));
    if (args->bin_skip > 0)
        DSVI_TRY(select_put_columns(stream, args, p, p.counted, args->bin_skip));
    if (p.rows.rows_each == 4)
        DSVI_TRY(add_to_bins<4>(stream, args, p));
    else
        DSVI_TRY(add_to_bins<8>(stream, args, p));
    bins_kernel<<<(unsigned)args->heads, PREPARE_THREADS, 0, stream->handle>>>(p.bins, args->bin_count,
                                                                             args->bin_mass);
    DSVI_CUDA_LAUNCHED("select bins");
    return DSV_OK;
}

DsvStatus histogram(DsvStream *stream, const DsvSelectArgs *args)
{
    DSVI_TRY(dsvi_select_check(args, false));
    size_t bytes = (size_t)args->heads * DSV_SELECT_BINS * sizeof(double);
    if (args->batch * args->heads == 0) {
        DSVI_CUDA_TRY(cudaMemsetAsync(args->bin_count, 0, bytes, stream->handle));
        DSVI_CUDA_TRY(cudaMemsetAsync(args->bin_mass, 0, bytes, stream->handle));
        return DSV_OK;
    }
    SelectPlan p = select_plan(args, args->workspace);
    DSVI_TRY(select_prepare(stream, args, p));
    DSVI_TRY(find_lse(stream, args, p));
    return fill_bins(stream, args, p);
}

} // namespace

void dsvi_cuda_fill_select_histogram(DsvOps *ops)
{
    DSVI_OPS_SET_WITH_WORKSPACE(ops, select_histogram, histogram, workspace, "cuda");
}
