/* Attention over lists, and dense where nobody else answers: takes requests, hands them to the kernels, and
 * makes dK and dV of the sums that the backward kernels leave (attention_list.cuh). */
#include <stdio.h>

#include "cuda/attention_list.cuh"
#include "cuda/attention_turned.cuh"
#include "cuda/cuda.h"

namespace dsvi {
namespace {

constexpr int THREADS = 256;
constexpr int UNIT = 16;        /* columns of a row that keep an order of their own in the sums */
constexpr int SLICES_MOST = 8;
constexpr size_t SLICES_BYTES = (size_t)4 << 30;
constexpr const char *REFUSED = "rows lie as the copy engine does not take them";
constexpr int64_t KEYS_MOST = (int64_t)1 << 30; /* and rows of queries: their numbers are ints */

/* UNIT columns of one row of dK or dV from its sums, slice by slice. */
template <typename T>
__device__ __forceinline__ void finish_unit(const AttentionProblem &a, const DsvHeads &rows, bool dv,
                                            float factor, bool chunks, int pair, int64_t key, int column)
{
    constexpr int N = 16 / sizeof(T);
    float sum[UNIT] = {0};
    for (int slice = 0; slice < a.slices; slice++) {
        const float *from = sums_of(a, slice, dv, pair) + key * a.pitch + column;
#pragma unroll
        for (int t = 0; t < UNIT / 4; t++) {
            float x[4];
            load(from + 4 * t, x);
#pragma unroll
            for (int i = 0; i < 4; i++)
                sum[i / 2 * 8 + 2 * t + i % 2] += x[i];
        }
    }
    T *to = static_cast<T *>(rows.data) + pair / a.heads * rows.batch_stride + key * rows.token_stride +
            pair % a.heads * rows.head_stride + column;
#pragma unroll
    for (int at = 0; at < UNIT; at += N) {
        float x[N];
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = factor * sum[at + i];
        if (chunks && column + at < a.dim)
            store(to + at, x);
#pragma unroll
        for (int i = 0; i < N && !chunks; i++)
            if (column + at + i < a.dim)
                to[at + i] = from_float<T>(x[i]);
    }
}

/* Rows of dK or dV. Grid: as many keys as a block has threads for whole rows, then (batch, head). */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    finish_kernel(const __grid_constant__ AttentionProblem a, DsvHeads rows, bool dv, float factor,
                  bool chunks)
{
    int units = a.pitch / UNIT, keys = THREADS / units, line = threadIdx.x / units;
    int64_t key = (int64_t)blockIdx.x * keys + line;
    if (line >= keys || key >= a.keys)
        return;
    for (int pair = blockIdx.y; pair < a.pairs; pair += gridDim.y)
        finish_unit<T>(a, rows, dv, factor, chunks, pair, key, threadIdx.x % units * UNIT);
}

/* Whether every row begins at a multiple of `bytes` and is a whole number of them. */
static bool rows_aligned(const DsvHeads *rows, int64_t dim, size_t size, size_t bytes)
{
    return (uintptr_t)rows->data % bytes == 0 && (size_t)dim * size % bytes == 0 &&
           (size_t)rows->batch_stride * size % bytes == 0 && (size_t)rows->token_stride * size % bytes == 0 &&
           (size_t)rows->head_stride * size % bytes == 0;
}

static int round_up(int64_t n, int unit)
{
    return (int)(ceil_div(n, unit) * unit);
}

/* Of the sums of one (batch, head) in one slice. */
static size_t sum_bytes(const DsvAttentionArgs *args)
{
    return (size_t)(2 * args->keys * round_up(args->head_dim, UNIT)) * sizeof(float);
}

static int64_t pairs_of(const DsvAttentionArgs *args)
{
    return args->batch * args->heads;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* How many sums of a (batch, head) there is to be room for: one of each without the wish for equal bits, else
 * as many as keep the GPU busy and fit. Slices are whole, so that not all may be used; room for slices alone
 * would be more for some heads than for one more of them. */
static int64_t sums_most(const DsvStream *stream, const DsvAttentionArgs *args)
{
    int64_t pairs = pairs_of(args);
    size_t bytes = sum_bytes(args);
    if (!stream->deterministic || bytes == 0)
        return pairs;
    int64_t some = least(stream->multiprocessors, (int64_t)(SLICES_BYTES / bytes));
    some = least(some, SLICES_MOST * pairs);
    return some > pairs ? some : pairs;
}

static int slices_of(const DsvStream *stream, const DsvAttentionArgs *args)
{
    int64_t pairs = pairs_of(args);
    return pairs > 0 ? (int)(sums_most(stream, args) / pairs) : 1;
}

static DsvStatus check(const DsvAttentionArgs *args)
{
    DSVI_TRY(dsvi_attention_check(args));
    if ((args->act != DSV_F32 && args->act != DSV_BF16) || args->acc != DSV_F32)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "attention: this variant takes F32 and BF16 with F32 sums, "
                         "not %s with %s", dsvi_dtype_name(args->act), dsvi_dtype_name(args->acc));
    if (args->keys > KEYS_MOST || args->batch * args->heads * args->queries > KEYS_MOST)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "attention: this variant takes at most %lld keys and as many "
                         "rows of queries, not %lld and %lld", (long long)KEYS_MOST, (long long)args->keys,
                         (long long)(args->batch * args->heads * args->queries));
    return DSV_OK;
}

/* A group, or a grain, of more than there are is the same as one of all. */
static int at_most(int64_t n, int64_t all)
{
    return (int)(all > 0 ? least(n, all) : 1);
}

static AttentionProblem problem_of(const DsvStream *stream, const DsvAttentionArgs *args)
{
    const DsvLists *lists = args->lists;
    size_t size = dsvi_dtype_size(args->act);
    AttentionProblem p = {};
    p.pairs = (int)pairs_of(args);
    p.heads = (int)args->heads;
    p.queries = (int)args->queries;
    p.keys = (int)args->keys;
    p.dim = (int)args->head_dim;
    p.scale = (float)args->scale;
    p.group = at_most(lists ? lists->group : args->queries, args->queries);
    p.groups = lists ? (int)lists->groups : 1;
    p.grain = at_most(lists ? lists->grain : 1, args->keys);
    p.offsets = lists ? lists->offsets : nullptr;
    p.runs = lists ? lists->runs : nullptr;
    p.q = args->q, p.k = args->k, p.v = args->v, p.out = args->out;
    p.dout = args->dout, p.dq = args->dq, p.dk = args->dk, p.dv = args->dv;
    p.lse = static_cast<float *>(args->lse);
    p.chunks = rows_aligned(&p.q, p.dim, size, 16) && rows_aligned(&p.k, p.dim, size, 16) &&
               rows_aligned(&p.v, p.dim, size, 16);
    p.sums = static_cast<float *>(args->workspace);
    p.pitch = round_up(p.dim, UNIT);
    p.slices = slices_of(stream, args);
    p.alone = stream->deterministic;
    return p;
}

static bool pitch_fits(const DsvHeads &rows)
{
    return rows.token_stride <= INT32_MAX / 2 && rows.token_stride >= -INT32_MAX / 2;
}

/* Why the kernels for Hopper leave this to the portable ones; NULL: the forward one takes it. */
static const char *hopper_leaves(const DsvStream *stream, const AttentionProblem &p, DsvDtype act)
{
    if (stream->capability != 90)
        return "this GPU is no Hopper";
#ifndef DSVI_CUDA_SM90A
    return "built without sm_90a";
#endif
    if (act != DSV_BF16)
        return "F32";
    if (p.dim > 128)
        return "head size above 128";
    if (!p.chunks || !p.couples)
        return "rows are not whole chunks of 16 bytes";
    if (!pitch_fits(p.q) || !pitch_fits(p.k) || !pitch_fits(p.v))
        return "rows are gigabytes apart";
    return p.scale > 0 ? nullptr : "scale is not positive";
}

/* The same of the backward one. */
static const char *hopper_leaves_backward(const DsvStream *stream, const AttentionProblem &p, DsvDtype act)
{
    if (p.alone)
        return "sums in a fixed order";
    if (!pitch_fits(p.out) || !pitch_fits(p.dout))
        return "rows are gigabytes apart";
    return hopper_leaves(stream, p, act);
}

/* Why the backward kernel for Hopper that goes by blocks of keys does not take lists of such blocks, where
 * hopper_leaves_backward has no reason either. */
static const char *blocks_leave(const DsvStream *stream, const AttentionProblem &p)
{
    const DsvHeads *gradients[] = {&p.dq, &p.dk, &p.dv};
    for (const DsvHeads *rows : gradients)
        if (!rows_aligned(rows, p.dim, sizeof(__nv_bfloat16), 16))
            return "gradients are not whole chunks of 16 bytes";
    return attention_turned_leaves(stream, p);
}

/* What answered, and why not what is faster, where people look for it: in the table of ops. Pieces of a dense
 * call behind its first leave that one's name. */
static void name_variant(DsvStream *stream, const DsvAttentionArgs *args, bool backward, const char *kernels,
                         const char *why)
{
    char *list = backward ? stream->attention_list_bwd : stream->attention_list_fwd;
    char *dense = backward ? stream->attention_bwd : stream->attention_fwd;
    if (args->lists || !dense[0])
        snprintf(args->lists ? list : dense, DSVI_CUDA_VARIANT_BYTES, "cuda, %s%s%s", kernels,
                 why ? ": " : "", why ? why : "");
}

/* Enqueues the pass by blocks of keys, or nothing, and makes *why the reason. */
static DsvStatus backward_by_blocks(DsvStream *stream, const AttentionProblem &p, const char **why)
{
    bool served = false;
    *why = blocks_leave(stream, p);
    if (*why)
        return DSV_OK;
    DSVI_TRY(attention_backward_turned(stream, p, &served));
    *why = served ? nullptr : REFUSED;
    return DSV_OK;
}

/* dk, or dv, from the sums. */
template <typename T>
static DsvStatus finish(DsvStream *stream, const AttentionProblem &p, const DsvHeads &rows, bool dv,
                        float factor)
{
    int keys = THREADS / (p.pitch / UNIT);
    dim3 grid((unsigned)ceil_div(p.keys, keys), blocks_in_turn(p.pairs));
    bool chunks = rows_aligned(&rows, p.dim, sizeof(T), 16);
    finish_kernel<T><<<grid, THREADS, 0, stream->handle>>>(p, rows, dv, factor, chunks);
    DSVI_CUDA_LAUNCHED("attention's sums");
    return DSV_OK;
}

} // namespace
} // namespace dsvi

using dsvi::AttentionProblem;

DsvStatus dsvi_cuda_attention_list_fwd(DsvStream *stream, const DsvAttentionArgs *args)
{
    DSVI_TRY(dsvi::check(args));
    AttentionProblem p = dsvi::problem_of(stream, args);
    p.couples = dsvi::rows_aligned(&p.out, p.dim, sizeof(__nv_bfloat16), 2 * sizeof(__nv_bfloat16));
    if (p.pairs == 0 || p.queries == 0)
        return DSV_OK;
    const char *why_portable = dsvi::hopper_leaves(stream, p, args->act);
    bool refused = false;
    DSVI_TRY(!why_portable          ? dsvi::attention_forward_sm90(stream, p, &refused)
             : args->act == DSV_F32 ? dsvi::attention_forward_f32(stream, p)
                                    : dsvi::attention_forward_bf16(stream, p));
    dsvi::name_variant(stream, args, false,
                       why_portable ? "portable" : refused ? "sm_90a, row by row" : "sm_90a",
                       refused ? dsvi::REFUSED : why_portable);
    return DSV_OK;
}

size_t dsvi_cuda_attention_list_workspace(DsvStream *stream, const DsvAttentionArgs *args)
{
    size_t sums = dsvi::sum_bytes(args) * (size_t)dsvi::sums_most(stream, args);
    AttentionProblem p = dsvi::problem_of(stream, args);
    bool turns = stream->capability == 90 && args->lists && !p.alone && dsvi::runs_are_blocks(p) &&
                 !dsvi::attention_turned_leaves(stream, p);
    size_t turned = turns ? dsvi::attention_turned_bytes(p) : 0;
    return sums > turned ? sums : turned;
}

DsvStatus dsvi_cuda_attention_list_bwd(DsvStream *stream, const DsvAttentionArgs *args)
{
    DSVI_TRY(dsvi::check(args));
    AttentionProblem p = dsvi::problem_of(stream, args);
    size_t wanted = dsvi_cuda_attention_list_workspace(stream, args), size = dsvi_dtype_size(args->act);
    if (args->workspace_bytes < wanted)
        return DSVI_FAIL(DSV_E_SHAPE, "attention: workspace has %zu bytes, wanted %zu", args->workspace_bytes,
                         wanted);
    p.chunks = p.chunks && dsvi::rows_aligned(&p.dout, p.dim, size, 16) &&
               dsvi::rows_aligned(&p.out, p.dim, size, 16);
    p.couples = dsvi::rows_aligned(&p.dq, p.dim, size, 2 * size);
    const char *why_portable = dsvi::hopper_leaves_backward(stream, p, args->act), *why_gathered = nullptr;
    bool blocks = !why_portable && args->lists && dsvi::runs_are_blocks(p);
    if (blocks)
        DSVI_TRY(dsvi::backward_by_blocks(stream, p, &why_gathered));
    if (p.pairs > 0 && p.queries > 0)
        dsvi::name_variant(stream, args, true, why_portable   ? "portable"
                                               : why_gathered ? "sm_90a, not by blocks of keys"
                                               : blocks       ? "sm_90a, by blocks of keys"
                                                              : "sm_90a",
                           why_portable ? why_portable : why_gathered);
    if (blocks && !why_gathered)
        return DSV_OK;
    size_t sums = dsvi::sum_bytes(args) * (size_t)(p.pairs * p.slices);
    if (sums > 0)
        DSVI_CUDA_TRY(cudaMemsetAsync(p.sums, 0, sums, stream->handle));
    if (p.pairs > 0 && p.queries > 0)
        DSVI_TRY(!why_portable          ? dsvi::attention_backward_sm90(stream, p)
                 : args->act == DSV_F32 ? dsvi::attention_backward_f32(stream, p)
                                        : dsvi::attention_backward_bf16(stream, p));
    if (p.pairs == 0 || p.keys == 0)
        return DSV_OK;
    DSVI_FOR_ACT("attention", args->act, {
        DSVI_TRY(dsvi::finish<T>(stream, p, p.dk, false, p.scale));
        DSVI_TRY(dsvi::finish<T>(stream, p, p.dv, true, 1));
    });
    return DSV_OK;
}

void dsvi_cuda_fill_attention_list(DsvStream *stream, DsvOps *ops)
{
    snprintf(stream->attention_list_fwd, sizeof stream->attention_list_fwd, "cuda");
    snprintf(stream->attention_list_bwd, sizeof stream->attention_list_bwd, "cuda");
    DSVI_OPS_SET(ops, attention_list_fwd, dsvi_cuda_attention_list_fwd, stream->attention_list_fwd);
    DSVI_OPS_SET_WITH_WORKSPACE(ops, attention_list_bwd, dsvi_cuda_attention_list_bwd,
                                dsvi_cuda_attention_list_workspace, stream->attention_list_bwd);
}
