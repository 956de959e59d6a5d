/* select_threshold: from the histogram of estimates to the threshold (ops/select.h), on the device, so that
 * nobody waits for the host.
 *
 * One block of threads has all bins, two neighbours a thread, from the top down: what lies above a bin is the
 * sum of the threads before, and of the bin's neighbour. For a share of the mass only bin_mass is read, for
 * one of the runs only bin_count. Sums are in double, in a fixed order; those of counts are exact. */
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

/* The threshold in the bin where the share is reached, `left` runs into it. Bin 0: it is not reached. */
__device__ float threshold_in(const double *bins, int bin, double left, bool by_mass, double share)
{
    if (bin == 0)
        return by_mass || share >= 1 ? 0.f : bin_edge(1);
    if (by_mass)
        return bin_edge(bin);
    double above = bin + 1 < DSV_SELECT_BINS ? bins[bin + 1] : bins[bin];
    double part = part_of_bin(left, bins[bin], above, bins[bin - 1]);
    return (float)exp2(((double)bin + 1 - part) / DSV_SELECT_PER_OCTAVE - DSV_SELECT_OCTAVES);
}

/* One block. `table`: (bin_heads, BINS) mass or count. */
__global__ __launch_bounds__(THREADS) void threshold_kernel(const double *table, int64_t bin_heads,
                                                            bool by_mass, double share, int64_t heads,
                                                            float *threshold)
{
    __shared__ double bins[DSV_SELECT_BINS], sums[THREADS / WARP];
    __shared__ int reached; /* the highest bin with which the share is */
    __shared__ float value;
    int first = DSV_SELECT_BINS - 1 - EACH * (int)threadIdx.x;
    double here[EACH] = {}, left[EACH], sum = 0, all;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        for (int64_t h = 0; h < bin_heads; h++)
            here[i] += table[h * DSV_SELECT_BINS + first - i];
        bins[first - i] = here[i];
        sum += here[i];
    }
    if (threadIdx.x == 0)
        reached = 0;
    double above = block_before(sum, sums, &all), wanted = __dmul_rn(share, all); /* as the truth rounds it */
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        left[i] = wanted - above;
        above += here[i];
        if (first - i > 0 && (by_mass ? share < 1 && above >= wanted : here[i] > left[i]))
            atomicMax(&reached, first - i);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (first - i == reached)
            value = threshold_in(bins, first - i, left[i], by_mass, share);
    __syncthreads();
    for (int64_t h = threadIdx.x; h < heads; h += THREADS)
        threshold[h] = value;
}

DsvStatus select_threshold(DsvStream *stream, const DsvSelectThresholdArgs *args)
{
    threshold_kernel<<<1, THREADS, 0, stream->handle>>>(args->by_mass ? args->bin_mass : args->bin_count,
                                                        args->bin_heads, args->by_mass, args->share,
                                                        args->heads, args->threshold);
    DSVI_CUDA_LAUNCHED("select threshold");
    return DSV_OK;
}

} // namespace

void dsvi_cuda_fill_select_threshold(DsvOps *ops)
{
    DSVI_OPS_SET(ops, select_threshold, select_threshold, "cuda");
}
