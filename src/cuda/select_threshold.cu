/* select_threshold: from the histogram of estimates to the threshold (ops/select.h), on the device, so that
 * nobody waits for the host.
 *
 * One block of threads has all bins, two neighbours a thread, from the top down: what lies above a bin is the
 * sum of the threads before, and of the bin's neighbour. So once with bin_mass and once with bin_count; a
 * share of 1 needs no look. Sums are in double, in a fixed order; those of counts are exact. */
#include <math.h>

#include "cuda/block_sums.cuh"
#include "cuda/cuda.h"

namespace {

using namespace dsvi;

constexpr int THREADS = 1024, EACH = DSV_SELECT_BINS / THREADS;
static_assert(EACH * THREADS == DSV_SELECT_BINS, "bins are shared out evenly");

/* Lower edge of a bin above 0, rounded down: an estimate counted in the bin must reach it. */
__device__ float bin_edge(int bin)
{
    return __double2float_rd(exp2((double)bin / DSV_SELECT_PER_OCTAVE - DSV_SELECT_OCTAVES));
}

/* How far down into a bin, 0 to 1, `wanted` of its `inside` runs are met: as the truth has it. */
__device__ double part_of_bin(double wanted, double inside, double above, double below)
{
    double upper = above + inside, lower = inside + below, scale = 2 * inside / (upper + lower);
    upper *= scale;
    lower *= scale;
    return 2 * wanted / (upper + sqrt(upper * upper + 2 * (lower - upper) * wanted));
}

struct Bins {
    double bin[DSV_SELECT_BINS], sums[THREADS / WARP];
    int reached; /* the highest bin with which the share is */
    float threshold;
};

/* The threshold in the bin where the share is reached, `left` into it. Bin 0: it is not reached. */
template <bool MASS> __device__ float threshold_in(const double *bins, int bin, double left)
{
    if (bin == 0)
        return MASS ? 0.f : bin_edge(1);
    if (MASS)
        return bin_edge(bin);
    double above = bin + 1 < DSV_SELECT_BINS ? bins[bin + 1] : bins[bin];
    double part = part_of_bin(left, bins[bin], above, bins[bin - 1]);
    return (float)exp2(((double)bin + 1 - part) / DSV_SELECT_PER_OCTAVE - DSV_SELECT_OCTAVES);
}

/* The threshold for a share of what is in the table (bin_heads, BINS): mass or counts. Known to all threads,
 * which come here together. */
template <bool MASS>
__device__ float threshold_for(const double *table, int64_t bin_heads, double share, Bins &bins)
{
    int first = DSV_SELECT_BINS - 1 - EACH * (int)threadIdx.x;
    double here[EACH] = {}, left[EACH], sum = 0, all;
    if (share >= 1)
        return 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        for (int64_t h = 0; h < bin_heads; h++)
            here[i] += table[h * DSV_SELECT_BINS + first - i];
        bins.bin[first - i] = here[i];
        sum += here[i];
    }
    if (threadIdx.x == 0)
        bins.reached = 0;
    double above = block_before(sum, bins.sums, &all), wanted = __dmul_rn(share, all); /* as the truth does */
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        left[i] = wanted - above;
        above += here[i];
        if (first - i > 0 && (MASS ? above >= wanted : here[i] > left[i]))
            atomicMax(&bins.reached, first - i);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (first - i == bins.reached)
            bins.threshold = threshold_in<MASS>(bins.bin, first - i, left[i]);
    __syncthreads();
    return bins.threshold;
}

/* One block. */
__global__ __launch_bounds__(THREADS) void threshold_kernel(DsvSelectThresholdArgs args)
{
    __shared__ Bins mass, count; /* one each: nobody waits for those who still read */
    float for_mass = threshold_for<true>(args.bin_mass, args.bin_heads, args.mass_share, mass);
    float for_count = threshold_for<false>(args.bin_count, args.bin_heads, args.run_share, count);
    for (int64_t h = threadIdx.x; h < args.heads; h += THREADS)
        args.threshold[h] = fmaxf(for_mass, for_count);
}

DsvStatus select_threshold(DsvStream *stream, const DsvSelectThresholdArgs *args)
{
    threshold_kernel<<<1, THREADS, 0, stream->handle>>>(*args);
    DSVI_CUDA_LAUNCHED("select threshold");
    return DSV_OK;
}

} // namespace

void dsvi_cuda_fill_select_threshold(DsvOps *ops)
{
    DSVI_OPS_SET(ops, select_threshold, select_threshold, "cuda");
}
