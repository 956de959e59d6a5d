/* Which runs are winners, as bits: by threshold while estimates are in registers, or the k largest of stored
 * estimates. Bits of a list: words [n * blocks, (n + 1) * blocks), bit r of them run r. */
#ifndef DSVI_SELECT_CHOOSE_CUH
#define DSVI_SELECT_CHOOSE_CUH

#include "cuda/block_sums.cuh"
#include "cuda/select_plan.cuh"

namespace {

enum {
    CHOOSE_THREADS = 256,
    RADIX_BINS = 2048
};

extern __shared__ uint4 shared_memory[];

/* ---- by threshold ---- */

/* Where winners go. */
struct MarkOut {
    const float *threshold; /* (heads) */
    uint32_t *bits;
    double *slice_mass;
    int *slice_count;
    SelectBest *slice_best;
    int groups, heads;
};

/* What a lane has seen of its two lists. */
struct MarkSink {
    uint32_t *bits;      /* its word of the first list's first stretch */
    int lists, row;      /* of the two, how many there are; words from one to the next */
    float threshold, unlift;
    bool searching;      /* whether a lane of the warp has met no winner yet */
    uint32_t word[PAIR]; /* of this stretch */
    float mass[PAIR];    /* of winners */
    int count[PAIR];
    SelectBest best[PAIR];
};

__device__ __forceinline__ void lift(MarkSink &sink, int octaves)
{
    sink.threshold *= power_of_two(octaves);
    sink.unlift = power_of_two(-octaves);
}

__device__ __forceinline__ void take_best(SelectBest &best, int block, float a, float b, float c, float d)
{
    float most = fmaxf(fmaxf(a, b), fmaxf(c, d));
    if (most > best.value)
        best = {most, select_run(block, a == most ? 0 : b == most ? 1 : c == most ? 2 : 3)};
}

/* The best run matters to a list without winners: it is followed for as long as a lane has met none. */
__device__ __forceinline__ void take(MarkSink &sink, int block, const float (&e)[SLOTS][PAIR])
{
    if (sink.searching) {
#pragma unroll
        for (int g = 0; g < PAIR; g++)
            take_best(sink.best[g], block, e[0][g], e[1][g], e[2][g], e[3][g]);
    }
#pragma unroll
    for (int g = 0; g < PAIR; g++) {
        uint32_t won = 0;
#pragma unroll
        for (int j = 0; j < SLOTS; j++) {
            if (e[j][g] >= sink.threshold) {
                sink.mass[g] += e[j][g];
                won |= 1u << j;
            }
        }
        sink.word[g] = __funnelshift_r(sink.word[g], won, SLOTS); /* eight blocks fill it, from the top */
    }
}

__device__ __forceinline__ void end_stretch(MarkSink &sink, int stretch)
{
#pragma unroll
    for (int g = 0; g < PAIR; g++) {
        sink.count[g] += __popc(sink.word[g]);
        if (g < sink.lists)
            sink.bits[g * sink.row + stretch] = sink.word[g];
    }
    sink.searching = __any_sync(0xffffffffu, fminf(sink.mass[0], sink.mass[1]) <= 0.f);
}

/* The larger; of equal ones the lower run. */
__device__ __forceinline__ SelectBest better(SelectBest a, SelectBest b)
{
    return b.value > a.value || (b.value == a.value && b.run < a.run) ? b : a;
}

/* Of the lanes that share a list, 4 k + q for all k. */
__device__ __forceinline__ void gather(double &mass, int &count, SelectBest &best)
{
#pragma unroll
    for (int step = 4; step < WARP; step *= 2) {
        SelectBest other = {__shfl_xor_sync(0xffffffffu, best.value, step),
                            __shfl_xor_sync(0xffffffffu, best.run, step)};
        best = better(best, other);
        mass += __shfl_xor_sync(0xffffffffu, mass, step);
        count += __shfl_xor_sync(0xffffffffu, count, step);
    }
}

/* Masses of lists that there are not start at one, so that nobody searches for their winners. */
template <int PARTS>
__global__ __launch_bounds__(SCORE_THREADS, SCORE_BLOCKS) void mark_kernel(
    const __grid_constant__ SelectTiles t, const __grid_constant__ MarkOut out)
{
    SelectPlace at = select_place(t, blockIdx.x);
    int64_t list = (int64_t)at.pair * out.groups + at.set * SET_GROUPS;
    float threshold = fmaxf(out.threshold[at.pair % out.heads], 0.f); /* less is no run's estimate */
    int lane = threadIdx.x % WARP, groups = out.groups - at.set * SET_GROUPS, mine = lane % 4 * PAIR;
    MarkSink sink = {out.bits + (list + mine) * t.blocks + lane / 4, groups - mine, t.blocks, threshold, 1.f,
                     true, {0, 0}, {mine < groups ? 0.f : 1.f, mine + 1 < groups ? 0.f : 1.f}, {0, 0},
                     {{-1.f, 0}, {-1.f, 0}}};
    walk_estimates<PARTS>(t, at, AllRuns{}, shared_memory, sink);
#pragma unroll
    for (int g = 0; g < PAIR; g++) {
        int of_set = lane * PAIR + g;
        double mass = sink.mass[g];
        gather(mass, sink.count[g], sink.best[g]);
        if (of_set < SET_GROUPS && of_set < groups) {
            int64_t to = (list + of_set) * t.slices + at.slice;
            sink.best[g].value *= sink.unlift;
            out.slice_mass[to] = mass * sink.unlift;
            out.slice_count[to] = sink.count[g];
            out.slice_best[to] = sink.best[g];
        }
    }
}

/* ---- by count ---- */

struct StoreSink {
    float *estimates; /* of this lane's first list */
    int row;          /* from one list to the next */
    float unlift;
};

__device__ __forceinline__ void lift(StoreSink &sink, int octaves)
{
    sink.unlift = power_of_two(-octaves);
}

__device__ __forceinline__ void take(const StoreSink &sink, int block, const float (&e)[SLOTS][PAIR])
{
#pragma unroll
    for (int g = 0; g < PAIR; g++) {
        float four[SLOTS];
#pragma unroll
        for (int j = 0; j < SLOTS; j++)
            four[j] = e[j][g] * sink.unlift;
        store(sink.estimates + g * sink.row + select_run(block, 0), four);
    }
}

__device__ __forceinline__ void end_stretch(const StoreSink &, int)
{
}

/* Estimates of the rows of blocks of threads from number `first` on: (lists of those, blocks * COLUMNS). */
template <int PARTS>
__global__ __launch_bounds__(SCORE_THREADS, SCORE_BLOCKS) void store_kernel(
    const __grid_constant__ SelectTiles t, int64_t first, float *estimates)
{
    SelectPlace at = select_place(t, first * t.slices + blockIdx.x);
    int64_t set = (int64_t)(blockIdx.x / t.slices) * WARPS + threadIdx.x / WARP;
    int row = t.blocks * COLUMNS;
    StoreSink sink = {estimates + (set * SET_GROUPS + threadIdx.x % 4 * PAIR) * row, row, 1.f};
    walk_estimates<PARTS>(t, at, AllRuns{}, shared_memory, sink);
}

/* A search for the k-th largest, `width` bits at a time: those above `shift + width` are known. */
struct Radix {
    uint32_t known, known_mask;
    int left; /* which one, counted from the largest, among those with the known bits */
};

/* Finds bits [shift, shift + width) of the left-th largest. `count` is (RADIX_BINS), `found` two words,
 * `scratch` one for each warp: shared memory. */
__device__ void radix_step(const float *estimates, int runs, int shift, int width, Radix *radix, int *count,
                           int *found, int *scratch)
{
    int bins = 1 << width, each = bins / CHOOSE_THREADS, sum = 0, all;
    for (int bin = threadIdx.x; bin < bins; bin += CHOOSE_THREADS)
        count[bin] = 0;
    __syncthreads();
    for (int run = threadIdx.x; run < runs; run += CHOOSE_THREADS) {
        uint32_t word = __float_as_uint(estimates[run]);
        if ((word & radix->known_mask) == radix->known)
            atomicAdd(count + (word >> shift & (bins - 1)), 1);
    }
    __syncthreads();
    int top = bins - 1 - (int)threadIdx.x * each; /* the thread's bins, from the top down */
    for (int i = 0; i < each; i++)
        sum += count[top - i];
    int before = block_before(sum, scratch, &all);
    if (before < radix->left && radix->left <= before + sum) {
        int bin = top;
        for (; before + count[bin] < radix->left; bin--)
            before += count[bin];
        found[0] = bin;
        found[1] = radix->left - before;
    }
    __syncthreads();
    radix->known |= (uint32_t)found[0] << shift;
    radix->known_mask |= (uint32_t)(bins - 1) << shift;
    radix->left = found[1];
}

/* Sets the bits of all above the found one and of the first radix.left equal to it; gives this thread's
 * mass. */
__device__ double mark_largest(const float *estimates, int runs, int blocks, const Radix &radix,
                               uint32_t *bits, int *scratch)
{
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, ties = 0;
    double mass = 0;
    for (int first = 0; first < blocks; first += CHOOSE_THREADS / WARP) {
        int run = first * COLUMNS + (int)threadIdx.x, before = ties;
        float estimate = run < runs ? estimates[run] : 0.f;
        uint32_t word = __float_as_uint(estimate);
        bool equal = run < runs && word == radix.known;
        uint32_t equals = __ballot_sync(0xffffffffu, equal);
        if (lane == 0)
            scratch[warp] = __popc(equals);
        __syncthreads();
        for (int w = 0; w < CHOOSE_THREADS / WARP; w++) {
            before += w < warp ? scratch[w] : 0;
            ties += scratch[w];
        }
        before += __popc(equals & ((1u << lane) - 1));
        bool won = run < runs && (word > radix.known || (equal && before < radix.left));
        uint32_t winners = __ballot_sync(0xffffffffu, won);
        if (lane == 0 && first + warp < blocks)
            bits[first + warp] = winners;
        mass += won ? (double)estimate : 0.;
        __syncthreads();
    }
    return mass;
}

/* A block of threads a list of the stored estimates. Estimates are not negative, so that their bits order as
 * they do. */
__global__ __launch_bounds__(CHOOSE_THREADS) void topk_kernel(SelectTiles t, int groups, int heads,
                                                              int64_t first, const float *estimates,
                                                              const int32_t *topk, uint32_t *bits,
                                                              double *mass, int *winners)
{
    __shared__ int count[RADIX_BINS], found[2], scratch[CHOOSE_THREADS / WARP];
    __shared__ double sums[CHOOSE_THREADS / WARP];
    int64_t row_block = first + blockIdx.x / LISTS_EACH, pair = row_block / (t.sets / WARPS);
    int64_t group = row_block % (t.sets / WARPS) * LISTS_EACH + blockIdx.x % LISTS_EACH;
    if (group >= groups)
        return;
    int64_t list = pair * groups + group;
    int k = topk[pair % heads];
    k = k < 1 ? 1 : k > t.runs ? t.runs : k;
    Radix radix = {0, 0, k};
    estimates += (int64_t)blockIdx.x * t.blocks * COLUMNS;
    radix_step(estimates, t.runs, 21, 11, &radix, count, found, scratch);
    radix_step(estimates, t.runs, 10, 11, &radix, count, found, scratch);
    radix_step(estimates, t.runs, 0, 10, &radix, count, found, scratch);
    __syncthreads();
    double sum = mark_largest(estimates, t.runs, t.blocks, radix, bits + list * t.blocks, scratch);
    sum = block_sum(sum, sums);
    if (threadIdx.x == 0) {
        mass[list] = sum;
        winners[list] = k;
    }
}

} // namespace

#endif
