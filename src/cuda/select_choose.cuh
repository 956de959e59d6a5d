/* Which runs are winners, as bits: by threshold while estimates are in registers, or the k largest of stored
 * estimates. Bits of a list: words [n * blocks * SLOTS, (n + 1) * blocks * SLOTS), bit r of them run r. */
#ifndef DSVI_SELECT_CHOOSE_CUH
#define DSVI_SELECT_CHOOSE_CUH

#include "cuda/block_sums.cuh"
#include "cuda/select_plan.cuh"

namespace {

enum {
    CHOOSE_THREADS = 256,
    RADIX_BINS = 2048
};
static_assert((int)CHOOSE_THREADS == COLUMNS, "a thread a run of a block");

extern __shared__ float4 shared_memory[];

/* ---- by threshold ---- */

/* What a lane has seen of a list. In shared memory: registers are full. */
struct MarkState {
    double mass; /* of winners */
    SelectBest best;
};

/* Where winners go; the kernel's own argument, which takes no registers. */
struct MarkOut {
    const float *threshold; /* (heads) */
    uint32_t *bits;
    double *slice_mass;
    SelectBest *slice_best;
    int groups, heads;
};

struct MarkSink {
    const SelectTiles &t;
    const MarkOut &out;
    int list;   /* first of the set */
    int groups; /* of the set, that there are */
    const volatile float *threshold; /* in shared memory, read anew each time: it must not take a register */
};

/* This thread's of list g of the set. */
__device__ __forceinline__ MarkState *mark_state(int g)
{
    float4 *begin = shared_memory + SCORE_SHARED / sizeof(float4);
    return reinterpret_cast<MarkState *>(begin) + g * SCORE_THREADS + threadIdx.x;
}

__device__ __forceinline__ void take_list(const MarkSink &sink, int block, int g, const float (&e)[SLOTS])
{
    int lane = threadIdx.x % WARP;
    SelectBest best = mark_state(g)->best;
    float threshold = *sink.threshold;
    uint32_t mine = 0;
    float mass = 0.f;
#pragma unroll
    for (int j = 0; j < SLOTS; j++) {
        int run = select_run(block, j);
        bool won = run < sink.t.runs && e[j] >= threshold;
        uint32_t word = __ballot_sync(0xffffffffu, won);
        mine = lane == j ? word : mine;
        mass += won ? e[j] : 0.f;
        if (run < sink.t.runs && e[j] > best.value)
            best = {e[j], run};
    }
    mark_state(g)->mass += mass;
    mark_state(g)->best = best;
    if (lane < SLOTS)
        sink.out.bits[((int64_t)(sink.list + g) * sink.t.blocks + block) * SLOTS + lane] = mine;
}

template <int GROUPS> __device__ __forceinline__ void take(const MarkSink &sink, int block,
                                                           const float (&e)[GROUPS][SLOTS])
{
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
        if (g < sink.groups)
            take_list(sink, block, g, e[g]);
}

/* The larger; of equal ones the lower run. */
__device__ __forceinline__ SelectBest better(SelectBest a, SelectBest b)
{
    return b.value > a.value || (b.value == a.value && b.run < a.run) ? b : a;
}

__device__ __forceinline__ SelectBest warp_best(SelectBest x)
{
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) {
        SelectBest other = {__shfl_xor_sync(0xffffffffu, x.value, step),
                            __shfl_xor_sync(0xffffffffu, x.run, step)};
        x = better(x, other);
    }
    return x;
}

template <int ROWS>
__global__ __launch_bounds__(SCORE_THREADS, 2) void mark_kernel(const __grid_constant__ SelectTiles t,
                                                                const __grid_constant__ MarkOut out)
{
    constexpr int GROUPS = TILE_ROWS / ROWS;
    __shared__ float threshold;
    SelectPlace at = select_place(t, blockIdx.x);
    MarkSink sink = {t, out, at.pair * out.groups + at.set * GROUPS, out.groups - at.set * GROUPS,
                     &threshold};
    if (threadIdx.x == 0)
        threshold = out.threshold[at.pair % out.heads]; /* seen by all after the walk's first barrier */
    for (int g = 0; g < GROUPS; g++)
        *mark_state(g) = {0., {-1.f, 0}};
    walk_estimates<ROWS>(t, at, reinterpret_cast<float *>(shared_memory), sink);
    for (int g = 0; g < GROUPS && g < sink.groups; g++) {
        double mass = warp_sum(mark_state(g)->mass);
        SelectBest best = warp_best(mark_state(g)->best);
        if (threadIdx.x % WARP == 0) {
            int64_t part = (int64_t)(sink.list + g) * t.slices + blockIdx.x % t.slices;
            out.slice_mass[part] = mass;
            out.slice_best[part] = best;
        }
    }
}

/* ---- by count ---- */

struct StoreSink {
    float *estimates; /* of the set's first list */
    int64_t row;      /* from one list to the next */
};

template <int GROUPS> __device__ __forceinline__ void take(const StoreSink &sink, int block,
                                                           const float (&e)[GROUPS][SLOTS])
{
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
#pragma unroll
        for (int j = 0; j < SLOTS; j++)
            sink.estimates[g * sink.row + select_run(block, j)] = e[g][j];
}

/* Estimates of the rows of blocks of threads from number `first` on: (lists of those, blocks * COLUMNS). */
template <int ROWS>
__global__ __launch_bounds__(SCORE_THREADS, 2) void store_kernel(const __grid_constant__ SelectTiles t,
                                                                 int64_t first, float *estimates)
{
    SelectPlace at = select_place(t, first * t.slices + blockIdx.x);
    int64_t set = (int64_t)(blockIdx.x / t.slices) * WARPS + threadIdx.x / WARP;
    int64_t row = (int64_t)t.blocks * COLUMNS;
    StoreSink sink = {estimates + set * (TILE_ROWS / ROWS) * row, row};
    walk_estimates<ROWS>(t, at, reinterpret_cast<float *>(shared_memory), sink);
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
    for (int block = 0; block < blocks; block++) {
        int run = block * COLUMNS + threadIdx.x, before = ties;
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
        if (lane == 0)
            bits[block * SLOTS + warp] = winners;
        mass += won ? (double)estimate : 0.;
        __syncthreads();
    }
    return mass;
}

/* A block of threads a list of the stored estimates. Estimates are not negative, so that their bits order as
 * they do. */
__global__ __launch_bounds__(CHOOSE_THREADS) void topk_kernel(SelectTiles t, int groups, int heads,
                                                              int64_t first, int lists_of_block,
                                                              const float *estimates, const int32_t *topk,
                                                              uint32_t *bits, double *mass)
{
    __shared__ int count[RADIX_BINS], found[2], scratch[CHOOSE_THREADS / WARP];
    __shared__ double sums[CHOOSE_THREADS / WARP];
    int64_t row_block = first + blockIdx.x / lists_of_block, pair = row_block / (t.sets / WARPS);
    int64_t group = row_block % (t.sets / WARPS) * lists_of_block + blockIdx.x % lists_of_block;
    if (group >= groups)
        return;
    int64_t list = pair * groups + group;
    int k = topk[pair % heads];
    Radix radix = {0, 0, k < 1 ? 1 : k > t.runs ? t.runs : k};
    estimates += (int64_t)blockIdx.x * t.blocks * COLUMNS;
    radix_step(estimates, t.runs, 21, 11, &radix, count, found, scratch);
    radix_step(estimates, t.runs, 10, 11, &radix, count, found, scratch);
    radix_step(estimates, t.runs, 0, 10, &radix, count, found, scratch);
    __syncthreads();
    double sum = mark_largest(estimates, t.runs, t.blocks, radix, bits + list * t.blocks * SLOTS, scratch);
    sum = block_sum(sum, sums);
    if (threadIdx.x == 0)
        mass[list] = sum;
}

} // namespace

#endif
