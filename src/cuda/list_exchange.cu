/* Dividing lists among the ranks that have the keys, and moving the rows (ops/list_exchange.h).
 *
 * Lists: a block of threads a list. Marks are bytes, so that any thread may set one without asking; the
 * halves' lengths follow from two searches, for runs ascend. Numbers: a block of threads a (part, pair),
 * NUMBER_EACH runs a thread at a time. Rows: a warp a run, or half a warp where that holds it; memory traffic
 * is that of the numbers, and of the marked rows, read and written once. */
#include "cuda/block_sums.cuh"
#include "cuda/cuda.h"
#include "ops/list_exchange.h"

using namespace dsvi;

namespace {

enum {
    LIST_THREADS = 128,
    SCAN_THREADS = 1024,
    NUMBER_THREADS = 256,
    NUMBER_EACH = 8,
    ROW_THREADS = 256,
    ROW_EACH = 4
};

/* DsvRuns as kernels take it. */
struct Runs {
    int64_t bound[DSV_RUN_PARTS_MOST + 1];
    int64_t pairs, heads, grain;
    int parts;
    unsigned char *marks;
    int32_t *number;
    int64_t *first;
};

Runs runs_of(const DsvRuns *from)
{
    Runs r = {};
    for (int64_t j = 0; j <= from->parts; j++)
        r.bound[j] = from->bound[j];
    r.pairs = dsvi_runs_pairs(from);
    r.heads = from->heads;
    r.grain = from->grain;
    r.parts = (int)from->parts;
    r.marks = from->marks;
    r.number = from->number;
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

/* Where the mark of a run is, by its number in the whole lists. */
__device__ __forceinline__ int64_t mark_at(const Runs &r, int part, int64_t pair, int64_t run)
{
    int64_t length = r.bound[part + 1] - r.bound[part];
    return r.pairs * r.bound[part] + pair * length + run - r.bound[part];
}

/* The compact run of number 0 of (part, pair). */
__device__ __forceinline__ int64_t compact_first(const Runs &r, int64_t width, int part, int64_t pair)
{
    for (int j = part; j < r.parts; j++) {
        const int64_t *first = r.first + j * (r.pairs + 1) + pair;
        width -= first[1] - first[0];
    }
    return width;
}

/* ---- lists ---- */

/* The first of runs [begin, end) that is `least` or more. */
__device__ __forceinline__ int64_t find_run(const int32_t *runs, int64_t begin, int64_t end, int64_t least)
{
    while (begin < end) {
        int64_t middle = begin + (end - begin) / 2;
        if (runs[middle] < least)
            begin = middle + 1;
        else
            end = middle;
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

__global__ __launch_bounds__(LIST_THREADS) void divide_kernel(const __grid_constant__ Runs r, Whole whole,
                                                              int64_t *near, int64_t *far)
{
    int64_t n = blockIdx.x, begin = whole.offsets[n], end = whole.offsets[n + 1];
    int64_t low = find_run(whole.runs, begin, end, r.bound[whole.self]);
    int64_t high = find_run(whole.runs, low, end, r.bound[whole.self + 1]);
    if (threadIdx.x == 0) {
        near[n + 1] = high - low;
        far[n + 1] = end - begin - (high - low);
    }
    for (int64_t i = threadIdx.x; i < end - begin - (high - low); i += LIST_THREADS) {
        int32_t run = whole.runs[begin + i < low ? begin + i : high + i - (low - begin)];
        r.marks[mark_at(r, part_of(r, run), n / whole.groups, run)] = 1;
    }
}

__global__ void mark_last_kernel(const __grid_constant__ Runs r, int part)
{
    for (int64_t pair = threadIdx.x; pair < r.pairs; pair += blockDim.x)
        r.marks[mark_at(r, part, pair, r.bound[r.parts] - 1)] = 1;
}

/* A block of threads an array of n + 1: counts from element 1 on become ends, and element 0 is 0. */
__global__ __launch_bounds__(SCAN_THREADS) void scan_kernel(int64_t n, int64_t *arrays)
{
    __shared__ int64_t scratch[SCAN_THREADS / WARP];
    int64_t *array = arrays + blockIdx.x * (n + 1);
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

DsvStatus scan(DsvStream *stream, int64_t n, int64_t count, int64_t *arrays)
{
    scan_kernel<<<(unsigned)count, SCAN_THREADS, 0, stream->handle>>>(n, arrays);
    DSVI_CUDA_LAUNCHED("sums of lengths");
    return DSV_OK;
}

/* The part of the last run where it is short and far; -1: it is not. */
int far_last(const DsvListDivideArgs *args)
{
    const DsvRuns *runs = args->runs;
    int64_t part = 0;
    if (args->lists->keys % runs->grain == 0)
        return -1;
    while (runs->bound[part + 1] < runs->bound[runs->parts])
        part++;
    return part == args->self ? -1 : (int)part;
}

DsvStatus divide(DsvStream *stream, const DsvListDivideArgs *args)
{
    DSVI_TRY(dsvi_list_divide_check(args));
    Runs r = runs_of(args->runs);
    Whole whole = {args->lists->offsets, args->lists->runs, args->lists->groups, (int)args->self};
    int64_t lists = dsvi_lists_count(args->lists);
    int last = far_last(args);
    DSVI_CUDA_TRY(cudaMemsetAsync(r.marks, 0, (size_t)dsvi_runs_count(args->runs), stream->handle));
    if (last >= 0) {
        mark_last_kernel<<<1, LIST_THREADS, 0, stream->handle>>>(r, last);
        DSVI_CUDA_LAUNCHED("lists_divide, mark of the last run");
    }
    if (lists > 0) {
        divide_kernel<<<(unsigned)lists, LIST_THREADS, 0, stream->handle>>>(
            r, whole, args->near->offsets, args->far->offsets);
        DSVI_CUDA_LAUNCHED("lists_divide");
    }
    DSVI_TRY(scan(stream, lists, 1, args->near->offsets));
    return scan(stream, lists, 1, args->far->offsets);
}

struct Halves {
    const int64_t *near_offsets, *far_offsets;
    int32_t *near, *far;
};

__global__ __launch_bounds__(LIST_THREADS) void emit_kernel(const __grid_constant__ Runs r, Whole whole,
                                                            Halves out, int64_t width)
{
    __shared__ int32_t compact[DSV_RUN_PARTS_MOST];
    int64_t n = blockIdx.x, begin = whole.offsets[n], count = whole.offsets[n + 1] - begin;
    int64_t pair = n / whole.groups, self_begin = r.bound[whole.self];
    int64_t near_at = out.near_offsets[n], far_at = out.far_offsets[n];
    int64_t near = out.near_offsets[n + 1] - near_at;
    int64_t low = find_run(whole.runs, begin, begin + count, self_begin) - begin;
    for (int j = threadIdx.x; j < r.parts; j += LIST_THREADS)
        compact[j] = (int32_t)compact_first(r, width, j, pair);
    __syncthreads();
    for (int64_t i = threadIdx.x; i < count; i += LIST_THREADS) {
        int32_t run = whole.runs[begin + i];
        if (i >= low && i < low + near) {
            out.near[near_at + i - low] = (int32_t)(run - self_begin);
        } else {
            int part = part_of(r, run);
            int64_t place = i < low ? i : i - near;
            out.far[far_at + place] = compact[part] + r.number[mark_at(r, part, pair, run)];
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
__global__ __launch_bounds__(NUMBER_THREADS) void number_kernel(const __grid_constant__ Runs r)
{
    __shared__ int scratch[NUMBER_THREADS / WARP];
    int part = (int)(blockIdx.x / r.pairs);
    int64_t pair = blockIdx.x % r.pairs, length = r.bound[part + 1] - r.bound[part];
    int64_t from = mark_at(r, part, pair, r.bound[part]);
    int32_t before = 0;
    for (int64_t first = 0; first < length; first += NUMBER_THREADS * NUMBER_EACH) {
        int64_t mine = first + (int64_t)threadIdx.x * NUMBER_EACH;
        int mark[NUMBER_EACH], sum = 0, all;
#pragma unroll
        for (int i = 0; i < NUMBER_EACH; i++) {
            mark[i] = mine + i < length ? r.marks[from + mine + i] : 0;
            sum += mark[i];
        }
        int32_t at = before + block_before(sum, scratch, &all);
#pragma unroll
        for (int i = 0; i < NUMBER_EACH; i++) {
            if (mine + i < length)
                r.number[from + mine + i] = mark[i] ? at : -1;
            at += mark[i];
        }
        before += all;
        __syncthreads();
    }
    if (threadIdx.x == 0)
        r.first[part * (r.pairs + 1) + pair + 1] = before;
}

DsvStatus number(DsvStream *stream, const DsvRuns *runs)
{
    DSVI_TRY(dsvi_runs_check(runs));
    int64_t blocks = dsvi_runs_pairs(runs) * runs->parts;
    if (blocks > 0) {
        number_kernel<<<(unsigned)blocks, NUMBER_THREADS, 0, stream->handle>>>(runs_of(runs));
        DSVI_CUDA_LAUNCHED("runs_number");
    }
    return scan(stream, dsvi_runs_pairs(runs), runs->parts, runs->first);
}

/* ---- rows ---- */

/* DsvRowsArgs; strides in units of what a copy moves at a time. */
struct Rows {
    int64_t batch_stride, token_stride, head_stride, slot_stride;
    int64_t width, rows;
    int row_units;
};

Rows rows_of(const DsvRowsArgs *args, int64_t elements_each)
{
    return {args->x.batch_stride / elements_each, args->x.token_stride / elements_each,
            args->x.head_stride / elements_each, args->slot_stride / elements_each, args->width, args->rows,
            (int)(args->head_dim / elements_each)};
}

/* Whether rows of the tensor and of slots all begin at multiples of 16 bytes, and end there. */
bool whole_vectors(const DsvRowsArgs *args)
{
    size_t size = dsvi_dtype_size(args->dtype);
    const int64_t strides[] = {args->x.batch_stride, args->x.token_stride, args->x.head_stride,
                               args->slot_stride, args->head_dim};
    for (int64_t stride : strides)
        if ((size_t)stride * size % 16 != 0)
            return false;
    return (uintptr_t)args->x.data % 16 == 0 && (uintptr_t)args->message % 16 == 0;
}

/* Where head and sample of a pair begin in the tensor. */
__device__ __forceinline__ int64_t pair_at(const Runs &r, const Rows &x, int64_t pair)
{
    return pair / r.heads * x.batch_stride + pair % r.heads * x.head_stride;
}

/* The slot of number 0 of (part, pair). */
__device__ __forceinline__ int64_t first_slot(const Runs &r, int part, int64_t pair)
{
    int64_t slot = r.first[part * (r.pairs + 1) + pair];
    for (int j = 0; j < part; j++)
        slot += r.first[j * (r.pairs + 1) + r.pairs];
    return slot;
}

/* LANES lanes a run of (part, pair), ROW_EACH runs in flight. blockIdx.y: (part, pair). U: what a lane moves
 * at a time. */
template <typename U, bool TAKE, int LANES>
__global__ __launch_bounds__(ROW_THREADS) void copy_kernel(const __grid_constant__ Runs r, Rows x, U *tensor,
                                                           U *message)
{
    constexpr int TOGETHER = ROW_THREADS / LANES;
    int64_t first = (int64_t)blockIdx.x * (TOGETHER * ROW_EACH) + threadIdx.x / LANES;
    for (int64_t at = blockIdx.y; at < r.pairs * r.parts; at += gridDim.y) {
        int part = (int)(at / r.pairs);
        int64_t pair = at % r.pairs, length = r.bound[part + 1] - r.bound[part];
        if (first >= length)
            continue;
        const int32_t *numbers = r.number + mark_at(r, part, pair, r.bound[part]);
        int64_t compact = x.width > 0 ? compact_first(r, x.width, part, pair) : 0;
        U *rows = tensor + pair_at(r, x, pair);
        U *slots = message + first_slot(r, part, pair) * x.slot_stride;
        int32_t number[ROW_EACH];
#pragma unroll
        for (int e = 0; e < ROW_EACH; e++)
            number[e] = first + e * TOGETHER < length ? numbers[first + e * TOGETHER] : -1;
        for (int i = threadIdx.x % LANES; i < (int)r.grain * x.row_units; i += LANES) {
            U unit[ROW_EACH];
            int64_t row[ROW_EACH];
#pragma unroll
            for (int e = 0; e < ROW_EACH; e++) {
                int64_t run = x.width > 0 ? compact + number[e] : first + e * TOGETHER;
                row[e] = run * r.grain + i / x.row_units;
                if (number[e] < 0 || (TAKE && row[e] >= x.rows))
                    unit[e] = U{};
                else
                    unit[e] = TAKE ? rows[row[e] * x.token_stride + i % x.row_units]
                                   : slots[number[e] * x.slot_stride + i];
            }
#pragma unroll
            for (int e = 0; e < ROW_EACH; e++) {
                if (number[e] < 0)
                    continue;
                if (TAKE)
                    slots[number[e] * x.slot_stride + i] = unit[e];
                else if (row[e] < x.rows)
                    rows[row[e] * x.token_stride + i % x.row_units] = unit[e];
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
    int64_t each = (int64_t)(sizeof(U) / dsvi_dtype_size(args->dtype));
    dim3 grid((unsigned)ceil_div(longest_part(args->runs), ROW_THREADS / LANES * ROW_EACH),
              blocks_in_turn(dsvi_runs_pairs(args->runs) * args->runs->parts));
    copy_kernel<U, TAKE, LANES><<<grid, ROW_THREADS, 0, stream->handle>>>(
        runs_of(args->runs), rows_of(args, each), static_cast<U *>(args->x.data),
        static_cast<U *>(args->message));
    DSVI_CUDA_LAUNCHED("rows of runs");
    return DSV_OK;
}

/* Half a warp where a run has no more for it. */
bool half_a_warp(const DsvRowsArgs *args, size_t unit)
{
    int64_t bytes = args->runs->grain * args->head_dim * (int64_t)dsvi_dtype_size(args->dtype);
    return bytes <= WARP / 2 * (int64_t)unit;
}

template <bool TAKE> DsvStatus copy_rows(DsvStream *stream, const DsvRowsArgs *args)
{
    DSVI_TRY(dsvi_rows_check(args, TAKE ? DSV_ROWS_TAKE : DSV_ROWS_PUT));
    if (dsvi_runs_count(args->runs) == 0)
        return DSV_OK;
    if (whole_vectors(args))
        return half_a_warp(args, sizeof(uint4)) ? copy_units<uint4, TAKE, WARP / 2>(stream, args)
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

/* LANES lanes a run of a pair: its slots of all parts, then its rows, VEC elements a lane. blockIdx.y: the
 * pair. */
template <int VEC, typename T, int LANES>
__global__ __launch_bounds__(ROW_THREADS) void add_kernel(const __grid_constant__ Runs r, Rows x, T *tensor,
                                                          const T *message)
{
    constexpr int TOGETHER = ROW_THREADS / LANES;
    constexpr uint32_t OF_RUN = 0xffffffffu >> (WARP - LANES);
    __shared__ int64_t slots[TOGETHER][DSV_RUN_PARTS_MOST];
    int64_t run = (int64_t)blockIdx.x * TOGETHER + threadIdx.x / LANES, length = r.bound[1];
    int64_t *slot = slots[threadIdx.x / LANES];
    int lane = threadIdx.x % LANES, first_lane = threadIdx.x % WARP - lane;
    for (int64_t pair = blockIdx.y; pair < r.pairs; pair += gridDim.y) {
        int count = 0;
        for (int first = 0; first < r.parts; first += LANES) {
            int part = first + lane;
            int32_t number = -1;
            if (part < r.parts && run < length)
                number = r.number[r.pairs * r.bound[part] + pair * length + run];
            uint32_t has = __ballot_sync(0xffffffffu, number >= 0) >> first_lane & OF_RUN;
            if (number >= 0)
                slot[count + __popc(has & ((1u << lane) - 1))] = first_slot(r, part, pair) + number;
            count += __popc(has);
        }
        __syncwarp();
        T *rows = tensor + pair_at(r, x, pair);
        for (int i = lane * VEC; count > 0 && i < (int)r.grain * x.row_units; i += LANES * VEC) {
            int64_t row = run * r.grain + i / x.row_units;
            if (row >= x.rows)
                break;
            T *here = rows + row * x.token_stride + i % x.row_units;
            float sum[VEC], part[VEC];
            load(here, sum);
            for (int j = 0; j < count; j++) {
                load(message + slot[j] * x.slot_stride + i, part);
#pragma unroll
                for (int e = 0; e < VEC; e++)
                    sum[e] += part[e];
            }
            store(here, sum);
        }
        __syncwarp(); /* the next pair's slots go there */
    }
}

template <int VEC, typename T, int LANES> DsvStatus add_vectors(DsvStream *stream, const DsvRowsArgs *args)
{
    dim3 grid((unsigned)ceil_div(args->runs->bound[1], ROW_THREADS / LANES),
              blocks_in_turn(dsvi_runs_pairs(args->runs)));
    add_kernel<VEC, T, LANES><<<grid, ROW_THREADS, 0, stream->handle>>>(
        runs_of(args->runs), rows_of(args, 1), static_cast<T *>(args->x.data),
        static_cast<const T *>(args->message));
    DSVI_CUDA_LAUNCHED("rows_add");
    return DSV_OK;
}

template <typename T> DsvStatus add_rows(DsvStream *stream, const DsvRowsArgs *args)
{
    constexpr int VEC = 16 / sizeof(T);
    if (!whole_vectors(args))
        return add_vectors<1, T, WARP>(stream, args);
    return half_a_warp(args, 16) ? add_vectors<VEC, T, WARP / 2>(stream, args)
                                 : add_vectors<VEC, T, WARP>(stream, args);
}

DsvStatus add(DsvStream *stream, const DsvRowsArgs *args)
{
    DSVI_TRY(dsvi_rows_check(args, DSV_ROWS_ADD));
    if (dsvi_runs_pairs(args->runs) * args->runs->bound[1] == 0)
        return DSV_OK;
    DSVI_FOR_ACT("rows_add", args->dtype, return add_rows<T>(stream, args));
}

} // namespace

void dsvi_cuda_fill_list_exchange(DsvOps *ops)
{
    DSVI_OPS_SET(ops, lists_divide, divide, "cuda");
    DSVI_OPS_SET(ops, lists_emit, emit, "cuda");
    DSVI_OPS_SET(ops, runs_number, number, "cuda");
    DSVI_OPS_SET(ops, rows_take, take, "cuda");
    DSVI_OPS_SET(ops, rows_put, put, "cuda");
    DSVI_OPS_SET(ops, rows_add, add, "cuda");
}
