/* select_threshold: computes from the histogram of estimates the threshold above which spans are listed
 * (interface: ops/select.h). It runs on the device so that the device need not wait for the host.
 *
 * One thread block has all bins; a thread has two neighbouring bins, thread 0 the highest ones. The mass or
 * count above a bin is the sum over all lower-numbered threads, plus the thread's higher bin. The kernel
 * computes one threshold from bin_mass and one from bin_count; it skips the computation for a fraction of 1.
 * Sums are in double and in a fixed order; the sums of counts are exact. */
#include <math.h>

#include "cuda/common/block_sums.cuh"
#include "cuda/common/cuda.h"

namespace {

using namespace dsvi;

constexpr int THRESHOLD_THREADS = 1024, BINS_PER_THREAD = DSVI_SELECT_BINS / THRESHOLD_THREADS;
static_assert(BINS_PER_THREAD * THRESHOLD_THREADS == DSVI_SELECT_BINS, "all threads must have as many bins");

/* Returns the lower edge of bin `bin` > 0 of the histogram, rounded down, so that every estimate counted in
 * the bin is at least this large. */
__device__ float bin_lower_edge(int bin)
{
    return __double2float_rd(exp2((double)bin / DSVI_SELECT_PER_OCTAVE - DSVI_SELECT_OCTAVES));
}

/* Returns how far below the upper edge of a histogram bin, from 0 to 1, the `target` largest of its `inside`
 * spans end. Assumes that the density of spans changes linearly inside the bin as the counts of the
 * neighbouring bins `above` and `below` suggest. The same formula as in the reference implementation
 * (ops/select_threshold_ref.c). */
__device__ double position_in_bin(double target, double inside, double above, double below)
{
    double upper = above + inside, lower = inside + below, scale = 2 * inside / (upper + lower);
    upper *= scale;
    lower *= scale;
    return 2 * target / (upper + sqrt(upper * upper + 2 * (lower - upper) * target));
}

/* Shared memory of threshold_for. */
struct Bins {
    double bin[DSVI_SELECT_BINS], sums[THRESHOLD_THREADS / WARP];
    int reached; /* the bin in which the target mass or count is reached when bins are added from the highest
                    down; 0: none */
    float threshold;
};

/* Returns the threshold if adding bins from the highest down reaches the target in bin `bin`, where `left`
 * of the mass or count is still needed. Bin 0 means that the target is not reached. */
template <bool MASS> __device__ float threshold_in(const double *bins, int bin, double left)
{
    if (bin == 0)
        return MASS ? 0.f : bin_lower_edge(1);
    if (MASS)
        return bin_lower_edge(bin);
    double above = bin + 1 < DSVI_SELECT_BINS ? bins[bin + 1] : bins[bin];
    double part = position_in_bin(left, bins[bin], above, bins[bin - 1]);
    return (float)exp2(((double)bin + 1 - part) / DSVI_SELECT_PER_OCTAVE - DSVI_SELECT_OCTAVES);
}

/* Returns to all threads the threshold of the estimates above which `fraction` of the sum of `table` lies;
 * `table`, (bin_heads, BINS), holds the mass (sum of estimates) or the number of spans of each bin. All
 * threads of the block must call. */
template <bool MASS>
__device__ float threshold_for(const double *table, int64_t bin_heads, double fraction, Bins &bins)
{
    int first = DSVI_SELECT_BINS - 1 - BINS_PER_THREAD * (int)threadIdx.x;
    double here[BINS_PER_THREAD] = {}, left[BINS_PER_THREAD], sum = 0, all;
    if (fraction >= 1)
        return 0;
#pragma unroll
    for (int i = 0; i < BINS_PER_THREAD; i++) {
        for (int64_t h = 0; h < bin_heads; h++)
            here[i] += table[h * DSVI_SELECT_BINS + first - i];
        bins.bin[first - i] = here[i];
        sum += here[i];
    }
    if (threadIdx.x == 0)
        bins.reached = 0;
    double above = block_exclusive_sum(sum, bins.sums, &all);
    /* The product is rounded before any subtraction, as in the reference implementation, so that both
     * implementations give the same bits. */
    double target = __dmul_rn(fraction, all);
#pragma unroll
    for (int i = 0; i < BINS_PER_THREAD; i++) {
        left[i] = target - above;
        above += here[i];
        if (first - i > 0 && (MASS ? above >= target : here[i] > left[i]))
            atomicMax(&bins.reached, first - i);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < BINS_PER_THREAD; i++)
        if (first - i == bins.reached)
            bins.threshold = threshold_in<MASS>(bins.bin, first - i, left[i]);
    __syncthreads();
    return bins.threshold;
}

/* One thread block: sets the threshold of every head to the larger one of the threshold for mass_fraction
 * and the threshold for span_fraction. */
__global__ __launch_bounds__(THRESHOLD_THREADS) void threshold_kernel(DsviSelectThresholdArgs args)
{
    __shared__ Bins mass, count; /* separate, so that no barrier is needed between the two calls */
    float for_mass = threshold_for<true>(args.bin_mass, args.bin_heads, args.mass_fraction, mass);
    float for_count = threshold_for<false>(args.bin_count, args.bin_heads, args.span_fraction, count);
    for (int64_t h = threadIdx.x; h < args.heads; h += THRESHOLD_THREADS)
        args.threshold[h] = fmaxf(for_mass, for_count);
}

DsvStatus cuda_select_threshold(DsviStream *stream, const DsviSelectThresholdArgs *args)
{
    DSVI_CUDA_LAUNCH(stream, "select threshold", threshold_kernel, 1, THRESHOLD_THREADS, 0, *args);
    return DSV_OK;
}

} // namespace

void dsvi_cuda_fill_select_threshold(DsviOps *ops)
{
    DSVI_OPS_SET(ops, select_threshold, cuda_select_threshold, "cuda");
}
