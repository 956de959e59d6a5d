/* Chooses the winners of each key list, which are the spans of keys that the list shall contain, and stores
 * them as bits. Winners are either the spans whose estimate reaches a threshold, chosen while the estimates
 * are in registers, or the k spans with the largest of the stored estimates. The bits of list n are words [n
 * * blocks, (n + 1) * blocks); bit r, counted over all words of the list, is span r. */
#ifndef DSVI_SELECT_CHOOSE_CUH
#define DSVI_SELECT_CHOOSE_CUH

#include "cuda/common/block_sums.cuh"
#include "cuda/select/select_layout.cuh"

namespace {

enum { CHOOSE_THREADS = 256, RADIX_BINS = 2048 };

extern __shared__ uint4 shared_memory[];

/* ---- winners by threshold ---- */

/* Where mark_kernel writes the winners and their sums; SelectLayout (select_layout.cuh) explains the
 * arrays. */
struct MarkOut {
    const float *threshold; /* (heads) */
    uint32_t *bits;
    double *slice_mass;
    int *slice_count;
    SelectBest *slice_best;
    int groups, heads;
};

/* A sink, the receiver of estimates that select_walk.cuh describes, which collects the winners of the two
 * key lists that a lane handles. */
struct MarkSink {
    uint32_t *bits; /* address of the word of winner bits that this lane writes for the first segment of its
                       first list */
    int lists, row; /* lists: how many of the lane's two lists exist; row: distance from one list to the next,
                       in words */
    /* estimates and `threshold` are both too large by the factor 1 / unlift */
    float threshold, unlift;
    bool searching;      /* some lane of the warp has a list in which no span has reached the threshold yet */
    uint32_t word[PAIR]; /* bits of the winners (spans chosen) in the current segment of 256 spans */
    float mass[PAIR];    /* sum of the estimates of the winners */
    int count[PAIR];     /* number of winners (spans chosen for the list) */
    SelectBest best[PAIR]; /* the largest estimate so far and its span, while `searching` is true */
};

/* Called once before the first estimates, if all estimates will be too large by the factor 2^octaves:
 * multiplies the threshold by the same factor. */
__device__ __forceinline__ void scale_sink(MarkSink &sink, int octaves)
{
    sink.threshold *= exact_power_of_two(octaves);
    sink.unlift = exact_power_of_two(-octaves);
}

__device__ __forceinline__ void take_best(SelectBest &best, int block, float a, float b, float c, float d)
{
    float largest = fmaxf(fmaxf(a, b), fmaxf(c, d));
    if (largest > best.value)
        best = {largest, select_span(block, a == largest ? 0 : b == largest ? 1 : c == largest ? 2 : 3)};
}

/* Receives the estimates of one block of spans and collects the winners, which are the spans that reach the
 * threshold. The largest estimate is needed only for lists without winners, so it is tracked only while some
 * lane of the warp has found none. */
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
        sink.word[g] = __funnelshift_r(sink.word[g], won,
                                       SLOTS); /* the new bits are shifted in at the top of the word, which is
                                                  full after the 8 blocks of a segment */
    }
}

__device__ __forceinline__ void end_segment(MarkSink &sink, int segment)
{
#pragma unroll
    for (int g = 0; g < PAIR; g++) {
        sink.count[g] += __popc(sink.word[g]);
        if (g < sink.lists)
            sink.bits[g * sink.row + segment] = sink.word[g];
    }
    sink.searching = __any_sync(0xffffffffu, fminf(sink.mass[0], sink.mass[1]) <= 0.f);
}

/* Returns the larger of two estimates; of equal ones, the one with the lower span number. */
__device__ __forceinline__ SelectBest better_of(SelectBest a, SelectBest b)
{
    return b.value > a.value || (b.value == a.value && b.span < a.span) ? b : a;
}

/* Combines the winners' mass (sum of estimates), their number and the largest estimate over the lanes that
 * share a list, which are lanes 4 k + q for all k. */
__device__ __forceinline__ void combine_lanes(double &mass, int &count, SelectBest &best)
{
#pragma unroll
    for (int step = 4; step < WARP; step *= 2) {
        SelectBest other = {__shfl_xor_sync(0xffffffffu, best.value, step),
                            __shfl_xor_sync(0xffffffffu, best.span, step)};
        best = better_of(best, other);
        mass += __shfl_xor_sync(0xffffffffu, mass, step);
        count += __shfl_xor_sync(0xffffffffu, count, step);
    }
}

/* Computes the estimates of one slice of the spans and writes the winners (spans that reach the threshold) in
 * this slice: their bits, the sum of their estimates (mass), their number, and the largest estimate of lists
 * without winners. For lists that do not exist the mass starts at 1, so that no lane searches for their
 * winners. */
template <int PARTS>
__global__ __launch_bounds__(SCORE_THREADS,
                             SCORE_BLOCKS) void mark_kernel(const __grid_constant__ SelectTiles t,
                                                            const __grid_constant__ MarkOut out)
{
    SelectPlace at = select_place(t, blockIdx.x);
    int64_t list = (int64_t)at.pair * out.groups + at.set * SET_GROUPS;
    float threshold = fmaxf(out.threshold[at.pair % out.heads],
                            0.f); /* at least 0, because the estimate of a span that does not exist is
                                     negative and must stay below the threshold */
    int lane = threadIdx.x % WARP, groups = out.groups - at.set * SET_GROUPS, mine = lane % 4 * PAIR;
    MarkSink sink = {out.bits + (list + mine) * t.blocks + lane / 4,
                     groups - mine,
                     t.blocks,
                     threshold,
                     1.f,
                     true,
                     {0, 0},
                     {mine < groups ? 0.f : 1.f, mine + 1 < groups ? 0.f : 1.f},
                     {0, 0},
                     {{-1.f, 0}, {-1.f, 0}}};
    walk_estimates<PARTS>(t, at, AllSpans{}, shared_memory, sink);
#pragma unroll
    for (int g = 0; g < PAIR; g++) {
        int of_set = lane * PAIR + g;
        double mass = sink.mass[g];
        combine_lanes(mass, sink.count[g], sink.best[g]);
        if (of_set < SET_GROUPS && of_set < groups) {
            int64_t to = (list + of_set) * t.slices + at.slice;
            sink.best[g].value *= sink.unlift;
            out.slice_mass[to] = mass * sink.unlift;
            out.slice_count[to] = sink.count[g];
            out.slice_best[to] = sink.best[g];
        }
    }
}

/* ---- winners by count: the k largest stored estimates ---- */

/* A sink, the receiver of estimates that select_walk.cuh describes, which writes all estimates to memory. */
struct StoreSink {
    float *estimates; /* where the estimates of this lane's first key list are written */
    int row;          /* distance from the estimates of one list to those of the next, in floats */
    float unlift;     /* factor that undoes the scaling of the estimates */
};

__device__ __forceinline__ void scale_sink(StoreSink &sink, int octaves)
{
    sink.unlift = exact_power_of_two(-octaves);
}

__device__ __forceinline__ void take(const StoreSink &sink, int block, const float (&e)[SLOTS][PAIR])
{
#pragma unroll
    for (int g = 0; g < PAIR; g++) {
        float four[SLOTS];
#pragma unroll
        for (int j = 0; j < SLOTS; j++)
            four[j] = e[j][g] * sink.unlift;
        store(sink.estimates + g * sink.row + select_span(block, 0), four);
    }
}

__device__ __forceinline__ void end_segment(const StoreSink &, int) {}

/* Computes the estimates of all spans for some key lists and writes them to memory: (lists, blocks *
 * COLUMNS). Each thread block has a row block, which is LISTS_EACH lists; `first` is the number of the first
 * row block. */
template <int PARTS>
__global__ __launch_bounds__(SCORE_THREADS,
                             SCORE_BLOCKS) void store_kernel(const __grid_constant__ SelectTiles t,
                                                             int64_t first, float *estimates)
{
    SelectPlace at = select_place(t, first * t.slices + blockIdx.x);
    int64_t set = (int64_t)(blockIdx.x / t.slices) * WARPS + threadIdx.x / WARP;
    int row = t.blocks * COLUMNS;
    StoreSink sink = {estimates + (set * SET_GROUPS + threadIdx.x % 4 * PAIR) * row, row, 1.f};
    walk_estimates<PARTS>(t, at, AllSpans{}, shared_memory, sink);
}

/* The state of a radix search for the k-th largest estimate of a list. The search finds the bits of this
 * estimate a few at a time, from the highest down. */
struct Radix {
    uint32_t known, known_mask; /* known: bits of the k-th largest estimate that are found so far; known_mask:
                                   1 at the positions of these bits */
    int left; /* how many estimates must still be taken, from the largest down, among those that have the
                 known bits */
};

/* One step of the radix search: finds bits [shift, shift + width) of the k-th largest estimate. `count`
 * (RADIX_BINS), `found` (2) and `scratch` (one per warp) are shared memory. All threads of the block must
 * call. */
__device__ void radix_step(const float *estimates, int spans, int shift, int width, Radix *radix, int *count,
                           int *found, int *scratch)
{
    int bins = 1 << width, each = bins / CHOOSE_THREADS, sum = 0, all;
    for (int bin = threadIdx.x; bin < bins; bin += CHOOSE_THREADS)
        count[bin] = 0;
    __syncthreads();
    for (int span = threadIdx.x; span < spans; span += CHOOSE_THREADS) {
        uint32_t word = __float_as_uint(estimates[span]);
        if ((word & radix->known_mask) == radix->known)
            atomicAdd(count + (word >> shift & (bins - 1)), 1);
    }
    __syncthreads();
    /* number of the highest histogram bin that this thread sums */
    int top = bins - 1 - (int)threadIdx.x * each;
    for (int i = 0; i < each; i++)
        sum += count[top - i];
    int before = block_exclusive_sum(sum, scratch, &all);
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

/* Sets the bits of all spans whose estimate is larger than the k-th largest one, which the radix search has
 * found, and of the first radix.left spans whose estimate equals the k-th largest one. Returns the sum of the
 * estimates of the winners that this thread has handled. All threads of the block must call. */
__device__ double mark_largest(const float *estimates, int spans, int blocks, const Radix &radix,
                               uint32_t *bits, int *scratch)
{
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, ties = 0;
    double mass = 0;
    for (int first = 0; first < blocks; first += CHOOSE_THREADS / WARP) {
        int span = first * COLUMNS + (int)threadIdx.x, before = ties;
        float estimate = span < spans ? estimates[span] : 0.f;
        uint32_t word = __float_as_uint(estimate);
        bool equal = span < spans && word == radix.known;
        uint32_t equals = __ballot_sync(0xffffffffu, equal);
        if (lane == 0)
            scratch[warp] = __popc(equals);
        __syncthreads();
        for (int w = 0; w < CHOOSE_THREADS / WARP; w++) {
            before += w < warp ? scratch[w] : 0;
            ties += scratch[w];
        }
        before += __popc(equals & ((1u << lane) - 1));
        bool won = span < spans && (word > radix.known || (equal && before < radix.left));
        uint32_t winners = __ballot_sync(0xffffffffu, won);
        if (lane == 0 && first + warp < blocks)
            bits[first + warp] = winners;
        mass += won ? (double)estimate : 0.;
        __syncthreads();
    }
    return mass;
}

/* One thread block per list, with stored estimates: finds the topk[head] largest and writes the winners'
 * bits, mass (sum of estimates) and number. Estimates are not negative, so comparing their bits as integers
 * compares their values. */
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
    k = k < 1 ? 1 : k > t.spans ? t.spans : k;
    Radix radix = {0, 0, k};
    estimates += (int64_t)blockIdx.x * t.blocks * COLUMNS;
    radix_step(estimates, t.spans, 21, 11, &radix, count, found, scratch);
    radix_step(estimates, t.spans, 10, 11, &radix, count, found, scratch);
    radix_step(estimates, t.spans, 0, 10, &radix, count, found, scratch);
    __syncthreads();
    double sum = mark_largest(estimates, t.spans, t.blocks, radix, bits + list * t.blocks, scratch);
    sum = block_sum(sum, sums);
    if (threadIdx.x == 0) {
        mass[list] = sum;
        winners[list] = k;
    }
}

} // namespace

#endif
