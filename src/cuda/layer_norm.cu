/* Layer norm, with the residual sum before it, and backward the gate behind it. The formulas are those of
 * norm_ref.c and pointwise_ref.c; rows.cuh says how threads lie on a row.
 *
 * The way for every width that matters reads memory once: a row stays in registers, scale and shift in
 * shared memory for all rows of a sample, and backward a thread sums its channels' gradients of both there,
 * for column_sums.cuh to add, and loads a row while it works on the one before. Rows too long for that, or
 * not at multiples of 16 bytes, are read anew for each pass (`any`), and backward once more column by
 * column. */
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

/* With a scale and shift for all, all tokens are as good as one sample's; unless samples have gates. */
static DsvLayerNormArgs joined(const DsvLayerNormArgs *args)
{
    DsvLayerNormArgs all = *args;
    if (args->sample_stride == 0 && !args->sum && !args->then) {
        all.tokens *= all.batch;
        all.batch = 1;
    }
    return all;
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

/* What a thread keeps in shared memory for the channels of its row: what z was multiplied with, what dx is to
 * be, and the sums over the rows walked. */
enum Kept { SCALE, DSCALE, DSHIFT, KEPT_OF_NORM, GATE = KEPT_OF_NORM, DGATE, DY_SUM, KEPT };
/* Sums among them, in the order of partials: (sample, part, sums, channels). */
constexpr int SUMS_OF_NORM = 2, SUMS = 4;

/* Rounds x to z and dy to g = dL/dz, adding to the sums of their channels on the way; returns this thread's
 * share of the sums of g and of g z. */
__device__ __forceinline__ float2 to_normalised(RowPart<N> &x, RowPart<N> &dy, int channels, Statistics of,
                                                float *kept)
{
    float2 sum = make_float2(0.f, 0.f);
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        float *at = kept + row_channel<N>(v), product[N], factor[N];
        if (row_channel<N>(v) >= channels)
            continue;
        load<N>(at + SCALE * channels, factor);
        add_to(at + DSHIFT * channels, dy[v]);
#pragma unroll
        for (int i = 0; i < N; i++) {
            x[v][i] = normalised(x[v][i], of);
            product[i] = dy[v][i] * x[v][i];
            dy[v][i] *= factor[i];
            sum.x += dy[v][i];
            sum.y += dy[v][i] * x[v][i];
        }
        add_to(at + DSCALE * channels, product);
    }
    return sum;
}

/* dout goes through the gate, to dy; adds to its sums. y: as it was loaded, 0 without a gate. */
template <typename T>
__device__ __forceinline__ void pass_gate(T *dy, int channels, const RowPart<N> &dout, const RawPart<N, T> &y,
                                          float *kept)
{
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        float *at = kept + row_channel<N>(v), gate[N], product[N];
        if (row_channel<N>(v) >= channels)
            continue;
        load<N>(at + GATE * channels, gate);
        unpack<N>(y.vector[v], product);
#pragma unroll
        for (int i = 0; i < N; i++) {
            product[i] *= dout[v][i];
            gate[i] *= dout[v][i];
        }
        store<N>(dy + row_channel<N>(v), gate);
        add_to(at + DGATE * channels, product);
        add_to(at + DY_SUM * channels, gate);
    }
}

/* A row on its way from memory. */
template <typename T> struct Arriving {
    RawPart<N, float> x;
    RawPart<N, T> dy;
    Statistics of;
};

template <typename T>
__device__ __forceinline__ void order_row(const DsvLayerNormArgs &args, int64_t row, Arriving<T> &next)
{
    next.of = {((const float *)args.mean)[row], ((const float *)args.rstd)[row]};
    load_raw<N>(row_of<float>(args.x, row, args.channels), (int)args.channels, next.x);
    load_raw<N>(row_of<T>(args.dy, row, args.channels), (int)args.channels, next.dy);
}

/* Factors of a sample, and sums of nothing. */
template <bool THEN>
__device__ __forceinline__ void begin_sample(const DsvLayerNormArgs &args, const DsvGateResidualArgs &then,
                                             int64_t sample, float *kept)
{
    int channels = (int)args.channels;
    RowPart<N> zero = {};
    const float *modulation = (const float *)args.scale + sample * args.sample_stride;
    keep_row<N>(kept + SCALE * channels, modulation, channels, (float)args.one_plus);
    store_row<N>(kept + DSCALE * channels, channels, zero);
    store_row<N>(kept + DSHIFT * channels, channels, zero);
    if (!THEN)
        return;
    if (then.gate)
        keep_row<N>(kept + GATE * channels, (const float *)then.gate + sample * then.gate_stride, channels,
                    0.f);
    else
        fill_row<N>(kept + GATE * channels, channels, 1.f);
    store_row<N>(kept + DGATE * channels, channels, zero);
    store_row<N>(kept + DY_SUM * channels, channels, zero);
}

/* The sums of the rows walked to their place in `partials`. */
template <bool THEN>
__device__ __forceinline__ void end_sample(int64_t part, int channels, const float *kept, float *partials)
{
    constexpr int LIST[SUMS] = {DSCALE, DSHIFT, DGATE, DY_SUM}, COUNT = THEN ? SUMS : SUMS_OF_NORM;
#pragma unroll
    for (int sum = 0; sum < COUNT; sum++) {
        RowPart<N> total;
        load_row<N>(kept + LIST[sum] * channels, channels, total);
        store_row<N>(partials + (part * COUNT + sum) * channels, channels, total);
    }
}

/* dy of `then` may be this dy: a thread has loaded its channels of a row before it writes them. */
template <typename T, bool THEN>
__global__ void __launch_bounds__(TWO_ROWS_THREADS)
backward_rows(const DsvLayerNormArgs args, const DsvGateResidualArgs then, float *partials)
{
    extern __shared__ __align__(16) float shared[];
    __shared__ float2 sums[2][WARP]; /* in turn: there is one barrier to a row */
    int channels = (int)args.channels, turn = 0;
    float *kept = shared + threadIdx.y * (THEN ? KEPT : KEPT_OF_NORM) * channels;
    for (int64_t sample = blockIdx.y; sample < args.batch; sample += gridDim.y) {
        int64_t token = row_first_token();
        Arriving<T> next;
        begin_sample<THEN>(args, then, sample, kept);
        if (token < args.tokens)
            order_row(args, sample * args.tokens + token, next);
        for (; token < args.tokens; token += row_token_step(), turn ^= 1) {
            int64_t row = sample * args.tokens + token;
            Statistics of = next.of;
            RowPart<N> z, g, dx;
            RawPart<N, T> y = {};
            unpack_row<N>(next.x, z);
            unpack_row<N>(next.dy, g);
            load_row<N>(row_of<float>(args.dx, row, channels), channels, dx);
            if (THEN && then.gate)
                load_raw<N>(row_of<T>(then.y, row, channels), channels, y);
            if (token + row_token_step() < args.tokens)
                order_row(args, row + row_token_step(), next);
            float2 mean = row_sum(to_normalised(z, g, channels, of, kept), sums[turn]);
            mean = make_float2(mean.x / (float)channels, mean.y / (float)channels);
#pragma unroll
            for (int v = 0; v < VECTORS; v++)
#pragma unroll
                for (int i = 0; i < N; i++)
                    dx[v][i] += gradient(g[v][i], z[v][i], mean, of.rstd);
            store_row<N>(row_of<float>(args.dx, row, channels), channels, dx);
            if (THEN)
                pass_gate<T>(row_of<T>(then.dy, row, channels), channels, dx, y, kept);
        }
        end_sample<THEN>(sample * row_token_step() + row_first_token(), channels, kept, partials);
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

/* What `then` asks of its tensors. */
template <typename T> static bool then_fits(const DsvGateResidualArgs *then)
{
    return aligned((const T *)then->dy, then->channels, N * sizeof(T)) &&
           (!then->gate || (aligned((const T *)then->y, then->channels, N * sizeof(T)) &&
                            aligned((const float *)then->gate, then->gate_stride, 16)));
}

/* `most`: blocks whose sums can be kept. */
template <typename T, bool THEN>
static DsvStatus backward_by_rows(DsvStream *stream, const DsvLayerNormArgs *args,
                                  const DsvGateResidualArgs *then, int64_t most)
{
    dim3 block = row_block(args->channels), grid;
    size_t shared = kept_bytes(args->channels, THEN ? KEPT : KEPT_OF_NORM);
    float *partials = (float *)stream->partials;
    auto kernel = backward_rows<T, THEN>;
    DSVI_TRY(row_grid(stream, kernel, block, shared, args->batch, args->tokens, most, &grid));
    kernel<<<grid, block, shared, stream->handle>>>(*args, *then, partials);
    DSVI_CUDA_LAUNCHED("layer_norm_bwd");
    ColumnSums sums = {
        partials, args->batch, (int64_t)grid.x * block.y, THEN ? SUMS : SUMS_OF_NORM, args->channels,
        {(float *)args->dscale, (float *)args->dshift, (float *)then->dgate, (float *)then->dy_sum},
        {args->sample_stride, args->sample_stride, then->gate_stride, 0},
    };
    return launch_add_partials(stream, &sums);
}

template <typename T>
static DsvStatus backward_by_any(DsvStream *stream, const DsvLayerNormArgs *args)
{
    DsvLayerNormArgs alone = *args;
    alone.then = NULL;
    alone = joined(&alone);
    int64_t rows = alone.batch * alone.tokens;
    dim3 columns((unsigned)ceil_div(alone.channels, WARP), blocks_in_turn(alone.batch));
    backward_any<T><<<long_row_blocks(stream, rows), LONG_ROW_THREADS, 0, stream->handle>>>(alone);
    modulation_any<T><<<columns, dim3(WARP, STRANDS), 0, stream->handle>>>(alone);
    DSVI_CUDA_LAUNCHED("layer_norm_bwd");
    return args->then ? dsvi_cuda_gate_residual_bwd(stream, args->then) : DSV_OK;
}

template <typename T> static DsvStatus backward(DsvStream *stream, const DsvLayerNormArgs *args)
{
    const DsvGateResidualArgs none = {}, *then = args->then;
    int64_t kept = then ? KEPT : KEPT_OF_NORM, sums = then ? SUMS : SUMS_OF_NORM;
    int64_t most = (int64_t)(DSVI_CUDA_PARTIALS / kept_bytes(args->channels, sums));
    if (row_fits(stream, args->channels, N, TWO_ROWS_THREADS, kept_bytes(args->channels, kept)) &&
        args->batch <= most && vectors_fit(args) &&
        aligned((const float *)args->dx, args->channels, 16) &&
        aligned((const T *)args->dy, args->channels, N * sizeof(T)) && (!then || then_fits<T>(then)))
        return then ? backward_by_rows<T, true>(stream, args, then, most)
                    : backward_by_rows<T, false>(stream, args, &none, most);
    return backward_by_any<T>(stream, args);
}

/* ---- the ops ---- */

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
