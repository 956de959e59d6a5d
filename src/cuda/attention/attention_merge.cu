/* Joins the results of attention over two sets of keys (ops/attention_merge.h). A thread joins N elements of
 * a row; blockIdx.y is the sample. Threads number the elements of a sample in the order queries, heads,
 * columns, so that neighbouring threads have neighbouring elements. All threads of a row need both lse (log
 * of the sum of exp(scores)) as they were before joining, and may be in different thread blocks, so a second
 * kernel writes the joint lse afterwards. */
#include "cuda/attention/attention_weights.cuh"
#include "cuda/common/cuda.h"
#include "cuda/common/kernel.cuh"

namespace {

using namespace dsvi;

constexpr int THREADS = 256, VECTOR = 8;

__device__ __forceinline__ int64_t element(const DsviHeads &rows, int64_t b, int64_t s, unsigned h,
                                           unsigned d)
{
    return b * rows.batch_stride + s * rows.token_stride + h * rows.head_stride + d;
}

/* Combines the two results of each row, weighted by their lse. A result with weight 0 is not used, because it
 * may be infinite or NaN. */
template <typename From, typename Act, typename To, int N>
__global__ void __launch_bounds__(THREADS) merge(const DsviAttentionMergeArgs args)
{
    unsigned vectors = (unsigned)args.head_dim / N, of_token = (unsigned)args.heads * vectors;
    int64_t start = (int64_t)blockIdx.x * THREADS, first = start / of_token;
    unsigned past = (unsigned)(start - first * of_token) + threadIdx.x;
    unsigned h = past % of_token / vectors, d = past % vectors * N;
    int64_t s = first + past / of_token;
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

/* Returns whether vectors of N elements begin at multiples of 16 bytes, or at multiples of the vector size if
 * this is less than 16 bytes. */
template <int N, typename T> bool merge_vectors_fit(const DsviHeads *rows)
{
    constexpr size_t BYTES = N * sizeof(T) < 16 ? N * sizeof(T) : 16;
    const T *data = (const T *)rows->data;
    return aligned(data, rows->batch_stride, BYTES) && aligned(data, rows->token_stride, BYTES) &&
           aligned(data, rows->head_stride, BYTES);
}

template <typename From, typename Act, typename To>
DsvStatus launch_merge(DsviStream *stream, const DsviAttentionMergeArgs *args)
{
    bool vectors = args->head_dim % VECTOR == 0 && merge_vectors_fit<VECTOR, From>(&args->from) &&
                   merge_vectors_fit<VECTOR, Act>(&args->part) && merge_vectors_fit<VECTOR, To>(&args->to);
    auto *kernel = vectors ? merge<From, Act, To, VECTOR> : merge<From, Act, To, 1>;
    int64_t threads = args->queries * args->heads * (args->head_dim / (vectors ? VECTOR : 1));
    dim3 grid((unsigned)ceil_div(threads, THREADS), blocks_in_turn(args->batch));
    DSVI_CUDA_LAUNCH(stream, "attention_merge", kernel, grid, THREADS, 0, *args);
    return DSV_OK;
}

/* `act` is F32 or BF16; `from` and `to` each have the type `act` or F32. */
DsvStatus launch_merge_of_types(DsviStream *stream, const DsviAttentionMergeArgs *args)
{
    bool from_bf16 = args->from_dtype == DSVI_BF16, to_bf16 = args->to_dtype == DSVI_BF16;
    auto *launch = args->act == DSVI_F32  ? launch_merge<float, float, float>
                   : from_bf16 && to_bf16 ? launch_merge<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16>
                   : from_bf16            ? launch_merge<__nv_bfloat16, __nv_bfloat16, float>
                   : to_bf16              ? launch_merge<float, __nv_bfloat16, __nv_bfloat16>
                                          : launch_merge<float, __nv_bfloat16, float>;
    return launch(stream, args);
}

DsvStatus attention_merge_cuda(DsviStream *stream, const DsviAttentionMergeArgs *args)
{
    int64_t rows = args->batch * args->heads * args->queries;
    if ((args->act != DSVI_F32 && args->act != DSVI_BF16) || args->acc != DSVI_F32)
        return DSVI_FAIL(DSV_E_UNSUPPORTED,
                         "attention_merge: this variant takes F32 and BF16 with F32, not "
                         "%s with %s",
                         dsvi_dtype_name(args->act), dsvi_dtype_name(args->acc));
    if (rows == 0)
        return DSV_OK;
    if (args->head_dim > 0)
        DSVI_TRY(launch_merge_of_types(stream, args));
    DSVI_CUDA_LAUNCH(stream, "attention_merge: lse", merge_lse, (unsigned)ceil_div(rows, THREADS), THREADS, 0,
                     (float *)args->lse, (const float *)args->part_lse, rows);
    return DSV_OK;
}

} // namespace

void dsvi_cuda_fill_attention_merge(DsviOps *ops)
{
    DSVI_OPS_SET(ops, attention_merge, attention_merge_cuda, "cuda");
}
