/* lists_divide, lists_emit, lists_part and spans_count: if several ranks own the keys, these ops divide each
 * key list into a near list (spans of keys of this rank) and a far list (spans of other ranks, which are
 * called marked and are fetched). Interface: ops/list_exchange.h. A part is the spans that one rank owns.
 *
 * Lengths of the lists: one warp per list finds this rank's spans in the ascending list with two searches.
 * Marks, one bit per span: a thread block handles some lists of one (batch, head) pair and one slice of the
 * spans; it collects marks in shared memory and then adds them to the marks of all blocks. Counts of marked
 * spans: one thread block per (part, pair). The memory traffic is mainly the far spans, which are read
 * once. */
#include "cuda/common/block_sums.cuh"
#include "cuda/common/cuda.h"
#include "cuda/common/list_spans.cuh"

using namespace dsvi;

namespace {

enum {
    LIST_THREADS = 128,
    MARK_THREADS = 256,
    MARK_WORDS = 4096,            /* 32-bit words of marks in shared memory */
    MARK_SPANS = 32 * MARK_WORDS, /* spans of a slice, one bit of a mark word each */
    MARK_BLOCKS = 8, /* thread blocks of mark_far_kernel that a multiprocessor holds at the same time */
    SCAN_THREADS = 1024,
    COUNT_THREADS = 256,
    COUNT_EACH = 4 /* words of marks (one bit per span) that a thread counts per step */
};

/* ---- dividing lists into near and far lists ---- */

/* Returns the position in [begin, end) of the first span of a list whose number is at least `minimum`, or
 * `end` if there is none. The list is ascending. A warp compares 32 positions at a time. */
__device__ __forceinline__ int64_t find_span(const int32_t *spans, int64_t begin, int64_t end,
                                             int64_t minimum)
{
    while (begin < end) {
        int64_t step = ceil_div(end - begin, WARP), at = begin + threadIdx.x % WARP * step;
        int less = __popc(__ballot_sync(0xffffffffu, at < end && spans[at] < minimum));
        if (less == 0)
            break;
        end = begin + less * step < end ? begin + less * step : end;
        begin += (less - 1) * step + 1;
    }
    return begin;
}

/* The key lists before they are divided into near and far lists. */
struct Whole {
    const int64_t *offsets; /* (lists + 1) */
    const int32_t *spans;
    int64_t groups; /* number of lists (groups of queries) of a (batch, head) pair */
    int self;       /* number of the part of the spans that this rank owns */
};

/* One warp per list: near[n + 1] and far[n + 1] = the lengths of the near list (spans of this rank) and of
 * the far list (spans of other ranks) of list n. */
__global__ __launch_bounds__(LIST_THREADS) void lengths_kernel(const __grid_constant__ Spans r, Whole whole,
                                                               int64_t lists, int64_t *near, int64_t *far)
{
    int64_t n = (int64_t)blockIdx.x * (LIST_THREADS / WARP) + threadIdx.x / WARP;
    if (n >= lists)
        return;
    int64_t begin = whole.offsets[n], end = whole.offsets[n + 1];
    int64_t low = find_span(whole.spans, begin, end, r.bound[whole.self]);
    int64_t high = find_span(whole.spans, low, end, r.bound[whole.self + 1]);
    if (threadIdx.x % WARP == 0) {
        near[n + 1] = high - low;
        far[n + 1] = end - begin - (high - low);
    }
}

/* A range of the spans of a part that another rank owns: from <= span < to. */
struct Slice {
    int part;
    int64_t from, to;
};

/* Returns the number of slices, of MARK_SPANS spans each, of a part. */
__device__ __forceinline__ int64_t slices_of(const Spans &r, int part)
{
    return ceil_div(r.bound[part + 1] - r.bound[part], MARK_SPANS);
}

/* Returns slice number n, counted over the parts of all ranks except this one (`self`). */
__device__ __forceinline__ Slice slice_at(const Spans &r, int self, int64_t n)
{
    int part = 0;
    while (part == self || n >= slices_of(r, part)) {
        n -= part == self ? 0 : slices_of(r, part);
        part++;
    }
    int64_t from = r.bound[part] + n * MARK_SPANS, end = r.bound[part + 1];
    return {part, from, from + MARK_SPANS < end ? from + MARK_SPANS : end};
}

/* Sets bits of word number `word` of the marks in shared memory. Most spans of a list are already marked by
 * an earlier list, and then the atomic operation is skipped. */
__device__ __forceinline__ void mark_word(uint32_t *marks, int word, uint32_t bits)
{
    if (bits & ~marks[word])
        atomicOr(marks + word, bits);
}

/* Loads entries at .. at + 3 of the concatenated lists; entries outside [low, high) become -1. The address
 * spans + at must be a multiple of 16 bytes. */
__device__ __forceinline__ void load_spans(const int32_t *spans, int64_t at, int64_t low, int64_t high,
                                           int (&span)[4])
{
    if (at >= low && at + 4 <= high) {
        int4 four = __ldcs(reinterpret_cast<const int4 *>(spans + at));
        span[0] = four.x, span[1] = four.y, span[2] = four.z, span[3] = four.w;
        return;
    }
#pragma unroll
    for (int e = 0; e < 4; e++)
        span[e] = at + e >= low && at + e < high ? spans[at + e] : -1;
}

/* Marks four spans, whose numbers are ascending; negative numbers are skipped; bit 0 of `marks` stands for
 * span `from`. The bits of the four are often in one word, which is then set only once. */
__device__ __forceinline__ void mark_spans(const int (&span)[4], int64_t from, uint32_t *marks)
{
    int word = 0;
    uint32_t bits = 0;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        if (span[e] < 0)
            continue;
        int place = (int)(span[e] - from);
        if (place / 32 != word) {
            mark_word(marks, word, bits);
            word = place / 32;
            bits = 0;
        }
        bits |= 1u << place % 32;
    }
    mark_word(marks, word, bits);
}

/* A warp marks the spans in entries [low, high) of the concatenated lists; bit 0 of `marks` stands for span
 * `from`. */
__device__ __forceinline__ void mark_list(const int32_t *spans, int64_t low, int64_t high, int64_t from,
                                          uint32_t *marks)
{
    int64_t skew = (int64_t)((uintptr_t)(spans + low) / sizeof(int32_t) % 4);
    for (int64_t at = low - skew + threadIdx.x % WARP * 4; at < high; at += 2 * WARP * 4) {
        int span[2][4];
        load_spans(spans, at, low, high, span[0]);
        load_spans(spans, at + WARP * 4, low, high, span[1]);
        mark_spans(span[0], from, marks);
        mark_spans(span[1], from, marks);
    }
}

/* Marks the spans of other ranks that the lists contain. Grid: x, `chunks` blocks for each (batch, head)
 * pair, which divide the pair's groups; y, slices of spans. `last` says to mark the last span of all keys
 * for every pair, because it is short. */
__global__ __launch_bounds__(MARK_THREADS) void mark_far_kernel(const __grid_constant__ Spans r, Whole whole,
                                                                int64_t chunks, bool last)
{
    __shared__ uint32_t marks[MARK_WORDS];
    Slice slice = slice_at(r, whole.self, blockIdx.y);
    int64_t pair = blockIdx.x / chunks, chunk = blockIdx.x % chunks;
    int words = (int)ceil_div(slice.to - slice.from, 32);
    for (int i = threadIdx.x; i < words; i += MARK_THREADS)
        marks[i] = 0;
    __syncthreads();
    int64_t end_group = whole.groups * (chunk + 1) / chunks;
    for (int64_t g = whole.groups * chunk / chunks + threadIdx.x / WARP; g < end_group;
         g += MARK_THREADS / WARP) {
        const int64_t *offset = whole.offsets + pair * whole.groups + g;
        int64_t low = find_span(whole.spans, offset[0], offset[1], slice.from);
        int64_t high = find_span(whole.spans, low, offset[1], slice.to);
        mark_list(whole.spans, low, high, slice.from, marks);
    }
    if (last && chunk == 0 && threadIdx.x == 0 && slice.to == r.bound[r.parts])
        atomicOr(marks + words - 1, 1u << (slice.to - slice.from - 1) % 32);
    __syncthreads();
    uint32_t *all = r.marks + first_word(r, slice.part, pair) + (slice.from - r.bound[slice.part]) / 32;
    for (int i = threadIdx.x; i < words; i += MARK_THREADS)
        if (marks[i])
            atomicOr(all + i, marks[i]);
}

/* One thread block replaces the counts array[1 .. n] by their inclusive prefix sums and sets array[0] = 0. */
__device__ __forceinline__ void scan(int64_t n, int64_t *array)
{
    __shared__ int64_t scratch[SCAN_THREADS / WARP];
    int64_t begin = n * threadIdx.x / SCAN_THREADS, end = n * (threadIdx.x + 1) / SCAN_THREADS;
    int64_t sum = 0, all;
    for (int64_t i = begin; i < end; i++)
        sum += array[i + 1];
    int64_t at = block_exclusive_sum(sum, scratch, &all);
    for (int64_t i = begin; i < end; i++) {
        at += array[i + 1];
        array[i + 1] = at;
    }
    if (threadIdx.x == 0)
        array[0] = 0;
}

__global__ __launch_bounds__(SCAN_THREADS) void scan_halves_kernel(int64_t n, int64_t *near, int64_t *far)
{
    scan(n, blockIdx.x == 0 ? near : far);
}

__global__ __launch_bounds__(SCAN_THREADS) void scan_parts_kernel(int64_t n, int64_t *arrays)
{
    scan(n, arrays + blockIdx.x * (n + 1));
}

/* Returns whether the last span of all keys has fewer than `grain` keys and is owned by another rank. */
bool last_span_is_short_and_far(const DsviListDivideArgs *args)
{
    const DsviSpans *spans = args->spans;
    int64_t all = spans->bound[spans->parts];
    return args->lists->keys % spans->grain != 0 &&
           (all <= spans->bound[args->self] || all > spans->bound[args->self + 1]);
}

DsvStatus mark_far_spans(DsviStream *stream, const DsviListDivideArgs *args, const Spans &r,
                         const Whole &whole)
{
    int64_t slices = 0, chunks_max = ceil_div(whole.groups, MARK_THREADS / WARP);
    for (int j = 0; j < r.parts; j++)
        slices += j == whole.self ? 0 : ceil_div(r.bound[j + 1] - r.bound[j], MARK_SPANS);
    DSVI_CUDA_TRY(
        cudaMemsetAsync(r.marks, 0, (size_t)dsvi_spans_words(args->spans) * sizeof *r.marks, stream->handle));
    if (slices == 0 || r.pairs == 0)
        return DSV_OK;
    int64_t chunks = ceil_div((int64_t)MARK_BLOCKS * stream->multiprocessors, r.pairs * slices);
    chunks = chunks < chunks_max ? chunks : chunks_max > 1 ? chunks_max : 1;
    DSVI_CUDA_LAUNCH(stream, "lists_divide, marks", mark_far_kernel,
                     dim3((unsigned)(r.pairs * chunks), (unsigned)slices), MARK_THREADS, 0, r, whole, chunks,
                     last_span_is_short_and_far(args));
    return DSV_OK;
}

DsvStatus cuda_lists_divide(DsviStream *stream, const DsviListDivideArgs *args)
{
    DSVI_TRY(dsvi_list_divide_check(args));
    Spans r = spans_of(args->spans);
    Whole whole = {args->lists->offsets, args->lists->spans, args->lists->groups, (int)args->self};
    int64_t lists = dsvi_lists_count(args->lists);
    DSVI_TRY(mark_far_spans(stream, args, r, whole));
    if (lists > 0) {
        DSVI_CUDA_LAUNCH(stream, "lists_divide, lengths", lengths_kernel,
                         (unsigned)ceil_div(lists, LIST_THREADS / WARP), LIST_THREADS, 0, r, whole, lists,
                         args->near->offsets, args->far->offsets);
    }
    DSVI_CUDA_LAUNCH(stream, "lists_divide, sums of lengths", scan_halves_kernel, 2, SCAN_THREADS, 0, lists,
                     args->near->offsets, args->far->offsets);
    return DSV_OK;
}

/* The arrays into which the near lists (spans of this rank) and far lists (spans of other ranks) are
 * written. */
struct Halves {
    const int64_t *near_offsets, *far_offsets;
    int32_t *near, *far;
};

/* One thread block per list writes the list's near part and far part to `out`. */
__global__ __launch_bounds__(LIST_THREADS) void divide_emit_kernel(const __grid_constant__ Spans r,
                                                                   Whole whole, Halves out, int64_t width)
{
    __shared__ int32_t compact[DSVI_SPAN_PARTS_MAX];
    __shared__ int64_t low_shared;
    int64_t n = blockIdx.x, begin = whole.offsets[n], count = whole.offsets[n + 1] - begin;
    int64_t pair = n / whole.groups, self_begin = r.bound[whole.self];
    int64_t near_at = out.near_offsets[n], far_at = out.far_offsets[n];
    int64_t near = out.near_offsets[n + 1] - near_at;
    if (threadIdx.x < WARP) {
        int64_t found = find_span(whole.spans, begin, begin + count, self_begin) - begin;
        if (threadIdx.x == 0)
            low_shared = found;
    }
    for (int j = threadIdx.x; j < r.parts; j += LIST_THREADS)
        compact[j] = (int32_t)compact_first(r, width, j, pair);
    __syncthreads();
    int64_t low = low_shared;
    for (int64_t i = threadIdx.x; i < count; i += LIST_THREADS) {
        int32_t span = whole.spans[begin + i];
        if (i >= low && i < low + near) {
            out.near[near_at + i - low] = (int32_t)(span - self_begin);
        } else {
            int part = part_of(r, span);
            int64_t in_part = span - r.bound[part], word = first_word(r, part, pair) + in_part / 32;
            int32_t number = r.before[word] + __popc(r.marks[word] & bits_below(in_part));
            out.far[far_at + (i < low ? i : i - near)] = compact[part] + number;
        }
    }
}

DsvStatus cuda_lists_emit(DsviStream *stream, const DsviListDivideArgs *args)
{
    DSVI_TRY(dsvi_list_divide_check(args));
    Whole whole = {args->lists->offsets, args->lists->spans, args->lists->groups, (int)args->self};
    Halves out = {args->near->offsets, args->far->offsets, args->near->spans, args->far->spans};
    int64_t lists = dsvi_lists_count(args->lists);
    if (lists == 0)
        return DSV_OK;
    DSVI_CUDA_LAUNCH(stream, "lists_emit", divide_emit_kernel, (unsigned)lists, LIST_THREADS, 0,
                     spans_of(args->spans), whole, out, args->width);
    return DSV_OK;
}

/* ---- the part of each list that names keys of one rank ---- */

/* The spans first <= span < end of the key lists. */
struct PartOf {
    const int64_t *offsets; /* (lists + 1) */
    const int32_t *spans;
    int64_t first, end;
};

/* One warp per list: offsets[n + 1] = the number of spans of list n in the part. */
__global__ __launch_bounds__(LIST_THREADS) void part_lengths_kernel(PartOf whole, int64_t lists,
                                                                    int64_t *offsets)
{
    int64_t n = (int64_t)blockIdx.x * (LIST_THREADS / WARP) + threadIdx.x / WARP;
    if (n >= lists)
        return;
    int64_t end = whole.offsets[n + 1];
    int64_t low = find_span(whole.spans, whole.offsets[n], end, whole.first);
    int64_t high = find_span(whole.spans, low, end, whole.end);
    if (threadIdx.x % WARP == 0)
        offsets[n + 1] = high - low;
}

__global__ __launch_bounds__(SCAN_THREADS) void part_scan_kernel(int64_t n, int64_t *offsets)
{
    scan(n, offsets);
}

/* One warp per list writes the spans of the part. */
__global__ __launch_bounds__(LIST_THREADS) void part_emit_kernel(PartOf whole, int64_t lists,
                                                                 const int64_t *offsets, int32_t *spans)
{
    int64_t n = (int64_t)blockIdx.x * (LIST_THREADS / WARP) + threadIdx.x / WARP;
    if (n >= lists)
        return;
    int64_t low = find_span(whole.spans, whole.offsets[n], whole.offsets[n + 1], whole.first);
    int64_t to = offsets[n], count = offsets[n + 1] - to;
    for (int64_t i = threadIdx.x % WARP; i < count; i += WARP)
        spans[to + i] = (int32_t)(whole.spans[low + i] - whole.first);
}

DsvStatus cuda_lists_part(DsviStream *stream, const DsviListPartArgs *args)
{
    DSVI_TRY(dsvi_list_part_check(args));
    PartOf whole = {args->lists->offsets, args->lists->spans, args->first, args->end};
    int64_t lists = dsvi_lists_count(args->lists), *offsets = args->part->offsets;
    unsigned blocks = (unsigned)ceil_div(lists, LIST_THREADS / WARP);
    if (lists > 0) {
        DSVI_CUDA_LAUNCH(stream, "lists_part, lengths", part_lengths_kernel, blocks, LIST_THREADS, 0, whole,
                         lists, offsets);
    }
    DSVI_CUDA_LAUNCH(stream, "lists_part, sums of lengths", part_scan_kernel, 1, SCAN_THREADS, 0, lists,
                     offsets);
    if (lists > 0) {
        DSVI_CUDA_LAUNCH(stream, "lists_part", part_emit_kernel, blocks, LIST_THREADS, 0, whole, lists,
                         offsets, args->part->spans);
    }
    return DSV_OK;
}

/* ---- numbers of marked spans: how many marked spans precede each ---- */

/* One thread block per (part, pair): writes for each word of marks how many marked spans precede it
 * (`before`), and the number of marked spans of the (part, pair). */
__global__ __launch_bounds__(COUNT_THREADS) void count_marks_kernel(const __grid_constant__ Spans r)
{
    __shared__ int scratch[COUNT_THREADS / WARP];
    int part = (int)(blockIdx.x / r.pairs);
    int64_t pair = blockIdx.x % r.pairs, words = r.word[part + 1] - r.word[part];
    int64_t from = first_word(r, part, pair);
    int32_t before = 0;
    for (int64_t first = 0; first < words; first += COUNT_THREADS * COUNT_EACH) {
        int64_t mine = first + (int64_t)threadIdx.x * COUNT_EACH;
        int ones[COUNT_EACH], sum = 0, all;
#pragma unroll
        for (int i = 0; i < COUNT_EACH; i++) {
            ones[i] = mine + i < words ? __popc(r.marks[from + mine + i]) : 0;
            sum += ones[i];
        }
        int32_t at = before + block_exclusive_sum(sum, scratch, &all);
#pragma unroll
        for (int i = 0; i < COUNT_EACH; i++) {
            if (mine + i < words)
                r.before[from + mine + i] = at;
            at += ones[i];
        }
        before += all;
        __syncthreads();
    }
    if (threadIdx.x == 0)
        r.first[part * (r.pairs + 1) + pair + 1] = before;
}

DsvStatus cuda_spans_count(DsviStream *stream, const DsviSpans *spans)
{
    DSVI_TRY(dsvi_spans_check(spans));
    int64_t pairs = dsvi_spans_pairs(spans);
    if (pairs > 0) {
        DSVI_CUDA_LAUNCH(stream, "spans_count", count_marks_kernel, (unsigned)(pairs * spans->parts),
                         COUNT_THREADS, 0, spans_of(spans));
    }
    DSVI_CUDA_LAUNCH(stream, "spans_count, sums", scan_parts_kernel, (unsigned)spans->parts, SCAN_THREADS, 0,
                     pairs, spans->first);
    return DSV_OK;
}

} // namespace

void dsvi_cuda_fill_list_exchange(DsviOps *ops)
{
    DSVI_OPS_SET(ops, lists_divide, cuda_lists_divide, "cuda");
    DSVI_OPS_SET(ops, lists_emit, cuda_lists_emit, "cuda");
    DSVI_OPS_SET(ops, lists_part, cuda_lists_part, "cuda");
    DSVI_OPS_SET(ops, spans_count, cuda_spans_count, "cuda");
}
