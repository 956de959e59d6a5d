/* Two results of attention over different keys become one. A thread has N elements of a row; those of a
 * sample are counted through its queries, their heads, and a row, so that neighbouring threads have
 * neighbouring elements; blockIdx.y: the sample. A row's threads all need both lse as they were, and may be
 * of several blocks: the joint lse is written by a kernel of its own, afterwards. */
#include "cuda/cuda.h"
#include "cuda/kernel.cuh"

namespace {

using namespace dsvi;

constexpr int THREADS = 256, VECTOR = 8;

struct Weights {
    float from, part, lse;
};

__device__ __forceinline__ Weights weigh(float from_lse, float part_lse)
{
    float larger = fmaxf(from_lse, part_lse);
    if (larger == -INFINITY)
        return {0.f, 0.f, larger};
    float from = expf(from_lse - larger), part = expf(part_lse - larger), sum = from + part;
    return {from / sum, part / sum, larger + logf(sum)};
}

__device__ __forceinline__ int64_t element(const DsvHeads &rows, int64_t b, int64_t s, unsigned h, unsigned d)
{
    return b * rows.batch_stride + s * rows.token_stride + h * rows.head_stride + d;
}

/* A weight of zero is of what must not be used. */
template <typename From, typename Act, typename To, int N>
__global__ void __launch_bounds__(THREADS) merge(const DsvAttentionMergeArgs args)
{
    unsigned vectors = (unsigned)args.head_dim / N, of_token = (unsigned)args.heads * vectors;
    int64_t start = (int64_t)blockIdx.x * THREADS, first = start / of_token;
    unsigned behind = (unsigned)(start - first * of_token) + threadIdx.x;
    unsigned h = behind % of_token / vectors, d = behind % vectors * N;
    int64_t s = first + behind / of_token;
    if (s >= args.queries)
        return;
    for (int64_t b = blockIdx.y; b < args.batch; b += gridDim.y) {
        int64_t lse_at = (b * args.heads + h) * args.queries + s;
        float from[N], part[N];
        load_vector<N>((const From *)args.from.data + element(args.from, b, s, h, d), from);
        load_vector<N>((const Act *)args.part.data + element(args.part, b, s, h, d), part);
        Weights weight = weigh(((const float *)args.lse)[lse_at], ((const float *)args.part_lse)[lse_at]);
#pragma unroll
        for (int i = 0; i < N; i++)
            from[i] = (weight.from > 0.f ? weight.from * from[i] : 0.f) +
                      (weight.part > 0.f ? weight.part * part[i] : 0.f);
        store_vector<N>((To *)args.to.data + element(args.to, b, s, h, d), from);
    }
}

__global__ void __launch_bounds__(THREADS) merge_lse(float *lse, const float *part_lse, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n)
        lse[i] = weigh(lse[i], part_lse[i]).lse;
}

/* Whether vectors of N elements begin at multiples of 16 bytes, or of their own size where that is less. */
template <int N, typename T> bool vectors_fit(const DsvHeads *rows)
{
    constexpr size_t BYTES = N * sizeof(T) < 16 ? N * sizeof(T) : 16;
    const T *data = (const T *)rows->data;
    return aligned(data, rows->batch_stride, BYTES) && aligned(data, rows->token_stride, BYTES) &&
           aligned(data, rows->head_stride, BYTES);
}

template <typename From, typename Act, typename To, int N>
void launch_vectors(DsvStream *stream, const DsvAttentionMergeArgs *args)
{
    int64_t threads = args->queries * args->heads * (args->head_dim / N);
    dim3 grid((unsigned)ceil_div(threads, THREADS), blocks_in_turn(args->batch));
    merge<From, Act, To, N><<<grid, THREADS, 0, stream->handle>>>(*args);
}

template <typename From, typename Act, typename To>
void launch(DsvStream *stream, const DsvAttentionMergeArgs *args)
{
    if (args->head_dim % VECTOR == 0 && vectors_fit<VECTOR, From>(&args->from) &&
        vectors_fit<VECTOR, Act>(&args->part) && vectors_fit<VECTOR, To>(&args->to))
        launch_vectors<From, Act, To, VECTOR>(stream, args);
    else
        launch_vectors<From, Act, To, 1>(stream, args);
}

/* Of the dtypes, act is F32 or BF16 and the others are act or F32. */
void launch_of_dtypes(DsvStream *stream, const DsvAttentionMergeArgs *args)
{
    bool from_bf16 = args->from_dtype == DSV_BF16, to_bf16 = args->to_dtype == DSV_BF16;
    if (args->act == DSV_F32)
        launch<float, float, float>(stream, args);
    else if (from_bf16 && to_bf16)
        launch<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16>(stream, args);
    else if (from_bf16)
        launch<__nv_bfloat16, __nv_bfloat16, float>(stream, args);
    else if (to_bf16)
        launch<float, __nv_bfloat16, __nv_bfloat16>(stream, args);
    else
        launch<float, __nv_bfloat16, float>(stream, args);
}

DsvStatus attention_merge(DsvStream *stream, const DsvAttentionMergeArgs *args)
{
    int64_t rows = args->batch * args->heads * args->queries;
    if ((args->act != DSV_F32 && args->act != DSV_BF16) || args->acc != DSV_F32)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "attention_merge: this variant takes F32 and BF16 with F32, not "
                         "%s with %s", dsvi_dtype_name(args->act), dsvi_dtype_name(args->acc));
    if (rows == 0)
        return DSV_OK;
    if (args->head_dim > 0)
        launch_of_dtypes(stream, args);
    DSVI_CUDA_LAUNCHED("attention_merge");
    merge_lse<<<(unsigned)ceil_div(rows, THREADS), THREADS, 0, stream->handle>>>(
        (float *)args->lse, (const float *)args->part_lse, rows);
    DSVI_CUDA_LAUNCHED("attention_merge");
    return DSV_OK;
}

} // namespace

void dsvi_cuda_fill_attention_merge(DsvOps *ops)
{
    DSVI_OPS_SET(ops, attention_merge, attention_merge, "cuda");
}
