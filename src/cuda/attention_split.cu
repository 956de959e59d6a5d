/* Dense attention forward, shared out so that it fills the device.
 *
 * cuDNN masks every tile of 128 keys where the last one is not full, which costs a tenth of the time. And in
 * its kernel for Hopper a block of threads has a tile of 128 queries of a head and goes through all keys;
 * blocks take tiles in turn, one to a multiprocessor. So it takes whole waves of tiles, each as long as all
 * keys: with 32,760 queries and 12 heads the last of 24 waves is a quarter full (H200, 32,640 keys: 10.7 ms,
 * where the 32,384 queries that fill 23 waves take 9.7).
 *
 *            keys          tail
 *          +-----------------+--+
 *          |      first      |  |    The queries behind the first attend the same keys in parts, which go to
 *          |                 |  |    cuDNN as samples of a batch: a wave is as long as a part, and several
 *          |-----+-----+-----|  |    waves fit the tiles better. All queries attend the keys behind the last
 *          | behind: parts   |  |    whole tile in a call of their own, which costs next to nothing.
 *          +-----------------+--+
 *
 * One pass joins what a query has from several calls, m the largest of its lse:
 *
 *     lse = m + log sum_c exp(lse_c - m)      out = sum_c exp(lse_c - lse) out_c
 *
 * The backward pass goes by the joint lse and out; how that is shared out is told in attention_parts.cu. */
#include "cuda/attention_split.h"
#include "cuda/kernel.cuh"

namespace {

using namespace dsvi;

constexpr int HOPPER = 90;
constexpr int THREADS = 256;
constexpr int64_t VECTOR = 8; /* BF16 elements a thread has at a time */
constexpr size_t ALIGNMENT = 256;

/* ---- how to share it out ---- */

constexpr int64_t TILE = 128;     /* of queries and of keys */
constexpr int64_t DIM_MOST = 128; /* for larger heads the kernel is another */
constexpr int64_t PARTS_MOST = 32;
constexpr int64_t LEAST = 256; /* queries, and keys, of a call worth cuDNN's while */
constexpr int64_t VECTORS_MOST = 1LL << 31, SAMPLES_MOST = 65535; /* of a grid, and as threads count them */
/* Times are counted in steps of a block, a tile of queries by one of keys: with heads of 128 elements 1.65 us
 * on H200, in which all of them move some seven million bytes. */
constexpr double STEP_DIM = 128, STEP_BYTES = 7e6;
constexpr int64_t TILE_STEPS = 1;   /* until a tile's first step, and after its last */
constexpr double CALL_STEPS = 8;    /* of another call's launches */
constexpr double MASKED = 1.1;      /* times as long where a tile of keys is short */
constexpr double WORTHWHILE = 0.99; /* of the time of what is simpler */

double steps_of(const DsvStream *stream, int64_t heads, int64_t queries, int64_t keys)
{
    int64_t tiles = heads * ceil_div(queries, TILE);
    double steps = (double)(ceil_div(tiles, stream->multiprocessors) * (ceil_div(keys, TILE) + TILE_STEPS));
    return keys % TILE == 0 ? steps : steps * MASKED;
}

/* Of queries behind the first, for each part a copy and a result, written and read, and the joint result; of
 * the tail the queries, its result, and what is joined with it. */
double bytes_moved(const DsvAttentionArgs *args, DsvAttentionSplit s)
{
    double rows = (double)(args->batch * args->heads * args->head_dim);
    double behind = (double)((args->queries - s.queries) * (8 * s.parts + 2));
    return rows * (behind + (s.keys < args->keys ? (double)args->queries * 10 : 0));
}

/* The tail is short enough for dsv's kernels, to which its tile is a step too. */
double steps_in_pieces(const DsvStream *stream, const DsvAttentionArgs *args, DsvAttentionSplit s)
{
    int64_t heads = args->batch * args->heads, behind = args->queries - s.queries, calls = 0;
    double steps = s.queries > 0 ? steps_of(stream, heads, s.queries, s.keys) : 0;
    if (s.parts > 0) {
        steps += steps_of(stream, heads * s.parts, behind, s.keys / s.parts);
        calls++;
    }
    if (s.keys < args->keys) {
        steps += steps_of(stream, heads, args->queries, TILE);
        calls++;
    }
    double others = (double)calls * CALL_STEPS + bytes_moved(args, s) / STEP_BYTES;
    return steps + others * STEP_DIM / (double)args->head_dim;
}

/* Neighbouring threads join a row, so that those of a warp have whole rows. */
bool may_be_split(const DsvAttentionArgs *args)
{
    int64_t vectors = args->head_dim / VECTOR;
    return vectors > 0 && args->head_dim % VECTOR == 0 && WARP % vectors == 0 && args->keys >= LEAST &&
           args->batch <= SAMPLES_MOST && args->queries * args->heads * vectors < VECTORS_MOST;
}

/* Parts of a sample's keys have to be samples as far apart as samples are. */
bool cuts(const DsvHeads *rows, const DsvAttentionArgs *args, DsvAttentionSplit s)
{
    return args->batch == 1 || rows->batch_stride == s.keys * rows->token_stride;
}

bool fits(const DsvStream *stream, const DsvAttentionArgs *args, DsvAttentionSplit s)
{
    return stream->capability == HOPPER && args->head_dim <= DIM_MOST && s.keys % s.parts == 0 &&
           s.keys / s.parts >= LEAST && args->batch * s.parts <= SAMPLES_MOST && cuts(&args->k, args, s) &&
           cuts(&args->v, args, s);
}

/* As many queries as fill whole waves and leave enough for another call. */
int64_t queries_of_whole_waves(const DsvStream *stream, const DsvAttentionArgs *args)
{
    int64_t heads = args->batch * args->heads, at_once = stream->multiprocessors;
    int64_t waves = heads * (args->queries / TILE) / at_once, tiles = waves * at_once / heads;
    int64_t most = (args->queries - LEAST) / TILE, queries = (tiles < most ? tiles : most) * TILE;
    return queries < LEAST ? 0 : queries;
}

/* Queries behind whole waves apart, `keys` in as many parts as take least; parts 0: none fits. */
DsvAttentionSplit cut_queries(const DsvStream *stream, const DsvAttentionArgs *args, int64_t keys)
{
    DsvAttentionSplit best = {queries_of_whole_waves(stream, args), keys, 0}, tried = best;
    for (tried.parts = 2; tried.parts <= PARTS_MOST; tried.parts++)
        if (fits(stream, args, tried) &&
            (best.parts == 0 || steps_in_pieces(stream, args, tried) < steps_in_pieces(stream, args, best)))
            best = tried;
    return best;
}

/* ---- the workspace ---- */

/* Queries behind the first and what they get, (batch x parts, queries, heads, dim) BF16 and (batch x parts,
 * heads, queries) F32; what all queries get of the tail, likewise; lse of the first queries. */
enum { Q_COPIES, BEHIND_OUT, BEHIND_LSE, TAIL_OUT, TAIL_LSE, FIRST_LSE, STRETCHES };

size_t bytes_of(const DsvAttentionArgs *args, DsvAttentionSplit s, int stretch)
{
    int64_t rows = args->batch * args->heads, row_bytes = args->head_dim * 2;
    if (stretch == BEHIND_LSE || stretch == TAIL_LSE || stretch == FIRST_LSE)
        row_bytes = (int64_t)sizeof(float);
    if (stretch == TAIL_OUT || stretch == TAIL_LSE)
        rows *= s.keys < args->keys ? args->queries : 0;
    else if (stretch == FIRST_LSE)
        rows *= s.parts > 0 ? s.queries : 0;
    else
        rows *= s.parts * (args->queries - s.queries);
    return ((size_t)(rows * row_bytes) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

void *begin_of(const DsvAttentionArgs *args, DsvAttentionSplit s, int stretch)
{
    unsigned char *at = (unsigned char *)args->workspace;
    for (int i = 0; i < stretch; i++)
        at += bytes_of(args, s, i);
    return at;
}

/* ---- kernels: a thread for VECTOR elements of a row of queries, blockIdx.y: the sample ---- */

struct Place {
    unsigned s, h, d;
};

/* Rows in the order (s, h), `vectors` neighbouring threads each. */
__device__ __forceinline__ Place place_of(unsigned heads, unsigned vectors)
{
    unsigned at = blockIdx.x * (unsigned)THREADS + threadIdx.x, row = at / vectors;
    return {row / heads, row % heads, at % vectors * (unsigned)VECTOR};
}

__device__ __forceinline__ __nv_bfloat16 *element(const DsvHeads &rows, int64_t b, int64_t s, Place p)
{
    return (__nv_bfloat16 *)rows.data + b * rows.batch_stride + s * rows.token_stride +
           p.h * rows.head_stride + p.d;
}

__device__ __forceinline__ float *lse_of(const DsvAttentionArgs &call, int64_t b, int64_t s, Place p)
{
    return (float *)call.lse + (b * call.heads + p.h) * call.queries + s;
}

__global__ void __launch_bounds__(THREADS)
copy_queries(const DsvAttentionArgs args, const DsvAttentionArgs behind, int64_t first, int64_t parts)
{
    Place p = place_of((unsigned)args.heads, (unsigned)(args.head_dim / VECTOR));
    if (p.s >= behind.queries)
        return;
    uint4 vector = *(const uint4 *)element(args.q, blockIdx.y, first + p.s, p);
    for (int64_t part = 0; part < parts; part++)
        *(uint4 *)element(behind.q, blockIdx.y * parts + part, p.s, p) = vector;
}

/* Of results: weights are relative to that of the largest lse. */
struct Sum {
    float most, weights, x[VECTOR];
};

__device__ __forceinline__ void add(Sum &sum, float lse, const float (&x)[VECTOR])
{
    float most = fmaxf(sum.most, lse), old = expf(sum.most - most), weight = expf(lse - most);
    sum.most = most;
    sum.weights = sum.weights * old + weight;
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        sum.x[i] = sum.x[i] * old + x[i] * weight;
}

__device__ __forceinline__ void add(Sum &sum, const DsvAttentionArgs &call, int64_t b, int64_t s, Place p)
{
    float x[VECTOR];
    load<VECTOR>(element(call.out, b, s, p), x);
    add(sum, *lse_of(call, b, s, p), x);
}

/* For queries from `from` on. Results of the first lie where the joint ones go. */
__global__ void __launch_bounds__(THREADS)
join(const DsvAttentionArgs args, const DsvAttentionArgs behind, const DsvAttentionArgs tail,
     DsvAttentionSplit split, int64_t from)
{
    Place p = place_of((unsigned)args.heads, (unsigned)(args.head_dim / VECTOR));
    int64_t b = blockIdx.y, s = from + p.s;
    if (s >= args.queries)
        return;
    Sum sum = {-INFINITY, 0.f, {}};
    float of_tail[VECTOR] = {}, tail_lse = -INFINITY;
    if (tail.keys > 0) { /* loaded first, to be under way with what comes next */
        load<VECTOR>(element(tail.out, b, s, p), of_tail);
        tail_lse = *lse_of(tail, b, s, p);
    }
    if (s < split.queries)
        add(sum, args, b, s, p);
    else
        for (int64_t part = 0; part < split.parts; part++)
            add(sum, behind, b * split.parts + part, s - split.queries, p);
    add(sum, tail_lse, of_tail);
    float scale = 1.f / sum.weights;
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        sum.x[i] *= scale;
    store<VECTOR>(element(args.out, b, s, p), sum.x);
    __syncwarp(); /* a row's threads lie in one warp, and all have read lse */
    if (p.d == 0)
        *lse_of(args, b, s, p) = sum.most + logf(sum.weights);
}

dim3 grid_of(const DsvAttentionArgs *args, int64_t queries)
{
    int64_t threads = queries * args->heads * (args->head_dim / VECTOR);
    return dim3((unsigned)ceil_div(threads, THREADS), (unsigned)args->batch);
}

/* ---- the calls ---- */

DsvHeads in_parts(const DsvHeads *rows, DsvAttentionSplit s)
{
    DsvHeads cut = *rows;
    cut.batch_stride = s.keys / s.parts * rows->token_stride;
    return cut;
}

void make_first(DsvAttentionArgs *call, const DsvAttentionArgs *args, DsvAttentionSplit s)
{
    call->queries = s.queries;
    call->keys = s.keys;
    if (s.parts > 0)
        call->lse = begin_of(args, s, FIRST_LSE);
}

void make_behind(DsvAttentionArgs *call, const DsvAttentionArgs *args, DsvAttentionSplit s)
{
    call->queries = args->queries - s.queries;
    if (s.parts == 0)
        return;
    call->batch = args->batch * s.parts;
    call->keys = s.keys / s.parts;
    call->q = dsvi_heads(begin_of(args, s, Q_COPIES), call->queries, args->heads, args->head_dim);
    call->k = in_parts(&args->k, s);
    call->v = in_parts(&args->v, s);
    call->out = dsvi_heads(begin_of(args, s, BEHIND_OUT), call->queries, args->heads, args->head_dim);
    call->lse = begin_of(args, s, BEHIND_LSE);
}

void make_tail(DsvAttentionArgs *call, const DsvAttentionArgs *args, DsvAttentionSplit s)
{
    call->keys = args->keys - s.keys;
    call->k = dsvi_heads_from(&args->k, s.keys, sizeof(__nv_bfloat16));
    call->v = dsvi_heads_from(&args->v, s.keys, sizeof(__nv_bfloat16));
    call->out = dsvi_heads(begin_of(args, s, TAIL_OUT), args->queries, args->heads, args->head_dim);
    call->lse = begin_of(args, s, TAIL_LSE);
}

/* Of fewer queries than all, cuDNN leaves lse without the gaps between heads that it has in the result. */
DsvStatus attend_first(DsvStream *stream, const DsvAttentionArgs *args, const DsvAttentionArgs *first,
                       dsvi_attention_fn *attend)
{
    size_t bytes = (size_t)first->queries * sizeof(float);
    DSVI_TRY(attend(stream, first));
    if (first->lse != args->lse && first->queries > 0)
        DSVI_CUDA_TRY(cudaMemcpy2DAsync(args->lse, (size_t)args->queries * sizeof(float), first->lse, bytes,
                                        bytes, (size_t)(args->batch * args->heads), cudaMemcpyDeviceToDevice,
                                        stream->handle));
    return DSV_OK;
}

DsvStatus attend_behind(DsvStream *stream, const DsvAttentionArgs *args, const DsvAttentionArgs *behind,
                        DsvAttentionSplit s, dsvi_attention_fn *attend)
{
    copy_queries<<<grid_of(args, behind->queries), THREADS, 0, stream->handle>>>(*args, *behind, s.queries,
                                                                                s.parts);
    DSVI_CUDA_LAUNCHED("attention");
    return attend(stream, behind);
}

} // namespace

DsvAttentionSplit dsvi_attention_split_of(const DsvStream *stream, const DsvAttentionArgs *args)
{
    DsvAttentionSplit best = {args->queries, args->keys, 0};
    if (!may_be_split(args))
        return best;
    int64_t tiles = args->keys / TILE * TILE;
    const DsvAttentionSplit tried[] = {
        {args->queries, tiles, 0}, cut_queries(stream, args, args->keys), cut_queries(stream, args, tiles)};
    double least = steps_of(stream, args->batch * args->heads, args->queries, args->keys);
    for (const DsvAttentionSplit &split : tried) {
        double steps = steps_in_pieces(stream, args, split);
        bool complete = split.parts > 0 || split.queries == args->queries;
        if (!complete || steps >= least * WORTHWHILE)
            continue;
        least = steps;
        best = split;
    }
    return best;
}

DsvAttentionArgs dsvi_attention_split_piece(const DsvAttentionArgs *args, DsvAttentionSplit split,
                                            DsvAttentionPiece piece)
{
    DsvAttentionArgs call = *args;
    size_t bytes = dsvi_attention_split_bytes(args, split);
    call.workspace = (unsigned char *)args->workspace + bytes;
    call.workspace_bytes = args->workspace_bytes > bytes ? args->workspace_bytes - bytes : 0;
    if (piece == DSVI_ATTENTION_FIRST)
        make_first(&call, args, split);
    else if (piece == DSVI_ATTENTION_BEHIND)
        make_behind(&call, args, split);
    else
        make_tail(&call, args, split);
    return call;
}

size_t dsvi_attention_split_bytes(const DsvAttentionArgs *args, DsvAttentionSplit split)
{
    size_t bytes = 0;
    for (int i = 0; i < STRETCHES; i++)
        bytes += bytes_of(args, split, i);
    return bytes;
}

DsvStatus dsvi_attention_split_fwd(DsvStream *stream, const DsvAttentionArgs *args, DsvAttentionSplit split,
                                   dsvi_attention_fn *attend)
{
    const DsvAttentionArgs first = dsvi_attention_split_piece(args, split, DSVI_ATTENTION_FIRST);
    const DsvAttentionArgs behind = dsvi_attention_split_piece(args, split, DSVI_ATTENTION_BEHIND);
    const DsvAttentionArgs tail = dsvi_attention_split_piece(args, split, DSVI_ATTENTION_TAIL);
    if (args->workspace_bytes < dsvi_attention_split_bytes(args, split))
        return DSVI_FAIL(DSV_E_SHAPE, "attention: workspace has %zu bytes, wanted %zu", args->workspace_bytes,
                         dsvi_attention_split_bytes(args, split));
    DSVI_TRY(attend_first(stream, args, &first, attend));
    if (split.parts > 0)
        DSVI_TRY(attend_behind(stream, args, &behind, split, attend));
    if (tail.keys > 0)
        DSVI_TRY(attend(stream, &tail));
    int64_t from = tail.keys > 0 ? 0 : split.queries, joined = args->queries - from;
    if (joined == 0)
        return DSV_OK;
    join<<<grid_of(args, joined), THREADS, 0, stream->handle>>>(*args, behind, tail, split, from);
    DSVI_CUDA_LAUNCHED("attention");
    return DSV_OK;
}
