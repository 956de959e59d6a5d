/* The operations attention_list_fwd and attention_list_bwd, which also serve dense attention that cuDNN
 * declines: choose the kernel for the GPU and the shapes, and convert the F32 sums of the backward kernels
 * (attention_list.cuh) to dk and dv. */
#include <stdio.h>

#include "cuda/attention/attention_inverted.cuh"
#include "cuda/attention/attention_union.cuh"
#include "cuda/attention/attention_list.cuh"
#include "cuda/common/cuda.h"

namespace dsvi {
namespace {

constexpr int THREADS = 256;
/* The F32 sums store each UNIT columns in a permuted order, described in attention_list.cuh. */
constexpr int UNIT = 16;
/* A deterministic stream has several copies (slices) of the F32 sums of dK and dV. Limits on the number of
 * slices, and on their bytes together. */
constexpr int SLICES_MAX = 8;
constexpr size_t SLICES_BYTES = (size_t)4 << 30;

/* Where the F32 sums of dK or dV go. */
struct AttentionFinish {
    DsviHeads rows;  /* dk or dv */
    bool dv, chunks; /* chunks: rows consist of whole 16-byte chunks at multiples of 16 bytes */
    float factor;
    int64_t run, tokens; /* in a tail: number of tokens of a key, and of all tokens; else 0 */
};

/* Tokens of a run for each thread, as long as no more than RUN_THREADS threads then share the run. */
constexpr int RUN_TOKENS = 16, RUN_THREADS = 64;

constexpr int64_t KEYS_MAX = (int64_t)1 << 30; /* keys, and rows of queries: kernels number them with ints */

/* Writes to UNIT columns of one row of dk or dv `factor` times `sum`, or with ADD adds them to the row. */
template <typename T, bool ADD>
__device__ __forceinline__ void finish_row(T *to, int columns, float factor, bool chunks,
                                           const float (&sum)[UNIT])
{
    constexpr int N = 16 / sizeof(T);
#pragma unroll
    for (int at = 0; at < UNIT; at += N) {
        float x[N], before[N] = {0};
        if (ADD && chunks && at < columns)
            load(to + at, before);
#pragma unroll
        for (int i = 0; i < N && ADD && !chunks; i++)
            before[i] = at + i < columns ? to_float(to[at + i]) : 0.f;
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = before[i] + factor * sum[at + i];
        if (chunks && at < columns)
            store(to + at, x);
#pragma unroll
        for (int i = 0; i < N && !chunks; i++)
            if (at + i < columns)
                to[at + i] = from_float<T>(x[i]);
    }
}

/* Finishes UNIT columns of one key: `factor` times the sum over all slices, the copies of the F32 sums to
 * which different thread blocks added, is the row of dk or dv. In a tail the key stands for a run of tokens,
 * to whose rows the result is added in equal parts: by this thread to tokens `part`, `part` + `parts`, ... */
template <typename T, bool TAIL>
__device__ __forceinline__ void finish_unit(const AttentionProblem &a, const AttentionFinish &f, int pair,
                                            int64_t key, int column, int part, int parts)
{
    int64_t first = TAIL ? key * f.run : key, end = TAIL ? min(first + f.run, f.tokens) : key + 1;
    float sum[UNIT] = {0}, factor = TAIL ? f.factor / (float)(end - first) : f.factor;
    for (int slice = 0; slice < a.slices; slice++) {
        const float *from = sums_of(a, slice, f.dv, pair) + key * a.pitch + column;
#pragma unroll
        for (int t = 0; t < UNIT / 4; t++) {
            float x[4];
            load(from + 4 * t, x);
#pragma unroll
            for (int i = 0; i < 4; i++)
                sum[i / 2 * 8 + 2 * t + i % 2] += x[i];
        }
    }
    T *to = static_cast<T *>(f.rows.data) + pair / a.heads * f.rows.batch_stride +
            pair % a.heads * f.rows.head_stride + column;
#pragma unroll 4
    for (int64_t token = first + part; token < end; token += parts)
        finish_row<T, TAIL>(to + token * f.rows.token_stride, a.dim - column, factor, f.chunks, sum);
}

/* Rounds the F32 sums of dK or dV to the type of the output dk or dv. Grid: x covers the keys, with pitch /
 * UNIT threads for each key; y is the (batch, head); z are the threads that share a run of a tail. */
template <typename T, bool TAIL>
__global__ void __launch_bounds__(THREADS)
    finish_kernel(const __grid_constant__ AttentionProblem a, const __grid_constant__ AttentionFinish f)
{
    int units = a.pitch / UNIT, keys = THREADS / units, line = threadIdx.x / units;
    int64_t key = (int64_t)blockIdx.x * keys + line;
    if (line >= keys || key >= a.keys)
        return;
    for (int pair = blockIdx.y; pair < a.pairs; pair += gridDim.y)
        finish_unit<T, TAIL>(a, f, pair, key, threadIdx.x % units * UNIT, blockIdx.z, gridDim.z);
}

/* Bytes of the F32 sums of dK and dV of one (batch, head), in one of possibly several copies (slices). */
static size_t sum_bytes(int64_t keys, int64_t dim)
{
    return (size_t)(2 * keys * round_up(dim, UNIT)) * sizeof(float);
}

/* Number of (batch, head) sums for which the workspace has room: on an ordinary stream one for each pair; on
 * a deterministic one enough to keep the GPU busy, within SLICES_MAX and SLICES_BYTES. A slice has sums of
 * all pairs, so the last sums may be unused. Without these spare sums, some numbers of heads would need a
 * larger workspace than one head more; but a workspace must also serve calls with fewer heads. */
static int64_t sums_max(const DsviStream *stream, int64_t pairs, int64_t keys, int64_t dim)
{
    size_t bytes = sum_bytes(keys, dim);
    if (!stream->deterministic || bytes == 0)
        return pairs;
    int64_t count = smaller_of(stream->multiprocessors, (int64_t)(SLICES_BYTES / bytes));
    count = smaller_of(count, SLICES_MAX * pairs);
    return count > pairs ? count : pairs;
}

/* Returns n, the number of queries in a group or of keys in a span, limited to the number `all` that exist: a
 * larger n means the same. Returns at least 1. */
static int limit_to(int64_t n, int64_t all)
{
    return (int)(all > 0 ? smaller_of(n, all) : 1);
}

static AttentionProblem attention_list_problem_of(const DsviStream *stream, const DsviAttentionArgs *args)
{
    const DsviLists *lists = args->lists;
    size_t size = dsvi_dtype_size(args->act);
    AttentionProblem p = {};
    p.pairs = (int)(args->batch * args->heads);
    p.heads = (int)args->heads;
    p.queries = (int)args->queries;
    p.keys = (int)args->keys;
    p.dim = (int)args->head_dim;
    p.scale = (float)args->scale;
    p.group = limit_to(lists ? lists->group : args->queries, args->queries);
    p.groups = lists ? (int)lists->groups : 1;
    p.grain = limit_to(lists ? lists->grain : 1, args->keys);
    p.offsets = lists ? lists->offsets : nullptr;
    p.spans = lists ? lists->spans : nullptr;
    p.q = args->q, p.k = args->k, p.v = args->v, p.out = args->out;
    p.dout = args->dout, p.dq = args->dq, p.dk = args->dk, p.dv = args->dv;
    p.lse = static_cast<float *>(args->lse);
    p.chunks = heads_aligned(&p.q, p.dim, size, 16) && heads_aligned(&p.k, p.dim, size, 16) &&
               heads_aligned(&p.v, p.dim, size, 16);
    attention_place_sums(stream, args->workspace, &p);
    return p;
}

/* Returns whether the number of bytes between tokens fits an int, which the Hopper kernels use for it
 * (pitch_of in attention_gather.cuh). */
static bool pitch_fits(const DsviHeads &rows)
{
    return rows.token_stride <= INT32_MAX / 2 && rows.token_stride >= -INT32_MAX / 2;
}

/* Returns why the Hopper kernels decline the problem, so that portable kernels run; NULL means that the
 * forward kernel for Hopper serves the problem. */
static const char *hopper_declines(const DsviStream *stream, const AttentionProblem &p, DsviDtype act)
{
    if (stream->capability != 90)
        return "this GPU is no Hopper";
#ifndef DSVI_CUDA_SM90A
    return "built without sm_90a";
#endif
    if (act != DSVI_BF16)
        return "F32";
    if (p.dim > 128)
        return "head size above 128";
    if (!p.chunks || !p.couples)
        return "rows are not whole chunks of 16 bytes";
    if (!pitch_fits(p.q) || !pitch_fits(p.k) || !pitch_fits(p.v))
        return "rows are gigabytes apart";
    return p.scale > 0 ? nullptr : "scale is not positive";
}

/* Returns why the Hopper backward kernels decline the problem, so that portable kernels run; NULL if the
 * Hopper backward kernels serve the problem. */
static const char *hopper_declines_backward(const DsviStream *stream, const AttentionProblem &p,
                                            DsviDtype act)
{
    if (p.alone)
        return "sums in a fixed order";
    if (!pitch_fits(p.out) || !pitch_fits(p.dout))
        return "rows are gigabytes apart";
    return hopper_declines(stream, p, act);
}

/* Returns why lists of blocks of keys are not inverted for the key-major backward kernel
 * (attention_inverted.cuh), where hopper_declines_backward returned NULL. NULL means that the lists can be
 * inverted. */
static const char *key_major_declines(const DsviStream *stream, const AttentionProblem &p)
{
    const DsviHeads *gradients[] = {&p.dq, &p.dk, &p.dv};
    for (const DsviHeads *rows : gradients)
        if (!heads_aligned(rows, p.dim, sizeof(__nv_bfloat16), 16))
            return "gradients are not whole chunks of 16 bytes";
    return attention_inverted_declines(stream, p);
}

/* Writes to the `variant` of the op table which kernels serve this call and why faster ones declined it. The
 * text changes from call to call because the choice depends on shapes, strides and addresses, which are known
 * only here. It is for people and tests: `dsv bench attention` prints it, tests/cuda compare it, and no code
 * decides by it. A dense call that attention_cudnn.c divides into several calls keeps the name that its first
 * call wrote; attention_cudnn.c clears the name before the first call. */
static void name_variant(DsviStream *stream, const DsviAttentionArgs *args, bool backward,
                         const char *kernels, const char *why)
{
    char *list = backward ? stream->attention_list_bwd : stream->attention_list_fwd;
    char *dense = backward ? stream->attention_bwd : stream->attention_fwd;
    if (args->lists || !dense[0])
        snprintf(args->lists ? list : dense, DSVI_CUDA_VARIANT_BYTES, "cuda, %s%s%s", kernels,
                 why ? ": " : "", why ? why : "");
}

template <typename T>
DsvStatus launch_finish(DsviStream *stream, const AttentionProblem &p, const AttentionFinish &finish)
{
    int keys = THREADS / (p.pitch / UNIT);
    int64_t parts = finish.run > 0 ? smaller_of(ceil_div(finish.run, RUN_TOKENS), RUN_THREADS) : 1;
    dim3 grid((unsigned)ceil_div(p.keys, keys), blocks_in_turn(p.pairs), (unsigned)parts);
    auto *kernel = finish.run > 0 ? finish_kernel<T, true> : finish_kernel<T, false>;
    DSVI_CUDA_LAUNCH(stream, "attention: dk and dv from their sums", kernel, grid, THREADS, 0, p, finish);
    return DSV_OK;
}

} // namespace

DsvStatus attention_list_supports(const DsviAttentionArgs *args)
{
    if ((args->act != DSVI_F32 && args->act != DSVI_BF16) || args->acc != DSVI_F32)
        return DSVI_FAIL(DSV_E_UNSUPPORTED,
                         "attention: this variant takes F32 and BF16 with F32 sums, "
                         "not %s with %s",
                         dsvi_dtype_name(args->act), dsvi_dtype_name(args->acc));
    if (args->keys > KEYS_MAX || args->batch * args->heads * args->queries > KEYS_MAX)
        return DSVI_FAIL(DSV_E_UNSUPPORTED,
                         "attention: this variant takes at most %lld keys and as many "
                         "rows of queries, not %lld and %lld",
                         (long long)KEYS_MAX, (long long)args->keys,
                         (long long)(args->batch * args->heads * args->queries));
    return DSV_OK;
}

size_t attention_sums_bytes(const DsviStream *stream, int64_t pairs, int64_t keys, int64_t dim)
{
    return sum_bytes(keys, dim) * (size_t)sums_max(stream, pairs, keys, dim);
}

void attention_place_sums(const DsviStream *stream, void *at, AttentionProblem *p)
{
    p->sums = static_cast<float *>(at);
    p->pitch = round_up(p->dim, UNIT);
    p->slices = p->pairs > 0 ? (int)(sums_max(stream, p->pairs, p->keys, p->dim) / p->pairs) : 1;
    p->alone = stream->deterministic;
}

DsvStatus attention_clear_sums(DsviStream *stream, const AttentionProblem &p)
{
    size_t bytes = sum_bytes(p.keys, p.dim) * (size_t)(p.pairs * p.slices);
    if (bytes > 0)
        DSVI_CUDA_TRY(cudaMemsetAsync(p.sums, 0, bytes, stream->handle));
    return DSV_OK;
}

DsvStatus attention_finish_sums(DsviStream *stream, const AttentionProblem &p, DsviDtype act, int64_t run,
                                int64_t tokens)
{
    if (p.pairs == 0 || p.keys == 0)
        return DSV_OK;
    size_t size = dsvi_dtype_size(act);
    AttentionFinish dk = {p.dk, false, heads_aligned(&p.dk, p.dim, size, 16), p.scale, run, tokens};
    AttentionFinish dv = {p.dv, true, heads_aligned(&p.dv, p.dim, size, 16), 1, run, tokens};
    DSVI_FOR_ACT("attention", act, {
        DSVI_TRY(launch_finish<T>(stream, p, dk));
        DSVI_TRY(launch_finish<T>(stream, p, dv));
    });
    return DSV_OK;
}

} // namespace dsvi

using dsvi::AttentionProblem;

DsvStatus dsvi_cuda_attention_list_fwd(DsviStream *stream, const DsviAttentionArgs *args)
{
    DSVI_TRY(dsvi_attention_check(args));
    DSVI_TRY(dsvi::attention_list_supports(args));
    AttentionProblem p = dsvi::attention_list_problem_of(stream, args);
    p.couples = dsvi::heads_aligned(&p.out, p.dim, sizeof(__nv_bfloat16), 2 * sizeof(__nv_bfloat16));
    if (p.pairs == 0 || p.queries == 0)
        return DSV_OK;
    const char *why_portable = dsvi::hopper_declines(stream, p, args->act);
    bool refused = false;
    DSVI_TRY(!why_portable           ? dsvi::attention_forward_sm90(stream, p, &refused)
             : args->act == DSVI_F32 ? dsvi::attention_forward_f32(stream, p)
                                     : dsvi::attention_forward_bf16(stream, p));
    dsvi::name_variant(stream, args, false,
                       why_portable ? "portable"
                       : refused    ? "sm_90a, row by row"
                                    : "sm_90a",
                       refused ? dsvi::NO_TMA : why_portable);
    return DSV_OK;
}

/* Bytes of the unions of lists that the backward pass on Hopper makes, after the sums of dK and dV. */
static size_t attention_list_union_bytes(const DsviStream *stream, const DsviAttentionArgs *args,
                                         const AttentionProblem &p)
{
    bool hopper = stream->capability == 90 && !p.alone && args->act == DSVI_BF16 && p.dim <= 128;
    return hopper && args->lists ? dsvi::attention_union_bytes(p, args->lists->capacity) : 0;
}

size_t dsvi_cuda_attention_list_workspace(DsviStream *stream, const DsviAttentionArgs *args)
{
    size_t sums = dsvi::attention_sums_bytes(stream, args->batch * args->heads, args->keys, args->head_dim);
    AttentionProblem p = dsvi::attention_list_problem_of(stream, args);
    sums += attention_list_union_bytes(stream, args, p);
    bool inverts = stream->capability == 90 && args->lists && !p.alone && dsvi::spans_are_blocks(p) &&
                   !dsvi::attention_inverted_declines(stream, p);
    size_t inverted = inverts ? dsvi::attention_inverted_bytes(p) : 0;
    return sums > inverted ? sums : inverted;
}

/* The backward pass on Hopper that adds to the sums of dK and dV. */
static DsvStatus attention_list_bwd_sm90(DsviStream *stream, const DsviAttentionArgs *args,
                                         const AttentionProblem &p)
{
    AttentionProblem united = p;
    char *after_sums = static_cast<char *>(args->workspace) +
                       dsvi::attention_sums_bytes(stream, p.pairs, p.keys, p.dim);
    if (attention_list_union_bytes(stream, args, p) > 0)
        DSVI_TRY(dsvi::attention_unite_lists(stream, p, after_sums, &united));
    return dsvi::attention_backward_sm90(stream, united);
}

DsvStatus dsvi_cuda_attention_list_bwd(DsviStream *stream, const DsviAttentionArgs *args)
{
    DSVI_TRY(dsvi_attention_check(args));
    DSVI_TRY(dsvi::attention_list_supports(args));
    AttentionProblem p = dsvi::attention_list_problem_of(stream, args);
    size_t needed = dsvi_cuda_attention_list_workspace(stream, args), size = dsvi_dtype_size(args->act);
    if (args->workspace_bytes < needed)
        return DSVI_FAIL(DSV_E_SHAPE, "attention: workspace has %zu bytes, expected %zu",
                         args->workspace_bytes, needed);
    p.chunks = p.chunks && dsvi::heads_aligned(&p.dout, p.dim, size, 16) &&
               dsvi::heads_aligned(&p.out, p.dim, size, 16);
    p.couples = dsvi::heads_aligned(&p.dq, p.dim, size, 2 * size);
    const char *why_portable = dsvi::hopper_declines_backward(stream, p, args->act), *why_gathered = nullptr;
    bool blocks = !why_portable && args->lists && dsvi::spans_are_blocks(p), served = false;
    if (blocks)
        why_gathered = dsvi::key_major_declines(stream, p);
    if (blocks && !why_gathered) {
        DSVI_TRY(dsvi::attention_backward_inverted(stream, p, &served));
        why_gathered = served ? nullptr : dsvi::NO_TMA;
    }
    if (p.pairs > 0 && p.queries > 0)
        dsvi::name_variant(stream, args, true,
                           why_portable   ? "portable"
                           : why_gathered ? "sm_90a, not by blocks of keys"
                           : blocks       ? "sm_90a, by blocks of keys"
                                          : "sm_90a",
                           why_portable ? why_portable : why_gathered);
    if (served)
        return DSV_OK;
    DSVI_TRY(dsvi::attention_clear_sums(stream, p));
    if (p.pairs > 0 && p.queries > 0)
        DSVI_TRY(!why_portable           ? attention_list_bwd_sm90(stream, args, p)
                 : args->act == DSVI_F32 ? dsvi::attention_backward_f32(stream, p)
                                         : dsvi::attention_backward_bf16(stream, p));
    return dsvi::attention_finish_sums(stream, p, args->act, 0, 0);
}

void dsvi_cuda_fill_attention_list(DsviStream *stream, DsviOps *ops)
{
    snprintf(stream->attention_list_fwd, sizeof stream->attention_list_fwd, "cuda");
    snprintf(stream->attention_list_bwd, sizeof stream->attention_list_bwd, "cuda");
    DSVI_OPS_SET(ops, attention_list_fwd, dsvi_cuda_attention_list_fwd, stream->attention_list_fwd);
    DSVI_OPS_SET_WITH_WORKSPACE(ops, attention_list_bwd, dsvi_cuda_attention_list_bwd,
                                dsvi_cuda_attention_list_workspace, stream->attention_list_bwd);
}
