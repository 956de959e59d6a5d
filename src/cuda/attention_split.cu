/* Dense attention forward over keys in two parts: those that fill whole tiles, and the rest. cuDNN masks
 * every tile of keys where the last one is not full, which costs a tenth of the time (H200, 12 heads of 128:
 * 32,760 keys 11.1 ms, 32,640 of them 9.8 ms); the few keys left over cost next to nothing, and the join one
 * pass over the output:
 *
 *     lse = log(exp(lse_a) + exp(lse_b))      out = exp(lse_a - lse) out_a + exp(lse_b - lse) out_b
 *
 * The backward pass gains too little by it: it goes by the joint lse and out, over all keys at once. */
#include "cuda/attention_split.h"
#include "cuda/kernel.cuh"

namespace {

using namespace dsvi;

constexpr int THREADS = 256;
constexpr int VECTOR = 8;               /* BF16 elements a thread joins */
constexpr int64_t TILE = 128;           /* keys */
constexpr int64_t KEYS_LEAST = 8 * TILE; /* fewer are done before the join has begun */
constexpr size_t ALIGNMENT = 256;

size_t padded(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

size_t out_bytes(const DsvAttentionArgs *args)
{
    int64_t elements = args->batch * args->queries * args->heads * args->head_dim;
    return padded((size_t)elements * sizeof(__nv_bfloat16));
}

size_t lse_bytes(const DsvAttentionArgs *args)
{
    return padded((size_t)(args->batch * args->heads * args->queries) * sizeof(float));
}

__device__ __forceinline__ __nv_bfloat16 *row_of(const DsvHeads &rows, int64_t b, int64_t s, int64_t h)
{
    return (__nv_bfloat16 *)rows.data + b * rows.batch_stride + s * rows.token_stride + h * rows.head_stride;
}

/* Rows in the order (b, s, h), `threads` neighbouring threads each. */
__global__ void __launch_bounds__(THREADS)
join(const DsvAttentionArgs whole, const DsvAttentionArgs rest, int threads, int64_t rows)
{
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = at / threads;
    if (row >= rows)
        return;
    int64_t h = row % whole.heads, token = row / whole.heads, s = token % whole.queries;
    int64_t b = token / whole.queries, d = at % threads * VECTOR;
    int64_t scalar = (b * whole.heads + h) * whole.queries + s;
    float *lse = (float *)whole.lse + scalar;
    float lse_a = *lse, lse_b = ((const float *)rest.lse)[scalar], most = fmaxf(lse_a, lse_b);
    float a = expf(lse_a - most), sum = a + expf(lse_b - most), x[VECTOR], y[VECTOR];
    __nv_bfloat16 *out = row_of(whole.out, b, s, h) + d;
    load<VECTOR>(row_of(rest.out, b, s, h) + d, y);
    load<VECTOR>(out, x);
    a /= sum;
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        x[i] = a * x[i] + (1.f - a) * y[i];
    store<VECTOR>(out, x);
    __syncwarp(); /* a row's threads lie in one warp, and all have read lse */
    if (d == 0)
        *lse = most + logf(sum);
}

} // namespace

bool dsvi_attention_split_pays(const DsvAttentionArgs *args)
{
    int64_t threads = args->head_dim / VECTOR;
    bool whole_warps = threads > 0 && WARP % threads == 0;
    return whole_warps && args->head_dim % VECTOR == 0 && args->keys >= KEYS_LEAST && args->keys % TILE != 0;
}

size_t dsvi_attention_split_bytes(const DsvAttentionArgs *args)
{
    return out_bytes(args) + lse_bytes(args);
}

DsvAttentionArgs dsvi_attention_split_part(const DsvAttentionArgs *args, bool rest)
{
    DsvAttentionArgs part = *args;
    size_t bytes = dsvi_attention_split_bytes(args);
    unsigned char *workspace = (unsigned char *)args->workspace;
    int64_t tiles = args->keys / TILE * TILE;
    part.workspace = workspace + bytes;
    part.workspace_bytes = args->workspace_bytes > bytes ? args->workspace_bytes - bytes : 0;
    part.keys = rest ? args->keys - tiles : tiles;
    if (!rest)
        return part;
    part.k.data = (__nv_bfloat16 *)args->k.data + tiles * args->k.token_stride;
    part.v.data = (__nv_bfloat16 *)args->v.data + tiles * args->v.token_stride;
    part.out = dsvi_heads(workspace, args->queries, args->heads, args->head_dim);
    part.lse = workspace + out_bytes(args);
    return part;
}

DsvStatus dsvi_attention_split_fwd(DsvStream *stream, const DsvAttentionArgs *args,
                                   dsvi_attention_fn *attend)
{
    DsvAttentionArgs whole = dsvi_attention_split_part(args, false);
    DsvAttentionArgs rest = dsvi_attention_split_part(args, true);
    int threads = (int)(args->head_dim / VECTOR);
    int64_t rows = args->batch * args->queries * args->heads;
    if (args->workspace_bytes < dsvi_attention_split_bytes(args))
        return DSVI_FAIL(DSV_E_SHAPE, "attention: workspace has %zu bytes, wanted %zu", args->workspace_bytes,
                         dsvi_attention_split_bytes(args));
    DSVI_TRY(attend(stream, &whole));
    DSVI_TRY(attend(stream, &rest));
    unsigned blocks = (unsigned)ceil_div(rows * threads, THREADS);
    join<<<blocks, THREADS, 0, stream->handle>>>(whole, rest, threads, rows);
    DSVI_CUDA_LAUNCHED("attention");
    return DSV_OK;
}
