/* select_lists: the lists, by threshold or by count, plus exploration (ops/select.h).
 *
 * In four steps: winners as bits, with their count and mass (select_choose.cuh); what exploration, if any,
 * adds to each list, which is little and estimated anew for its mass; the offsets, in order; the bits written
 * out as run numbers. */
#include "cuda/cuda.h"
#include "cuda/rng.cuh"
#include "cuda/select_choose.cuh"

namespace {

enum {
    SCAN_THREADS = 1024,
    CHOOSE_WARPS = CHOOSE_THREADS / WARP
};

/* ---- winners ---- */

/* The best run of a list in which no run reached the threshold. */
__device__ SelectBest list_best(const SelectBest *slice_best, int64_t list, int slices)
{
    SelectBest best = slice_best[list * slices];
    for (int slice = 1; slice < slices; slice++)
        best = better(best, slice_best[list * slices + slice]);
    return best;
}

/* A thread a list: count and mass of its winners. */
__global__ void winners_kernel(int64_t lists, int words, int slices, const double *slice_mass,
                               const int *slice_count, const SelectBest *slice_best, uint32_t *bits,
                               double *mass, int64_t *counts)
{
    int64_t list = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, count = 0;
    double sum = 0;
    if (list >= lists)
        return;
    for (int slice = 0; slice < slices; slice++) {
        sum += slice_mass[list * slices + slice];
        count += slice_count[list * slices + slice];
    }
    if (count == 0) {
        SelectBest best = list_best(slice_best, list, slices);
        bits[list * words + best.run / WARP] = 1u << best.run % WARP;
        sum = best.value;
        count = 1;
    }
    mass[list] = sum;
    counts[list] = count;
}

/* ---- exploration ---- */

struct Explore {
    DsvExplore kind;
    DsvRng rng;
    uint64_t limit;
    int64_t units; /* that a list draws */
    int64_t grain;
    DsvSelectPart part;
    int64_t heads, groups; /* of these lists */
};

/* dsvi_select_number */
__device__ __forceinline__ int64_t number_in_whole(const Explore &x, int64_t list)
{
    int64_t pair = list / x.groups;
    if (x.part.heads == 0)
        return list;
    return (pair / x.heads * x.part.heads + x.part.head[pair % x.heads]) * x.part.groups +
           x.part.first_group + list % x.groups;
}

/* What estimates are made of, for single runs. */
struct Scorer {
    SelectRows rows;
    const float *proxies, *candidates, *lse;
    int64_t count;   /* candidates of a (batch, head) */
    int64_t per_run;
    float factor;    /* scale log2 e */
};

/* x, rounded like dsvi_select_coarse where features are coarse. */
__device__ __forceinline__ float as_feature(const SelectRows &r, float x)
{
    uint32_t bits = __float_as_uint(x);
    return r.coarse ? __uint_as_float((bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu) : x;
}

/* e_gr of one run, for its mass: the choice of winners does not depend on it. */
__device__ float run_estimate(const Scorer &s, int64_t pair, int64_t group, int64_t run)
{
    const SelectRows &r = s.rows;
    int64_t proxies_end = (group + 1) * r.per_group < r.proxies ? (group + 1) * r.per_group : r.proxies;
    int64_t end = (run + 1) * s.per_run < s.count ? (run + 1) * s.per_run : s.count;
    int64_t left = r.queries - group * r.group, of_group = left < r.group ? left : r.group;
    float estimate = 0.f;
    for (int64_t p = group * r.per_group; p < proxies_end; p++) {
        const float *proxy = s.proxies + (pair * r.proxies + p) * r.features;
        float lse = s.lse[pair * r.proxies + p] * (float)DSVI_LOG2_E;
        left = r.queries - p * r.chunk;
        float weight = (float)(left < r.chunk ? left : r.chunk) / (float)of_group;
        for (int64_t c = run * s.per_run; c < end; c++) {
            const float *candidate = s.candidates + (pair * s.count + c) * r.features;
            float score = 0.f;
            for (int i = 0; i < r.features; i++)
                score = fmaf(as_feature(r, proxy[i] * s.factor), as_feature(r, candidate[i]), score);
            estimate += r.coarse ? power<true>(score + log2f(weight) - lse)
                                 : weight * power<false>(score - lse);
        }
    }
    return estimate;
}

/* Bit i: whether run first + i of list `number` of the whole is drawn. */
__device__ uint32_t draw_word(const Explore &x, int64_t number, int64_t first, int runs)
{
    uint32_t word = 0;
    int64_t fours = (x.units + 3) / 4, at = -1;
    uint4 words = {};
    for (int i = 0; i < WARP && first + i < runs; i++) {
        int64_t unit = x.kind == DSV_EXPLORE_BLOCKS ? (first + i) * x.grain / DSV_EXPLORE_BLOCK : first + i;
        if (unit / 4 != at) {
            at = unit / 4;
            words = rng_words(x.rng, (uint64_t)(number * fours + at));
        }
        int part = (int)(unit % 4);
        uint32_t drawn = part == 0 ? words.x : part == 1 ? words.y : part == 2 ? words.z : words.w;
        word |= (uint32_t)(drawn < x.limit) << i;
    }
    return word;
}

/* One word of a list gets what exploration adds to it; gives its runs, and adds the mass of the new ones. */
__device__ int explore_word(const Explore &x, const Scorer &s, int64_t list, int word, int runs,
                            uint32_t before, uint32_t here, uint32_t after, uint32_t *bits, double *mass)
{
    uint32_t more = draw_word(x, number_in_whole(x, list), (int64_t)word * WARP, runs) & ~here;
    int64_t groups = ceil_div(s.rows.queries, s.rows.group);
    if (x.kind == DSV_EXPLORE_NEIGHBOURS)
        more &= here << 1 | before >> (WARP - 1) | here >> 1 | after << (WARP - 1);
    if (more)
        bits[word] = here | more;
    for (uint32_t left = more; left; left &= left - 1)
        *mass += run_estimate(s, list / groups, list % groups, (int64_t)word * WARP + __ffs(left) - 1);
    return __popc(here | more);
}

/* A block of threads a list: adds to its bits, mass and count. Words pass a thread each; the last one's
 * winners are kept for the first of the next round, for by then its bits may be others. */
__global__ __launch_bounds__(CHOOSE_THREADS) void explore_kernel(Explore x, Scorer s, int runs, int words,
                                                                 uint32_t *bits, double *mass,
                                                                 int64_t *counts)
{
    __shared__ double sums[CHOOSE_WARPS];
    __shared__ int scratch[CHOOSE_WARPS];
    __shared__ uint32_t last;
    int64_t list = blockIdx.x;
    int count = 0, all;
    double more = 0;
    bits += list * words;
    if (threadIdx.x == 0)
        last = 0;
    __syncthreads();
    for (int first = 0; first < words; first += CHOOSE_THREADS) {
        int word = first + threadIdx.x;
        uint32_t here = word < words ? bits[word] : 0, after = word + 1 < words ? bits[word + 1] : 0;
        uint32_t before = threadIdx.x == 0 ? last : word < words ? bits[word - 1] : 0;
        __syncthreads();
        if (threadIdx.x == CHOOSE_THREADS - 1)
            last = here;
        if (word < words)
            count += explore_word(x, s, list, word, runs, before, here, after, bits, &more);
        __syncthreads();
    }
    more = block_sum(more, sums);
    block_before(count, scratch, &all);
    if (threadIdx.x == 0) {
        mass[list] += more;
        counts[list] = all;
    }
}

/* ---- offsets, mass, runs ---- */

/* All threads of one block: offsets[n + 1] is the count of list n, and becomes the end of it, or 0 where the
 * lists do not fit. */
__device__ void sum_offsets(int64_t lists, int64_t capacity, int64_t *offsets, int64_t *needed,
                            int64_t *scratch)
{
    int64_t begin = lists * threadIdx.x / SCAN_THREADS, end = lists * (threadIdx.x + 1) / SCAN_THREADS;
    int64_t sum = 0, all;
#pragma unroll 8
    for (int64_t n = begin; n < end; n++)
        sum += offsets[n + 1];
    int64_t at = block_before(sum, scratch, &all);
#pragma unroll 8
    for (int64_t n = begin; n < end; n++) {
        at += offsets[n + 1];
        offsets[n + 1] = all <= capacity ? at : 0;
    }
    if (threadIdx.x == 0) {
        offsets[0] = 0;
        *needed = all;
    }
}

/* A block of threads a head, for the mass of its lists, and one more for the offsets. What the host waits for
 * goes straight to it: a copy would keep the stream for longer than all of this takes. */
__global__ __launch_bounds__(SCAN_THREADS) void totals_kernel(int64_t batch, int heads, int64_t groups,
                                                              int64_t capacity, const double *mass,
                                                              int64_t *offsets, int64_t *needed,
                                                              double *selected_mass)
{
    __shared__ int64_t scratch[SCAN_THREADS / WARP];
    __shared__ double sums[SCAN_THREADS / WARP];
    int h = blockIdx.x;
    double sum = 0;
    if (h == heads) {
        sum_offsets(batch * heads * groups, capacity, offsets, needed, scratch);
        return;
    }
    for (int64_t i = threadIdx.x; i < batch * groups; i += SCAN_THREADS)
        sum += mass[(i / groups * heads + h) * groups + i % groups];
    sum = block_sum(sum, sums);
    if (threadIdx.x == 0)
        selected_mass[h] = sum;
}

/* The sum of x over all lanes up to this one. */
__device__ __forceinline__ int warp_upto(int x)
{
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        int other = __shfl_up_sync(0xffffffffu, x, step);
        x += (int)threadIdx.x % WARP >= step ? other : 0;
    }
    return x;
}

/* EACH warps have a list, each of them some of its words. Run numbers are put in order in shared memory, and
 * leave side by side. */
template <int EACH>
__global__ __launch_bounds__(CHOOSE_THREADS) void emit_kernel(const uint32_t *bits, int words, int64_t lists,
                                                              const int64_t *offsets, int32_t *runs)
{
    __shared__ int32_t found[CHOOSE_WARPS][WARP * WARP];
    __shared__ int counts[CHOOSE_WARPS];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, part = warp % EACH;
    int64_t list = ((int64_t)blockIdx.x * CHOOSE_WARPS + warp) / EACH;
    int begin = (int)((int64_t)words * part / EACH), end = (int)((int64_t)words * (part + 1) / EACH);
    if (list >= lists || offsets[list] == offsets[list + 1]) /* all warps of the list leave */
        return;
    int64_t at = offsets[list];
    bits += list * words;
    if (EACH > 1) {
        static_assert(EACH == 1 || EACH == CHOOSE_WARPS, "a list's warps meet at the block's barrier");
        int count = 0;
#pragma unroll 4
        for (int word = begin + lane; word < end; word += WARP)
            count += __popc(bits[word]);
        count = warp_upto(count);
        if (lane == WARP - 1)
            counts[warp] = count;
        __syncthreads();
        for (int w = 0; w < part; w++)
            at += counts[w];
    }
    uint32_t next = begin + lane < end ? bits[begin + lane] : 0;
    for (int first = begin; first < end; first += WARP) {
        uint32_t left = next;
        next = first + WARP + lane < end ? bits[first + WARP + lane] : 0; /* asked for a round ahead */
        int upto = warp_upto(__popc(left)), all = __shfl_sync(0xffffffffu, upto, WARP - 1);
        int32_t *last = found[warp] + upto, run = (first + lane) * WARP;
        while (left) { /* from the top down */
            int bit = WARP - 1 - __clz((int)left);
            *--last = run + bit;
            left ^= 1u << bit;
        }
        __syncwarp();
        for (int i = lane; i < all; i += WARP)
            runs[at + i] = found[warp][i];
        at += all;
        __syncwarp();
    }
}

/* ---- the op ---- */

size_t workspace(DsvStream *stream, const DsvSelectArgs *args)
{
    return select_plan(stream, args, nullptr).bytes;
}

template <int PARTS>
DsvStatus mark_by_threshold(DsvStream *stream, const DsvSelectArgs *args, const SelectPlan &p)
{
    size_t shared = (size_t)select_shared(p.all) * sizeof(uint4);
    MarkOut out = {args->threshold, p.bits, p.slice_mass, p.slice_count, p.slice_best, (int)p.groups,
                   (int)args->heads};
    DSVI_TRY(select_allow(mark_kernel<PARTS>, shared));
    mark_kernel<PARTS><<<(unsigned)(select_row_blocks(p, p.all) * p.all.slices), SCORE_THREADS, shared,
                        stream->handle>>>(p.all, out);
    DSVI_CUDA_LAUNCHED("select winners by threshold");
    return DSV_OK;
}

/* As many lists at a time as there is room for their estimates. */
template <int PARTS>
DsvStatus mark_by_count(DsvStream *stream, const DsvSelectArgs *args, const SelectPlan &p)
{
    SelectTiles t = p.all;
    size_t shared = (size_t)select_shared(t) * sizeof(uint4);
    size_t row_bytes = (size_t)LISTS_EACH * (size_t)t.blocks * COLUMNS * sizeof(float);
    bool fits = row_bytes <= DSVI_CUDA_PARTIALS;
    float *estimates = fits ? static_cast<float *>(stream->partials) : p.estimates;
    int64_t row_blocks = select_row_blocks(p, t), most = fits ? (int64_t)(DSVI_CUDA_PARTIALS / row_bytes) : 1;
    DSVI_TRY(select_allow(store_kernel<PARTS>, shared));
    for (int64_t first = 0; first < row_blocks; first += most) {
        int64_t count = row_blocks - first < most ? row_blocks - first : most;
        t.slices = select_slices(stream, count, t.blocks);
        store_kernel<PARTS><<<(unsigned)(count * t.slices), SCORE_THREADS, shared, stream->handle>>>(
            t, first, estimates);
        DSVI_CUDA_LAUNCHED("select estimates");
        topk_kernel<<<(unsigned)(count * LISTS_EACH), CHOOSE_THREADS, 0, stream->handle>>>(
            t, (int)p.groups, (int)args->heads, first, estimates, args->topk, p.bits, p.slice_mass,
            p.slice_count);
        DSVI_CUDA_LAUNCHED("select winners by count");
    }
    return DSV_OK;
}

template <int PARTS>
DsvStatus mark_by_either(DsvStream *stream, const DsvSelectArgs *args, const SelectPlan &p)
{
    return args->topk ? mark_by_count<PARTS>(stream, args, p) : mark_by_threshold<PARTS>(stream, args, p);
}

DsvStatus mark(DsvStream *stream, const DsvSelectArgs *args, const SelectPlan &p)
{
    switch (select_near_parts(p.all)) {
    case 1:
        return mark_by_either<1>(stream, args, p);
    case 2:
        return mark_by_either<2>(stream, args, p);
    case 4:
        return mark_by_either<4>(stream, args, p);
    case 8:
        return mark_by_either<8>(stream, args, p);
    default:
        return mark_by_either<0>(stream, args, p);
    }
}

DsvStatus finish_winners(DsvStream *stream, const DsvSelectArgs *args, const SelectPlan &p)
{
    winners_kernel<<<prepare_blocks(p.lists), PREPARE_THREADS, 0, stream->handle>>>(
        p.lists, p.all.blocks, args->topk ? 1 : p.all.slices, p.slice_mass, p.slice_count, p.slice_best,
        p.bits, p.mass, args->lists->offsets + 1);
    DSVI_CUDA_LAUNCHED("select winners");
    return DSV_OK;
}

DsvStatus explore(DsvStream *stream, const DsvSelectArgs *args, const SelectPlan &p)
{
    if (args->explore == DSV_EXPLORE_NONE)
        return DSV_OK;
    int64_t units = args->explore == DSV_EXPLORE_BLOCKS ? ceil_div(args->keys, DSV_EXPLORE_BLOCK)
                                                        : p.all.runs;
    Explore x = {args->explore, {args->explore_seed, DSV_RNG_EXPLORE, (uint32_t)args->explore_step},
                 dsvi_explore_limit(args->explore_rate), units, args->grain, args->part, args->heads,
                 p.groups};
    Scorer s = {p.rows, args->proxies, args->candidates, args->lse, dsvi_select_candidates(args),
                args->grain / args->candidate_keys, select_factor(args)};
    explore_kernel<<<(unsigned)p.lists, CHOOSE_THREADS, 0, stream->handle>>>(
        x, s, p.all.runs, p.all.blocks, p.bits, p.mass, args->lists->offsets + 1);
    DSVI_CUDA_LAUNCHED("select exploration");
    return DSV_OK;
}

DsvStatus choose(DsvStream *stream, const DsvSelectArgs *args, const SelectPlan &p)
{
    if (!args->again) {
        DSVI_TRY(select_prepare(stream, args, p, false));
        DSVI_TRY(select_put_terms(stream, args, p, nullptr));
    }
    DSVI_TRY(mark(stream, args, p));
    DSVI_TRY(finish_winners(stream, args, p));
    return explore(stream, args, p);
}

/* A warp a list where there are enough of them for the machine. */
DsvStatus emit(DsvStream *stream, const SelectPlan &p, const DsvLists *lists)
{
    bool many = p.lists >= (int64_t)stream->multiprocessors * CHOOSE_WARPS;
    auto kernel = many ? emit_kernel<1> : emit_kernel<CHOOSE_WARPS>;
    kernel<<<(unsigned)(many ? ceil_div(p.lists, CHOOSE_WARPS) : p.lists), CHOOSE_THREADS, 0,
             stream->handle>>>(p.bits, p.all.blocks, p.lists, lists->offsets, lists->runs);
    DSVI_CUDA_LAUNCHED("select runs");
    return DSV_OK;
}

DsvStatus select_lists(DsvStream *stream, const DsvSelectArgs *args)
{
    DSVI_TRY(dsvi_select_check(args, true));
    const DsvLists *lists = args->lists;
    SelectPlan p = select_plan(stream, args, args->workspace);
    DSVI_TRY(select_enough(args, p));
    if (p.lists > 0)
        DSVI_TRY(choose(stream, args, p));
    totals_kernel<<<(unsigned)args->heads + 1, SCAN_THREADS, 0, stream->handle>>>(
        args->batch, (int)args->heads, p.groups, lists->capacity, p.mass, lists->offsets, args->needed,
        args->selected_mass);
    DSVI_CUDA_LAUNCHED("select offsets and mass");
    return p.lists > 0 ? emit(stream, p, lists) : DSV_OK;
}

} // namespace

void dsvi_cuda_fill_select_lists(DsvOps *ops)
{
    DSVI_OPS_SET_WITH_WORKSPACE(ops, select_lists, select_lists, workspace, "cuda");
}
