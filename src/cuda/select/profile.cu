/* profile: measures the exact attention of sampled queries (interface: ops/profile.h). The (batch, head)
 * pairs are handled a few at a time: sampled_scores.cuh computes one row of scores per sampled query, then
 * one thread block handles each row.
 *
 * The attention probabilities p = exp(score - largest score of the row) are not divided by their sum, so the
 * largest p is 1. Each pass over a row computes them again from the scores. "Mass" is the sum of p. The
 * smallest number of keys that holds a given fraction of the mass is found without sorting, in three rounds
 * of histogram bins. The first round's bins are the leading bits of p; adding bins from the highest p down
 * reaches the target mass inside one bin. The second round divides the p of this bin over new bins by their
 * next bits, and the third round divides the p of one second-round bin over bins that are single float
 * values. All p of a bin have the same exponent, so the content of a bin is a whole number of units of the
 * last mantissa bit, kept in two 32-bit words: the sums are exact and do not depend on the order of the
 * threads.
 *
 * The time is bound by reading the scores (64 MiB per launch, 15 us per pass at 4.5 TB/s) and by adding p to
 * bins. A row needs three passes if the p of the bin reached in the first round fit into shared memory,
 * otherwise four. Bins are 2 to 3 % wide: of 131,072 scores with standard deviation 1, a bin has at most
 * about 1,200. Measured on one H200: 93 us per launch (commit 3fe541a). Rows whose scores are so similar
 * that their p fall into few bins are slower, because the atomic additions collide. */
#include <math.h>

#include "cuda/common/block_sums.cuh"
#include "cuda/common/cuda.h"
#include "cuda/select/sampled_scores.cuh"

/* Thread blocks of profile_kernel that a multiprocessor holds at the same time: of the GPUs that are compiled
 * for, those of compute capability 8.0, 9.0 and 10.0 hold 2048 threads, all others 1536. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 800 && __CUDA_ARCH__ != 900 && __CUDA_ARCH__ != 1000
#define PROFILE_BLOCKS 1
#else
#define PROFILE_BLOCKS 2
#endif

namespace {

enum {
    PROFILE_THREADS = 1024,
    PROFILE_WARPS = PROFILE_THREADS / WARP,
    SCORES_AT_ONCE = 8, /* scores whose loads a thread has in flight */
    BINS = 4096,
    BINS_EACH = BINS / PROFILE_THREADS, /* number of histogram bins that one thread sums */
    FIRST_SHIFT = 18, /* first-round bin of a probability p: the bits of p as a float >> 18, which are 8 bits
                         of exponent and 5 of mantissa */
    SECOND_SHIFT = 6, /* second-round bins use bits 6 to 17 of a probability as a float; third-round bins use
                         bits 0 to 5 */
    MANTISSA_BITS = 23,
    KEPT = 3072 /* number of probabilities that fit into shared memory; kept are those in the bin that the
                   first round of the search reached */
};

/* What the kernel receives. A pair is a (batch, head). */
struct Profile {
    int64_t keys, first_pair;
    int samples;
    double mass; /* fraction, 0.9, of the sum of the attention probabilities; share90 is the smallest share of
                    keys that holds it */
    const int32_t *sample;
    float *scores; /* (rows, keys) attention scores of the sampled queries */
    float *captured, *share90, *listed;
    /* the key lists of the queries; `offsets` is NULL if there are none */
    const int64_t *offsets;
    const int32_t *spans;
    int64_t group, groups, grain;
};

/* The key list of one query: its spans of `grain` keys each, and how many keys these have together. */
struct QueryList {
    const int32_t *spans;
    int64_t length, grain;
};

__device__ __forceinline__ QueryList list_of(const Profile &w, int64_t pair, int64_t query)
{
    int64_t list = pair * w.groups + query / w.group, begin = w.offsets[list];
    int64_t count = w.offsets[list + 1] - begin;
    QueryList mine = {w.spans + begin, count * w.grain, w.grain};
    if (count == 0)
        return mine;
    int64_t end = ((int64_t)mine.spans[count - 1] + 1) *
                  w.grain; /* the last span of all keys may be shorter than `grain` */
    mine.length -= end > w.keys ? end - w.keys : 0;
    return mine;
}

/* ---- loops over a row of scores ---- */

/* Calls f(x) repeatedly, each time with an array x of scores, until f has received every score of the row
 * that belongs to this thread. */
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

/* Returns the largest score of a row to all threads. `shared` has one float per warp. All threads of the
 * block must call. */
__device__ float row_largest(const float *scores, int64_t keys, float *shared)
{
    float row_max = -INFINITY;
    over_scores(scores, keys, [&](auto &x) {
#pragma unroll
        for (float score : x)
            row_max = fmaxf(row_max, score);
    });
    row_max = warp_max(row_max);
    if (threadIdx.x % WARP == 0)
        shared[threadIdx.x / WARP] = row_max;
    __syncthreads();
    return warp_max(shared[threadIdx.x % WARP]);
}

__device__ __forceinline__ float probability(float score, float row_max)
{
    return expf(score - row_max);
}

/* ---- histogram bins ---- */

/* The histogram bins of one round, in shared memory. Bin i holds a mass (sum of probabilities) of high[i]
 * 2^32 + low[i] units (see unit_of). `reached` is the bin in which the target mass is reached when bins are
 * added from the highest down, or -1; `before` is the mass of the bins above bin `reached`. */
struct Bins {
    uint32_t low[BINS], high[BINS];
    double sums[PROFILE_WARPS];
    double before;
    int reached;
};

/* Returns a probability p as a multiple of its unit, which is the value of the last mantissa bit of a float
 * with the exponent of p. `bits` is p as 32 bits. */
__device__ __forceinline__ uint32_t units_of(uint32_t bits)
{
    uint32_t mantissa = bits & ((1u << MANTISSA_BITS) - 1);
    return bits >> MANTISSA_BITS ? mantissa | 1u << MANTISSA_BITS : mantissa;
}

/* Returns the unit of all floats in a first-round bin: the value of their last mantissa bit, which is the
 * same because the bin has one exponent. */
__device__ __forceinline__ double unit_of(int bin)
{
    int exponent = bin >> (MANTISSA_BITS - FIRST_SHIFT);
    exponent = exponent > 0 ? exponent : 1; /* denormal floats have the unit of the smallest normal ones */
    return __hiloint2double((exponent - 127 - MANTISSA_BITS + 1023) << 20, 0);
}

/* Sets all bins to 0 between two barriers: the first waits for threads that still read the bins, and after
 * the second all threads see them empty. All threads of the block must call. */
__device__ void clear_bins(Bins &bins)
{
    __syncthreads();
    for (int i = threadIdx.x; i < BINS; i += PROFILE_THREADS)
        bins.low[i] = bins.high[i] = 0;
    if (threadIdx.x == 0)
        bins.reached = -1;
    __syncthreads();
}

__device__ __forceinline__ void add_to_bin(Bins &bins, int bin, uint32_t units)
{
    uint32_t before = atomicAdd(&bins.low[bin], units);
    if (before + units < units)
        atomicAdd(&bins.high[bin], 1u);
}

/* Returns the number of the i-th of the BINS_EACH bins that this thread sums, from the highest down. Thread
 * 0 has the highest bins. */
__device__ __forceinline__ int bin_of_thread(int i)
{
    return BINS - 1 - BINS_EACH * (int)threadIdx.x - i;
}

/* Returns the mass (sum of probabilities p) in a bin. For first-round bins (FIRST), whose units differ, the
 * result is a sum of p; for the bins of the other rounds it is a number of units (see unit_of). */
template <bool FIRST> __device__ __forceinline__ double mass_in(const Bins &bins, int bin)
{
    double units = (double)((uint64_t)bins.high[bin] << 32 | bins.low[bin]);
    return FIRST ? units * unit_of(bin) : units;
}

/* Returns the mass (sum of probabilities) of all bins above this thread's bins, and in *all that of all bins.
 * All threads must call, with a barrier between the last addition to the bins and the call. */
template <bool FIRST> __device__ double mass_above(Bins &bins, double *all)
{
    double mine = 0;
#pragma unroll
    for (int i = 0; i < BINS_EACH; i++)
        mine += mass_in<FIRST>(bins, bin_of_thread(i));
    return block_exclusive_sum(mine, bins.sums, all);
}

/* Sets bins.reached to the bin in which the mass (sum of probabilities), added from the highest bin down,
 * reaches `target`, and bins.before to the mass above that bin. Argument `before` is this thread's result of
 * mass_above. All threads must call. */
template <bool FIRST> __device__ void find_bin(Bins &bins, double before, double target)
{
    int mine = -1;
    for (int i = 0; i < BINS_EACH && mine < 0; i++) {
        double mass = mass_in<FIRST>(bins, bin_of_thread(i));
        if (mass > 0 && before + mass >= target)
            mine = bin_of_thread(i);
        else
            before += mass;
    }
    /* every thread whose bins lie below the bin that reaches the target finds a bin, too: the highest bin
     * that any thread finds is the right one */
    int highest = __reduce_max_sync(0xffffffffu, mine);
    if (threadIdx.x % WARP == 0 && highest >= 0)
        atomicMax(&bins.reached, highest);
    __syncthreads();
    if (mine >= 0 && mine == bins.reached)
        bins.before = before;
    __syncthreads();
}

/* ---- the smallest number of keys that holds a fraction of the mass ---- */

/* The probabilities p in the bin that the first round reached, as float bits. `count` may exceed KEPT; then
 * only KEPT probabilities are stored. */
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

/* First round of the histogram search: adds the probabilities of all scores of a row to the bins of their
 * leading bits. */
__device__ __forceinline__ void first_bins(Bins &bins, const float *scores, int64_t keys, float row_max)
{
    over_scores(scores, keys, [&](auto &x) {
#pragma unroll
        for (float score : x) {
            uint32_t bits = __float_as_uint(probability(score, row_max));
            uint32_t bin =
                bits >>
                FIRST_SHIFT; /* NaN would get a number past the last bin, and is counted in the last one */
            add_to_bin(bins, bin < BINS ? bin : BINS - 1, units_of(bits));
        }
    });
}

/* Second round of the histogram search: adds the probabilities p that lie in first-round bin `first` to new
 * bins. Returns how many of this thread's p lie above bin `first`. */
__device__ __forceinline__ int second_bins(Bins &bins, Kept &kept, const float *scores, int64_t keys,
                                           float row_max, uint32_t first)
{
    int above = 0;
    over_scores(scores, keys, [&](auto &x) {
#pragma unroll
        for (float score : x) {
            uint32_t bits = __float_as_uint(probability(score, row_max));
            above += bits >> FIRST_SHIFT > first;
            if (bits >> FIRST_SHIFT != first)
                continue;
            add_to_bin(bins, (bits >> SECOND_SHIFT) % BINS, units_of(bits));
            int place = atomicAdd(&kept.count, 1);
            if (place < KEPT)
                kept.bits[place] = bits;
        }
    });
    return above;
}

/* Third round of the histogram search, for one probability p that lies in the bin reached in the first round:
 * adds it to a new bin if it also lies in second-round bin `second`. Returns 1 if p lies above that bin, else
 * 0. */
__device__ __forceinline__ int add_to_third_bin(Bins &bins, uint32_t bits, uint32_t second)
{
    if (bits >> SECOND_SHIFT == second)
        add_to_bin(bins, bits % (1u << SECOND_SHIFT), units_of(bits));
    return bits >> SECOND_SHIFT > second;
}

/* Third round of the histogram search: adds the probabilities p that lie in second-round bin `second` of
 * first-round bin `first` to new bins. Returns how many of this thread's p in bin `first` lie above bin
 * `second`. */
__device__ __forceinline__ int third_bins(Bins &bins, const Kept &kept, const float *scores, int64_t keys,
                                          float row_max, uint32_t first, uint32_t second)
{
    int above = 0;
    if (kept.count <= KEPT) {
        for (int i = threadIdx.x; i < kept.count; i += PROFILE_THREADS)
            above += add_to_third_bin(bins, kept.bits[i], second);
        return above;
    }
    over_scores(scores, keys, [&](auto &x) {
#pragma unroll
        for (float score : x) {
            uint32_t bits = __float_as_uint(probability(score, row_max));
            if (bits >> FIRST_SHIFT == first)
                above += add_to_third_bin(bins, bits, second);
        }
    });
    return above;
}

/* Returns how many keys are in those third-round bins of this thread that are above the bin in which the
 * target is reached. All probabilities p of a third-round bin are equal, so the count is the bin's mass
 * divided by p. */
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

/* Returns the number of keys above the bin that the first round reached, plus the smallest number of keys in
 * that bin whose probabilities sum to `target`. `target` is in units of the bin (see unit_of), at least 1 and
 * at most the bin's content. Not inlined, because registers would spill. */
__device__ __noinline__ double keys_in_bin(Shared &shared, const float *scores, int64_t keys, float row_max,
                                           double target)
{
    Bins &bins = shared.bins;
    uint32_t first = bins.reached;
    double all;
    if (threadIdx.x == 0)
        shared.kept.count = 0;
    clear_bins(bins);
    int above = second_bins(bins, shared.kept, scores, keys, row_max, first);
    __syncthreads();
    find_bin<false>(bins, mass_above<false>(bins, &all), target);
    uint32_t second = first << (FIRST_SHIFT - SECOND_SHIFT) | (uint32_t)bins.reached;
    target -= bins.before;
    clear_bins(bins);
    above += third_bins(bins, shared.kept, scores, keys, row_max, first, second);
    __syncthreads();
    find_bin<false>(bins, mass_above<false>(bins, &all), target);
    double number = block_sum(above + keys_above(bins, second), bins.sums);
    uint32_t last = units_of(second << SECOND_SHIFT | (uint32_t)bins.reached);
    return number + ceil((target - bins.before) / last);
}

/* Returns the smallest number of keys whose probabilities sum to `fraction` of the sum of all probabilities.
 * Also sets shared.all to the sum of all probabilities; other threads may read shared.all after the next
 * barrier. All threads of the block must call. */
__device__ double keys_for_mass(Shared &shared, const float *scores, int64_t keys, float row_max,
                                double fraction)
{
    Bins &bins = shared.bins;
    double all;
    clear_bins(bins);
    first_bins(bins, scores, keys, row_max);
    __syncthreads();
    double before = mass_above<true>(bins, &all);
    all = (bins.low[BINS - 1] | bins.high[BINS - 1]) > 0
              ? NAN
              : all; /* a probability, which is at most 1, never falls into the last bin; only NaN is counted
                        there */
    if (threadIdx.x == 0)
        shared.all = all;
    /* The product is rounded before any subtraction, as in the reference implementation, so that both
     * implementations give the same bits. */
    double target = __dmul_rn(fraction, all);
    if (isnan(target))
        return target;
    if (target <= 0)
        return 0;
    find_bin<true>(bins, before, target);
    if (bins.reached < 0)
        return (double)keys;
    double unit = unit_of(bins.reached);
    target = ceil((target - bins.before) / unit); /* the content of a bin is a whole number of units */
    target = fmin(fmax(target, 1), mass_in<false>(bins, bins.reached));
    return keys_in_bin(shared, scores, keys, row_max, target);
}

/* One thread block per row of scores, which is one sampled query of one (batch, head). */
__global__ __launch_bounds__(PROFILE_THREADS, PROFILE_BLOCKS) void profile_kernel(Profile w)
{
    __shared__ Shared shared;
    const float *scores = w.scores + (int64_t)blockIdx.x * w.keys;
    float row_max = row_largest(scores, w.keys, shared.largest);
    double number = keys_for_mass(shared, scores, w.keys, row_max, w.mass), captured = 0;
    int64_t row = w.first_pair * w.samples + blockIdx.x;
    QueryList list = {nullptr, w.keys, 1};
    if (w.offsets)
        list = list_of(w, row / w.samples, w.sample[row % w.samples]);
    for (int64_t at = threadIdx.x; w.offsets && at < list.length; at += PROFILE_THREADS)
        captured += probability(scores[list.spans[at / list.grain] * list.grain + at % list.grain], row_max);
    __syncthreads();
    captured = w.offsets ? block_sum(captured, shared.bins.sums) : shared.all;
    if (threadIdx.x == 0) {
        w.captured[row] = (float)(captured / shared.all);
        w.share90[row] = (float)(number / (double)w.keys);
        w.listed[row] = (float)((double)list.length / (double)w.keys);
    }
}

int64_t pairs_at_once(const DsviProfileArgs *args)
{
    return sampled_pairs(args->batch * args->heads, args->samples, args->keys, 1);
}

size_t cuda_profile_workspace(DsviStream *stream, const DsviProfileArgs *args)
{
    (void)stream;
    return sampled_bytes(args->batch * args->heads, args->samples, args->keys, 1);
}

template <typename T> DsvStatus profile_pairs(DsviStream *stream, const DsviProfileArgs *args, Profile w)
{
    int64_t all = args->batch * args->heads, pairs_max = pairs_at_once(args);
    SampledScores<T> s = {head_rows_of<const T>(args->q),
                          head_rows_of<const T>(args->k),
                          args->sample,
                          args->keys,
                          0,
                          (int)args->samples,
                          (int)args->heads,
                          (int)args->head_dim,
                          (float)args->scale,
                          w.scores};
    for (int64_t first = 0; first < all; first += pairs_max) {
        int64_t pairs = all - first < pairs_max ? all - first : pairs_max;
        s.first_pair = w.first_pair = first;
        DSVI_TRY(launch_sampled_scores(stream, s, pairs));
        DSVI_CUDA_LAUNCH(stream, "profile", profile_kernel, (unsigned)(pairs * args->samples),
                         PROFILE_THREADS, 0, w);
    }
    return DSV_OK;
}

DsvStatus cuda_profile(DsviStream *stream, const DsviProfileArgs *args)
{
    if (args->workspace_bytes < cuda_profile_workspace(stream, args))
        return DSVI_FAIL(DSV_E_SHAPE, "profile: workspace has %zu bytes, expected %zu", args->workspace_bytes,
                         cuda_profile_workspace(stream, args));
    if (args->batch * args->heads * args->samples * args->keys == 0)
        return DSV_OK;
    const DsviLists *lists = args->lists;
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
                 lists ? lists->spans : nullptr,
                 lists ? lists->group : 1,
                 lists ? lists->groups : 1,
                 lists ? lists->grain : 1};
    DSVI_FOR_ACT("profile", args->act, return profile_pairs<T>(stream, args, w));
}

} // namespace

void dsvi_cuda_fill_profile(DsviOps *ops)
{
    DSVI_OPS_SET_WITH_WORKSPACE(ops, profile, cuda_profile, cuda_profile_workspace, "cuda");
}
