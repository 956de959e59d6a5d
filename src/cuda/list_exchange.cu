/* Dividing lists among the ranks that have the keys (ops/list_exchange.h).
 *
 * Lists: lengths of the halves by two searches, for runs ascend, a warp a list. Marks: a block of threads
 * marks what some lists of a pair name of a window of runs in shared memory, then what it found for all.
 * Numbers: a block of threads a (part, pair). Memory traffic is that of the far runs, read once. */
#include "cuda/block_sums.cuh"
#include "cuda/cuda.h"
#include "cuda/list_runs.cuh"

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
    COUNT_EACH = 4
};

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

/* Runs at .. at + 3 of a list, -1 outside [low, high); `at` is where 16 bytes begin. */
__device__ __forceinline__ void load_runs(const int32_t *runs, int64_t at, int64_t low, int64_t high,
                                          int (&run)[4])
{
    if (at >= low && at + 4 <= high) {
        int4 four = __ldcs(reinterpret_cast<const int4 *>(runs + at));
        run[0] = four.x, run[1] = four.y, run[2] = four.z, run[3] = four.w;
        return;
    }
#pragma unroll
    for (int e = 0; e < 4; e++)
        run[e] = at + e >= low && at + e < high ? runs[at + e] : -1;
}

/* Ascending runs, whose marks often lie in one word. */
__device__ __forceinline__ void mark_runs(const int (&run)[4], int64_t from, uint32_t *marks)
{
    int word = 0;
    uint32_t bits = 0;
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

/* Runs [low, high) of a list, by a warp; marks of runs from `from` on. */
__device__ __forceinline__ void mark_stretch(const int32_t *runs, int64_t low, int64_t high, int64_t from,
                                             uint32_t *marks)
{
    int64_t skew = (int64_t)((uintptr_t)(runs + low) / sizeof(int32_t) % 4);
    for (int64_t at = low - skew + threadIdx.x % WARP * 4; at < high; at += 2 * WARP * 4) {
        int run[2][4];
        load_runs(runs, at, low, high, run[0]);
        load_runs(runs, at + WARP * 4, low, high, run[1]);
        mark_runs(run[0], from, marks);
        mark_runs(run[1], from, marks);
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
        const int64_t *offset = whole.offsets + pair * whole.groups + g;
        int64_t low = find_run(whole.runs, offset[0], offset[1], window.from);
        int64_t high = find_run(whole.runs, low, offset[1], window.to);
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

} // namespace

void dsvi_cuda_fill_list_exchange(DsvOps *ops)
{
    DSVI_OPS_SET(ops, lists_divide, divide, "cuda");
    DSVI_OPS_SET(ops, lists_emit, emit, "cuda");
    DSVI_OPS_SET(ops, runs_count, count, "cuda");
}
