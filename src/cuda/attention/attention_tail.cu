/* The operations attention_tail_fwd and attention_tail_bwd (ops/attention_tail.h): choose the kernels,
 * prepare the problem that the kernels of attention solve for a tail (attention_tail.cuh), in the workspace,
 * and join its results to those of attention over lists.
 *
 *     workspace    Q_c (pairs, chunks, pitch) act, unless chunks have one query; K_r and V_r (pairs, runs,
 *                  pitch) act, unless runs have one key; bits, biases or counts (AttentionTail)
 *     forward      p_c (pairs, chunks, pitch) F32; for a query tail on Hopper also p_c and log T_c over parts
 *                  of the keys
 *     backward     G_c (pairs, chunks, pitch) act, D_c (pairs, chunks) F32, dQ_c (pairs, chunks, pitch) F32;
 *                  then the sums of dK_r and dV_r, or the workspace of the kernel for Hopper
 *     the same, key tail on Hopper
 *                  slices of the sums of dK_r and dV_r, then the workspace of the kernel. The buffers of the
 *                  portable kernels begin at the same place, for tensors that TMA refuses; the strides that
 *                  decide this are not known where the workspace is planned.
 *
 * with pitch = D rounded up to 8. Each buffer begins at a multiple of ALIGNED bytes.
 *
 * Bytes that a query tail moves at 32,768 tokens, 16 heads of 128, chunks of 64, and lists of 5 % in groups
 * of 64: forward reads q and reads and writes out, 134 MB each, reads lists of 54 MB, and writes and reads
 * bits of 34 MB; backward reads q, dout and out, and reads and writes dq, dk and dv. At 4 TB/s that is 0.12
 * and 0.32 ms beside products of 0.14 and 0.34 TFLOP. A key tail with runs of 64 has as many products. Its
 * forward pass moves as many bytes. Backward clears, adds to and reads sums of dq of 268 MB, to which each of
 * 4 blocks of mean keys adds once. */
#include <stdio.h>

#include "cuda/attention/attention_tail_parts.cuh"
#include "cuda/common/cuda.h"

namespace dsvi {
namespace {

constexpr int64_t ALIGNED = 128, PITCH_UNIT = 8;
/* Forward of a query tail on Hopper: largest number of parts into which the keys are divided. Keys are
 * divided only while there are at most JOBS_EACH jobs for each multiprocessor. A job costs as much as
 * JOB_STEPS steps of TAIL_KEYS keys beside its own steps. */
constexpr int64_t PARTS_MAX = 64, JOBS_EACH = 4, JOB_STEPS = 3;

/* Backward of a key tail on Hopper: largest number of slices into which the tiles of queries are divided.
 * They are divided only while there are at most SLICE_JOBS_EACH jobs, a slice with a block of keys each, for
 * each multiprocessor. A job costs as much as SLICE_STEPS tiles beside its own. */
constexpr int64_t SLICES_MAX = 64, SLICE_JOBS_EACH = 16, SLICE_STEPS = 4;

/* What a tail keeps in its workspace. */
struct TailBuffers {
    DsviHeads q, k, v; /* means, or the tensors of the arguments */
    DsviHeads p, g, dq;
    void *weights;
    float *delta, *parts, *parts_lse;
    void *sums, *slices; /* slices: sums of a key tail on Hopper */
    void *hopper;        /* workspace of the backward kernel for Hopper */
    size_t bytes;        /* of the workspace */
};

int64_t larger_of(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

TailShape shape_of(const DsviAttentionTailArgs *args)
{
    TailShape tail = {};
    tail.a = args->attention;
    tail.tail_lse = static_cast<float *>(args->tail_lse);
    tail.pairs = args->attention.batch * args->attention.heads;
    tail.chunk = args->chunk;
    tail.chunks = dsvi_tail_chunks(args->attention.queries, args->chunk);
    tail.run = args->run;
    tail.runs = ceil_div(args->attention.keys, args->run);
    tail.pitch = round_up(args->attention.head_dim, PITCH_UNIT);
    return tail;
}

/* Returns the next buffer of the workspace, of `count` elements of `size` bytes. */
void *take_buffer(TailBuffers *buffers, char *workspace, int64_t count, size_t size)
{
    void *taken = workspace ? workspace + buffers->bytes : nullptr;
    buffers->bytes += (size_t)ceil_div(count * (int64_t)size, ALIGNED) * ALIGNED;
    return taken;
}

DsviHeads take_rows(TailBuffers *buffers, const TailShape &tail, char *workspace, int64_t count, size_t size)
{
    void *data = take_buffer(buffers, workspace, tail.pairs * count * tail.pitch, size);
    return compact_heads(tail, data, count);
}

bool is_key_tail(const TailShape &tail)
{
    return tail.chunk == 1 && tail.run > 1;
}

/* Number of chunks of a group. */
int64_t rows_per_group(const TailShape &tail)
{
    return ceil_div(smaller_of(tail.a.lists->group, tail.a.queries), tail.chunk);
}

/* Returns why the kernels for Hopper do not serve runs of several keys, or NULL. */
const char *runs_decline(const TailShape &tail)
{
    if (tail.chunk > 1)
        return "runs of keys and chunks of queries";
    if (tail.run > TAIL_COUNT_MAX)
        return "runs of more than 255 keys";
    return tail.a.lists->groups > 1 && rows_per_group(tail) % TAIL_GROUP != 0
               ? "groups are not whole tiles of 64 queries"
               : nullptr;
}

/* Returns why the kernels for Hopper do not serve tails of these shapes, or NULL. Depends only on what a
 * caller knows who asks for the size of the workspace: not on pointers, strides or the scale. */
const char *shapes_decline(const DsviStream *stream, const TailShape &tail, bool backward)
{
    if (stream->capability != 90)
        return "this GPU is no Hopper";
#ifndef DSVI_CUDA_SM90A
    return "built without sm_90a";
#endif
    if (tail.a.act != DSVI_BF16)
        return "F32";
    if (tail.a.head_dim > 128)
        return "head size above 128";
    if (backward && stream->deterministic)
        return "sums in a fixed order";
    return tail.run > 1 ? runs_decline(tail) : nullptr;
}

/* Returns why the kernels for Hopper do not serve the tail, or NULL. */
const char *hopper_declines_tail(const DsviStream *stream, const TailShape &tail, const AttentionProblem &p,
                                 bool backward)
{
    const char *why = shapes_decline(stream, tail, backward);
    const DsviAttentionArgs &a = tail.a;
    bool whole = p.chunks &&
                 (!backward || (heads_aligned(&p.dk, p.dim, 2, 16) && heads_aligned(&p.dv, p.dim, 2, 16)));
    if (is_key_tail(tail)) /* the kernels read and write the tensors of the arguments */
        whole = p.chunks && heads_aligned(&a.out, p.dim, 2, 16) &&
                (!backward || (heads_aligned(&a.dout, p.dim, 2, 16) && heads_aligned(&a.dq, p.dim, 2, 16)));
    if (why)
        return why;
    if (!(p.scale > 0))
        return "scale is not positive";
    if (p.keys == 0)
        return "no keys";
    if (!whole)
        return "rows are not whole chunks of 16 bytes";
    return p.q.token_stride > INT32_MAX / 2 || p.q.token_stride < -INT32_MAX / 2 ? "rows are gigabytes apart"
                                                                                 : nullptr;
}

int64_t tiles_of_tail(const TailShape &tail)
{
    return tail.pairs * ceil_div(tail.chunks, TAIL_ROWS);
}

/* Number of jobs, each with TAIL_ROWS rows, for whose results the workspace of the forward pass has room. */
int64_t jobs_max(const DsviStream *stream, const TailShape &tail)
{
    return larger_of(JOBS_EACH * stream->multiprocessors, tiles_of_tail(tail));
}

/* Returns the number of steps of a part when each of `tiles` tiles of work, of `steps` steps, is divided into
 * at most parts_max parts, of which a job has one. Of the divisions with at most jobs_limit jobs, this one is
 * expected to take the least time: rounds of jobs on all multiprocessors, times the length of a job, which
 * is that of its steps and of `fixed_steps` more. */
int64_t choose_part(const DsviStream *stream, int64_t tiles, int64_t steps, int64_t parts_max,
                    int64_t jobs_limit, int64_t fixed_steps)
{
    int64_t best = steps, least = INT64_MAX;
    for (int64_t parts = 1; parts <= parts_max && parts <= steps; parts++) {
        int64_t each = ceil_div(steps, parts), jobs = tiles * ceil_div(steps, each);
        int64_t time = ceil_div(jobs, stream->multiprocessors) * (each + fixed_steps);
        if (jobs > jobs_limit || time >= least)
            continue;
        best = each;
        least = time;
    }
    return best;
}

/* Forward pass of a query tail on Hopper: number of keys of a part, a multiple of TAIL_KEYS. */
int64_t keys_of_part(const DsviStream *stream, const TailShape &tail)
{
    return choose_part(stream, tiles_of_tail(tail), ceil_div(tail.runs, TAIL_KEYS), PARTS_MAX,
                       jobs_max(stream, tail), JOB_STEPS) *
           TAIL_KEYS;
}

/* Backward pass of a key tail on Hopper: number of tiles of TAIL_GROUP queries of a slice. */
int64_t tiles_of_slice(const DsviStream *stream, const TailShape &tail)
{
    int64_t blocks = tail.pairs * ceil_div(tail.runs, TAIL_KEYS);
    return choose_part(stream, blocks, ceil_div(tail.a.queries, TAIL_GROUP), SLICES_MAX,
                       larger_of(SLICE_JOBS_EACH * stream->multiprocessors, blocks), SLICE_STEPS);
}

/* Bytes of the sums of dK_r and dV_r of all slices: at least what tiles_of_slice needs, and no less than with
 * fewer heads, because a workspace must also serve calls with fewer heads. */
size_t slices_bytes(const DsviStream *stream, const TailShape &tail)
{
    int64_t slices = smaller_of(SLICES_MAX, ceil_div(tail.a.queries, TAIL_GROUP));
    int64_t blocks = larger_of(ceil_div(tail.runs, TAIL_KEYS), 1);
    int64_t jobs = SLICE_JOBS_EACH * stream->multiprocessors / blocks;
    int64_t sums = larger_of(tail.pairs, smaller_of(jobs, tail.pairs * slices));
    return (size_t)sums * attention_sums_bytes(stream, 1, tail.runs, tail.a.head_dim);
}

/* Number of keys for which the bits of a tile of queries are stored in AttentionTail.columns. */
int64_t padded_keys(const TailShape &tail)
{
    return round_up(tail.a.keys, TAIL_KEYS);
}

/* Words of 32 bits of the bits or biases, in the larger of the layouts that this pass may use. */
int64_t weights_words(const TailShape &tail, bool columns)
{
    int64_t lines = dsvi_lists_count(tail.a.lists) * attention_tail_line(tail);
    int64_t words = columns ? 2 * tail.pairs * ceil_div(tail.chunks, 64) * padded_keys(tail) : 0;
    return larger_of(words, lines);
}

/* Takes the buffers of the backward pass. */
void take_backward(const DsviStream *stream, const TailShape &tail, bool hopper, char *workspace,
                   TailBuffers *b)
{
    size_t sums = attention_sums_bytes(stream, tail.pairs, tail.runs, tail.a.head_dim);
    size_t hopper_sums = hopper ? attention_tail_sm90_bytes(tail.pairs, tail.chunks) : 0;
    b->g = take_rows(b, tail, workspace, tail.chunks, dsvi_dtype_size(tail.a.act));
    b->delta = static_cast<float *>(take_buffer(b, workspace, tail.pairs * tail.chunks, sizeof(float)));
    b->dq = take_rows(b, tail, workspace, tail.chunks, sizeof(float));
    b->sums = b->hopper = take_buffer(b, workspace, (int64_t)(sums > hopper_sums ? sums : hopper_sums), 1);
}

/* Takes the buffers of the backward pass of a key tail on Hopper, in place of those of take_backward. Where
 * the tensors turn out not to suit TMA, those of take_backward are used. */
void take_key_backward(const DsviStream *stream, const TailShape &tail, char *workspace, TailBuffers *b)
{
    size_t before = b->bytes;
    take_backward(stream, tail, false, workspace, b);
    size_t portable = b->bytes;
    b->bytes = before;
    b->slices = take_buffer(b, workspace, (int64_t)slices_bytes(stream, tail), 1);
    b->hopper = take_buffer(b, workspace, (int64_t)attention_tail_sm90_bytes(tail.pairs, tail.chunks), 1);
    b->bytes = b->bytes > portable ? b->bytes : portable;
}

/* Divides the workspace into buffers; `workspace` is NULL to count its bytes only. */
TailBuffers buffers_of(const DsviStream *stream, const TailShape &tail, bool backward, char *workspace)
{
    TailBuffers b = {};
    size_t size = dsvi_dtype_size(tail.a.act);
    bool hopper = !shapes_decline(stream, tail, backward);
    b.q = tail.chunk > 1 ? take_rows(&b, tail, workspace, tail.chunks, size) : tail.a.q;
    b.k = tail.run > 1 ? take_rows(&b, tail, workspace, tail.runs, size) : tail.a.k;
    b.v = tail.run > 1 ? take_rows(&b, tail, workspace, tail.runs, size) : tail.a.v;
    b.weights = take_buffer(&b, workspace, weights_words(tail, hopper && backward && tail.run == 1),
                            sizeof(uint32_t));
    if (backward && hopper && is_key_tail(tail)) {
        take_key_backward(stream, tail, workspace, &b);
    } else if (backward) {
        take_backward(stream, tail, hopper, workspace, &b);
    } else {
        int64_t rows = hopper && tail.run == 1 ? jobs_max(stream, tail) * TAIL_ROWS : 0;
        b.p = take_rows(&b, tail, workspace, tail.chunks, sizeof(float));
        b.parts = static_cast<float *>(take_buffer(&b, workspace, rows * tail.pitch, sizeof(float)));
        b.parts_lse = static_cast<float *>(take_buffer(&b, workspace, rows, sizeof(float)));
    }
    return b;
}

/* The tail as a problem of the kernels of attention (attention_tail.cuh). */
AttentionProblem problem_of(const DsviStream *stream, const TailShape &tail, const TailBuffers &b)
{
    size_t size = dsvi_dtype_size(tail.a.act);
    AttentionProblem p = {};
    p.pairs = (int)tail.pairs;
    p.heads = (int)tail.a.heads;
    p.queries = p.group = (int)tail.chunks;
    p.keys = (int)tail.runs;
    p.dim = (int)tail.a.head_dim;
    p.scale = (float)tail.a.scale;
    p.groups = p.grain = 1;
    p.q = b.q, p.k = b.k, p.v = b.v, p.out = b.p, p.dout = b.g, p.dq = b.dq;
    p.dk = tail.a.dk, p.dv = tail.a.dv;
    p.lse = tail.tail_lse;
    p.chunks = heads_aligned(&p.q, p.dim, size, 16) && heads_aligned(&p.k, p.dim, size, 16) &&
               heads_aligned(&p.v, p.dim, size, 16);
    p.couples = true;
    p.tail.bits = tail.run == 1 ? static_cast<const uint32_t *>(b.weights) : nullptr;
    p.tail.biases = tail.run == 1 ? nullptr : static_cast<const float *>(b.weights);
    p.tail.columns = static_cast<const uint64_t *>(b.weights);
    p.tail.padded = (int)padded_keys(tail);
    p.tail.delta = b.delta;
    p.tail.groups = (int)tail.a.lists->groups;
    p.tail.rows_per_group = (int)rows_per_group(tail);
    p.tail.pitch = (int)attention_tail_line(tail);
    attention_place_sums(stream, b.sums, &p);
    return p;
}

/* Turns the problem of a key tail into that of the kernels for Hopper, which read and write the tensors of
 * the arguments (attention_tail.cuh). */
void use_arguments(const DsviStream *stream, const TailShape &tail, const TailBuffers &b, bool backward,
                   AttentionProblem *p)
{
    p->out = tail.a.out, p->dout = tail.a.dout, p->dq = tail.a.dq;
    p->tail.biases = nullptr;
    p->tail.counts = static_cast<const uint8_t *>(b.weights);
    if (!backward) {
        p->tail.parts = 1;
        p->tail.part_keys = p->keys;
        p->tail.lists_lse = static_cast<float *>(tail.a.lse);
        return;
    }
    p->lse = static_cast<float *>(tail.a.lse);
    p->tail.slice_tiles = (int)tiles_of_slice(stream, tail);
    attention_place_sums(stream, b.slices, p);
    p->slices = (int)ceil_div(ceil_div(p->queries, TAIL_GROUP), p->tail.slice_tiles);
}

DsvStatus tail_check(const DsviAttentionTailArgs *args, size_t needed)
{
    if (args->attention.workspace_bytes < needed)
        return DSVI_FAIL(DSV_E_SHAPE, "attention tail: workspace has %zu bytes, expected %zu",
                         args->attention.workspace_bytes, needed);
    return DSV_OK;
}

/* Enqueues the means of queries, keys and values. */
DsvStatus make_means(DsviStream *stream, const TailShape &tail, const TailBuffers &b)
{
    if (tail.chunk > 1)
        DSVI_TRY(attention_tail_means(stream, tail, tail.a.q, tail.a.queries, tail.chunk, b.q));
    if (tail.run > 1) {
        DSVI_TRY(attention_tail_means(stream, tail, tail.a.k, tail.a.keys, tail.run, b.k));
        DSVI_TRY(attention_tail_means(stream, tail, tail.a.v, tail.a.keys, tail.run, b.v));
    }
    return DSV_OK;
}

/* Writes to the `variant` of the op table which kernels served this call and why others did not. */
void name_tail(char *variant, const char *why)
{
    snprintf(variant, DSVI_CUDA_VARIANT_BYTES, "cuda, %s%s", why ? "portable: " : "sm_90a", why ? why : "");
}

/* Enqueues the forward pass of a query tail on Hopper: p_c in b.p, and log T_c. */
DsvStatus query_forward_on_hopper(DsviStream *stream, const TailShape &tail, const TailBuffers &b,
                                  AttentionProblem p, bool *served)
{
    DSVI_TRY(attention_tail_weights(stream, tail, static_cast<uint32_t *>(b.weights)));
    p.tail.part_keys = (int)keys_of_part(stream, tail);
    p.tail.parts = (int)ceil_div(p.keys, p.tail.part_keys);
    p.out.data = b.parts;
    p.lse = b.parts_lse;
    DSVI_TRY(attention_tail_forward_sm90(stream, p, served));
    if (!*served)
        return DSV_OK;
    return attention_tail_join_parts(stream, tail, p.tail.parts, b.parts, b.parts_lse,
                                     static_cast<float *>(b.p.data));
}

/* Enqueues the forward pass of a key tail on Hopper: out, lse and log T_c. */
DsvStatus key_forward_on_hopper(DsviStream *stream, const TailShape &tail, const TailBuffers &b,
                                AttentionProblem p, bool *served)
{
    use_arguments(stream, tail, b, false, &p);
    DSVI_TRY(attention_tail_counts(stream, tail, static_cast<uint8_t *>(b.weights)));
    return attention_key_tail_forward_sm90(stream, p, served);
}

DsvStatus portable_forward(DsviStream *stream, const TailShape &tail, const TailBuffers &b,
                           const AttentionProblem &p)
{
    DSVI_TRY(attention_tail_weights(stream, tail, static_cast<uint32_t *>(b.weights)));
    return tail.a.act == DSVI_F32 ? attention_tail_forward_f32(stream, p)
                                  : attention_tail_forward_bf16(stream, p);
}

/* Enqueues the backward pass of a query tail on Hopper: dk, dv, and dQ_c in b.dq. */
DsvStatus query_backward_on_hopper(DsviStream *stream, const TailShape &tail, const TailBuffers &b,
                                   const AttentionProblem &p, bool *served)
{
    DSVI_TRY(attention_tail_gradients(stream, tail, b.g, b.delta));
    DSVI_TRY(attention_tail_columns(stream, tail, p.tail.padded, static_cast<uint64_t *>(b.weights)));
    return attention_tail_backward_sm90(stream, p, b.hopper, served);
}

/* Enqueues the backward pass of a key tail on Hopper: dq, dk and dv. */
DsvStatus key_backward_on_hopper(DsviStream *stream, const TailShape &tail, const TailBuffers &b,
                                 AttentionProblem p, bool *served)
{
    use_arguments(stream, tail, b, true, &p);
    DSVI_TRY(attention_tail_counts(stream, tail, static_cast<uint8_t *>(b.weights)));
    DSVI_TRY(attention_key_tail_backward_sm90(stream, p, b.hopper, served));
    return *served ? attention_finish_sums(stream, p, tail.a.act, tail.run, tail.a.keys) : DSV_OK;
}

DsvStatus portable_backward(DsviStream *stream, const TailShape &tail, const TailBuffers &b,
                            const AttentionProblem &p)
{
    DSVI_TRY(attention_tail_gradients(stream, tail, b.g, b.delta));
    DSVI_TRY(attention_tail_weights(stream, tail, static_cast<uint32_t *>(b.weights)));
    DSVI_TRY(attention_clear_sums(stream, p));
    DSVI_TRY(tail.a.act == DSVI_F32 ? attention_tail_backward_f32(stream, p)
                                    : attention_tail_backward_bf16(stream, p));
    return attention_finish_sums(stream, p, tail.a.act, tail.run, tail.a.keys);
}

size_t tail_bytes(const DsviStream *stream, const DsviAttentionTailArgs *args, bool backward)
{
    return buffers_of(stream, shape_of(args), backward, nullptr).bytes;
}

size_t forward_workspace(DsviStream *stream, const DsviAttentionTailArgs *args)
{
    return tail_bytes(stream, args, false);
}

size_t backward_workspace(DsviStream *stream, const DsviAttentionTailArgs *args)
{
    return tail_bytes(stream, args, true);
}

DsvStatus attention_tail_fwd(DsviStream *stream, const DsviAttentionTailArgs *args)
{
    DSVI_TRY(dsvi_attention_tail_check(args));
    DSVI_TRY(attention_list_supports(&args->attention));
    DSVI_TRY(tail_check(args, forward_workspace(stream, args)));
    TailShape tail = shape_of(args);
    bool served = false;
    if (tail.pairs == 0 || tail.chunks == 0)
        return DSV_OK;
    TailBuffers b = buffers_of(stream, tail, false, static_cast<char *>(tail.a.workspace));
    AttentionProblem p = problem_of(stream, tail, b);
    const char *why = hopper_declines_tail(stream, tail, p, false);
    DSVI_TRY(make_means(stream, tail, b));
    if (!why)
        DSVI_TRY(is_key_tail(tail) ? key_forward_on_hopper(stream, tail, b, p, &served)
                                   : query_forward_on_hopper(stream, tail, b, p, &served));
    if (!served)
        DSVI_TRY(portable_forward(stream, tail, b, p));
    name_tail(stream->attention_tail_fwd, served ? nullptr : why ? why : NO_TMA);
    if (served && is_key_tail(tail))
        return DSV_OK;
    return attention_tail_join(stream, tail, static_cast<const float *>(b.p.data));
}

DsvStatus attention_tail_bwd(DsviStream *stream, const DsviAttentionTailArgs *args)
{
    DSVI_TRY(dsvi_attention_tail_check(args));
    DSVI_TRY(attention_list_supports(&args->attention));
    DSVI_TRY(tail_check(args, backward_workspace(stream, args)));
    TailShape tail = shape_of(args);
    bool served = false;
    if (tail.pairs == 0 || tail.chunks == 0 || tail.runs == 0)
        return DSV_OK;
    TailBuffers b = buffers_of(stream, tail, true, static_cast<char *>(tail.a.workspace));
    AttentionProblem p = problem_of(stream, tail, b);
    const char *why = hopper_declines_tail(stream, tail, p, true);
    DSVI_TRY(make_means(stream, tail, b));
    if (!why)
        DSVI_TRY(is_key_tail(tail) ? key_backward_on_hopper(stream, tail, b, p, &served)
                                   : query_backward_on_hopper(stream, tail, b, p, &served));
    if (!served)
        DSVI_TRY(portable_backward(stream, tail, b, p));
    name_tail(stream->attention_tail_bwd, served ? nullptr : why ? why : NO_TMA);
    if (served && is_key_tail(tail))
        return DSV_OK;
    return attention_tail_spread(stream, tail, static_cast<const float *>(b.dq.data));
}

} // namespace
} // namespace dsvi

void dsvi_cuda_fill_attention_tail(DsviStream *stream, DsviOps *ops)
{
    snprintf(stream->attention_tail_fwd, sizeof stream->attention_tail_fwd, "cuda");
    snprintf(stream->attention_tail_bwd, sizeof stream->attention_tail_bwd, "cuda");
    DSVI_OPS_SET_WITH_WORKSPACE(ops, attention_tail_fwd, dsvi::attention_tail_fwd, dsvi::forward_workspace,
                                stream->attention_tail_fwd);
    DSVI_OPS_SET_WITH_WORKSPACE(ops, attention_tail_bwd, dsvi::attention_tail_bwd, dsvi::backward_workspace,
                                stream->attention_tail_bwd);
}
