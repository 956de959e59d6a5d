/* The exact attention of sampled queries (ops/profile.h): rows of scores, some (batch, head) at a time, then
 * a block of threads a row.
 *
 * p stay undivided by their sum: the largest is 1. They are made anew from the scores in each pass. The keys
 * for a share of the mass are counted without sorting: bins by the leading bits of p, from the highest on,
 * reach the wanted mass in one bin; the p in it spread over bins by their next bits, and in the end over
 * single floats. p of a bin have one exponent, so what a bin holds is a whole number of units of its own, 64
 * bits in two words: exact, and the same whatever the order of threads.
 *
 * What bounds it is reading the scores, three times where the p of the first bin fit into shared memory (bins
 * are 2 to 3 % wide: of 131,072 scores of deviation 1, some 1,200 at most), else four: 64 MiB a launch, 15 us
 * a time at 4.5 TB/s, and adding p to bins. Measured on one H200: 93 us a launch (commit 3fe541a). Rows of
 * scores so much alike that p fall into few bins wait for atomics instead. */
#include <math.h>

#include "cuda/block_sums.cuh"
#include "cuda/cuda.h"
#include "cuda/sampled_scores.cuh"

namespace {

enum {
    PROFILE_THREADS = 1024,
    PROFILE_WARPS = PROFILE_THREADS / WARP,
    PROFILE_BLOCKS = 2,  /* of threads that a multiprocessor holds */
    SCORES_AT_ONCE = 8,  /* of a thread, on their way from memory */
    BINS = 4096,
    BINS_EACH = BINS / PROFILE_THREADS,
    FIRST_SHIFT = 18,    /* bits of p below the first bins: 8 bits of exponent and 5 of mantissa are theirs */
    SECOND_SHIFT = 6,
    MANTISSA_BITS = 23,
    KEPT = 3072          /* p of the first bin that find room in shared memory */
};

struct Profile {
    int64_t keys, first_pair;
    int samples;
    double mass;
    const int32_t *sample;
    float *scores; /* (rows, keys) */
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

/* ---- rows ---- */

/* f(some of this thread's scores of a row), until it has had all. */
template <typename F> __device__ __forceinline__ void over_scores(const float *scores, int64_t keys, F f)
{
    constexpr int STEP = SCORES_AT_ONCE * PROFILE_THREADS;
    const float *end = scores + keys;
    scores += threadIdx.x;
    for (; end - scores > STEP - PROFILE_THREADS; scores += STEP) {
        float x[SCORES_AT_ONCE];
#pragma unroll
        for (int i = 0; i < SCORES_AT_ONCE; i++)
            x[i] = scores[i * PROFILE_THREADS];
        f(x);
    }
    for (; scores < end; scores += PROFILE_THREADS) {
        float x[1] = {*scores};
        f(x);
    }
}

/* All threads get the largest score; `shared` holds a float for each warp. */
__device__ float largest(const float *scores, int64_t keys, float *shared)
{
    float most = -INFINITY;
    over_scores(scores, keys, [&](auto &x) {
#pragma unroll
        for (float score : x)
            most = fmaxf(most, score);
    });
    most = warp_max(most);
    if (threadIdx.x % WARP == 0)
        shared[threadIdx.x / WARP] = most;
    __syncthreads();
    return warp_max(shared[threadIdx.x % WARP]);
}

__device__ __forceinline__ float probability(float score, float most)
{
    return expf(score - most);
}

/* ---- bins ---- */

/* In shared memory. What a bin holds: high 2^32 + low units. `reached`: the bin in which the wanted mass is,
 * -1 where it is in none; `before` the mass of the bins above it. */
struct Bins {
    uint32_t low[BINS], high[BINS];
    double sums[PROFILE_WARPS];
    double before;
    int reached;
};

/* p in units of the last bit of floats of its exponent. */
__device__ __forceinline__ uint32_t units_of(uint32_t bits)
{
    uint32_t mantissa = bits & ((1u << MANTISSA_BITS) - 1);
    return bits >> MANTISSA_BITS ? mantissa | 1u << MANTISSA_BITS : mantissa;
}

/* The unit of the floats in one of the first bins. */
__device__ __forceinline__ double unit_of(int bin)
{
    int exponent = bin >> (MANTISSA_BITS - FIRST_SHIFT);
    exponent = exponent > 0 ? exponent : 1; /* floats below the normal ones have the unit of the lowest */
    return __hiloint2double((exponent - 127 - MANTISSA_BITS + 1023) << 20, 0);
}

/* Between barriers: what others read of the bins is over before, and all see them empty after. */
__device__ void clear(Bins &bins)
{
    __syncthreads();
    for (int i = threadIdx.x; i < BINS; i += PROFILE_THREADS)
        bins.low[i] = bins.high[i] = 0;
    if (threadIdx.x == 0)
        bins.reached = -1;
    __syncthreads();
}

__device__ __forceinline__ void add(Bins &bins, int bin, uint32_t units)
{
    uint32_t before = atomicAdd(&bins.low[bin], units);
    if (before + units < units)
        atomicAdd(&bins.high[bin], 1u);
}

/* This thread's bins, from the highest on, which is thread 0's. */
__device__ __forceinline__ int bin_of_thread(int i)
{
    return BINS - 1 - BINS_EACH * (int)threadIdx.x - i;
}

/* What a bin holds, FIRST: of bins of different units, else in units. */
template <bool FIRST> __device__ __forceinline__ double mass_in(const Bins &bins, int bin)
{
    double units = (double)((uint64_t)bins.high[bin] << 32 | bins.low[bin]);
    return FIRST ? units * unit_of(bin) : units;
}

/* After a barrier. Gives the mass of bins above this thread's; *all is that of all bins. */
template <bool FIRST> __device__ double mass_above(Bins &bins, double *all)
{
    double mine = 0;
#pragma unroll
    for (int i = 0; i < BINS_EACH; i++)
        mine += mass_in<FIRST>(bins, bin_of_thread(i));
    return block_before(mine, bins.sums, all);
}

/* Finds the bin in which the mass from the highest one on reaches `wanted`. before: mass_above. */
template <bool FIRST> __device__ void find(Bins &bins, double before, double wanted)
{
    int mine = -1;
    for (int i = 0; i < BINS_EACH && mine < 0; i++) {
        double mass = mass_in<FIRST>(bins, bin_of_thread(i));
        if (mass > 0 && before + mass >= wanted)
            mine = bin_of_thread(i);
        else
            before += mass;
    }
    /* threads behind the first one that reaches it reach it too */
    int highest = __reduce_max_sync(0xffffffffu, mine);
    if (threadIdx.x % WARP == 0 && highest >= 0)
        atomicMax(&bins.reached, highest);
    __syncthreads();
    if (mine >= 0 && mine == bins.reached)
        bins.before = before;
    __syncthreads();
}

/* ---- keys for a share of the mass ---- */

/* Bits of p of the first bin that was reached, as far as there is room. */
struct Kept {
    uint32_t bits[KEPT];
    int count;
};

struct Shared {
    Bins bins;
    Kept kept;
    double all; /* the sum of all p */
    float largest[PROFILE_WARPS];
};

__device__ __forceinline__ void first_bins(Bins &bins, const float *scores, int64_t keys, float most)
{
    over_scores(scores, keys, [&](auto &x) {
#pragma unroll
        for (float score : x) {
            uint32_t bits = __float_as_uint(probability(score, most));
            uint32_t bin = bits >> FIRST_SHIFT; /* of what is no number, beyond the last */
            add(bins, bin < BINS ? bin : BINS - 1, units_of(bits));
        }
    });
}

/* Spreads the p of bin `first`. Gives how many of this thread's lie above it. */
__device__ __forceinline__ int second_bins(Bins &bins, Kept &kept, const float *scores, int64_t keys,
                                           float most, uint32_t first)
{
    int above = 0;
    over_scores(scores, keys, [&](auto &x) {
#pragma unroll
        for (float score : x) {
            uint32_t bits = __float_as_uint(probability(score, most));
            above += bits >> FIRST_SHIFT > first;
            if (bits >> FIRST_SHIFT != first)
                continue;
            add(bins, (bits >> SECOND_SHIFT) % BINS, units_of(bits));
            int place = atomicAdd(&kept.count, 1);
            if (place < KEPT)
                kept.bits[place] = bits;
        }
    });
    return above;
}

/* Of p in the first bin: spreads those of the second, and gives 1 for one above it, else 0. */
__device__ __forceinline__ int add_third(Bins &bins, uint32_t bits, uint32_t second)
{
    if (bits >> SECOND_SHIFT == second)
        add(bins, bits % (1u << SECOND_SHIFT), units_of(bits));
    return bits >> SECOND_SHIFT > second;
}

__device__ __forceinline__ int third_bins(Bins &bins, const Kept &kept, const float *scores, int64_t keys,
                                          float most, uint32_t first, uint32_t second)
{
    int above = 0;
    if (kept.count <= KEPT) {
        for (int i = threadIdx.x; i < kept.count; i += PROFILE_THREADS)
            above += add_third(bins, kept.bits[i], second);
        return above;
    }
    over_scores(scores, keys, [&](auto &x) {
#pragma unroll
        for (float score : x) {
            uint32_t bits = __float_as_uint(probability(score, most));
            if (bits >> FIRST_SHIFT == first)
                above += add_third(bins, bits, second);
        }
    });
    return above;
}

/* How many keys this thread's bins have, each a single float, that are above the one that was reached. */
__device__ __forceinline__ double keys_above(const Bins &bins, uint32_t second)
{
    double count = 0;
    for (int i = 0; i < BINS_EACH; i++) {
        int bin = bin_of_thread(i);
        double units = mass_in<false>(bins, bin);
        if (bin > bins.reached && units > 0)
            count += units / units_of(second << SECOND_SHIFT | (uint32_t)bin);
    }
    return count;
}

/* The number of keys above the first bin that was reached, and the smallest number of those in it whose p sum
 * to `wanted`: units, one or more, as many as it holds at most. A call: inline, it spills. */
__device__ __noinline__ double keys_in_bin(Shared &shared, const float *scores, int64_t keys, float most,
                                           double wanted)
{
    Bins &bins = shared.bins;
    uint32_t first = bins.reached;
    double all;
    if (threadIdx.x == 0)
        shared.kept.count = 0;
    clear(bins);
    int above = second_bins(bins, shared.kept, scores, keys, most, first);
    __syncthreads();
    find<false>(bins, mass_above<false>(bins, &all), wanted);
    uint32_t second = first << (FIRST_SHIFT - SECOND_SHIFT) | (uint32_t)bins.reached;
    wanted -= bins.before;
    clear(bins);
    above += third_bins(bins, shared.kept, scores, keys, most, first, second);
    __syncthreads();
    find<false>(bins, mass_above<false>(bins, &all), wanted);
    double number = block_sum(above + keys_above(bins, second), bins.sums);
    uint32_t last = units_of(second << SECOND_SHIFT | (uint32_t)bins.reached);
    return number + ceil((wanted - bins.before) / last);
}

/* The smallest number of keys whose p sum to `share` of all. After a barrier shared.all is that sum. */
__device__ double keys_for_mass(Shared &shared, const float *scores, int64_t keys, float most, double share)
{
    Bins &bins = shared.bins;
    double all;
    clear(bins);
    first_bins(bins, scores, keys, most);
    __syncthreads();
    double before = mass_above<true>(bins, &all);
    all = (bins.low[BINS - 1] | bins.high[BINS - 1]) > 0 ? NAN : all; /* p are 1 at most: below that bin */
    if (threadIdx.x == 0)
        shared.all = all;
    double wanted = __dmul_rn(share, all); /* rounded before anything is taken from it, as in the truth */
    if (isnan(wanted))
        return wanted;
    if (wanted <= 0)
        return 0;
    find<true>(bins, before, wanted);
    if (bins.reached < 0)
        return (double)keys;
    double unit = unit_of(bins.reached);
    wanted = ceil((wanted - bins.before) / unit); /* p of a bin are whole numbers of units */
    wanted = fmin(fmax(wanted, 1), mass_in<false>(bins, bins.reached));
    return keys_in_bin(shared, scores, keys, most, wanted);
}

__global__ __launch_bounds__(PROFILE_THREADS, PROFILE_BLOCKS) void profile_kernel(Profile w)
{
    __shared__ Shared shared;
    const float *scores = w.scores + (int64_t)blockIdx.x * w.keys;
    float most = largest(scores, w.keys, shared.largest);
    double number = keys_for_mass(shared, scores, w.keys, most, w.mass), captured = 0;
    int64_t row = w.first_pair * w.samples + blockIdx.x;
    QueryList list = {nullptr, w.keys, 1};
    if (w.offsets)
        list = list_of(w, row / w.samples, w.sample[row % w.samples]);
    for (int64_t at = threadIdx.x; w.offsets && at < list.length; at += PROFILE_THREADS)
        captured += probability(scores[list.runs[at / list.grain] * list.grain + at % list.grain], most);
    __syncthreads();
    captured = w.offsets ? block_sum(captured, shared.bins.sums) : shared.all;
    if (threadIdx.x == 0) {
        w.captured[row] = (float)(captured / shared.all);
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
                          w.scores};
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
