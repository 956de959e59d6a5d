/* Dense attention backward, shared out so that it fills the device.
 *
 * In cuDNN's kernel for Hopper a block of threads has a tile of 128 keys of a head and goes through all
 * queries, 64 at a step; blocks take tiles in turn, one to a multiprocessor. So it takes whole waves of
 * tiles, each as long as all queries: the 48 tiles of 512 keys and 12 heads keep 48 of 132 multiprocessors
 * busy (H200: 1.28 ms, where 64 times as many keys take 24 times as long), and with 32,760 keys the last of
 * 24 waves is a quarter full, and all tiles are masked because the last is short.
 *
 * Here the keys that fill whole waves of whole tiles are one call. The others are a second one, for which the
 * queries are cut into parts: they go to cuDNN as samples of a batch, a wave is as long as a part of the
 * queries, and several waves fit the tiles better. A part has its own dk and dv, which are added in F32. */
#include "cuda/attention_parts.h"
#include "cuda/kernel.cuh"

namespace {

using namespace dsvi;

constexpr int HOPPER = 90;
constexpr int THREADS = 256;
constexpr int64_t VECTOR = 8; /* BF16 elements a thread has at a time */
constexpr size_t ALIGNMENT = 256;

/* ---- how to share it out ---- */

constexpr int64_t KEY_TILE = 128, QUERY_STEP = 64;
constexpr int64_t DIM_MOST = 128;    /* for larger heads the kernel is another */
constexpr int64_t PARTS_MOST = 16;
constexpr int64_t QUERIES_LEAST = 1024, KEYS_LEAST = 256; /* of a call worth cuDNN's while */
/* Times are counted in steps of a block, 2.5 us on H200, in which all of them move some ten million bytes. */
constexpr double STEP_BYTES = 10e6;
constexpr int64_t TILE_STEPS = 3;    /* until a tile's first step, and after its last */
constexpr double CALL_STEPS = 10;    /* of a second call's launches */
constexpr double MASKED = 1.02;      /* times as long where a tile is short */
constexpr double WORTHWHILE = 0.985; /* of the time of the pass as a whole */

double steps_of(const DsvStream *stream, const DsvAttentionArgs *args, int64_t keys, int64_t parts)
{
    int64_t tiles = args->batch * parts * args->heads * ceil_div(keys, KEY_TILE);
    int64_t of_tile = ceil_div(args->queries / parts, QUERY_STEP) + TILE_STEPS;
    double steps = (double)(ceil_div(tiles, stream->multiprocessors) * of_tile);
    return keys % KEY_TILE == 0 ? steps : steps * MASKED;
}

/* Copies of keys and values, their gradients twice: out of the kernel and into the sum. And of a second call
 * delta, the F32 sum of dq from its zeros on, and the addition of dq. */
double bytes_moved(const DsvAttentionArgs *args, DsvAttentionParts p)
{
    double rows = (double)(args->batch * args->heads * args->head_dim);
    double of_keys = rows * (double)(args->keys - p.first) * (double)(12 * p.parts + 8);
    return p.first == 0 ? of_keys : of_keys + rows * (double)args->queries * 20;
}

double steps_in_parts(const DsvStream *stream, const DsvAttentionArgs *args, DsvAttentionParts p)
{
    double first = p.first > 0 ? steps_of(stream, args, p.first, 1) : 0;
    return first + steps_of(stream, args, args->keys - p.first, p.parts) + CALL_STEPS +
           bytes_moved(args, p) / STEP_BYTES;
}

/* The parts of a sample's queries have to be samples as far apart as samples are. */
bool cuts(const DsvHeads *rows, const DsvAttentionArgs *args)
{
    return args->batch == 1 || rows->batch_stride == args->queries * rows->token_stride;
}

bool may_be_cut(const DsvStream *stream, const DsvAttentionArgs *args)
{
    return stream->capability == HOPPER && !stream->deterministic && args->head_dim <= DIM_MOST &&
           args->keys >= KEYS_LEAST && cuts(&args->q, args) && cuts(&args->out, args) &&
           cuts(&args->dout, args) && cuts(&args->dq, args);
}

/* Parts begin where cuDNN reads vectors of lse. */
bool fits(const DsvAttentionArgs *args, int64_t parts)
{
    return args->queries % (parts * VECTOR) == 0 && args->queries / parts >= QUERIES_LEAST;
}

/* As many keys as fill whole waves and leave enough for another call. */
int64_t keys_of_whole_waves(const DsvStream *stream, const DsvAttentionArgs *args)
{
    int64_t heads = args->batch * args->heads, at_once = stream->multiprocessors;
    int64_t waves = heads * (args->keys / KEY_TILE) / at_once, tiles = waves * at_once / heads;
    int64_t most = (args->keys - KEYS_LEAST) / KEY_TILE;
    return (tiles < most ? tiles : most) * KEY_TILE;
}

/* ---- the pieces of the workspace ---- */

/* Tensors of keys, (batch x parts, keys, heads, dim) BF16, then lse (batch x parts, heads, queries) F32, then
 * what of dq comes from the keys behind the first, if there are first ones: (batch, queries, heads, dim). */
enum { K_COPIES, V_COPIES, DK_PARTS, DV_PARTS, LSE_PARTS, DQ_REST, PIECES };

size_t bytes_of_piece(const DsvAttentionArgs *args, DsvAttentionParts p, int piece)
{
    int64_t of_row = args->batch * args->heads, bytes;
    if (piece == LSE_PARTS)
        bytes = of_row * args->queries * (int64_t)sizeof(float);
    else if (piece == DQ_REST)
        bytes = p.first > 0 ? of_row * args->queries * args->head_dim * 2 : 0;
    else
        bytes = of_row * p.parts * (args->keys - p.first) * args->head_dim * 2;
    return ((size_t)bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

void *piece_of(const DsvAttentionArgs *args, DsvAttentionParts p, int piece)
{
    unsigned char *at = (unsigned char *)args->workspace;
    for (int i = 0; i < piece; i++)
        at += bytes_of_piece(args, p, i);
    return at;
}

/* ---- kernels: a thread for VECTOR elements of a row of keys or queries, or for one of lse ---- */

struct Rows {
    int64_t batch, tokens, heads, vectors; /* of VECTOR elements, in a row */
};

struct Place {
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

__device__ __forceinline__ Place place_of(const Rows &rows, int64_t at)
{
    int64_t row = at / rows.vectors, token = row / rows.heads;
    return {token / rows.tokens, token % rows.tokens, row % rows.heads, at % rows.vectors * VECTOR};
}

__device__ __forceinline__ __nv_bfloat16 *element(const DsvHeads &rows, Place p)
{
    return (__nv_bfloat16 *)rows.data + p.b * rows.batch_stride + p.s * rows.token_stride +
           p.h * rows.head_stride + p.d;
}

/* The first element, in part `part` of (batch, parts, tokens, heads, dim), of what is vector `at` of (batch,
 * tokens, heads, dim). */
__device__ __forceinline__ int64_t in_part(const Rows &rows, int64_t at, int64_t parts, int64_t part)
{
    int64_t sample = rows.tokens * rows.heads * rows.vectors, b = at / sample;
    return ((b * parts + part) * sample + at % sample) * VECTOR;
}

/* blockIdx.y 0: keys, 1: values. */
__global__ void __launch_bounds__(THREADS)
copy_keys(const Rows rows, int64_t parts, const DsvHeads k, const DsvHeads v, __nv_bfloat16 *k_copies,
          __nv_bfloat16 *v_copies)
{
    int64_t at = thread_number();
    if (at >= count_of(rows))
        return;
    uint4 vector = *(const uint4 *)element(blockIdx.y == 0 ? k : v, place_of(rows, at));
    __nv_bfloat16 *copies = blockIdx.y == 0 ? k_copies : v_copies;
    for (int64_t part = 0; part < parts; part++)
        *(uint4 *)(copies + in_part(rows, at, parts, part)) = vector;
}

/* From (batch, heads, parts x queries) to (batch, parts, heads, queries). */
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

/* blockIdx.y 0: dk, 1: dv. */
__global__ void __launch_bounds__(THREADS)
add_parts(const Rows rows, int64_t parts, const __nv_bfloat16 *dk_parts, const __nv_bfloat16 *dv_parts,
          const DsvHeads dk, const DsvHeads dv)
{
    int64_t at = thread_number();
    if (at >= count_of(rows))
        return;
    const __nv_bfloat16 *from = blockIdx.y == 0 ? dk_parts : dv_parts;
    float sum[VECTOR] = {}, x[VECTOR];
    for (int64_t part = 0; part < parts; part++) {
        load<VECTOR>(from + in_part(rows, at, parts, part), x);
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            sum[i] += x[i];
    }
    store<VECTOR>(element(blockIdx.y == 0 ? dk : dv, place_of(rows, at)), sum);
}

__global__ void __launch_bounds__(THREADS)
add_queries(const Rows rows, const __nv_bfloat16 *rest, const DsvHeads dq)
{
    int64_t at = thread_number();
    if (at >= count_of(rows))
        return;
    __nv_bfloat16 *sum = element(dq, place_of(rows, at));
    float x[VECTOR], y[VECTOR];
    load<VECTOR>(rest + at * VECTOR, x);
    load<VECTOR>(sum, y);
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        y[i] += x[i];
    store<VECTOR>(sum, y);
}

unsigned blocks_for(int64_t threads)
{
    return (unsigned)ceil_div(threads, THREADS);
}

Rows rows_of(const DsvAttentionArgs *args, int64_t tokens)
{
    return {args->batch, tokens, args->heads, args->head_dim / VECTOR};
}

/* ---- the two calls ---- */

/* As rows of samples that are parts of the queries. */
DsvHeads cut(const DsvHeads *rows, const DsvAttentionArgs *args, int64_t parts)
{
    DsvHeads in_parts = *rows;
    in_parts.batch_stride = args->queries / parts * rows->token_stride;
    return in_parts;
}

/* From the keys of the second call on. */
DsvHeads behind(const DsvHeads *rows, DsvAttentionParts p)
{
    return dsvi_heads_from(rows, p.first, sizeof(__nv_bfloat16));
}

/* What the second call reads, where it expects it. */
DsvStatus prepare_rest(DsvStream *stream, const DsvAttentionArgs *args, DsvAttentionParts p)
{
    Rows rows = rows_of(args, args->keys - p.first);
    int64_t scalars = args->batch * args->heads * args->queries;
    copy_keys<<<dim3(blocks_for(count_of(rows)), 2), THREADS, 0, stream->handle>>>(
        rows, p.parts, behind(&args->k, p), behind(&args->v, p),
        (__nv_bfloat16 *)piece_of(args, p, K_COPIES), (__nv_bfloat16 *)piece_of(args, p, V_COPIES));
    cut_lse<<<blocks_for(scalars), THREADS, 0, stream->handle>>>(
        scalars, args->heads, p.parts, args->queries / p.parts, (const float *)args->lse,
        (float *)piece_of(args, p, LSE_PARTS));
    DSVI_CUDA_LAUNCHED("attention");
    return DSV_OK;
}

DsvStatus add_results(DsvStream *stream, const DsvAttentionArgs *args, DsvAttentionParts p)
{
    Rows rows = rows_of(args, args->keys - p.first), queries = rows_of(args, args->queries);
    add_parts<<<dim3(blocks_for(count_of(rows)), 2), THREADS, 0, stream->handle>>>(
        rows, p.parts, (const __nv_bfloat16 *)piece_of(args, p, DK_PARTS),
        (const __nv_bfloat16 *)piece_of(args, p, DV_PARTS), behind(&args->dk, p),
        behind(&args->dv, p));
    if (p.first > 0)
        add_queries<<<blocks_for(count_of(queries)), THREADS, 0, stream->handle>>>(
            queries, (const __nv_bfloat16 *)piece_of(args, p, DQ_REST), args->dq);
    DSVI_CUDA_LAUNCHED("attention");
    return DSV_OK;
}

} // namespace

DsvAttentionParts dsvi_attention_parts_of(const DsvStream *stream, const DsvAttentionArgs *args)
{
    DsvAttentionParts best = {0, 0};
    if (!may_be_cut(stream, args))
        return best;
    const int64_t first[2] = {0, keys_of_whole_waves(stream, args)};
    double least = steps_of(stream, args, args->keys, 1) * WORTHWHILE;
    for (int i = 0; i < 2; i++) {
        for (int64_t parts = 1; parts <= PARTS_MOST; parts++) {
            DsvAttentionParts tried = {first[i], parts};
            double steps = steps_in_parts(stream, args, tried);
            if (!fits(args, parts) || steps >= least)
                continue;
            least = steps;
            best = tried;
        }
    }
    return best;
}

DsvAttentionArgs dsvi_attention_parts_first(const DsvAttentionArgs *args, DsvAttentionParts parts)
{
    DsvAttentionArgs call = *args;
    call.keys = parts.first;
    return call;
}

DsvAttentionArgs dsvi_attention_parts_rest(const DsvAttentionArgs *args, DsvAttentionParts parts)
{
    DsvAttentionArgs call = *args;
    int64_t keys = args->keys - parts.first, heads = args->heads, dim = args->head_dim;
    size_t bytes = dsvi_attention_parts_bytes(args, parts);
    call.batch = args->batch * parts.parts;
    call.queries = args->queries / parts.parts;
    call.keys = keys;
    call.k = dsvi_heads(piece_of(args, parts, K_COPIES), keys, heads, dim);
    call.v = dsvi_heads(piece_of(args, parts, V_COPIES), keys, heads, dim);
    call.dk = dsvi_heads(piece_of(args, parts, DK_PARTS), keys, heads, dim);
    call.dv = dsvi_heads(piece_of(args, parts, DV_PARTS), keys, heads, dim);
    call.lse = piece_of(args, parts, LSE_PARTS);
    call.q = cut(&args->q, args, parts.parts);
    call.out = cut(&args->out, args, parts.parts);
    call.dout = cut(&args->dout, args, parts.parts);
    call.dq = parts.first > 0 ? dsvi_heads(piece_of(args, parts, DQ_REST), call.queries, heads, dim)
                              : cut(&args->dq, args, parts.parts);
    call.workspace = (unsigned char *)args->workspace + bytes;
    call.workspace_bytes = args->workspace_bytes > bytes ? args->workspace_bytes - bytes : 0;
    return call;
}

size_t dsvi_attention_parts_bytes(const DsvAttentionArgs *args, DsvAttentionParts parts)
{
    size_t bytes = 0;
    for (int i = 0; i < PIECES; i++)
        bytes += bytes_of_piece(args, parts, i);
    return bytes;
}

DsvStatus dsvi_attention_parts_bwd(DsvStream *stream, const DsvAttentionArgs *args, DsvAttentionParts parts,
                                   dsvi_attention_fn *attend)
{
    DsvAttentionArgs first = dsvi_attention_parts_first(args, parts);
    DsvAttentionArgs rest = dsvi_attention_parts_rest(args, parts);
    if (args->workspace_bytes < dsvi_attention_parts_bytes(args, parts))
        return DSVI_FAIL(DSV_E_SHAPE, "attention: workspace has %zu bytes, wanted %zu", args->workspace_bytes,
                         dsvi_attention_parts_bytes(args, parts));
    if (parts.first > 0) /* before the workspace holds anything of the rest */
        DSVI_TRY(attend(stream, &first));
    DSVI_TRY(prepare_rest(stream, args, parts));
    DSVI_TRY(attend(stream, &rest));
    return add_results(stream, args, parts);
}
