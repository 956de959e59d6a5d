/* Rows of marked runs between k and v and messages (ops/list_exchange.h).
 *
 * A block of threads ROW_THREADS runs of the own keys, or as many marked ones where they lie side by side; a
 * warp a slot, or half a warp where that holds it. Memory traffic is that of the marked rows, read and
 * written once. */
#include "cuda/cuda.h"
#include "cuda/list_runs.cuh"

using namespace dsvi;

namespace {

enum {
    ROW_THREADS = 256,
    ROW_WORDS = ROW_THREADS / 32,
    ROW_EACH = 4,
    ROW_BLOCKS = 4 /* of copies, that a multiprocessor holds at least */
};

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
__device__ __forceinline__ Share own_share(const Runs &r, int part, int64_t pair, int64_t chunk,
                                           int32_t *runs)
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
__global__ __launch_bounds__(ROW_THREADS, ROW_BLOCKS) void copy_kernel(const __grid_constant__ Runs r, Rows x,
                                                                       Side<U> k, Side<U> v, U *message)
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

void dsvi_cuda_fill_list_rows(DsvOps *ops)
{
    DSVI_OPS_SET(ops, rows_take, take, "cuda");
    DSVI_OPS_SET(ops, rows_put, put, "cuda");
    DSVI_OPS_SET(ops, rows_add, add, "cuda");
}
