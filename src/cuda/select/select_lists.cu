/* select_lists: makes the key lists of all groups, by threshold or by count, and adds spans by exploration
 * (interface: ops/select.h).
 *
 * There are four steps. First, the winners (the spans that the estimates select) are marked as bits, with
 * their number and their mass, which is the sum of their estimates (select_choose.cuh). Second, exploration,
 * if any, adds random spans to each list, and their few estimates are computed again for the mass. Third, a
 * prefix sum over the list lengths gives the offsets. Fourth, the bits are written as span numbers. */
#include "cuda/common/cuda.h"
#include "cuda/common/rng.cuh"
#include "cuda/select/select_choose.cuh"

namespace {

enum { SCAN_THREADS = 1024, CHOOSE_WARPS = CHOOSE_THREADS / WARP };

/* ---- winners: the spans that the estimates select ---- */

/* Returns the largest estimate of a list in which no span reached the threshold. */
__device__ SelectBest list_best(const SelectBest *slice_best, int64_t list, int slices)
{
    SelectBest best = slice_best[list * slices];
    for (int slice = 1; slice < slices; slice++)
        best = better_of(best, slice_best[list * slices + slice]);
    return best;
}

/* One thread per list: adds up the number and the mass (sum of estimates) of the list's winners over the
 * slices of the spans. A list without winners gets the span with the largest estimate. */
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
        bits[list * words + best.span / WARP] = 1u << best.span % WARP;
        sum = best.value;
        count = 1;
    }
    mass[list] = sum;
    counts[list] = count;
}

/* ---- exploration: spans that are added to the lists at random ---- */

/* Which spans exploration adds to the lists at random: see dsvi_explore_limit in ops/select.h. */
struct Explore {
    DsviExplore kind;
    DsviRng rng;
    uint64_t limit; /* a span, or block of keys, is added to a list if the random 64-bit word drawn for it is
                       below this limit */
    int64_t units;  /* number of random draws of a list: one per span, or one per block of DSVI_EXPLORE_BLOCK
                       keys */
    int64_t grain;
    DsviSelectPart part;
    int64_t heads, groups; /* numbers of heads and groups of this rank */
};

/* Returns the number that a list of this rank has among the lists of all ranks (DsviSelectPart in
 * ops/select.h): the same as dsvi_select_number. */
__device__ __forceinline__ int64_t number_of_all_ranks(const Explore &x, int64_t list)
{
    int64_t pair = list / x.groups;
    if (x.part.heads == 0)
        return list;
    return (pair / x.heads * x.part.heads + x.part.head[pair % x.heads]) * x.part.groups +
           x.part.first_group + list % x.groups;
}

/* The inputs from which the estimates of single spans are computed again. */
struct Scorer {
    SelectRows rows;
    const float *proxies, *candidates, *lse;
    int64_t count;    /* number of candidates of a (batch, head) */
    int64_t per_span; /* number of candidates of a span */
    float factor;     /* attention scale times log2 e, by which scores are multiplied */
};

/* Returns feature x, rounded as dsvi_select_coarse does if features are coarse, otherwise unchanged. */
__device__ __forceinline__ float rounded_feature(const SelectRows &r, float x)
{
    uint32_t bits = __float_as_uint(x);
    return r.coarse ? __uint_as_float((bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu) : x;
}

/* Returns the estimate e_gr of the attention of one group of queries to one span of keys. The result is used
 * for the mass (sum of estimates) only; the choice of spans does not depend on it. */
__device__ float span_estimate(const Scorer &s, int64_t pair, int64_t group, int64_t span)
{
    const SelectRows &r = s.rows;
    int64_t proxies_end = (group + 1) * r.per_group < r.proxies ? (group + 1) * r.per_group : r.proxies;
    int64_t end = (span + 1) * s.per_span < s.count ? (span + 1) * s.per_span : s.count;
    int64_t left = r.queries - group * r.group, of_group = left < r.group ? left : r.group;
    float estimate = 0.f;
    for (int64_t p = group * r.per_group; p < proxies_end; p++) {
        const float *proxy = s.proxies + (pair * r.proxies + p) * r.features;
        float lse = s.lse[pair * r.proxies + p] * (float)DSVI_LOG2_E;
        left = r.queries - p * r.chunk;
        float weight = (float)(left < r.chunk ? left : r.chunk) / (float)of_group;
        for (int64_t c = span * s.per_span; c < end; c++) {
            const float *candidate = s.candidates + (pair * s.count + c) * r.features;
            float score = 0.f;
            for (int i = 0; i < r.features; i++)
                score = fmaf(rounded_feature(r, proxy[i] * s.factor), rounded_feature(r, candidate[i]),
                             score);
            estimate += r.coarse ? power<true>(score + log2f(weight) - lse)
                                 : weight * power<false>(score - lse);
        }
    }
    return estimate;
}

/* Returns a word whose bit i is set if exploration draws span first + i of the list that has number `number`
 * among the lists of all ranks. */
__device__ uint32_t draw_word(const Explore &x, int64_t number, int64_t first, int spans)
{
    uint32_t word = 0;
    int64_t fours = (x.units + 3) / 4, at = -1;
    uint4 words = {};
    for (int i = 0; i < WARP && first + i < spans; i++) {
        int64_t unit = x.kind == DSVI_EXPLORE_BLOCKS ? (first + i) * x.grain / DSVI_EXPLORE_BLOCK : first + i;
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

/* Adds to word `word` of a list's bits the spans that exploration draws at random. `before`, `here` and
 * `after` are the winners in the previous word, in this word and in the next word. Adds the estimates of the
 * new spans to *mass. Returns the number of spans of the list in this word, winners included. */
__device__ int explore_word(const Explore &x, const Scorer &s, int64_t list, int word, int spans,
                            uint32_t before, uint32_t here, uint32_t after, uint32_t *bits, double *mass)
{
    uint32_t more = draw_word(x, number_of_all_ranks(x, list), (int64_t)word * WARP, spans) & ~here;
    int64_t groups = ceil_div(s.rows.queries, s.rows.group);
    if (x.kind == DSVI_EXPLORE_NEIGHBOURS)
        more &= here << 1 | before >> (WARP - 1) | here >> 1 | after << (WARP - 1);
    if (more)
        bits[word] = here | more;
    for (uint32_t left = more; left; left &= left - 1)
        *mass += span_estimate(s, list / groups, list % groups, (int64_t)word * WARP + __ffs(left) - 1);
    return __popc(here | more);
}

/* One thread block per list: adds the spans that exploration draws at random to the list's bits, mass (sum of
 * estimates) and number of spans. A thread handles one word of bits per round. The winners in the last word
 * of a round are kept for the first thread of the next round, because exploration may have changed that word
 * by then. */
__global__ __launch_bounds__(CHOOSE_THREADS) void explore_kernel(Explore x, Scorer s, int spans, int words,
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
            count += explore_word(x, s, list, word, spans, before, here, after, bits, &more);
        __syncthreads();
    }
    more = block_sum(more, sums);
    block_exclusive_sum(count, scratch, &all);
    if (threadIdx.x == 0) {
        mass[list] += more;
        counts[list] = all;
    }
}

/* ---- offsets and mass of the lists, and their span numbers ---- */

/* Replaces offsets[n + 1], the number of spans of list n, by the offset at which list n ends. If the lists
 * together need more than `capacity` spans, all offsets become 0. *needed = the number of spans of all
 * lists. All threads of the block must call. */
__device__ void sum_offsets(int64_t lists, int64_t capacity, int64_t *offsets, int64_t *needed,
                            int64_t *scratch)
{
    int64_t begin = lists * threadIdx.x / SCAN_THREADS, end = lists * (threadIdx.x + 1) / SCAN_THREADS;
    int64_t sum = 0, all;
#pragma unroll 8
    for (int64_t n = begin; n < end; n++)
        sum += offsets[n + 1];
    int64_t at = block_exclusive_sum(sum, scratch, &all);
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

/* One thread block per head sums the mass (sum of estimates) of the head's lists, and one more block
 * computes the offsets. Results for which the host waits are written directly to host memory: a copy would
 * occupy the stream for longer than this kernel. */
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

/* Returns the inclusive prefix sum of x over the lanes of the warp. */
__device__ __forceinline__ int warp_upto(int x)
{
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        int other = __shfl_up_sync(0xffffffffu, x, step);
        x += (int)threadIdx.x % WARP >= step ? other : 0;
    }
    return x;
}

/* Writes the numbers of the spans whose bits are set in the lists. EACH warps share a list, and each has a
 * range of the list's words. A warp first puts its span numbers in order in shared memory, so that it writes
 * consecutive addresses. */
template <int EACH>
__global__ __launch_bounds__(CHOOSE_THREADS) void write_lists_kernel(const uint32_t *bits, int words,
                                                                     int64_t lists, const int64_t *offsets,
                                                                     int32_t *spans)
{
    __shared__ int32_t found[CHOOSE_WARPS][WARP * WARP];
    __shared__ int counts[CHOOSE_WARPS];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, part = warp % EACH;
    int64_t list = ((int64_t)blockIdx.x * CHOOSE_WARPS + warp) / EACH;
    int begin = (int)((int64_t)words * part / EACH), end = (int)((int64_t)words * (part + 1) / EACH);
    if (list >= lists ||
        offsets[list] == offsets[list + 1]) /* an empty list; all warps of a list return together */
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
        next = first + WARP + lane < end ? bits[first + WARP + lane]
                                         : 0; /* the next word of bits is loaded one round ahead of its use */
        int upto = warp_upto(__popc(left)), all = __shfl_sync(0xffffffffu, upto, WARP - 1);
        int32_t *last = found[warp] + upto, span = (first + lane) * WARP;
        while (left) { /* takes the spans of the word from the highest bit down */
            int bit = WARP - 1 - __clz((int)left);
            *--last = span + bit;
            left ^= 1u << bit;
        }
        __syncwarp();
        for (int i = lane; i < all; i += WARP)
            spans[at + i] = found[warp][i];
        at += all;
        __syncwarp();
    }
}

/* ---- the op ---- */

size_t cuda_select_lists_workspace(DsviStream *stream, const DsviSelectArgs *args)
{
    return select_layout(stream, args, nullptr).bytes;
}

template <int PARTS>
DsvStatus mark_by_threshold(DsviStream *stream, const DsviSelectArgs *args, const SelectLayout &p)
{
    size_t shared = (size_t)select_shared(p.all) * sizeof(uint4);
    MarkOut out = {args->threshold, p.bits,        p.slice_mass,    p.slice_count,
                   p.slice_best,    (int)p.groups, (int)args->heads};
    DSVI_TRY(select_allow_shared(mark_kernel<PARTS>, shared));
    DSVI_CUDA_LAUNCH(stream, "select winners by threshold", mark_kernel<PARTS>,
                     (unsigned)(select_row_blocks(p, p.all) * p.all.slices), SCORE_THREADS, shared, p.all,
                     out);
    return DSV_OK;
}

/* Marks in each list the winners, which are the topk spans with the largest estimates. Handles as many lists
 * at a time as there is memory for their estimates. */
template <int PARTS>
DsvStatus mark_by_count(DsviStream *stream, const DsviSelectArgs *args, const SelectLayout &p)
{
    SelectTiles t = p.all;
    size_t shared = (size_t)select_shared(t) * sizeof(uint4);
    size_t row_bytes = (size_t)LISTS_EACH * (size_t)t.blocks * COLUMNS * sizeof(float);
    bool fits = row_bytes <= DSVI_CUDA_PARTIALS;
    float *estimates = fits ? static_cast<float *>(stream->partials) : p.estimates;
    int64_t row_blocks = select_row_blocks(p, t),
            blocks_max = fits ? (int64_t)(DSVI_CUDA_PARTIALS / row_bytes) : 1;
    DSVI_TRY(select_allow_shared(store_kernel<PARTS>, shared));
    for (int64_t first = 0; first < row_blocks; first += blocks_max) {
        int64_t count = row_blocks - first < blocks_max ? row_blocks - first : blocks_max;
        t.slices = select_slices(stream, count, t);
        DSVI_CUDA_LAUNCH(stream, "select estimates", store_kernel<PARTS>, (unsigned)(count * t.slices),
                         SCORE_THREADS, shared, t, first, estimates);
        DSVI_CUDA_LAUNCH(stream, "select winners by count", topk_kernel, (unsigned)(count * LISTS_EACH),
                         CHOOSE_THREADS, 0, t, (int)p.groups, (int)args->heads, first, estimates, args->topk,
                         p.bits, p.slice_mass, p.slice_count);
    }
    return DSV_OK;
}

template <int PARTS>
DsvStatus mark_by_either(DsviStream *stream, const DsviSelectArgs *args, const SelectLayout &p)
{
    return args->topk ? mark_by_count<PARTS>(stream, args, p) : mark_by_threshold<PARTS>(stream, args, p);
}

DsvStatus mark_winners(DsviStream *stream, const DsviSelectArgs *args, const SelectLayout &p)
{
    switch (select_resident_parts(p.all)) {
    case 1: return mark_by_either<1>(stream, args, p);
    case 2: return mark_by_either<2>(stream, args, p);
    case 4: return mark_by_either<4>(stream, args, p);
    case 8: return mark_by_either<8>(stream, args, p);
    case SHARED_PARTS: return mark_by_either<SHARED_PARTS>(stream, args, p);
    default: return mark_by_either<0>(stream, args, p);
    }
}

DsvStatus finish_winners(DsviStream *stream, const DsviSelectArgs *args, const SelectLayout &p)
{
    DSVI_CUDA_LAUNCH(stream, "select winners", winners_kernel, prepare_blocks(p.lists), PREPARE_THREADS, 0,
                     p.lists, p.all.blocks, args->topk ? 1 : p.all.slices, p.slice_mass, p.slice_count,
                     p.slice_best, p.bits, p.mass, args->lists->offsets + 1);
    return DSV_OK;
}

DsvStatus add_exploration(DsviStream *stream, const DsviSelectArgs *args, const SelectLayout &p)
{
    if (args->explore == DSVI_EXPLORE_NONE)
        return DSV_OK;
    int64_t units = args->explore == DSVI_EXPLORE_BLOCKS ? ceil_div(args->keys, DSVI_EXPLORE_BLOCK)
                                                         : p.all.spans;
    Explore x = {args->explore,
                 {args->explore_seed, DSVI_RNG_EXPLORE, (uint32_t)args->explore_step},
                 dsvi_explore_limit(args->explore_rate),
                 units,
                 args->grain,
                 args->part,
                 args->heads,
                 p.groups};
    Scorer s = {p.rows,
                args->proxies,
                args->candidates,
                args->lse,
                dsvi_select_candidates(args),
                args->grain / args->candidate_keys,
                select_factor(args)};
    DSVI_CUDA_LAUNCH(stream, "select exploration", explore_kernel, (unsigned)p.lists, CHOOSE_THREADS, 0, x, s,
                     p.all.spans, p.all.blocks, p.bits, p.mass, args->lists->offsets + 1);
    return DSV_OK;
}

DsvStatus choose_spans(DsviStream *stream, const DsviSelectArgs *args, const SelectLayout &p)
{
    if (!args->again) {
        DSVI_TRY(select_fill_tiles(stream, args, p, false));
        DSVI_TRY(select_fill_terms(stream, args, p, nullptr));
    }
    DSVI_TRY(mark_winners(stream, args, p));
    DSVI_TRY(finish_winners(stream, args, p));
    return add_exploration(stream, args, p);
}

/* Writes the span numbers with one warp per list if there are enough lists to fill the GPU, otherwise with a
 * whole thread block per list. */
DsvStatus write_spans(DsviStream *stream, const SelectLayout &p, const DsviLists *lists)
{
    bool many = p.lists >= (int64_t)stream->multiprocessors * CHOOSE_WARPS;
    auto kernel = many ? write_lists_kernel<1> : write_lists_kernel<CHOOSE_WARPS>;
    DSVI_CUDA_LAUNCH(stream, "select spans", kernel,
                     (unsigned)(many ? ceil_div(p.lists, CHOOSE_WARPS) : p.lists), CHOOSE_THREADS, 0, p.bits,
                     p.all.blocks, p.lists, lists->offsets, lists->spans);
    return DSV_OK;
}

DsvStatus cuda_select_lists(DsviStream *stream, const DsviSelectArgs *args)
{
    DSVI_TRY(dsvi_select_check(args, true));
    const DsviLists *lists = args->lists;
    SelectLayout p = select_layout(stream, args, args->workspace);
    DSVI_TRY(select_check_workspace(args, p));
    if (p.lists > 0)
        DSVI_TRY(choose_spans(stream, args, p));
    DSVI_CUDA_LAUNCH(stream, "select offsets and mass", totals_kernel, (unsigned)args->heads + 1,
                     SCAN_THREADS, 0, args->batch, (int)args->heads, p.groups, lists->capacity, p.mass,
                     lists->offsets, args->needed, args->selected_mass);
    return p.lists > 0 ? write_spans(stream, p, lists) : DSV_OK;
}

} // namespace

void dsvi_cuda_fill_select_lists(DsviOps *ops)
{
    DSVI_OPS_SET_WITH_WORKSPACE(ops, select_lists, cuda_select_lists, cuda_select_lists_workspace, "cuda");
}
