/* Divides a pass of dense attention into several calls of cuDNN that together take less time than one.
 *
 * In cuDNN's kernels for Hopper a thread block owns a tile of 128 rows of one head and iterates over all rows
 * of the other side. In the forward pass the tiles are queries and the kernel iterates over keys; in the
 * backward pass it is the other way round. Below, the rows in tiles are the *tiled side*, the others the
 * *loop side*. One thread block runs on each multiprocessor, so a pass takes whole waves of tiles, and each
 * wave takes as long as one iteration over the loop side. A last wave with few tiles wastes most of the GPU:
 * 32,760 rows and 12 heads need 24 waves, the last of which is a quarter full; 512 keys and 12 heads have 48
 * tiles for 132 multiprocessors. On one H200 the forward pass with 32,640 keys takes 10.7 ms, but only 9.7 ms
 * with the 32,384 queries that fill 23 waves; the backward pass with 512 keys takes 1.28 ms, and 64 times as
 * many keys take only 24 times as long. A second loss: if the last tile of keys is short, cuDNN masks all
 * tiles of keys, which costs a tenth of the forward pass and 2 % of the backward pass.
 *
 *               loop side       forward only
 *          +-----------------+--+
 *   tiled  |      first      |  |   first    the rows of the tiled side that fill whole waves
 *    side  |                 |  |   rest     the other rows; the loop side is cut into equal parts
 *          |-----+-----+-----|  |   tail     forward: keys after the last whole tile, for all queries
 *          |  rest: parts    |  |
 *          +-----------------+--+
 *
 * cuDNN receives the parts of `rest` as samples of a larger batch. Each part has its own copy of the rows of
 * the tiled side and its own results for them. A wave is then only as long as a part, and several short waves
 * fill the GPU better than one long one. The tail is so short that the kernels of attention_list.cu serve it.
 *
 * Forward, the outputs of a query from several calls c are joined, m being the largest of its lse:
 *     lse = m + log sum_c exp(lse_c - m)      out = sum_c exp(lse_c - lse) out_c
 * Backward, all calls read the joint lse and out. The dk and dv of the parts are added in F32, and the dq of
 * `rest` is added to the dq of `first`. */
#include "cuda/attention/attention_parts.h"
#include "cuda/common/kernel.cuh"

namespace {

using namespace dsvi;

constexpr int HOPPER = 90;
constexpr int THREADS = 256;
constexpr int64_t VECTOR = 8; /* BF16 elements that a thread processes at a time */
constexpr size_t ALIGNMENT = 256;
constexpr int64_t TILE = 128;
constexpr int64_t DIM_MAX = 128; /* larger heads are not divided: cuDNN has other kernels for them, which the
                                  * time model does not describe */
/* A call of cuDNN with fewer queries or keys than this is not worth its overhead. */
constexpr int64_t ROWS_MIN = 256;

/* ---- model of the time ---- */

/* Constants of one pass, fitted to an H200. A step is the time in which a thread block processes one tile
 * against `loop_rows` rows of the loop side: 1.65 us forward with heads of 128 elements, 2.5 us backward. */
struct TimeModel {
    bool backward;
    int64_t loop_rows;
    int64_t tile_steps; /* time of a tile before its first step and after its last, in steps */
    double call_steps;  /* time of the launches that another call adds, in steps */
    double step_bytes;  /* bytes that the GPU moves in the time of a step */
    double dim; /* head size for which call_steps and step_bytes hold, a step's time being proportional to the
                 * head size; 0: they hold for all head sizes */
    double masked;     /* factor on the time of a call whose last tile of keys is short */
    double worthwhile; /* use a division only if it takes less than this fraction of the time without it */
    int64_t parts_max;
    int64_t first_min; /* smallest number of rows of the first call; with fewer, there is no first call */
};

constexpr TimeModel FORWARD = {false, 128, 1, 8, 7e6, 128, 1.1, 0.99, 32, ROWS_MIN};
constexpr TimeModel BACKWARD = {true, 64, 3, 10, 10e6, 0, 1.02, 0.985, 16, 0};

/* Returns the time of one cuDNN call with `heads` pairs (batch, head), in the time model's unit, a step. */
double call_steps_of(const TimeModel &model, const DsviStream *stream, int64_t heads, int64_t tiled,
                     int64_t looped)
{
    int64_t waves = ceil_div(heads * ceil_div(tiled, TILE), stream->multiprocessors);
    double steps = (double)(waves * (ceil_div(looped, model.loop_rows) + model.tile_steps));
    return (model.backward ? tiled : looped) % TILE == 0 ? steps : steps * model.masked;
}

/* Bytes that a division moves in addition to a pass in one call. Forward: for each query of `rest` a copy and
 * a result in every part, both written and read, and the joint result; for the tail the queries, its results,
 * written and read, and the results that they are joined with, read and written. Backward: copies of keys and
 * values, and their gradients, which cuDNN writes and a sum over parts reads and writes; with a first call
 * also delta, cuDNN's F32 sum of dq and its clearing, and the addition of the two dq. */
double bytes_moved(const DsviAttentionArgs *args, DsviAttentionParts p)
{
    double elements = (double)(args->batch * args->heads * args->head_dim);
    if (p.backward) {
        double bytes = elements * (double)(args->keys - p.first) * (double)(12 * p.parts + 8);
        return p.first == 0 ? bytes : bytes + elements * (double)args->queries * 20;
    }
    double rest = (double)((args->queries - p.first) * (8 * p.parts + 2));
    return elements * (rest + (p.keys < args->keys ? (double)args->queries * 10 : 0));
}

/* Time, in steps of the time model, of all calls of a division and of the kernels that copy its inputs and
 * combine its results. */
double divided_steps_of(const TimeModel &model, const DsviStream *stream, const DsviAttentionArgs *args,
                        DsviAttentionParts p)
{
    int64_t heads = args->batch * args->heads, calls = 0;
    int64_t tiled = p.backward ? args->keys : args->queries, looped = p.backward ? args->queries : p.keys;
    double steps = p.first > 0 ? call_steps_of(model, stream, heads, p.first, looped) : 0;
    if (p.parts > 0) {
        steps += call_steps_of(model, stream, heads * p.parts, tiled - p.first, looped / p.parts);
        calls++;
    }
    if (p.keys < args->keys) {
        steps += call_steps_of(model, stream, heads, args->queries, TILE);
        calls++;
    }
    double others = (double)calls * model.call_steps + bytes_moved(args, p) / model.step_bytes;
    return steps + (model.dim > 0 ? others * model.dim / (double)args->head_dim : others);
}

/* ---- choice of the division ---- */

/* Returns the number of rows of the tiled side (queries forward, keys backward) whose tiles fill whole waves
 * of thread blocks. Enough rows for another call are left over. */
int64_t rows_of_whole_waves(const TimeModel &model, const DsviStream *stream, const DsviAttentionArgs *args)
{
    int64_t heads = args->batch * args->heads, at_once = stream->multiprocessors;
    int64_t tiled = model.backward ? args->keys : args->queries;
    int64_t waves = heads * (tiled / TILE) / at_once, tiles = waves * at_once / heads;
    int64_t tiles_max = (tiled - ROWS_MIN) / TILE, rows = (tiles < tiles_max ? tiles : tiles_max) * TILE;
    return rows < model.first_min ? 0 : rows;
}

/* Returns whether parts of these rows, `tokens` tokens of each sample, can be samples of one batch: all parts
 * must be equally far apart, also across samples. */
bool parts_are_samples(const DsviHeads *rows, const DsviAttentionArgs *args, int64_t tokens)
{
    return args->batch == 1 || rows->batch_stride == tokens * rows->token_stride;
}

/* Limits of a grid, and of the 32-bit numbers by which join_outputs counts threads. */
constexpr int64_t THREADS_MAX = 1LL << 31, SAMPLES_MAX = 65535;

/* Returns whether the forward kernels below serve these shapes: each row of D elements belongs to threads of
 * one warp. */
bool forward_may_be_divided(const DsviAttentionArgs *args)
{
    int64_t vectors = args->head_dim / VECTOR;
    return vectors > 0 && args->head_dim % VECTOR == 0 && WARP % vectors == 0 && args->keys >= ROWS_MIN &&
           args->batch <= SAMPLES_MAX && args->queries * args->heads * vectors < THREADS_MAX;
}

bool forward_parts_fit(const DsviStream *stream, const DsviAttentionArgs *args, DsviAttentionParts p)
{
    return stream->capability == HOPPER && args->head_dim <= DIM_MAX && p.keys % p.parts == 0 &&
           p.keys / p.parts >= ROWS_MIN && args->batch * p.parts <= SAMPLES_MAX &&
           parts_are_samples(&args->k, args, p.keys) && parts_are_samples(&args->v, args, p.keys);
}

/* The division of the first `keys` keys into the number of parts that takes least time; parts is 0 where no
 * number fits. */
DsviAttentionParts divide_queries(const DsviStream *stream, const DsviAttentionArgs *args, int64_t keys)
{
    DsviAttentionParts best = {rows_of_whole_waves(FORWARD, stream, args), 0, keys, false}, tried = best;
    for (tried.parts = 2; tried.parts <= FORWARD.parts_max; tried.parts++)
        if (forward_parts_fit(stream, args, tried) &&
            (best.parts == 0 ||
             divided_steps_of(FORWARD, stream, args, tried) < divided_steps_of(FORWARD, stream, args, best)))
            best = tried;
    return best;
}

DsviAttentionParts choose_forward(const DsviStream *stream, const DsviAttentionArgs *args)
{
    DsviAttentionParts best = dsvi_attention_parts_whole(args, false);
    if (!forward_may_be_divided(args))
        return best;
    int64_t whole_tiles = args->keys / TILE * TILE;
    const DsviAttentionParts tried[] = {{args->queries, 0, whole_tiles, false},
                                        divide_queries(stream, args, args->keys),
                                        divide_queries(stream, args, whole_tiles)};
    double fewest = call_steps_of(FORWARD, stream, args->batch * args->heads, args->queries, args->keys);
    for (const DsviAttentionParts &p : tried) {
        double steps = divided_steps_of(FORWARD, stream, args, p);
        bool complete = p.parts > 0 || p.first == args->queries;
        if (!complete || steps >= fewest * FORWARD.worthwhile)
            continue;
        fewest = steps;
        best = p;
    }
    return best;
}

/* Smallest number of queries in a part of the backward pass; with fewer, the overhead exceeds the gain. */
constexpr int64_t PART_QUERIES_MIN = 1024;

bool backward_may_be_divided(const DsviStream *stream, const DsviAttentionArgs *args)
{
    return stream->capability == HOPPER && !stream->deterministic && args->head_dim <= DIM_MAX &&
           args->keys >= ROWS_MIN && parts_are_samples(&args->q, args, args->queries) &&
           parts_are_samples(&args->out, args, args->queries) &&
           parts_are_samples(&args->dout, args, args->queries) &&
           parts_are_samples(&args->dq, args, args->queries);
}

/* lse of each part must begin at a multiple of VECTOR floats, because cuDNN reads lse in vectors. */
bool backward_parts_fit(const DsviAttentionArgs *args, int64_t parts)
{
    return args->queries % (parts * VECTOR) == 0 && args->queries / parts >= PART_QUERIES_MIN;
}

DsviAttentionParts choose_backward(const DsviStream *stream, const DsviAttentionArgs *args)
{
    DsviAttentionParts best = dsvi_attention_parts_whole(args, true);
    if (!backward_may_be_divided(stream, args))
        return best;
    const int64_t first[2] = {0, rows_of_whole_waves(BACKWARD, stream, args)};
    double fewest = call_steps_of(BACKWARD, stream, args->batch * args->heads, args->keys, args->queries) *
                    BACKWARD.worthwhile;
    for (int i = 0; i < 2; i++) {
        for (int64_t parts = 1; parts <= BACKWARD.parts_max; parts++) {
            DsviAttentionParts tried = {first[i], parts, args->keys, true};
            double steps = divided_steps_of(BACKWARD, stream, args, tried);
            if (!backward_parts_fit(args, parts) || steps >= fewest)
                continue;
            fewest = steps;
            best = tried;
        }
    }
    return best;
}

/* ---- the workspace ---- */

/* Buffers at the beginning of the workspace. Copies and results of `rest` are (batch x parts, rows, heads, D)
 * BF16, with the rows of the tiled side that are not in `first`. */
struct Buffers {
    void *q, *k, *v; /* copies of inputs: queries in the forward pass, keys and values in the backward pass */
    void *out, *dk, *dv; /* results of the call for `rest`, the rows that are not in the first call */
    void *lse; /* lse of the call for `rest`, F32: forward (batch x parts, heads, rows) written by cuDNN;
                  backward (batch x parts, heads, queries / parts) copied from args->lse */
    void *tail_out, *tail_lse; /* forward: results of the tail call, (batch, queries, heads, D) BF16 and
                                  (batch, heads, queries) F32 */
    void *first_lse; /* forward, if there is a call for `rest`: lse of the first call, (batch, heads, rows)
                        F32 */
    void *dq; /* backward, if there is a first call: dq of the second call, (batch, queries, heads, D) BF16 */
    size_t bytes; /* bytes of all buffers together */
};

void *take_buffer(unsigned char **at, int64_t bytes)
{
    void *taken = *at;
    *at += ((size_t)bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return taken;
}

Buffers carve_workspace(const DsviAttentionArgs *args, DsviAttentionParts p)
{
    unsigned char *begin = (unsigned char *)args->workspace, *at = begin;
    int64_t heads = args->batch * args->heads, row_bytes = args->head_dim * (int64_t)sizeof(__nv_bfloat16);
    int64_t rest = heads * p.parts * ((p.backward ? args->keys : args->queries) - p.first);
    Buffers b = {};
    if (p.backward) {
        b.k = take_buffer(&at, rest * row_bytes);
        b.v = take_buffer(&at, rest * row_bytes);
        b.dk = take_buffer(&at, rest * row_bytes);
        b.dv = take_buffer(&at, rest * row_bytes);
        b.lse = take_buffer(&at, p.parts > 0 ? heads * args->queries * (int64_t)sizeof(float) : 0);
        b.dq = take_buffer(&at, p.parts > 0 && p.first > 0 ? heads * args->queries * row_bytes : 0);
    } else {
        int64_t tail = p.keys < args->keys ? heads * args->queries : 0;
        b.q = take_buffer(&at, rest * row_bytes);
        b.out = take_buffer(&at, rest * row_bytes);
        b.lse = take_buffer(&at, rest * (int64_t)sizeof(float));
        b.tail_out = take_buffer(&at, tail * row_bytes);
        b.tail_lse = take_buffer(&at, tail * (int64_t)sizeof(float));
        b.first_lse = take_buffer(&at, p.parts > 0 ? heads * p.first * (int64_t)sizeof(float) : 0);
    }
    b.bytes = (size_t)(at - begin);
    return b;
}

/* ---- kernels: a thread processes VECTOR elements of a row, or one element of lse ---- */

/* Address of element p.d of the row of sample b, token s and head p.h. */
template <typename Place>
__device__ __forceinline__ __nv_bfloat16 *element(const DsviHeads &rows, int64_t b, int64_t s, Place p)
{
    return (__nv_bfloat16 *)rows.data + b * rows.batch_stride + s * rows.token_stride +
           p.h * rows.head_stride + p.d;
}

/* Query, head and column of the first of the VECTOR elements that a thread of a forward kernel processes. The
 * sample is blockIdx.y. */
struct QueryPlace {
    unsigned s, h, d;
};

/* Returns the place of this thread. Rows are numbered in the order (query, head), and `vectors` consecutive
 * threads process one row. */
__device__ __forceinline__ QueryPlace query_place(unsigned heads, unsigned vectors)
{
    unsigned at = blockIdx.x * (unsigned)THREADS + threadIdx.x, row = at / vectors;
    return {row / heads, row % heads, at % vectors * (unsigned)VECTOR};
}

__device__ __forceinline__ float *lse_of(const DsviAttentionArgs &call, int64_t b, int64_t s, QueryPlace p)
{
    return (float *)call.lse + (b * call.heads + p.h) * call.queries + s;
}

/* Copies the queries from number `first` on to rest.q, once for each of the `parts` parts into which the keys
 * are divided. */
__global__ void __launch_bounds__(THREADS)
    copy_queries(const DsviAttentionArgs args, const DsviAttentionArgs rest, int64_t first, int64_t parts)
{
    QueryPlace p = query_place((unsigned)args.heads, (unsigned)(args.head_dim / VECTOR));
    if (p.s >= rest.queries)
        return;
    uint4 vector = *(const uint4 *)element(args.q, blockIdx.y, first + p.s, p);
    for (int64_t part = 0; part < parts; part++)
        *(uint4 *)element(rest.q, blockIdx.y * parts + part, p.s, p) = vector;
}

/* A running sum over attention results of the same query: x is the sum of exp(lse - largest) * out, `weights`
 * the sum of exp(lse - largest), where `largest` is the largest lse so far. */
struct Sum {
    float largest, weights, x[VECTOR];
};

__device__ __forceinline__ void add(Sum &sum, float lse, const float (&x)[VECTOR])
{
    float largest = fmaxf(sum.largest, lse), old = expf(sum.largest - largest);
    float weight = expf(lse - largest);
    sum.largest = largest;
    sum.weights = sum.weights * old + weight;
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        sum.x[i] = sum.x[i] * old + x[i] * weight;
}

__device__ __forceinline__ void add(Sum &sum, const DsviAttentionArgs &call, int64_t b, int64_t s,
                                    QueryPlace p)
{
    float x[VECTOR];
    load<VECTOR>(element(call.out, b, s, p), x);
    add(sum, *lse_of(call, b, s, p), x);
}

/* Combines out and lse of all calls of a divided forward pass, for queries from `from` on. The first `first`
 * queries have the results of the first call in args.out and args.lse; the others have `parts` results in
 * `rest`. */
__global__ void __launch_bounds__(THREADS)
    join_outputs(const DsviAttentionArgs args, const DsviAttentionArgs rest, const DsviAttentionArgs tail,
                 int64_t first, int64_t parts, int64_t from)
{
    QueryPlace p = query_place((unsigned)args.heads, (unsigned)(args.head_dim / VECTOR));
    int64_t b = blockIdx.y, s = from + p.s;
    if (s >= args.queries)
        return;
    Sum sum = {-INFINITY, 0.f, {}};
    float of_tail[VECTOR] = {}, tail_lse = -INFINITY;
    if (tail.keys > 0) { /* loads the tail's result before the other results, so that the loads overlap */
        load<VECTOR>(element(tail.out, b, s, p), of_tail);
        tail_lse = *lse_of(tail, b, s, p);
    }
    if (s < first)
        add(sum, args, b, s, p);
    else
        for (int64_t part = 0; part < parts; part++)
            add(sum, rest, b * parts + part, s - first, p);
    add(sum, tail_lse, of_tail);
    float scale = 1.f / sum.weights;
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        sum.x[i] *= scale;
    store<VECTOR>(element(args.out, b, s, p), sum.x);
    __syncwarp(); /* the threads of a row are in one warp: all have read lse before one writes it */
    if (p.d == 0)
        *lse_of(args, b, s, p) = sum.largest + logf(sum.weights);
}

/* Shape of the tensors of a backward kernel, whose threads count vectors of VECTOR elements. */
struct Rows {
    int64_t batch, tokens, heads, vectors; /* vectors in a row */
};

struct RowPlace {
    int64_t b, s, h, d;
};

__host__ __device__ int64_t count_of(const Rows &rows)
{
    return rows.batch * rows.tokens * rows.heads * rows.vectors;
}

__device__ __forceinline__ int64_t thread_number()
{
    return (int64_t)blockIdx.x * THREADS + threadIdx.x;
}

__device__ __forceinline__ RowPlace row_place(const Rows &rows, int64_t at)
{
    int64_t row = at / rows.vectors, token = row / rows.heads;
    return {token / rows.tokens, token % rows.tokens, row % rows.heads, at % rows.vectors * VECTOR};
}

__device__ __forceinline__ __nv_bfloat16 *element(const DsviHeads &rows, RowPlace p)
{
    return element(rows, p.b, p.s, p);
}

/* A vector is VECTOR neighbouring elements. Vector number `at` of a tensor (batch, tokens, heads, D) has a
 * copy in part `part` of a tensor (batch, parts, tokens, heads, D). Returns the index of the copy's first
 * element. */
__device__ __forceinline__ int64_t index_in_part(const Rows &rows, int64_t at, int64_t parts, int64_t part)
{
    int64_t sample = rows.tokens * rows.heads * rows.vectors, b = at / sample;
    return ((b * parts + part) * sample + at % sample) * VECTOR;
}

/* Copies keys (blockIdx.y = 0) or values (blockIdx.y = 1), once for each of the `parts` parts into which the
 * queries are divided. */
__global__ void __launch_bounds__(THREADS)
    copy_keys(const Rows rows, int64_t parts, const DsviHeads k, const DsviHeads v, __nv_bfloat16 *k_copies,
              __nv_bfloat16 *v_copies)
{
    int64_t at = thread_number();
    if (at >= count_of(rows))
        return;
    uint4 vector = *(const uint4 *)element(blockIdx.y == 0 ? k : v, row_place(rows, at));
    __nv_bfloat16 *copies = blockIdx.y == 0 ? k_copies : v_copies;
    for (int64_t part = 0; part < parts; part++)
        *(uint4 *)(copies + index_in_part(rows, at, parts, part)) = vector;
}

/* Copies lse (batch, heads, parts x queries) to `cut` (batch, parts, heads, queries). */
__global__ void __launch_bounds__(THREADS)
    cut_lse(int64_t scalars, int64_t heads, int64_t parts, int64_t queries, const float *lse, float *cut)
{
    int64_t at = thread_number();
    if (at >= scalars)
        return;
    int64_t i = at % queries, part = at / queries % parts, head = at / (queries * parts);
    int64_t b = head / heads, h = head % heads;
    cut[((b * parts + part) * heads + h) * queries + i] = lse[at];
}

/* Writes dk (blockIdx.y = 0) or dv (blockIdx.y = 1): the sum of the gradients that cuDNN computed for the
 * different parts of the queries. */
__global__ void __launch_bounds__(THREADS)
    add_parts(const Rows rows, int64_t parts, const __nv_bfloat16 *dk_parts, const __nv_bfloat16 *dv_parts,
              const DsviHeads dk, const DsviHeads dv)
{
    int64_t at = thread_number();
    if (at >= count_of(rows))
        return;
    const __nv_bfloat16 *from = blockIdx.y == 0 ? dk_parts : dv_parts;
    float sum[VECTOR] = {}, x[VECTOR];
    for (int64_t part = 0; part < parts; part++) {
        load<VECTOR>(from + index_in_part(rows, at, parts, part), x);
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            sum[i] += x[i];
    }
    store<VECTOR>(element(blockIdx.y == 0 ? dk : dv, row_place(rows, at)), sum);
}

/* Adds to dq the contiguous tensor `rest`, the dq from the keys that are not in the first call. */
__global__ void __launch_bounds__(THREADS)
    add_queries(const Rows rows, const __nv_bfloat16 *rest, const DsviHeads dq)
{
    int64_t at = thread_number();
    if (at >= count_of(rows))
        return;
    __nv_bfloat16 *sum = element(dq, row_place(rows, at));
    float x[VECTOR], y[VECTOR];
    load<VECTOR>(rest + at * VECTOR, x);
    load<VECTOR>(sum, y);
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        y[i] += x[i];
    store<VECTOR>(sum, y);
}

/* ---- the calls ---- */

/* Returns a view of a tensor in which every `tokens` consecutive tokens are a sample of their own. */
DsviHeads parts_as_samples(const DsviHeads *rows, int64_t tokens)
{
    DsviHeads parts = *rows;
    parts.batch_stride = tokens * rows->token_stride;
    return parts;
}

/* Returns a view of a tensor of keys without the first `first` keys, which the first call processes. */
DsviHeads keys_from(const DsviHeads *rows, int64_t first)
{
    return dsvi_heads_from(rows, first, sizeof(__nv_bfloat16));
}

void shape_rest_forward(DsviAttentionArgs *call, const DsviAttentionArgs *args, DsviAttentionParts p,
                        const Buffers &b)
{
    call->batch = args->batch * p.parts;
    call->queries = args->queries - p.first;
    call->keys = p.keys / p.parts;
    call->q = dsvi_heads(b.q, call->queries, args->heads, args->head_dim);
    call->k = parts_as_samples(&args->k, call->keys);
    call->v = parts_as_samples(&args->v, call->keys);
    call->out = dsvi_heads(b.out, call->queries, args->heads, args->head_dim);
    call->lse = b.lse;
}

void shape_rest_backward(DsviAttentionArgs *call, const DsviAttentionArgs *args, DsviAttentionParts p,
                         const Buffers &b)
{
    int64_t keys = args->keys - p.first, heads = args->heads, dim = args->head_dim;
    call->batch = args->batch * p.parts;
    call->queries = args->queries / p.parts;
    call->keys = keys;
    call->k = dsvi_heads(b.k, keys, heads, dim);
    call->v = dsvi_heads(b.v, keys, heads, dim);
    call->dk = dsvi_heads(b.dk, keys, heads, dim);
    call->dv = dsvi_heads(b.dv, keys, heads, dim);
    call->lse = b.lse;
    call->q = parts_as_samples(&args->q, call->queries);
    call->out = parts_as_samples(&args->out, call->queries);
    call->dout = parts_as_samples(&args->dout, call->queries);
    call->dq = p.first > 0 ? dsvi_heads(b.dq, call->queries, heads, dim)
                           : parts_as_samples(&args->dq, call->queries);
}

void shape_tail(DsviAttentionArgs *call, const DsviAttentionArgs *args, DsviAttentionParts p,
                const Buffers &b)
{
    call->keys = args->keys - p.keys;
    call->k = keys_from(&args->k, p.keys);
    call->v = keys_from(&args->v, p.keys);
    call->out = dsvi_heads(b.tail_out, args->queries, args->heads, args->head_dim);
    call->lse = b.tail_lse;
}

unsigned part_blocks(int64_t threads)
{
    return (unsigned)ceil_div(threads, THREADS);
}

/* Grid of a forward kernel that processes `queries` queries of each sample. */
dim3 query_grid(const DsviAttentionArgs *args, int64_t queries)
{
    return dim3(part_blocks(queries * args->heads * (args->head_dim / VECTOR)), (unsigned)args->batch);
}

Rows backward_rows(const DsviAttentionArgs *args, int64_t tokens)
{
    return {args->batch, tokens, args->heads, args->head_dim / VECTOR};
}

/* Enqueues the copies that the call for `rest` (the rows that are not in the first call) reads: of queries in
 * the forward pass, of keys, values and lse in the backward pass. */
DsvStatus copy_for_rest(DsviStream *stream, const DsviAttentionArgs *args, DsviAttentionParts p,
                        const DsviAttentionArgs &rest, const Buffers &b)
{
    if (!p.backward) {
        DSVI_CUDA_LAUNCH(stream, "attention: copies of queries", copy_queries, query_grid(args, rest.queries),
                         THREADS, 0, *args, rest, p.first, p.parts);
        return DSV_OK;
    }
    Rows rows = backward_rows(args, args->keys - p.first);
    int64_t scalars = args->batch * args->heads * args->queries;
    DSVI_CUDA_LAUNCH(stream, "attention: copies of keys", copy_keys, dim3(part_blocks(count_of(rows)), 2),
                     THREADS, 0, rows, p.parts, keys_from(&args->k, p.first), keys_from(&args->v, p.first),
                     (__nv_bfloat16 *)b.k, (__nv_bfloat16 *)b.v);
    DSVI_CUDA_LAUNCH(stream, "attention: lse of the parts", cut_lse, part_blocks(scalars), THREADS, 0,
                     scalars, args->heads, p.parts, rest.queries, (const float *)args->lse, (float *)b.lse);
    return DSV_OK;
}

DsvStatus combine_forward(DsviStream *stream, const DsviAttentionArgs *args, DsviAttentionParts p,
                          const DsviAttentionArgs &rest, const DsviAttentionArgs &tail)
{
    /* Without a tail call, the results of the first call need no combining. */
    int64_t from = tail.keys > 0 ? 0 : p.first;
    if (from == args->queries)
        return DSV_OK;
    DSVI_CUDA_LAUNCH(stream, "attention: results of the parts", join_outputs,
                     query_grid(args, args->queries - from), THREADS, 0, *args, rest, tail, p.first, p.parts,
                     from);
    return DSV_OK;
}

DsvStatus combine_backward(DsviStream *stream, const DsviAttentionArgs *args, DsviAttentionParts p,
                           const Buffers &b)
{
    Rows rows = backward_rows(args, args->keys - p.first), queries = backward_rows(args, args->queries);
    if (p.parts == 0)
        return DSV_OK;
    DSVI_CUDA_LAUNCH(stream, "attention: dk and dv of the parts", add_parts,
                     dim3(part_blocks(count_of(rows)), 2), THREADS, 0, rows, p.parts,
                     (const __nv_bfloat16 *)b.dk, (const __nv_bfloat16 *)b.dv, keys_from(&args->dk, p.first),
                     keys_from(&args->dv, p.first));
    if (p.first > 0)
        DSVI_CUDA_LAUNCH(stream, "attention: dq of the parts", add_queries, part_blocks(count_of(queries)),
                         THREADS, 0, queries, (const __nv_bfloat16 *)b.dq, args->dq);
    return DSV_OK;
}

/* Enqueues the first call. In a forward pass whose first call has not all queries, cuDNN writes lse
 * contiguously to `first_lse`, from where it is copied: rows of args->lse have args->queries elements. */
DsvStatus attend_first(DsviStream *stream, const DsviAttentionArgs *args, const DsviAttentionArgs &first,
                       dsvi_attention_fn *attend)
{
    size_t bytes = (size_t)first.queries * sizeof(float);
    DSVI_TRY(attend(stream, &first));
    if (first.lse != args->lse)
        DSVI_CUDA_TRY(cudaMemcpy2DAsync(args->lse, (size_t)args->queries * sizeof(float), first.lse, bytes,
                                        bytes, (size_t)(args->batch * args->heads), cudaMemcpyDeviceToDevice,
                                        stream->handle));
    return DSV_OK;
}

} // namespace

DsviAttentionParts dsvi_attention_parts_whole(const DsviAttentionArgs *args, bool backward)
{
    return {backward ? args->keys : args->queries, 0, args->keys, backward};
}

bool dsvi_attention_parts_is_whole(const DsviAttentionArgs *args, DsviAttentionParts parts)
{
    return parts.parts == 0 && parts.keys == args->keys;
}

DsviAttentionParts dsvi_attention_parts_choose(const DsviStream *stream, const DsviAttentionArgs *args,
                                               bool backward)
{
    return backward ? choose_backward(stream, args) : choose_forward(stream, args);
}

/* The backward pass runs the call `first` before it fills the buffers, so that call may use the whole
 * workspace. */
size_t dsvi_attention_parts_offset(const DsviAttentionArgs *args, DsviAttentionParts parts,
                                   DsviAttentionCall which)
{
    return parts.backward && which == DSVI_ATTENTION_FIRST ? 0 : carve_workspace(args, parts).bytes;
}

DsviAttentionArgs dsvi_attention_parts_call(const DsviAttentionArgs *args, DsviAttentionParts parts,
                                            DsviAttentionCall which)
{
    DsviAttentionArgs call = *args;
    const Buffers buffers = carve_workspace(args, parts);
    size_t offset = dsvi_attention_parts_offset(args, parts, which);
    call.workspace = (unsigned char *)args->workspace + offset;
    call.workspace_bytes = args->workspace_bytes > offset ? args->workspace_bytes - offset : 0;
    if (which == DSVI_ATTENTION_FIRST) {
        call.queries = parts.backward ? args->queries : parts.first;
        call.keys = parts.backward ? parts.first : parts.keys;
        call.lse = !parts.backward && parts.parts > 0 ? buffers.first_lse : args->lse;
    } else if (which == DSVI_ATTENTION_TAIL) {
        shape_tail(&call, args, parts, buffers);
    } else if (parts.parts == 0) {
        call.queries = 0;
    } else {
        (parts.backward ? shape_rest_backward : shape_rest_forward)(&call, args, parts, buffers);
    }
    return call;
}

DsvStatus dsvi_attention_parts_run(DsviStream *stream, const DsviAttentionArgs *args,
                                   DsviAttentionParts parts, dsvi_attention_fn *attend)
{
    const DsviAttentionArgs first = dsvi_attention_parts_call(args, parts, DSVI_ATTENTION_FIRST);
    const DsviAttentionArgs rest = dsvi_attention_parts_call(args, parts, DSVI_ATTENTION_REST);
    const DsviAttentionArgs tail = dsvi_attention_parts_call(args, parts, DSVI_ATTENTION_TAIL);
    const Buffers buffers = carve_workspace(args, parts);
    if (args->workspace_bytes < buffers.bytes)
        return DSVI_FAIL(DSV_E_SHAPE, "attention: workspace has %zu bytes, expected %zu",
                         args->workspace_bytes, buffers.bytes);
    if (parts.first > 0)
        DSVI_TRY(attend_first(stream, args, first, attend));
    if (parts.parts > 0) {
        DSVI_TRY(copy_for_rest(stream, args, parts, rest, buffers));
        DSVI_TRY(attend(stream, &rest));
    }
    if (tail.keys > 0)
        DSVI_TRY(attend(stream, &tail));
    return parts.backward ? combine_backward(stream, args, parts, buffers)
                          : combine_forward(stream, args, parts, rest, tail);
}
