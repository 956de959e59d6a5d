/* rows_take, rows_put and rows_add: move the rows of marked spans, the spans of keys that another rank
 * needs, between the tensors k and v and the messages of an exchange (interface: ops/list_exchange.h). A
 * slot is the space of one span in a message: its rows of k, then its rows of v.
 *
 * A thread block handles ROW_THREADS consecutive spans of this rank's keys, of which it moves the marked
 * ones, or ROW_THREADS marked spans of compact keys, which are the rows fetched from other ranks. A warp
 * moves a slot, or half a warp if 16 bytes per lane are enough. The memory traffic is the rows of marked
 * spans, read once and written once. */
#include "cuda/common/cuda.h"
#include "cuda/common/list_spans.cuh"

using namespace dsvi;

namespace {

enum {
    ROW_THREADS = 256,
    ROW_WORDS = ROW_THREADS / 32,
    ROW_EACH = 4,  /* slots (spans in a message) whose loads a warp has in flight */
    ROW_BLOCKS = 4 /* thread blocks of rows_copy_kernel that a multiprocessor holds at least */
};

/* The tensor k or v. Strides are in units of U, the type that a lane moves in one access. */
template <typename U> struct Side {
    U *data;
    int64_t batch_stride, token_stride, head_stride;
};

template <typename U> Side<U> kernel_side(const DsviHeads *x, int64_t elements_each)
{
    return {static_cast<U *>(x->data), x->batch_stride / elements_each, x->token_stride / elements_each,
            x->head_stride / elements_each};
}

/* The numbers of DsviRowsArgs that the kernels need. rows_copy_kernel has `chunks` blocks for each (part,
 * pair), rows_add_kernel for each pair. */
struct Rows {
    int64_t first_pair, pairs, chunks, width, rows;
    int row_units; /* number of units (the type that a lane moves in one access) in a row */
};

Rows kernel_rows(const DsviRowsArgs *args, int64_t spans, int64_t elements_each)
{
    return {args->first_pair, args->end_pair - args->first_pair,    ceil_div(spans, ROW_THREADS), args->width,
            args->rows,       (int)(args->head_dim / elements_each)};
}

bool aligned_side(const DsviHeads *x, size_t size)
{
    const int64_t strides[] = {x->batch_stride, x->token_stride, x->head_stride};
    for (int64_t stride : strides)
        if ((size_t)stride * size % 16 != 0)
            return false;
    return (uintptr_t)x->data % 16 == 0;
}

/* Returns whether all rows of k, of v and of the message's slots begin and end at multiples of 16 bytes. */
bool rows_in_vectors(const DsviRowsArgs *args)
{
    size_t size = dsvi_dtype_size(args->dtype);
    return aligned_side(&args->k, size) && aligned_side(&args->v, size) &&
           (size_t)args->head_dim * size % 16 == 0 && (uintptr_t)args->message % 16 == 0;
}

/* Returns whether half a warp moves a slot (a span's rows of k and v) with one access of 16 bytes per
 * lane. */
bool slot_fits_half_warp(const DsviRowsArgs *args)
{
    int64_t row = args->head_dim * (int64_t)dsvi_dtype_size(args->dtype);
    return 2 * args->spans->grain * row <= WARP / 2 * 16;
}

/* Where a lane finds unit number `i` of a span's slot in the tensor k or v: `data` points to this unit in
 * row 0 of the (batch, head) pair, `stride` is the distance between rows in units, and `row` is the row
 * inside the span. */
template <typename U> struct Place {
    U *data;
    int64_t stride, row;
};

template <typename U>
__device__ __forceinline__ Place<U> span_place(const Spans &r, const Rows &x, const Side<U> &k,
                                               const Side<U> &v, int64_t pair, int i)
{
    int units = (int)r.grain * x.row_units, unit = i < units ? i : i - units;
    const Side<U> &side = i < units ? k : v;
    int64_t begin = pair / r.heads * side.batch_stride + pair % r.heads * side.head_stride;
    return {side.data + begin + unit % x.row_units, side.token_stride, unit / x.row_units};
}

/* Returns the number of the slot of the first marked span of (part, pair), counted over the messages of all
 * parts. */
__device__ __forceinline__ int64_t first_slot(const Spans &r, int part, int64_t pair)
{
    int64_t slot = r.first[part * (r.pairs + 1) + pair];
    for (int j = 0; j < part; j++)
        slot += r.first[j * (r.pairs + 1) + r.pairs];
    return slot;
}

/* The part of the work on (part, pair) that one thread block does: the marked spans with numbers number ..
 * number + count - 1. */
struct Work {
    int64_t number;
    int count;
};

/* Returns the work of a thread block on this rank's keys: the marked ones among the ROW_THREADS spans of
 * chunk `chunk`. Stores in spans, (count), which spans these are. All threads of the block must call. */
__device__ __forceinline__ Work local_work(const Spans &r, int part, int64_t pair, int64_t chunk,
                                           int32_t *spans)
{
    int64_t span = chunk * ROW_THREADS + threadIdx.x, length = r.bound[part + 1] - r.bound[part];
    int64_t first = first_word(r, part, pair) + chunk * ROW_WORDS, word = first + threadIdx.x / 32;
    uint32_t marks = span < length ? r.marks[word] : 0;
    int64_t number = chunk * ROW_THREADS < length ? r.before[first] : 0;
    bool marked = marks >> span % 32 & 1;
    if (marked)
        spans[r.before[word] + __popc(marks & bits_below(span)) - number] = (int32_t)span;
    return {number, __syncthreads_count(marked)};
}

/* Returns the work of a thread block on compact keys (rows fetched from other ranks): ROW_THREADS marked
 * spans, fewer at the end. */
__device__ __forceinline__ Work compact_work(const Spans &r, int part, int64_t pair, int64_t chunk)
{
    int64_t number = chunk * ROW_THREADS, left = marked_spans(r, part, pair) - number;
    return {number, (int)(left < 0 ? 0 : left < ROW_THREADS ? left : ROW_THREADS)};
}

/* Copies the rows of marked spans to the message (TAKE), or from the message to compact keys. LANES lanes
 * move a slot, and each lane has the loads of ROW_EACH slots in flight. U is the type of one access. */
template <typename U, bool TAKE, int LANES>
__global__ __launch_bounds__(ROW_THREADS, ROW_BLOCKS) void rows_copy_kernel(const __grid_constant__ Spans r,
                                                                            Rows x, Side<U> k, Side<U> v,
                                                                            U *message)
{
    constexpr int TOGETHER = ROW_THREADS / LANES;
    __shared__ int32_t local_spans[ROW_THREADS];
    int64_t chunk = blockIdx.x % x.chunks, at = blockIdx.x / x.chunks;
    int part = (int)(at / x.pairs);
    int64_t pair = x.first_pair + at % x.pairs;
    Work work = x.width > 0 ? compact_work(r, part, pair, chunk)
                            : local_work(r, part, pair, chunk, local_spans);
    if (work.count == 0)
        return;
    int64_t compact = x.width > 0 ? compact_first(r, x.width, part, pair) + work.number : 0;
    int units = 2 * (int)r.grain * x.row_units;
    U *slots = message + (first_slot(r, part, pair) + work.number) * units;
    for (int i = threadIdx.x % LANES; i < units; i += LANES) {
        Place<U> place = span_place(r, x, k, v, pair, i);
        for (int first = threadIdx.x / LANES; first < work.count; first += TOGETHER * ROW_EACH) {
            U unit[ROW_EACH];
            int64_t row[ROW_EACH];
#pragma unroll
            for (int e = 0; e < ROW_EACH; e++) {
                int n = first + e * TOGETHER;
                int64_t span = n >= work.count ? 0 : x.width > 0 ? compact + n : local_spans[n];
                row[e] = span * r.grain + place.row;
                unit[e] = U{};
                if (n < work.count && TAKE && row[e] < x.rows)
                    unit[e] = place.data[row[e] * place.stride];
                else if (n < work.count && !TAKE)
                    unit[e] = slots[(int64_t)n * units + i];
            }
#pragma unroll
            for (int e = 0; e < ROW_EACH; e++) {
                int n = first + e * TOGETHER;
                if (n < work.count && TAKE)
                    slots[(int64_t)n * units + i] = unit[e];
                else if (n < work.count && row[e] < x.rows)
                    place.data[row[e] * place.stride] = unit[e];
            }
        }
    }
}

/* Returns the number of spans of the part that has the most spans. */
int64_t longest_part_spans(const DsviSpans *spans)
{
    int64_t longest = 0;
    for (int64_t j = 0; j < spans->parts; j++) {
        int64_t length = spans->bound[j + 1] - spans->bound[j];
        longest = length > longest ? length : longest;
    }
    return longest;
}

template <typename U, bool TAKE, int LANES> DsvStatus copy_units(DsviStream *stream, const DsviRowsArgs *args)
{
    int64_t each = (int64_t)(sizeof(U) / dsvi_dtype_size(args->dtype)),
            longest = longest_part_spans(args->spans);
    Rows x = kernel_rows(args, args->width > 0 && args->width < longest ? args->width : longest, each);
    int64_t blocks = x.chunks * x.pairs * args->spans->parts;
    if (blocks == 0)
        return DSV_OK;
    DSVI_CUDA_LAUNCH(stream, "rows_take or rows_put", (rows_copy_kernel<U, TAKE, LANES>), (unsigned)blocks,
                     ROW_THREADS, 0, spans_of(args->spans), x, kernel_side<U>(&args->k, each),
                     kernel_side<U>(&args->v, each), static_cast<U *>(args->message));
    return DSV_OK;
}

template <bool TAKE> DsvStatus copy_rows(DsviStream *stream, const DsviRowsArgs *args)
{
    DSVI_TRY(dsvi_rows_check(args, TAKE ? DSVI_ROWS_TAKE : DSVI_ROWS_PUT));
    if (rows_in_vectors(args))
        return slot_fits_half_warp(args) ? copy_units<uint4, TAKE, WARP / 2>(stream, args)
                                         : copy_units<uint4, TAKE, WARP>(stream, args);
    switch (dsvi_dtype_size(args->dtype)) {
    case 8: return copy_units<uint64_t, TAKE, WARP>(stream, args);
    case 4: return copy_units<uint32_t, TAKE, WARP>(stream, args);
    case 2: return copy_units<uint16_t, TAKE, WARP>(stream, args);
    default: return copy_units<uint8_t, TAKE, WARP>(stream, args);
    }
}

DsvStatus cuda_rows_take(DsviStream *stream, const DsviRowsArgs *args)
{
    return copy_rows<true>(stream, args);
}

DsvStatus cuda_rows_put(DsviStream *stream, const DsviRowsArgs *args)
{
    return copy_rows<false>(stream, args);
}

/* The spans to which a thread block adds rows of messages: among ROW_THREADS spans of a pair, those that at
 * least one part has marked. */
struct MarkedByAny {
    uint32_t marks[DSVI_SPAN_PARTS_MAX][ROW_WORDS];
    int64_t slot[DSVI_SPAN_PARTS_MAX][ROW_WORDS]; /* slot of the first marked span of each word of marks */
    uint32_t any[ROW_WORDS];                      /* the marks of all parts together */
    int16_t span[ROW_THREADS]; /* (count) the marked spans, relative to the first span of the block */
};

/* Fills *marked_by_any with the spans of chunk `chunk` that at least one part has marked, and returns their
 * number. All threads of the block must call. */
__device__ __forceinline__ int find_marked(const Spans &r, int64_t pair, int64_t chunk,
                                           MarkedByAny *marked_by_any)
{
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, before = 0, count = 0;
    for (int i = threadIdx.x; i < r.parts * ROW_WORDS; i += ROW_THREADS) {
        int part = i / ROW_WORDS, w = i % ROW_WORDS;
        int64_t in_part = chunk * ROW_WORDS + w, word = first_word(r, part, pair) + in_part;
        bool exists = in_part < r.word[1];
        marked_by_any->marks[part][w] = exists ? r.marks[word] : 0;
        marked_by_any->slot[part][w] = exists ? first_slot(r, part, pair) + r.before[word] : 0;
    }
    __syncthreads();
    uint32_t any = 0;
    for (int part = 0; part < r.parts; part++)
        any |= marked_by_any->marks[part][warp];
    marked_by_any->any[warp] = any;
    __syncthreads();
    for (int w = 0; w < ROW_WORDS; w++) {
        before += w < warp ? __popc(marked_by_any->any[w]) : 0;
        count += __popc(marked_by_any->any[w]);
    }
    if (any >> lane & 1)
        marked_by_any->span[before + __popc(any & bits_below(lane))] = (int16_t)threadIdx.x;
    __syncthreads();
    return count;
}

/* Adds the rows in the slots of all parts' messages to the rows of k and v, in the order of the parts. LANES
 * lanes handle a span, VEC elements per lane and step. */
template <int VEC, typename T, int LANES>
__global__ __launch_bounds__(ROW_THREADS) void rows_add_kernel(const __grid_constant__ Spans r, Rows x,
                                                               Side<T> k, Side<T> v, const T *message)
{
    __shared__ MarkedByAny marked_by_any;
    int64_t chunk = blockIdx.x % x.chunks, pair = x.first_pair + blockIdx.x / x.chunks;
    int count = find_marked(r, pair, chunk, &marked_by_any), elements = 2 * (int)r.grain * x.row_units;
    for (int i = threadIdx.x % LANES * VEC; i < elements; i += LANES * VEC) {
        Place<T> place = span_place(r, x, k, v, pair, i);
        for (int n = threadIdx.x / LANES; n < count; n += ROW_THREADS / LANES) {
            int span = marked_by_any.span[n], w = span / 32;
            int64_t row = (chunk * ROW_THREADS + span) * r.grain + place.row;
            if (row >= x.rows)
                continue;
            T *here = place.data + row * place.stride;
            float sum[VEC], part[VEC];
            load(here, sum);
            for (int j = 0; j < r.parts; j++) {
                uint32_t marks = marked_by_any.marks[j][w];
                if (!(marks >> span % 32 & 1))
                    continue;
                load(message + (marked_by_any.slot[j][w] + __popc(marks & bits_below(span))) * elements + i,
                     part);
#pragma unroll
                for (int e = 0; e < VEC; e++)
                    sum[e] += part[e];
            }
            store(here, sum);
        }
    }
}

template <int VEC, typename T, int LANES> DsvStatus add_vectors(DsviStream *stream, const DsviRowsArgs *args)
{
    Rows x = kernel_rows(args, args->spans->bound[1], 1);
    if (x.chunks * x.pairs == 0)
        return DSV_OK;
    DSVI_CUDA_LAUNCH(stream, "rows_add", (rows_add_kernel<VEC, T, LANES>), (unsigned)(x.chunks * x.pairs),
                     ROW_THREADS, 0, spans_of(args->spans), x, kernel_side<T>(&args->k, 1),
                     kernel_side<T>(&args->v, 1), static_cast<const T *>(args->message));
    return DSV_OK;
}

template <typename T> DsvStatus rows_add_of_type(DsviStream *stream, const DsviRowsArgs *args)
{
    constexpr int VEC = 16 / sizeof(T);
    if (!rows_in_vectors(args))
        return add_vectors<1, T, WARP>(stream, args);
    return slot_fits_half_warp(args) ? add_vectors<VEC, T, WARP / 2>(stream, args)
                                     : add_vectors<VEC, T, WARP>(stream, args);
}

DsvStatus cuda_rows_add(DsviStream *stream, const DsviRowsArgs *args)
{
    DSVI_TRY(dsvi_rows_check(args, DSVI_ROWS_ADD));
    DSVI_FOR_ACT("rows_add", args->dtype, return rows_add_of_type<T>(stream, args));
}

} // namespace

void dsvi_cuda_fill_list_rows(DsviOps *ops)
{
    DSVI_OPS_SET(ops, rows_take, cuda_rows_take, "cuda");
    DSVI_OPS_SET(ops, rows_put, cuda_rows_put, "cuda");
    DSVI_OPS_SET(ops, rows_add, cuda_rows_add, "cuda");
}
