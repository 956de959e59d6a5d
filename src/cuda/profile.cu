/* The exact attention of sampled queries (ops/profile.h): rows of scores, some (batch, head) at a time, then
 * a block of threads a row.
 *
 * As in the truth, the keys for a share of the mass are counted without sorting, by halving the interval of
 * floats round the smallest p of the set. p stay undivided by their sum: the largest is 1. */
#include <math.h>

#include "cuda/block_sums.cuh"
#include "cuda/cuda.h"
#include "cuda/sampled_scores.cuh"

namespace {

enum {
    PROFILE_THREADS = 512,
    PROFILE_WARPS = PROFILE_THREADS / WARP
};

struct Profile {
    int64_t keys, first_pair;
    int samples;
    double mass;
    const int32_t *sample;
    float *p; /* (rows, keys) scores, then p */
    float *captured, *share90, *listed;
    /* lists; `offsets` NULL where there are none */
    const int64_t *offsets;
    const int32_t *runs;
    int64_t group, groups, grain;
};

/* The list of a query: `count` runs, `length` keys. */
struct QueryList {
    const int32_t *runs;
    int64_t length, grain;
};

__device__ __forceinline__ QueryList list_of(const Profile &w, int64_t pair, int64_t query)
{
    int64_t list = pair * w.groups + query / w.group, begin = w.offsets[list];
    int64_t count = w.offsets[list + 1] - begin;
    QueryList mine = {w.runs + begin, count * w.grain, w.grain};
    if (count == 0)
        return mine;
    int64_t end = ((int64_t)mine.runs[count - 1] + 1) * w.grain; /* the last run of all may be short */
    mine.length -= end > w.keys ? end - w.keys : 0;
    return mine;
}

/* Scores of one row become p; gives their sum. `sums` is in shared memory. */
__device__ double make_probabilities(float *p, int64_t keys, double *sums)
{
    __shared__ float largest[PROFILE_WARPS];
    float most = -INFINITY;
    double sum = 0;
    for (int64_t j = threadIdx.x; j < keys; j += PROFILE_THREADS)
        most = fmaxf(most, p[j]);
    most = warp_max(most);
    if (threadIdx.x % WARP == 0)
        largest[threadIdx.x / WARP] = most;
    __syncthreads();
    most = warp_max(largest[threadIdx.x % PROFILE_WARPS]);
    for (int64_t j = threadIdx.x; j < keys; j += PROFILE_THREADS) {
        p[j] = expf(p[j] - most);
        sum += p[j];
    }
    return block_sum(sum, sums);
}

/* This thread's part of the sum of the p >= cut, and of their number. */
__device__ __forceinline__ double mass_from(const float *p, int64_t keys, float cut, int *count)
{
    double sum = 0;
    *count = 0;
    for (int64_t j = threadIdx.x; j < keys; j += PROFILE_THREADS) {
        float x = p[j];
        sum += x >= cut ? (double)x : 0.;
        *count += x >= cut;
    }
    return sum;
}

/* The smallest number of keys whose p sum to `wanted` of `all`. */
__device__ double keys_for_mass(const float *p, int64_t keys, double wanted, double all,
                                double (*sums)[PROFILE_WARPS])
{
    /* Bits of 0, from where the mass is reached, and of the float after 1, from where it is not. */
    uint32_t low = 0, high = 0x3F800001;
    int count;
    if (wanted <= 0)
        return 0;
    if (all < wanted)
        return (double)keys;
    for (int round = 0; high - low > 1; round++) {
        uint32_t middle = low + (high - low) / 2;
        double mass = block_sum(mass_from(p, keys, __uint_as_float(middle), &count), sums[round % 2]);
        low = mass >= wanted ? middle : low;
        high = mass >= wanted ? high : middle;
    }
    __syncthreads();
    double above = block_sum(mass_from(p, keys, __uint_as_float(high), &count), sums[0]);
    double number = block_sum((double)count, sums[1]);
    return number + ceil((wanted - above) / (double)__uint_as_float(low));
}

__global__ __launch_bounds__(PROFILE_THREADS, 2) void profile_kernel(Profile w)
{
    __shared__ double sums[2][PROFILE_WARPS];
    int64_t row = w.first_pair * w.samples + blockIdx.x, pair = row / w.samples;
    float *p = w.p + (int64_t)blockIdx.x * w.keys;
    double all = make_probabilities(p, w.keys, sums[0]), captured = 0;
    __syncthreads();
    double number = keys_for_mass(p, w.keys, w.mass * all, all, sums);
    __syncthreads();
    QueryList list = {nullptr, w.keys, 1};
    if (w.offsets)
        list = list_of(w, pair, w.sample[row % w.samples]);
    for (int64_t at = threadIdx.x; w.offsets && at < list.length; at += PROFILE_THREADS)
        captured += p[list.runs[at / list.grain] * list.grain + at % list.grain];
    captured = w.offsets ? block_sum(captured, sums[0]) : all;
    if (threadIdx.x == 0) {
        w.captured[row] = (float)(captured / all);
        w.share90[row] = (float)(number / (double)w.keys);
        w.listed[row] = (float)((double)list.length / (double)w.keys);
    }
}

int64_t pairs_at_once(const DsvProfileArgs *args)
{
    return sampled_pairs(args->batch * args->heads, args->samples, args->keys, 1);
}

size_t workspace(DsvStream *stream, const DsvProfileArgs *args)
{
    (void)stream;
    return sampled_bytes(args->batch * args->heads, args->samples, args->keys, 1);
}

template <typename T> DsvStatus profile_pairs(DsvStream *stream, const DsvProfileArgs *args, Profile w)
{
    int64_t all = args->batch * args->heads, most = pairs_at_once(args);
    SampledScores<T> s = {head_rows<const T>(args->q),
                          head_rows<const T>(args->k),
                          args->sample,
                          args->keys,
                          0,
                          (int)args->samples,
                          (int)args->heads,
                          (int)args->head_dim,
                          (float)args->scale,
                          w.p};
    for (int64_t first = 0; first < all; first += most) {
        int64_t pairs = all - first < most ? all - first : most;
        s.first_pair = w.first_pair = first;
        DSVI_TRY(sampled_scores(stream, s, pairs));
        profile_kernel<<<(unsigned)(pairs * args->samples), PROFILE_THREADS, 0, stream->handle>>>(w);
        DSVI_CUDA_LAUNCHED("profile");
    }
    return DSV_OK;
}

DsvStatus profile(DsvStream *stream, const DsvProfileArgs *args)
{
    if (args->workspace_bytes < workspace(stream, args))
        return DSVI_FAIL(DSV_E_SHAPE, "profile: workspace has %zu bytes, wanted %zu", args->workspace_bytes,
                         workspace(stream, args));
    if (args->batch * args->heads * args->samples * args->keys == 0)
        return DSV_OK;
    const DsvLists *lists = args->lists;
    Profile w = {args->keys,
                 0,
                 (int)args->samples,
                 args->mass,
                 args->sample,
                 static_cast<float *>(args->workspace),
                 args->captured,
                 args->share90,
                 args->listed,
                 lists ? lists->offsets : nullptr,
                 lists ? lists->runs : nullptr,
                 lists ? lists->group : 1,
                 lists ? lists->groups : 1,
                 lists ? lists->grain : 1};
    DSVI_FOR_ACT("profile", args->act, return profile_pairs<T>(stream, args, w));
}

} // namespace

void dsvi_cuda_fill_profile(DsvOps *ops)
{
    DSVI_OPS_SET_WITH_WORKSPACE(ops, profile, profile, workspace, "cuda");
}
