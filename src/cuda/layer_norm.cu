/* Layer norm, with the residual sum before it. The formulas are those of norm_ref.c and pointwise_ref.c;
 * rows.cuh says how threads lie on a row.
 *
 * The way for every width that matters reads memory once: a row stays in registers, scale and shift in
 * shared memory for all rows of a sample, and backward a thread sums its channels' gradients of both there,
 * for column_sums.cuh to add. Rows too long for that, or not at multiples of 16 bytes, are read anew for each
 * pass (`any`), and backward once more column by column. */
#include "cuda/column_sums.cuh"
#include "cuda/cuda.h"
#include "cuda/rows.cuh"

using namespace dsvi;

namespace {

constexpr int N = 4, VECTORS = ROW_CHANNELS / N;

/* The start of row `row` of a tensor of rows of `channels`. */
template <typename T> __device__ __forceinline__ T *row_of(void *tensor, int64_t row, int64_t channels)
{
    return (T *)tensor + row * channels;
}

template <typename T>
__device__ __forceinline__ const T *row_of(const void *tensor, int64_t row, int64_t channels)
{
    return (const T *)tensor + row * channels;
}

struct Statistics {
    float mean, rstd;
};

/* `rest` are the sums of (x - mean) and of its square. Where all x lie within half the mean of it, their
 * differences are exact, and the first sum is what rounding did to the mean: it is taken out of both, so that
 * a row of equal numbers has exactly their mean and no variance. */
__device__ __forceinline__ Statistics statistics_of(float mean, float2 rest, float share, float eps)
{
    float correction = 4.f * rest.y < mean * mean ? rest.x * share : 0.f;
    float variance = rest.y * share - correction * correction;
    variance = variance < 0.f ? 0.f : variance;
    return {mean + correction, 1.f / sqrtf(variance + eps)};
}

__device__ __forceinline__ float normalised(float x, Statistics of)
{
    return (x - of.mean) * of.rstd;
}

/* dx, less what was there, from the means of g and of g z. */
__device__ __forceinline__ float gradient(float g, float z, float2 mean, float rstd)
{
    return rstd * (g - mean.x - z * mean.y);
}

/* ---- forward ---- */

__device__ __forceinline__ Statistics statistics_of_row(const RowPart<N> &x, int channels, float eps,
                                                        float *sums, float2 *rests)
{
    float share = 1.f / (float)channels, sum = 0.f;
    float2 rest = make_float2(0.f, 0.f);
#pragma unroll
    for (int v = 0; v < VECTORS; v++)
#pragma unroll
        for (int i = 0; i < N; i++)
            sum += x[v][i];
    float mean = row_sum(sum, sums) * share;
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        if (row_channel<N>(v) >= channels)
            continue;
#pragma unroll
        for (int i = 0; i < N; i++) {
            float centred = x[v][i] - mean;
            rest.x += centred;
            rest.y += centred * centred;
        }
    }
    return statistics_of(mean, row_sum(rest, rests), share, eps);
}

__device__ __forceinline__ void modulate(RowPart<N> &x, int channels, Statistics of, const float *scale,
                                         const float *shift)
{
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        float a[N], b[N];
        if (row_channel<N>(v) >= channels)
            continue;
        load<N>(scale + row_channel<N>(v), a);
        load<N>(shift + row_channel<N>(v), b);
#pragma unroll
        for (int i = 0; i < N; i++)
            x[v][i] = normalised(x[v][i], of) * a[i] + b[i];
    }
}

/* x += gate y, each a row; gate NULL: x += y. */
template <typename T>
__device__ __forceinline__ void add_gated(RowPart<N> &x, int channels, const T *y, const float *gate)
{
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        float a[N], b[N] = {1.f, 1.f, 1.f, 1.f};
        if (row_channel<N>(v) >= channels)
            continue;
        load<N>(y + row_channel<N>(v), a);
        if (gate)
            load<N>(gate + row_channel<N>(v), b);
#pragma unroll
        for (int i = 0; i < N; i++)
            x[v][i] += b[i] * a[i];
    }
}

/* A row of x; with SUM it is made, and written to memory. */
template <typename T, bool SUM>
__device__ __forceinline__ void take_row(const DsvLayerNormArgs &args, const DsvGateResidualArgs &sum,
                                         int64_t sample, int64_t row, RowPart<N> &x)
{
    int channels = (int)args.channels;
    load_row<N>(row_of<float>(SUM ? sum.x : args.x, row, channels), channels, x);
    if (!SUM)
        return;
    const float *gate = sum.gate ? (const float *)sum.gate + sample * sum.gate_stride : nullptr;
    add_gated<T>(x, channels, row_of<T>(sum.y, row, channels), gate);
    store_row<N>(row_of<float>(sum.out, row, channels), channels, x);
}

/* Shared memory: what z is multiplied with and shifted by, for each row that the block walks at once. */
template <typename T, bool SUM>
__global__ void __launch_bounds__(ROW_THREADS)
forward_rows(const DsvLayerNormArgs args, const DsvGateResidualArgs sum)
{
    __shared__ float sums[WARP]; /* the barriers of either sum free the other's memory */
    __shared__ float2 rests[WARP];
    extern __shared__ __align__(16) float kept[];
    int channels = (int)args.channels;
    float *scale = kept + threadIdx.y * 2 * channels, *shift = scale + channels;
    for (int64_t sample = blockIdx.y; sample < args.batch; sample += gridDim.y) {
        int64_t modulation = sample * args.sample_stride;
        keep_row<N>(scale, (const float *)args.scale + modulation, channels, (float)args.one_plus);
        keep_row<N>(shift, (const float *)args.shift + modulation, channels, 0.f);
        for (int64_t token = row_first_token(); token < args.tokens; token += row_token_step()) {
            int64_t row = sample * args.tokens + token;
            RowPart<N> x;
            take_row<T, SUM>(args, sum, sample, row, x);
            Statistics of = statistics_of_row(x, channels, (float)args.eps, sums, rests);
            modulate(x, channels, of, scale, shift);
            store_row<N>(row_of<T>(args.y, row, channels), channels, x);
            if (threadIdx.x == 0) {
                ((float *)args.mean)[row] = of.mean;
                ((float *)args.rstd)[row] = of.rstd;
            }
        }
    }
}

/* A thread's channels of a row of x. It alone reads them. */
template <typename T> __device__ __forceinline__ void make_any(const DsvGateResidualArgs &sum, int64_t row)
{
    const float *x = row_of<float>(sum.x, row, sum.channels);
    const float *gate = sum.gate ? (const float *)sum.gate + row / sum.tokens * sum.gate_stride : nullptr;
    for (int64_t c = threadIdx.x; c < sum.channels; c += blockDim.x) {
        float y = to_float(row_of<T>(sum.y, row, sum.channels)[c]);
        row_of<float>(sum.out, row, sum.channels)[c] = x[c] + (gate ? gate[c] : 1.f) * y;
    }
}

template <typename T>
__global__ void __launch_bounds__(LONG_ROW_THREADS)
forward_any(const DsvLayerNormArgs args, const DsvGateResidualArgs made)
{
    __shared__ float sums[WARP];
    __shared__ float2 rests[WARP];
    float share = 1.f / (float)args.channels;
    for (int64_t row = blockIdx.x; row < args.batch * args.tokens; row += gridDim.x) {
        const float *x = row_of<float>(args.x, row, args.channels);
        int64_t modulation = row / args.tokens * args.sample_stride;
        float sum = 0.f;
        if (made.out)
            make_any<T>(made, row);
        float2 rest = make_float2(0.f, 0.f);
        for (int64_t c = threadIdx.x; c < args.channels; c += blockDim.x)
            sum += x[c];
        float mean = row_sum(sum, sums) * share;
        for (int64_t c = threadIdx.x; c < args.channels; c += blockDim.x) {
            rest.x += x[c] - mean;
            rest.y += (x[c] - mean) * (x[c] - mean);
        }
        Statistics of = statistics_of(mean, row_sum(rest, rests), share, (float)args.eps);
        for (int64_t c = threadIdx.x; c < args.channels; c += blockDim.x) {
            float scale = (float)args.one_plus + ((const float *)args.scale)[modulation + c];
            float y = normalised(x[c], of) * scale + ((const float *)args.shift)[modulation + c];
            row_of<T>(args.y, row, args.channels)[c] = from_float<T>(y);
        }
        if (threadIdx.x == 0) {
            ((float *)args.mean)[row] = of.mean;
            ((float *)args.rstd)[row] = of.rstd;
        }
    }
}

/* What both directions ask of x and scale. */
static bool vectors_fit(const DsvLayerNormArgs *args)
{
    return aligned((const float *)args->x, args->channels, 16) &&
           aligned((const float *)args->scale, args->sample_stride, 16);
}

template <typename T> static bool sum_fits(const DsvGateResidualArgs *sum)
{
    return aligned((const float *)sum->x, sum->channels, 16) &&
           aligned((const T *)sum->y, sum->channels, N * sizeof(T)) &&
           aligned((const float *)sum->gate, sum->gate_stride, 16);
}

template <typename T, bool SUM>
static DsvStatus forward_by_rows(DsvStream *stream, const DsvLayerNormArgs *args,
                                 const DsvGateResidualArgs *sum, size_t shared)
{
    int64_t rows = args->batch * args->tokens;
    dim3 block = row_block(args->channels), grid;
    auto kernel = forward_rows<T, SUM>;
    DSVI_TRY(row_grid(stream, kernel, block, shared, args->batch, args->tokens, rows, &grid));
    kernel<<<grid, block, shared, stream->handle>>>(*args, *sum);
    DSVI_CUDA_LAUNCHED("layer_norm_fwd");
    return DSV_OK;
}

template <typename T> static DsvStatus forward(DsvStream *stream, const DsvLayerNormArgs *args)
{
    const DsvGateResidualArgs none = {}, *sum = args->sum ? args->sum : &none;
    size_t shared = kept_bytes(args->channels, 2);
    if (row_fits(stream, args->channels, N, ROW_THREADS, shared) && vectors_fit(args) && sum_fits<T>(sum) &&
        aligned((const float *)args->shift, args->sample_stride, 16) &&
        aligned((const T *)args->y, args->channels, N * sizeof(T)))
        return args->sum ? forward_by_rows<T, true>(stream, args, sum, shared)
                         : forward_by_rows<T, false>(stream, args, sum, shared);
    unsigned blocks = long_row_blocks(stream, args->batch * args->tokens);
    forward_any<T><<<blocks, LONG_ROW_THREADS, 0, stream->handle>>>(*args, *sum);
    DSVI_CUDA_LAUNCHED("layer_norm_fwd");
    return DSV_OK;
}

/* ---- backward ---- */

/* sum[0..N) += x, in shared memory that only this thread uses. */
__device__ __forceinline__ void add_to(float *sum, const float (&x)[N])
{
    float total[N];
    load<N>(sum, total);
#pragma unroll
    for (int i = 0; i < N; i++)
        total[i] += x[i];
    store<N>(sum, total);
}

/* Rounds x to z and dy to g = dL/dz, adding to the sums of their channels on the way; returns this thread's
 * share of the sums of g and of g z. */
__device__ __forceinline__ float2 to_normalised(RowPart<N> &x, RowPart<N> &dy, int channels, Statistics of,
                                                const float *scale, float *dscale, float *dshift)
{
    float2 sum = make_float2(0.f, 0.f);
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        if (row_channel<N>(v) >= channels)
            continue;
        float product[N], factor[N];
        load<N>(scale + row_channel<N>(v), factor);
        add_to(dshift + row_channel<N>(v), dy[v]);
#pragma unroll
        for (int i = 0; i < N; i++) {
            x[v][i] = normalised(x[v][i], of);
            product[i] = dy[v][i] * x[v][i];
            dy[v][i] *= factor[i];
            sum.x += dy[v][i];
            sum.y += dy[v][i] * x[v][i];
        }
        add_to(dscale + row_channel<N>(v), product);
    }
    return sum;
}

__device__ __forceinline__ void add_gradient(float *dx, int channels, const RowPart<N> &g,
                                             const RowPart<N> &z, float2 mean, float rstd)
{
    RowPart<N> total;
    load_row<N>(dx, channels, total);
#pragma unroll
    for (int v = 0; v < VECTORS; v++)
#pragma unroll
        for (int i = 0; i < N; i++)
            total[v][i] += gradient(g[v][i], z[v][i], mean, rstd);
    store_row<N>(dx, channels, total);
}

/* Shared memory, for each row that the block walks at once: what z was multiplied with, then dscale and
 * dshift of the rows walked, which are written to (sample, part, 2, channels) of `partials`. */
template <typename T>
__global__ void __launch_bounds__(TWO_ROWS_THREADS)
backward_rows(const DsvLayerNormArgs args, float *partials)
{
    extern __shared__ __align__(16) float kept[];
    __shared__ float2 sums[2][WARP]; /* in turn: there is one barrier to a row */
    int channels = (int)args.channels, turn = 0;
    float *scale = kept + threadIdx.y * 3 * channels, *dscale = scale + channels, *dshift = dscale + channels;
    for (int64_t sample = blockIdx.y; sample < args.batch; sample += gridDim.y) {
        RowPart<N> zero = {}, total;
        const float *modulation = (const float *)args.scale + sample * args.sample_stride;
        keep_row<N>(scale, modulation, channels, (float)args.one_plus);
        store_row<N>(dscale, channels, zero);
        store_row<N>(dshift, channels, zero);
        for (int64_t token = row_first_token(); token < args.tokens; token += row_token_step(), turn ^= 1) {
            int64_t row = sample * args.tokens + token;
            Statistics of = {((const float *)args.mean)[row], ((const float *)args.rstd)[row]};
            RowPart<N> z, g;
            load_row<N>(row_of<float>(args.x, row, channels), channels, z);
            load_row<N>(row_of<T>(args.dy, row, channels), channels, g);
            float2 mean = row_sum(to_normalised(z, g, channels, of, scale, dscale, dshift), sums[turn]);
            mean = make_float2(mean.x / (float)channels, mean.y / (float)channels);
            add_gradient(row_of<float>(args.dx, row, channels), channels, g, z, mean, of.rstd);
        }
        int64_t part = sample * row_token_step() + row_first_token();
        load_row<N>(dscale, channels, total);
        store_row<N>(partials + 2 * part * channels, channels, total);
        load_row<N>(dshift, channels, total);
        store_row<N>(partials + (2 * part + 1) * channels, channels, total);
    }
}

template <typename T>
__global__ void __launch_bounds__(LONG_ROW_THREADS) backward_any(const DsvLayerNormArgs args)
{
    __shared__ float2 sums[2][WARP];
    int turn = 0;
    for (int64_t row = blockIdx.x; row < args.batch * args.tokens; row += gridDim.x, turn ^= 1) {
        const float *x = row_of<float>(args.x, row, args.channels);
        const float *scale = (const float *)args.scale + row / args.tokens * args.sample_stride;
        const T *dy = row_of<T>(args.dy, row, args.channels);
        float *dx = row_of<float>(args.dx, row, args.channels), one_plus = (float)args.one_plus;
        Statistics of = {((const float *)args.mean)[row], ((const float *)args.rstd)[row]};
        float2 mean = make_float2(0.f, 0.f);
        for (int64_t c = threadIdx.x; c < args.channels; c += blockDim.x) {
            float g = to_float(dy[c]) * (one_plus + scale[c]);
            mean.x += g;
            mean.y += g * normalised(x[c], of);
        }
        mean = row_sum(mean, sums[turn]);
        mean = make_float2(mean.x / (float)args.channels, mean.y / (float)args.channels);
        for (int64_t c = threadIdx.x; c < args.channels; c += blockDim.x) {
            float g = to_float(dy[c]) * (one_plus + scale[c]);
            dx[c] += gradient(g, normalised(x[c], of), mean, of.rstd);
        }
    }
}

/* dscale and dshift: a thread for a column and every STRANDS-th row of a sample. */
template <typename T>
__global__ void __launch_bounds__(WARP *STRANDS) modulation_any(const DsvLayerNormArgs args)
{
    int64_t column = (int64_t)blockIdx.x * WARP + threadIdx.x;
    for (int64_t sample = blockIdx.y; sample < args.batch; sample += gridDim.y) {
        float sum[2] = {0.f, 0.f};
        for (int64_t token = threadIdx.y; column < args.channels && token < args.tokens; token += STRANDS) {
            int64_t row = sample * args.tokens + token;
            Statistics of = {((const float *)args.mean)[row], ((const float *)args.rstd)[row]};
            float dy = to_float(row_of<T>(args.dy, row, args.channels)[column]);
            sum[0] += dy * normalised(row_of<float>(args.x, row, args.channels)[column], of);
            sum[1] += dy;
        }
        sum_strands<STRANDS>(sum);
        if (threadIdx.y == 0 && column < args.channels) {
            ((float *)args.dscale)[sample * args.sample_stride + column] += sum[0];
            ((float *)args.dshift)[sample * args.sample_stride + column] += sum[1];
        }
    }
}

/* `most`: blocks whose sums can be kept. */
template <typename T>
static DsvStatus backward_by_rows(DsvStream *stream, const DsvLayerNormArgs *args, int64_t most)
{
    dim3 block = row_block(args->channels), grid;
    size_t shared = kept_bytes(args->channels, 3);
    float *partials = (float *)stream->partials;
    DSVI_TRY(row_grid(stream, backward_rows<T>, block, shared, args->batch, args->tokens, most, &grid));
    backward_rows<T><<<grid, block, shared, stream->handle>>>(*args, partials);
    DSVI_CUDA_LAUNCHED("layer_norm_bwd");
    ColumnSums sums = {partials, args->batch, (int64_t)grid.x * block.y, 2, args->channels,
                       {(float *)args->dscale, (float *)args->dshift}, args->sample_stride};
    return launch_add_partials(stream, &sums);
}

template <typename T> static DsvStatus backward_by_any(DsvStream *stream, const DsvLayerNormArgs *args)
{
    int64_t rows = args->batch * args->tokens;
    dim3 columns((unsigned)ceil_div(args->channels, WARP), blocks_in_turn(args->batch));
    backward_any<T><<<long_row_blocks(stream, rows), LONG_ROW_THREADS, 0, stream->handle>>>(*args);
    modulation_any<T><<<columns, dim3(WARP, STRANDS), 0, stream->handle>>>(*args);
    DSVI_CUDA_LAUNCHED("layer_norm_bwd");
    return DSV_OK;
}

template <typename T> static DsvStatus backward(DsvStream *stream, const DsvLayerNormArgs *args)
{
    int64_t most = (int64_t)(DSVI_CUDA_PARTIALS / kept_bytes(args->channels, 2));
    if (row_fits(stream, args->channels, N, TWO_ROWS_THREADS, kept_bytes(args->channels, 3)) &&
        args->batch <= most && vectors_fit(args) &&
        aligned((const float *)args->dx, args->channels, 16) &&
        aligned((const T *)args->dy, args->channels, N * sizeof(T)))
        return backward_by_rows<T>(stream, args, most);
    return backward_by_any<T>(stream, args);
}

/* ---- the ops ---- */

/* With a scale and shift for all, all tokens are as good as one sample's; unless samples have gates. */
static DsvLayerNormArgs joined(const DsvLayerNormArgs *args)
{
    DsvLayerNormArgs all = *args;
    if (args->sample_stride == 0 && !args->sum) {
        all.tokens *= all.batch;
        all.batch = 1;
    }
    return all;
}

static DsvStatus layer_norm_fwd(DsvStream *stream, const DsvLayerNormArgs *args)
{
    DsvLayerNormArgs all = joined(args);
    if (all.batch * all.tokens * all.channels == 0)
        return DSV_OK;
    DSVI_FOR_ACT("layer_norm", args->act, return forward<T>(stream, &all));
}

static DsvStatus layer_norm_bwd(DsvStream *stream, const DsvLayerNormArgs *args)
{
    DsvLayerNormArgs all = joined(args);
    if (all.batch * all.tokens * all.channels == 0)
        return DSV_OK;
    DSVI_FOR_ACT("layer_norm", args->act, return backward<T>(stream, &all));
}

} // namespace

void dsvi_cuda_fill_layer_norm(DsvOps *ops)
{
    DSVI_OPS_SET(ops, layer_norm_fwd, layer_norm_fwd, "cuda");
    DSVI_OPS_SET(ops, layer_norm_bwd, layer_norm_bwd, "cuda");
}
