/* Dividing lists among the ranks that have the keys, and moving the rows (ops/list_exchange.h).
 *
 * Lists: lengths of the halves by two searches, for runs ascend, a warp a list. Marks: a block of threads
 * marks what some lists of a pair name of a window of runs in shared memory, then what it found for all.
 * Numbers: a block of threads a (part, pair). Rows: a block of threads ROW_THREADS runs, or as many of those
 * that are marked where they lie side by side; a warp a slot, or half a warp where that holds it. Memory
 * traffic is that of the far runs, and of the marked rows, read and written once. */
#include "cuda/block_sums.cuh"
#include "cuda/cuda.h"
#include "ops/list_exchange.h"

using namespace dsvi;

namespace {

enum {
    LIST_THREADS = 128,
    MARK_THREADS = 256,
    MARK_WORDS = 4096,          /* of a window: so many of 32 runs each */
    MARK_RUNS = 32 * MARK_WORDS,
    MARK_BLOCKS = 8,            /* of marks, that a multiprocessor holds */
    SCAN_THREADS = 1024,
    COUNT_THREADS = 256,
    COUNT_EACH = 4,
    ROW_THREADS = 256,
    ROW_WORDS = ROW_THREADS / 32,
    ROW_EACH = 4
};

/* DsvRuns as kernels take it. */
struct Runs {
    int64_t bound[DSV_RUN_PARTS_MOST + 1];
    int64_t word[DSV_RUN_PARTS_MOST + 1]; /* of a pair, in the parts before */
    int64_t pairs, heads, grain;
    int parts;
    uint32_t *marks;
    int32_t *before;
    int64_t *first;
};

Runs runs_of(const DsvRuns *from)
{
    Runs r = {};
    for (int64_t j = 0; j < from->parts; j++) {
        r.bound[j + 1] = from->bound[j + 1];
        r.word[j + 1] = r.word[j] + dsvi_mark_words(from->bound[j + 1] - from->bound[j]);
    }
    r.pairs = dsvi_runs_pairs(from);
    r.heads = from->heads;
    r.grain = from->grain;
    r.parts = (int)from->parts;
    r.marks = from->marks;
    r.before = from->before;
    r.first = from->first;
    return r;
}

__device__ __forceinline__ int part_of(const Runs &r, int64_t run)
{
    int part = 0;
    while (run >= r.bound[part + 1])
        part++;
    return part;
}

/* Where the words of (part, pair) begin. */
__device__ __forceinline__ int64_t first_word(const Runs &r, int part, int64_t pair)
{
    return r.pairs * r.word[part] + pair * (r.word[part + 1] - r.word[part]);
}

/* Marked runs of (part, pair). */
__device__ __forceinline__ int64_t marked_runs(const Runs &r, int part, int64_t pair)
{
    const int64_t *first = r.first + part * (r.pairs + 1) + pair;
    return first[1] - first[0];
}

/* The compact run of number 0 of (part, pair). */
__device__ __forceinline__ int64_t compact_first(const Runs &r, int64_t width, int part, int64_t pair)
{
    for (int j = part; j < r.parts; j++)
        width -= marked_runs(r, j, pair);
    return width;
}

__device__ __forceinline__ uint32_t bits_below(int64_t i)
{
    return (1u << (i & 31)) - 1;
}

/* ---- lists ---- */

/* The first of runs [begin, end) that is `least` or more: a warp asks at 32 places at a time. */
__device__ __forceinline__ int64_t find_run(const int32_t *runs, int64_t begin, int64_t end, int64_t least)
{
    while (begin < end) {
        int64_t step = ceil_div(end - begin, WARP), at = begin + threadIdx.x % WARP * step;
        int less = __popc(__ballot_sync(0xffffffffu, at < end && runs[at] < least));
        if (less == 0)
            break;
        end = begin + less * step < end ? begin + less * step : end;
        begin += (less - 1) * step + 1;
    }
    return begin;
}

/* The whole lists and one's place in them. */
struct Whole {
    const int64_t *offsets;
    const int32_t *runs;
    int64_t groups;
    int self;
};

/* A warp a list. */
__global__ __launch_bounds__(LIST_THREADS) void lengths_kernel(const __grid_constant__ Runs r, Whole whole,
                                                               int64_t lists, int64_t *near, int64_t *far)
{
    int64_t n = (int64_t)blockIdx.x * (LIST_THREADS / WARP) + threadIdx.x / WARP;
    if (n >= lists)
        return;
    int64_t begin = whole.offsets[n], end = whole.offsets[n + 1];
    int64_t low = find_run(whole.runs, begin, end, r.bound[whole.self]);
    int64_t high = find_run(whole.runs, low, end, r.bound[whole.self + 1]);
    if (threadIdx.x % WARP == 0) {
        near[n + 1] = high - low;
        far[n + 1] = end - begin - (high - low);
    }
}

/* Runs [from, to) of a far part. */
struct Window {
    int part;
    int64_t from, to;
};

__device__ __forceinline__ int64_t windows_of(const Runs &r, int part)
{
    return ceil_div(r.bound[part + 1] - r.bound[part], MARK_RUNS);
}

/* Number n of those of all parts but `self`. */
__device__ __forceinline__ Window window_at(const Runs &r, int self, int64_t n)
{
    int part = 0;
    while (part == self || n >= windows_of(r, part)) {
        n -= part == self ? 0 : windows_of(r, part);
        part++;
    }
    int64_t from = r.bound[part] + n * MARK_RUNS, end = r.bound[part + 1];
    return {part, from, from + MARK_RUNS < end ? from + MARK_RUNS : end};
}

/* What one list names is mostly marked by the one before it. */
__device__ __forceinline__ void mark_word(uint32_t *marks, int word, uint32_t bits)
{
    if (bits & ~marks[word])
        atomicOr(marks + word, bits);
}

/* Runs [low, high) of a list, by a warp; marks of runs from `from` on. */
__device__ __forceinline__ void mark_stretch(const int32_t *runs, int64_t low, int64_t high, int64_t from,
                                             uint32_t *marks)
{
    int64_t skew = (int64_t)((uintptr_t)(runs + low) / sizeof(int32_t) % 4);
    for (int64_t at = low - skew + threadIdx.x % WARP * 4; at < high; at += WARP * 4) {
        int run[4], word = 0;
        uint32_t bits = 0;
        if (at >= low && at + 4 <= high) {
            int4 four = __ldcs(reinterpret_cast<const int4 *>(runs + at));
            run[0] = four.x, run[1] = four.y, run[2] = four.z, run[3] = four.w;
        } else {
#pragma unroll
            for (int e = 0; e < 4; e++)
                run[e] = at + e >= low && at + e < high ? runs[at + e] : -1;
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            if (run[e] < 0)
                continue;
            int place = (int)(run[e] - from);
            if (place / 32 != word) {
                mark_word(marks, word, bits);
                word = place / 32;
                bits = 0;
            }
            bits |= 1u << place % 32;
        }
        mark_word(marks, word, bits);
    }
}

/* Blocks: `chunks` a pair, each of so many of its groups; blockIdx.y: the window. `last`: the last run is
 * marked for every pair. */
__global__ __launch_bounds__(MARK_THREADS) void mark_kernel(const __grid_constant__ Runs r, Whole whole,
                                                            int64_t chunks, bool last)
{
    __shared__ uint32_t marks[MARK_WORDS];
    Window window = window_at(r, whole.self, blockIdx.y);
    int64_t pair = blockIdx.x / chunks, chunk = blockIdx.x % chunks;
    int words = (int)ceil_div(window.to - window.from, 32);
    for (int i = threadIdx.x; i < words; i += MARK_THREADS)
        marks[i] = 0;
    __syncthreads();
    int64_t end_group = whole.groups * (chunk + 1) / chunks;
    for (int64_t g = whole.groups * chunk / chunks + threadIdx.x / WARP; g < end_group;
         g += MARK_THREADS / WARP) {
        int64_t begin = whole.offsets[pair * whole.groups + g], end = whole.offsets[pair * whole.groups + g + 1];
        int64_t low = find_run(whole.runs, begin, end, window.from);
        int64_t high = find_run(whole.runs, low, end, window.to);
        mark_stretch(whole.runs, low, high, window.from, marks);
    }
    if (last && chunk == 0 && threadIdx.x == 0 && window.to == r.bound[r.parts])
        atomicOr(marks + words - 1, 1u << (window.to - window.from - 1) % 32);
    __syncthreads();
    uint32_t *all = r.marks + first_word(r, window.part, pair) + (window.from - r.bound[window.part]) / 32;
    for (int i = threadIdx.x; i < words; i += MARK_THREADS)
        if (marks[i])
            atomicOr(all + i, marks[i]);
}

/* By a block of threads, an array of n + 1: counts from element 1 on become ends, and element 0 is 0. */
__device__ __forceinline__ void scan(int64_t n, int64_t *array)
{
    __shared__ int64_t scratch[SCAN_THREADS / WARP];
    int64_t begin = n * threadIdx.x / SCAN_THREADS, end = n * (threadIdx.x + 1) / SCAN_THREADS;
    int64_t sum = 0, all;
    for (int64_t i = begin; i < end; i++)
        sum += array[i + 1];
    int64_t at = block_before(sum, scratch, &all);
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

/* Whether the last run is short and far. */
bool far_last(const DsvListDivideArgs *args)
{
    const DsvRuns *runs = args->runs;
    int64_t all = runs->bound[runs->parts];
    return args->lists->keys % runs->grain != 0 &&
           (all <= runs->bound[args->self] || all > runs->bound[args->self + 1]);
}

DsvStatus mark(DsvStream *stream, const DsvListDivideArgs *args, const Runs &r, const Whole &whole)
{
    int64_t windows = 0, most = ceil_div(whole.groups, MARK_THREADS / WARP);
    for (int j = 0; j < r.parts; j++)
        windows += j == whole.self ? 0 : ceil_div(r.bound[j + 1] - r.bound[j], MARK_RUNS);
    DSVI_CUDA_TRY(cudaMemsetAsync(r.marks, 0, (size_t)dsvi_runs_words(args->runs) * sizeof *r.marks,
                                  stream->handle));
    if (windows == 0 || r.pairs == 0)
        return DSV_OK;
    int64_t chunks = ceil_div((int64_t)MARK_BLOCKS * stream->multiprocessors, r.pairs * windows);
    chunks = chunks < most ? chunks : most > 1 ? most : 1;
    mark_kernel<<<dim3((unsigned)(r.pairs * chunks), (unsigned)windows), MARK_THREADS, 0, stream->handle>>>(
        r, whole, chunks, far_last(args));
    DSVI_CUDA_LAUNCHED("lists_divide, marks");
    return DSV_OK;
}

DsvStatus divide(DsvStream *stream, const DsvListDivideArgs *args)
{
    DSVI_TRY(dsvi_list_divide_check(args));
    Runs r = runs_of(args->runs);
    Whole whole = {args->lists->offsets, args->lists->runs, args->lists->groups, (int)args->self};
    int64_t lists = dsvi_lists_count(args->lists);
    DSVI_TRY(mark(stream, args, r, whole));
    if (lists > 0) {
        lengths_kernel<<<(unsigned)ceil_div(lists, LIST_THREADS / WARP), LIST_THREADS, 0, stream->handle>>>(
            r, whole, lists, args->near->offsets, args->far->offsets);
        DSVI_CUDA_LAUNCHED("lists_divide, lengths");
    }
    scan_halves_kernel<<<2, SCAN_THREADS, 0, stream->handle>>>(lists, args->near->offsets,
                                                               args->far->offsets);
    DSVI_CUDA_LAUNCHED("lists_divide, sums of lengths");
    return DSV_OK;
}

struct Halves {
    const int64_t *near_offsets, *far_offsets;
    int32_t *near, *far;
};

__global__ __launch_bounds__(LIST_THREADS) void emit_kernel(const __grid_constant__ Runs r, Whole whole,
                                                            Halves out, int64_t width)
{
    __shared__ int32_t compact[DSV_RUN_PARTS_MOST];
    __shared__ int64_t low_shared;
    int64_t n = blockIdx.x, begin = whole.offsets[n], count = whole.offsets[n + 1] - begin;
    int64_t pair = n / whole.groups, self_begin = r.bound[whole.self];
    int64_t near_at = out.near_offsets[n], far_at = out.far_offsets[n];
    int64_t near = out.near_offsets[n + 1] - near_at;
    if (threadIdx.x < WARP) {
        int64_t found = find_run(whole.runs, begin, begin + count, self_begin) - begin;
        if (threadIdx.x == 0)
            low_shared = found;
    }
    for (int j = threadIdx.x; j < r.parts; j += LIST_THREADS)
        compact[j] = (int32_t)compact_first(r, width, j, pair);
    __syncthreads();
    int64_t low = low_shared;
    for (int64_t i = threadIdx.x; i < count; i += LIST_THREADS) {
        int32_t run = whole.runs[begin + i];
        if (i >= low && i < low + near) {
            out.near[near_at + i - low] = (int32_t)(run - self_begin);
        } else {
            int part = part_of(r, run);
            int64_t in_part = run - r.bound[part], word = first_word(r, part, pair) + in_part / 32;
            int32_t number = r.before[word] + __popc(r.marks[word] & bits_below(in_part));
            out.far[far_at + (i < low ? i : i - near)] = compact[part] + number;
        }
    }
}

DsvStatus emit(DsvStream *stream, const DsvListDivideArgs *args)
{
    DSVI_TRY(dsvi_list_divide_check(args));
    Whole whole = {args->lists->offsets, args->lists->runs, args->lists->groups, (int)args->self};
    Halves out = {args->near->offsets, args->far->offsets, args->near->runs, args->far->runs};
    int64_t lists = dsvi_lists_count(args->lists);
    if (lists == 0)
        return DSV_OK;
    emit_kernel<<<(unsigned)lists, LIST_THREADS, 0, stream->handle>>>(runs_of(args->runs), whole, out,
                                                                     args->width);
    DSVI_CUDA_LAUNCHED("lists_emit");
    return DSV_OK;
}

/* ---- numbers ---- */

/* A block of threads a (part, pair). */
__global__ __launch_bounds__(COUNT_THREADS) void count_kernel(const __grid_constant__ Runs r)
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
        int32_t at = before + block_before(sum, scratch, &all);
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

DsvStatus count(DsvStream *stream, const DsvRuns *runs)
{
    DSVI_TRY(dsvi_runs_check(runs));
    int64_t pairs = dsvi_runs_pairs(runs);
    if (pairs > 0) {
        count_kernel<<<(unsigned)(pairs * runs->parts), COUNT_THREADS, 0, stream->handle>>>(runs_of(runs));
        DSVI_CUDA_LAUNCHED("runs_count");
    }
    scan_parts_kernel<<<(unsigned)runs->parts, SCAN_THREADS, 0, stream->handle>>>(pairs, runs->first);
    DSVI_CUDA_LAUNCHED("runs_count, sums");
    return DSV_OK;
}

/* ---- rows ---- */

/* k or v; strides in units of what a lane moves at a time, as in Rows. */
template <typename U> struct Side {
    U *data;
    int64_t batch_stride, token_stride, head_stride;
};

template <typename U> Side<U> side_of(const DsvHeads *x, int64_t elements_each)
{
    return {static_cast<U *>(x->data), x->batch_stride / elements_each, x->token_stride / elements_each,
            x->head_stride / elements_each};
}

/* DsvRowsArgs. Blocks: `chunks` for each (part, pair), or for each pair where parts are added. */
struct Rows {
    int64_t first_pair, pairs, chunks, width, rows;
    int row_units;
};

Rows rows_of(const DsvRowsArgs *args, int64_t runs, int64_t elements_each)
{
    return {args->first_pair, args->end_pair - args->first_pair, ceil_div(runs, ROW_THREADS), args->width,
            args->rows, (int)(args->head_dim / elements_each)};
}

bool aligned_side(const DsvHeads *x, size_t size)
{
    const int64_t strides[] = {x->batch_stride, x->token_stride, x->head_stride};
    for (int64_t stride : strides)
        if ((size_t)stride * size % 16 != 0)
            return false;
    return (uintptr_t)x->data % 16 == 0;
}

/* Whether rows of both tensors and of slots all begin at multiples of 16 bytes, and end there. */
bool whole_vectors(const DsvRowsArgs *args)
{
    size_t size = dsvi_dtype_size(args->dtype);
    return aligned_side(&args->k, size) && aligned_side(&args->v, size) &&
           (size_t)args->head_dim * size % 16 == 0 && (uintptr_t)args->message % 16 == 0;
}

/* Half a warp where a slot has no more for it than 16 bytes a lane. */
bool half_a_warp(const DsvRowsArgs *args)
{
    int64_t row = args->head_dim * (int64_t)dsvi_dtype_size(args->dtype);
    return 2 * args->runs->grain * row <= WARP / 2 * 16;
}

/* Where a row of run 0 of the pair begins that a lane moves unit `i` of, and which row of a run that is. */
template <typename U> struct Place {
    U *data;
    int64_t stride, row;
};

template <typename U>
__device__ __forceinline__ Place<U> place_of(const Runs &r, const Rows &x, const Side<U> &k, const Side<U> &v,
                                             int64_t pair, int i)
{
    int units = (int)r.grain * x.row_units, unit = i < units ? i : i - units;
    const Side<U> &side = i < units ? k : v;
    int64_t begin = pair / r.heads * side.batch_stride + pair % r.heads * side.head_stride;
    return {side.data + begin + unit % x.row_units, side.token_stride, unit / x.row_units};
}

/* The slot of number 0 of (part, pair). */
__device__ __forceinline__ int64_t first_slot(const Runs &r, int part, int64_t pair)
{
    int64_t slot = r.first[part * (r.pairs + 1) + pair];
    for (int j = 0; j < part; j++)
        slot += r.first[j * (r.pairs + 1) + r.pairs];
    return slot;
}

/* What a block of threads moves of (part, pair): marked runs number `number` and `count` - 1 behind it. */
struct Share {
    int64_t number;
    int count;
};

/* Of the own keys: those of ROW_THREADS runs; runs (count) which they are. */
__device__ __forceinline__ Share own_share(const Runs &r, int part, int64_t pair, int64_t chunk, int32_t *runs)
{
    int64_t run = chunk * ROW_THREADS + threadIdx.x, length = r.bound[part + 1] - r.bound[part];
    int64_t first = first_word(r, part, pair) + chunk * ROW_WORDS, word = first + threadIdx.x / 32;
    uint32_t marks = run < length ? r.marks[word] : 0;
    int64_t number = chunk * ROW_THREADS < length ? r.before[first] : 0;
    bool marked = marks >> run % 32 & 1;
    if (marked)
        runs[r.before[word] + __popc(marks & bits_below(run)) - number] = (int32_t)run;
    return {number, __syncthreads_count(marked)};
}

/* Of compact keys: as many as there are threads. */
__device__ __forceinline__ Share compact_share(const Runs &r, int part, int64_t pair, int64_t chunk)
{
    int64_t number = chunk * ROW_THREADS, left = marked_runs(r, part, pair) - number;
    return {number, (int)(left < 0 ? 0 : left < ROW_THREADS ? left : ROW_THREADS)};
}

/* LANES lanes a slot, ROW_EACH slots in flight. U: what a lane moves at a time. */
template <typename U, bool TAKE, int LANES>
__global__ __launch_bounds__(ROW_THREADS) void copy_kernel(const __grid_constant__ Runs r, Rows x, Side<U> k,
                                                           Side<U> v, U *message)
{
    constexpr int TOGETHER = ROW_THREADS / LANES;
    __shared__ int32_t own_runs[ROW_THREADS];
    int64_t chunk = blockIdx.x % x.chunks, at = blockIdx.x / x.chunks;
    int part = (int)(at / x.pairs);
    int64_t pair = x.first_pair + at % x.pairs;
    Share share = x.width > 0 ? compact_share(r, part, pair, chunk)
                              : own_share(r, part, pair, chunk, own_runs);
    if (share.count == 0)
        return;
    int64_t compact = x.width > 0 ? compact_first(r, x.width, part, pair) + share.number : 0;
    int units = 2 * (int)r.grain * x.row_units;
    U *slots = message + (first_slot(r, part, pair) + share.number) * units;
    for (int i = threadIdx.x % LANES; i < units; i += LANES) {
        Place<U> place = place_of(r, x, k, v, pair, i);
        for (int first = threadIdx.x / LANES; first < share.count; first += TOGETHER * ROW_EACH) {
            U unit[ROW_EACH];
            int64_t row[ROW_EACH];
#pragma unroll
            for (int e = 0; e < ROW_EACH; e++) {
                int n = first + e * TOGETHER;
                int64_t run = n >= share.count ? 0 : x.width > 0 ? compact + n : own_runs[n];
                row[e] = run * r.grain + place.row;
                unit[e] = U{};
                if (n < share.count && TAKE && row[e] < x.rows)
                    unit[e] = place.data[row[e] * place.stride];
                else if (n < share.count && !TAKE)
                    unit[e] = slots[(int64_t)n * units + i];
            }
#pragma unroll
            for (int e = 0; e < ROW_EACH; e++) {
                int n = first + e * TOGETHER;
                if (n < share.count && TAKE)
                    slots[(int64_t)n * units + i] = unit[e];
                else if (n < share.count && row[e] < x.rows)
                    place.data[row[e] * place.stride] = unit[e];
            }
        }
    }
}

/* Runs of the longest part. */
int64_t longest_part(const DsvRuns *runs)
{
    int64_t longest = 0;
    for (int64_t j = 0; j < runs->parts; j++) {
        int64_t length = runs->bound[j + 1] - runs->bound[j];
        longest = length > longest ? length : longest;
    }
    return longest;
}

template <typename U, bool TAKE, int LANES>
DsvStatus copy_units(DsvStream *stream, const DsvRowsArgs *args)
{
    int64_t each = (int64_t)(sizeof(U) / dsvi_dtype_size(args->dtype)), longest = longest_part(args->runs);
    Rows x = rows_of(args, args->width > 0 && args->width < longest ? args->width : longest, each);
    int64_t blocks = x.chunks * x.pairs * args->runs->parts;
    if (blocks == 0)
        return DSV_OK;
    copy_kernel<U, TAKE, LANES><<<(unsigned)blocks, ROW_THREADS, 0, stream->handle>>>(
        runs_of(args->runs), x, side_of<U>(&args->k, each), side_of<U>(&args->v, each),
        static_cast<U *>(args->message));
    DSVI_CUDA_LAUNCHED("rows of runs");
    return DSV_OK;
}

template <bool TAKE> DsvStatus copy_rows(DsvStream *stream, const DsvRowsArgs *args)
{
    DSVI_TRY(dsvi_rows_check(args, TAKE ? DSV_ROWS_TAKE : DSV_ROWS_PUT));
    if (whole_vectors(args))
        return half_a_warp(args) ? copy_units<uint4, TAKE, WARP / 2>(stream, args)
                                 : copy_units<uint4, TAKE, WARP>(stream, args);
    switch (dsvi_dtype_size(args->dtype)) {
    case 8:
        return copy_units<uint64_t, TAKE, WARP>(stream, args);
    case 4:
        return copy_units<uint32_t, TAKE, WARP>(stream, args);
    case 2:
        return copy_units<uint16_t, TAKE, WARP>(stream, args);
    default:
        return copy_units<uint8_t, TAKE, WARP>(stream, args);
    }
}

DsvStatus take(DsvStream *stream, const DsvRowsArgs *args)
{
    return copy_rows<true>(stream, args);
}

DsvStatus put(DsvStream *stream, const DsvRowsArgs *args)
{
    return copy_rows<false>(stream, args);
}

/* What a block adds to: of ROW_THREADS runs of a pair those that any part has marked, `count` of them. */
struct Wanted {
    uint32_t marks[DSV_RUN_PARTS_MOST][ROW_WORDS];
    int64_t slot[DSV_RUN_PARTS_MOST][ROW_WORDS]; /* of the word's first marked run */
    uint32_t any[ROW_WORDS];
    int16_t run[ROW_THREADS];
};

__device__ __forceinline__ int find_wanted(const Runs &r, int64_t pair, int64_t chunk, Wanted *wanted)
{
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, before = 0, count = 0;
    for (int i = threadIdx.x; i < r.parts * ROW_WORDS; i += ROW_THREADS) {
        int part = i / ROW_WORDS, w = i % ROW_WORDS;
        int64_t in_part = chunk * ROW_WORDS + w, word = first_word(r, part, pair) + in_part;
        bool there = in_part < r.word[1];
        wanted->marks[part][w] = there ? r.marks[word] : 0;
        wanted->slot[part][w] = there ? first_slot(r, part, pair) + r.before[word] : 0;
    }
    __syncthreads();
    uint32_t any = 0;
    for (int part = 0; part < r.parts; part++)
        any |= wanted->marks[part][warp];
    wanted->any[warp] = any;
    __syncthreads();
    for (int w = 0; w < ROW_WORDS; w++) {
        before += w < warp ? __popc(wanted->any[w]) : 0;
        count += __popc(wanted->any[w]);
    }
    if (any >> lane & 1)
        wanted->run[before + __popc(any & bits_below(lane))] = (int16_t)threadIdx.x;
    __syncthreads();
    return count;
}

/* LANES lanes a run: its rows, then its slots of all parts, VEC elements a lane. */
template <int VEC, typename T, int LANES>
__global__ __launch_bounds__(ROW_THREADS) void add_kernel(const __grid_constant__ Runs r, Rows x, Side<T> k,
                                                          Side<T> v, const T *message)
{
    __shared__ Wanted wanted;
    int64_t chunk = blockIdx.x % x.chunks, pair = x.first_pair + blockIdx.x / x.chunks;
    int count = find_wanted(r, pair, chunk, &wanted), elements = 2 * (int)r.grain * x.row_units;
    for (int i = threadIdx.x % LANES * VEC; i < elements; i += LANES * VEC) {
        Place<T> place = place_of(r, x, k, v, pair, i);
        for (int n = threadIdx.x / LANES; n < count; n += ROW_THREADS / LANES) {
            int run = wanted.run[n], w = run / 32;
            int64_t row = (chunk * ROW_THREADS + run) * r.grain + place.row;
            if (row >= x.rows)
                continue;
            T *here = place.data + row * place.stride;
            float sum[VEC], part[VEC];
            load(here, sum);
            for (int j = 0; j < r.parts; j++) {
                uint32_t marks = wanted.marks[j][w];
                if (!(marks >> run % 32 & 1))
                    continue;
                load(message + (wanted.slot[j][w] + __popc(marks & bits_below(run))) * elements + i, part);
#pragma unroll
                for (int e = 0; e < VEC; e++)
                    sum[e] += part[e];
            }
            store(here, sum);
        }
    }
}

template <int VEC, typename T, int LANES> DsvStatus add_vectors(DsvStream *stream, const DsvRowsArgs *args)
{
    Rows x = rows_of(args, args->runs->bound[1], 1);
    if (x.chunks * x.pairs == 0)
        return DSV_OK;
    add_kernel<VEC, T, LANES><<<(unsigned)(x.chunks * x.pairs), ROW_THREADS, 0, stream->handle>>>(
        runs_of(args->runs), x, side_of<T>(&args->k, 1), side_of<T>(&args->v, 1),
        static_cast<const T *>(args->message));
    DSVI_CUDA_LAUNCHED("rows_add");
    return DSV_OK;
}

template <typename T> DsvStatus add_rows(DsvStream *stream, const DsvRowsArgs *args)
{
    constexpr int VEC = 16 / sizeof(T);
    if (!whole_vectors(args))
        return add_vectors<1, T, WARP>(stream, args);
    return half_a_warp(args) ? add_vectors<VEC, T, WARP / 2>(stream, args)
                             : add_vectors<VEC, T, WARP>(stream, args);
}

DsvStatus add(DsvStream *stream, const DsvRowsArgs *args)
{
    DSVI_TRY(dsvi_rows_check(args, DSV_ROWS_ADD));
    DSVI_FOR_ACT("rows_add", args->dtype, return add_rows<T>(stream, args));
}

} // namespace

void dsvi_cuda_fill_list_exchange(DsvOps *ops)
{
    DSVI_OPS_SET(ops, lists_divide, divide, "cuda");
    DSVI_OPS_SET(ops, lists_emit, emit, "cuda");
    DSVI_OPS_SET(ops, runs_count, count, "cuda");
    DSVI_OPS_SET(ops, rows_take, take, "cuda");
    DSVI_OPS_SET(ops, rows_put, put, "cuda");
    DSVI_OPS_SET(ops, rows_add, add, "cuda");
}
