/* layer_norm. The forward pass includes the gated residual sum that may precede the norm; the backward pass
 * includes the gradient of the gate of such a sum. The formulas are in ops/norm_ref.c and
 * ops/pointwise_ref.c; common/rows.cuh describes how the threads of a block divide a row.
 *
 * The usual kernels read memory once: a row stays in registers, and scale and shift of a sample stay in
 * shared memory for all of its rows. Backward, a thread sums the gradients of scale and shift of its channels
 * in shared memory and writes them as one partial row (common/two_stage_sum.cuh), and it loads the next row
 * while it computes with the current one. The kernels named `long` serve rows that are too long for registers
 * or do not begin at multiples of 16 bytes: they read a row again in each pass, and in the backward pass they
 * read the tensor once more, column by column, for the gradients of scale and shift. */
#include "cuda/common/two_stage_sum.cuh"
#include "cuda/common/cuda.h"
#include "cuda/common/rows.cuh"
#include "cuda/common/token_list.cuh"

using namespace dsvi;

namespace {

constexpr int N = 4, VECTORS = ROW_CHANNELS / N;

/* Returns the first element of row `row` of a (rows, channels) tensor. */
template <typename T> __device__ __forceinline__ T *row_of(void *tensor, int64_t row, int64_t channels)
{
    return (T *)tensor + row * channels;
}

template <typename T>
__device__ __forceinline__ const T *row_of(const void *tensor, int64_t row, int64_t channels)
{
    return (const T *)tensor + row * channels;
}

/* Statistics of a row of channels: its mean, and rstd = 1 / sqrt(variance + eps). */
struct Statistics {
    float mean, rstd;
};

/* Computes the statistics of a row. `rest` holds the sums of (x - mean) and of (x - mean)^2, inverse_count is
 * 1 / channels. If all x differ from the mean by less than half of the mean, the differences are exact, and
 * the first sum comes from the rounding error of `mean`. This error is removed from mean and variance, so
 * that a row of equal numbers has exactly their mean and variance 0. */
__device__ __forceinline__ Statistics statistics_of(float mean, float2 rest, float inverse_count, float eps)
{
    float correction = 4.f * rest.y < mean * mean ? rest.x * inverse_count : 0.f;
    float variance = rest.y * inverse_count - correction * correction;
    variance = variance < 0.f ? 0.f : variance;
    return {mean + correction, 1.f / sqrtf(variance + eps)};
}

__device__ __forceinline__ float normalised(float x, Statistics of)
{
    return (x - of.mean) * of.rstd;
}

/* Returns the layer norm's contribution to the gradient dx of one element, where z is the normalised x, g =
 * dL/dz, and `mean` holds the row's means of g (x) and of g z (y). */
__device__ __forceinline__ float gradient(float g, float z, float2 mean, float rstd)
{
    return rstd * (g - mean.x - z * mean.y);
}

/* Returns `args` with all samples of the batch joined to one if this is possible, so that a grid then
 * divides tokens only. It is possible if all samples have the same scale and shift and there are no gates,
 * which differ between samples. A list of tokens is the same in all samples, so it prevents joining. */
static DsviLayerNormArgs joined_samples(const DsviLayerNormArgs *args)
{
    DsviLayerNormArgs all = *args;
    if (args->sample_stride == 0 && !args->only.token && !args->sum && !args->then) {
        all.tokens *= all.batch;
        all.batch = 1;
    }
    all.only.count = dsvi_listed_tokens(&all.only, all.tokens);
    return all;
}

/* ---- forward ---- */

__device__ __forceinline__ Statistics statistics_of_row(const RowPart<N> &x, int channels, float eps,
                                                        float *sums, float2 *rests)
{
    float inverse_count = 1.f / (float)channels, sum = 0.f;
    float2 rest = make_float2(0.f, 0.f);
#pragma unroll
    for (int v = 0; v < VECTORS; v++)
#pragma unroll
        for (int i = 0; i < N; i++)
            sum += x[v][i];
    float mean = row_sum(sum, sums) * inverse_count;
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
    return statistics_of(mean, row_sum(rest, rests), inverse_count, eps);
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

/* x += gate y for this thread's channels of one row, where `gate` has one factor per channel; if `gate` is
 * NULL, x += y. */
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

/* Loads this thread's channels of a row of x. With SUM the row is x + gate y, which is also written to
 * sum.out. */
template <typename T, bool SUM>
__device__ __forceinline__ void load_or_make_row(const DsviLayerNormArgs &args,
                                                 const DsviGateResidualArgs &sum, int64_t sample, int64_t row,
                                                 RowPart<N> &x)
{
    int channels = (int)args.channels;
    load_row<N>(row_of<float>(SUM ? sum.x : args.x, row, channels), channels, x);
    if (!SUM)
        return;
    const float *gate = sum.gate ? (const float *)sum.gate + sample * sum.gate_stride : nullptr;
    add_gated<T>(x, channels, row_of<T>(sum.y, row, channels), gate);
    store_row<N>(row_of<float>(sum.out, row, channels), channels, x);
}

/* Normalises rows that fit in registers; with SUM, each row is first computed as x + gate y. Dynamic shared
 * memory: scale (plus one_plus) and shift, for each row that the block processes at the same time. */
template <typename T, bool SUM, bool LISTED>
__global__ void __launch_bounds__(ROW_THREADS)
    layer_norm_fwd_kernel(const DsviLayerNormArgs args, const DsviGateResidualArgs sum)
{
    __shared__ float sums[WARP]; /* after the barrier inside one of the two sums, the memory of the other may
                                  * be written again */
    __shared__ float2 rests[WARP];
    extern __shared__ __align__(16) float kept[];
    int channels = (int)args.channels;
    float *scale = kept + threadIdx.y * 2 * channels, *shift = scale + channels;
    for (int64_t sample = blockIdx.y; sample < args.batch; sample += gridDim.y) {
        int64_t modulation = sample * args.sample_stride;
        keep_row<N>(scale, (const float *)args.scale + modulation, channels, (float)args.one_plus);
        keep_row<N>(shift, (const float *)args.shift + modulation, channels, 0.f);
        for (int64_t i = row_first_token(); i < args.only.count; i += row_token_step()) {
            int64_t row = sample * args.tokens + listed_token<LISTED>(args.only, i);
            RowPart<N> x;
            load_or_make_row<T, SUM>(args, sum, sample, row, x);
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

/* Writes x + gate y of row `row` to sum.out, for rows that are too long for registers. A thread writes the
 * channels that it alone reads later, so no barrier is needed. */
template <typename T>
__device__ __forceinline__ void make_long_row(const DsviGateResidualArgs &sum, int64_t row)
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
    layer_norm_fwd_long_kernel(const DsviLayerNormArgs args, const DsviGateResidualArgs made)
{
    __shared__ float sums[WARP];
    __shared__ float2 rests[WARP];
    float inverse_count = 1.f / (float)args.channels;
    for (int64_t i = blockIdx.x; i < args.batch * args.only.count; i += gridDim.x) {
        int64_t row = listed_row(args.only, args.tokens, i);
        const float *x = row_of<float>(args.x, row, args.channels);
        int64_t modulation = row / args.tokens * args.sample_stride;
        float sum = 0.f;
        if (made.out)
            make_long_row<T>(made, row);
        float2 rest = make_float2(0.f, 0.f);
        for (int64_t c = threadIdx.x; c < args.channels; c += blockDim.x)
            sum += x[c];
        float mean = row_sum(sum, sums) * inverse_count;
        for (int64_t c = threadIdx.x; c < args.channels; c += blockDim.x) {
            rest.x += x[c] - mean;
            rest.y += (x[c] - mean) * (x[c] - mean);
        }
        Statistics of = statistics_of(mean, row_sum(rest, rests), inverse_count, (float)args.eps);
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

/* Returns whether x and scale allow accesses of 16 bytes; forward and backward kernels need this. */
static bool layer_norm_aligned(const DsviLayerNormArgs *args)
{
    return aligned((const float *)args->x, args->channels, 16) &&
           aligned((const float *)args->scale, args->sample_stride, 16);
}

template <typename T> static bool gated_sum_aligned(const DsviGateResidualArgs *sum)
{
    return aligned((const float *)sum->x, sum->channels, 16) &&
           aligned((const T *)sum->y, sum->channels, N * sizeof(T)) &&
           aligned((const float *)sum->gate, sum->gate_stride, 16);
}

template <typename T, bool SUM>
static DsvStatus launch_layer_norm_fwd(DsviStream *stream, const DsviLayerNormArgs *args,
                                       const DsviGateResidualArgs *sum, size_t shared)
{
    int64_t listed = args->only.count, rows = args->batch * listed;
    dim3 block = row_block(args->channels), grid;
    auto kernel = args->only.token ? layer_norm_fwd_kernel<T, SUM, true>
                                   : layer_norm_fwd_kernel<T, SUM, false>;
    DSVI_TRY(row_grid(stream, kernel, block, shared, args->batch, listed, rows, &grid));
    DSVI_CUDA_LAUNCH(stream, "layer_norm_fwd", kernel, grid, block, shared, *args, *sum);
    return DSV_OK;
}

template <typename T>
static DsvStatus layer_norm_fwd_of_type(DsviStream *stream, const DsviLayerNormArgs *args)
{
    const DsviGateResidualArgs none = {}, *sum = args->sum ? args->sum : &none;
    size_t shared = kept_bytes(args->channels, 2);
    if (row_fits(stream, args->channels, N, ROW_THREADS, shared) && layer_norm_aligned(args) &&
        gated_sum_aligned<T>(sum) && aligned((const float *)args->shift, args->sample_stride, 16) &&
        aligned((const T *)args->y, args->channels, N * sizeof(T)))
        return args->sum ? launch_layer_norm_fwd<T, true>(stream, args, sum, shared)
                         : launch_layer_norm_fwd<T, false>(stream, args, sum, shared);
    unsigned blocks = long_row_blocks(stream, args->batch * args->only.count);
    DSVI_CUDA_LAUNCH(stream, "layer_norm_fwd", layer_norm_fwd_long_kernel<T>, blocks, LONG_ROW_THREADS, 0,
                     *args, *sum);
    return DSV_OK;
}

/* ---- backward ---- */

/* sum[0..N) += x. `sum` is in shared memory that only this thread uses, so no barrier is needed. */
__device__ __forceinline__ void add_to(float *sum, const float (&x)[N])
{
    float total[N];
    load<N>(sum, total);
#pragma unroll
    for (int i = 0; i < N; i++)
        total[i] += x[i];
    store<N>(sum, total);
}

/* The rows of `channels` floats that the threads which share a row keep in shared memory: the scale, the
 * gate, and sums over the rows processed so far. Without `then`, the gated residual that follows the norm,
 * only the first KEPT_OF_NORM of them exist. */
enum Kept { SCALE, DSCALE, DSHIFT, KEPT_OF_NORM, GATE = KEPT_OF_NORM, DGATE, DY_SUM, KEPT };
/* Number of sums among the rows of Kept, without and with the gated residual `then`. The sums are written to
 * `partials`, (sample, part, sums, channels). */
constexpr int SUMS_OF_NORM = 2, SUMS = 4;

/* Replaces x by z (normalised x) and dy by g = dL/dz, and adds to the sums of dscale and dshift in `kept`.
 * Returns the sums of g (x) and of g z (y) over the channels of this thread. */
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

/* Backward pass of the gate: writes dy = gate dout, and adds to the sums of dgate (dout y) and of dy in
 * `kept`. `y` holds zeros if there is no gate. */
template <typename T>
__device__ __forceinline__ void store_through_gate(T *dy, int channels, const RowPart<N> &dout,
                                                   const RawPart<N, T> &y, float *kept)
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

/* The data of a row whose loads have been issued before the row is needed. */
template <typename T> struct PrefetchedRow {
    RawPart<N, float> x;
    RawPart<N, T> dy;
    Statistics of;
};

template <typename T>
__device__ __forceinline__ void prefetch_row(const DsviLayerNormArgs &args, int64_t row,
                                             PrefetchedRow<T> &next)
{
    next.of = {((const float *)args.mean)[row], ((const float *)args.rstd)[row]};
    load_raw<N>(row_of<float>(args.x, row, args.channels), (int)args.channels, next.x);
    load_raw<N>(row_of<T>(args.dy, row, args.channels), (int)args.channels, next.dy);
}

/* Loads the scale and the gate of one sample of the batch into shared memory (`kept`) and sets the sums
 * there to 0. */
template <bool THEN>
__device__ __forceinline__ void begin_sample(const DsviLayerNormArgs &args, const DsviGateResidualArgs &then,
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

/* Writes the sums over the processed rows of a sample from `kept` to the partial rows of number `part`. */
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

/* Backward layer norm: adds the gradient to dx and, with THEN, passes the new dx through the gate to
 * then.dy. then.dy may be the same memory as args.dy: a thread has loaded its channels of a row before it
 * writes them. */
template <typename T, bool THEN, bool LISTED>
__global__ void __launch_bounds__(TWO_ROWS_THREADS)
    layer_norm_bwd_kernel(const DsviLayerNormArgs args, const DsviGateResidualArgs then, float *partials)
{
    extern __shared__ __align__(16) float shared[];
    __shared__ float2 sums[2][WARP]; /* used for rows in turn, so that one barrier per row suffices */
    int channels = (int)args.channels, turn = 0;
    float *kept = shared + threadIdx.y * (THEN ? KEPT : KEPT_OF_NORM) * channels;
    for (int64_t sample = blockIdx.y; sample < args.batch; sample += gridDim.y) {
        int64_t i = row_first_token(), step = row_token_step();
        PrefetchedRow<T> next;
        begin_sample<THEN>(args, then, sample, kept);
        if (i < args.only.count)
            prefetch_row(args, sample * args.tokens + listed_token<LISTED>(args.only, i), next);
        for (; i < args.only.count; i += step, turn ^= 1) {
            int64_t row = sample * args.tokens + listed_token<LISTED>(args.only, i);
            Statistics of = next.of;
            RowPart<N> z, g, dx;
            RawPart<N, T> y = {};
            unpack_row<N>(next.x, z);
            unpack_row<N>(next.dy, g);
            load_row<N>(row_of<float>(args.dx, row, channels), channels, dx);
            if (THEN && then.gate)
                load_raw<N>(row_of<T>(then.y, row, channels), channels, y);
            if (i + step < args.only.count)
                prefetch_row(args, sample * args.tokens + listed_token<LISTED>(args.only, i + step), next);
            float2 mean = row_sum(to_normalised(z, g, channels, of, kept), sums[turn]);
            mean = make_float2(mean.x / (float)channels, mean.y / (float)channels);
#pragma unroll
            for (int v = 0; v < VECTORS; v++)
#pragma unroll
                for (int e = 0; e < N; e++)
                    dx[v][e] += gradient(g[v][e], z[v][e], mean, of.rstd);
            store_row<N>(row_of<float>(args.dx, row, channels), channels, dx);
            if (THEN)
                store_through_gate<T>(row_of<T>(then.dy, row, channels), channels, dx, y, kept);
        }
        end_sample<THEN>(sample * row_token_step() + row_first_token(), channels, kept, partials);
    }
}

template <typename T>
__global__ void __launch_bounds__(LONG_ROW_THREADS) layer_norm_bwd_long_kernel(const DsviLayerNormArgs args)
{
    __shared__ float2 sums[2][WARP];
    int turn = 0;
    for (int64_t i = blockIdx.x; i < args.batch * args.only.count; i += gridDim.x, turn ^= 1) {
        int64_t row = listed_row(args.only, args.tokens, i);
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

/* Adds the gradients of scale and shift to dscale and dshift, for rows too long for registers. A thread adds
 * every SUM_LINES-th row in one column, over the rows of all samples that share scale and shift: two thread
 * blocks must not add to the same element. */
template <typename T>
__global__ void __launch_bounds__(WARP *SUM_LINES) modulation_bwd_long_kernel(const DsviLayerNormArgs args)
{
    int64_t column = (int64_t)blockIdx.x * WARP + threadIdx.x;
    int64_t sharing = args.sample_stride == 0 ? args.batch : 1, rows = sharing * args.only.count;
    for (int64_t sample = blockIdx.y; sample < args.batch / sharing; sample += gridDim.y) {
        float sum[2] = {0.f, 0.f};
        for (int64_t i = threadIdx.y; column < args.channels && i < rows; i += SUM_LINES) {
            int64_t row = listed_row(args.only, args.tokens, sample * rows + i);
            Statistics of = {((const float *)args.mean)[row], ((const float *)args.rstd)[row]};
            float dy = to_float(row_of<T>(args.dy, row, args.channels)[column]);
            sum[0] += dy * normalised(row_of<float>(args.x, row, args.channels)[column], of);
            sum[1] += dy;
        }
        sum_along_y<SUM_LINES>(sum);
        if (threadIdx.y == 0 && column < args.channels) {
            ((float *)args.dscale)[sample * args.sample_stride + column] += sum[0];
            ((float *)args.dshift)[sample * args.sample_stride + column] += sum[1];
        }
    }
}

/* Returns whether the tensors of `then`, the gated residual that follows the norm, allow accesses of N
 * elements. */
template <typename T> static bool gate_bwd_aligned(const DsviGateResidualArgs *then)
{
    return aligned((const T *)then->dy, then->channels, N * sizeof(T)) &&
           (!then->gate || (aligned((const T *)then->y, then->channels, N * sizeof(T)) &&
                            aligned((const float *)then->gate, then->gate_stride, 16)));
}

/* Launches the backward kernel for rows that fit in registers. `blocks_max` is the number of thread blocks
 * whose sums fit into stream->partials. */
template <typename T, bool THEN>
static DsvStatus launch_layer_norm_bwd(DsviStream *stream, const DsviLayerNormArgs *args,
                                       const DsviGateResidualArgs *then, int64_t blocks_max)
{
    dim3 block = row_block(args->channels), grid;
    size_t shared = kept_bytes(args->channels, THEN ? KEPT : KEPT_OF_NORM);
    float *partials = (float *)stream->partials;
    auto kernel = args->only.token ? layer_norm_bwd_kernel<T, THEN, true>
                                   : layer_norm_bwd_kernel<T, THEN, false>;
    DSVI_TRY(row_grid(stream, kernel, block, shared, args->batch, args->only.count, blocks_max, &grid));
    DSVI_CUDA_LAUNCH(stream, "layer_norm_bwd", kernel, grid, block, shared, *args, *then, partials);
    ColumnSums sums = {
        partials,
        args->batch,
        (int64_t)grid.x * block.y,
        THEN ? SUMS : SUMS_OF_NORM,
        args->channels,
        {(float *)args->dscale, (float *)args->dshift, (float *)then->dgate, (float *)then->dy_sum},
        {args->sample_stride, args->sample_stride, then->gate_stride, 0},
    };
    return launch_add_partials(stream, &sums);
}

template <typename T>
static DsvStatus launch_layer_norm_bwd_long(DsviStream *stream, const DsviLayerNormArgs *args)
{
    DsviLayerNormArgs alone = *args;
    alone.then = NULL;
    alone = joined_samples(&alone);
    int64_t rows = alone.batch * alone.only.count;
    dim3 columns((unsigned)ceil_div(alone.channels, WARP), blocks_in_turn(alone.batch));
    DSVI_CUDA_LAUNCH(stream, "layer_norm_bwd", layer_norm_bwd_long_kernel<T>, long_row_blocks(stream, rows),
                     LONG_ROW_THREADS, 0, alone);
    DSVI_CUDA_LAUNCH(stream, "layer_norm_bwd", modulation_bwd_long_kernel<T>, columns, dim3(WARP, SUM_LINES),
                     0, alone);
    return args->then ? dsvi_cuda_gate_residual_bwd(stream, args->then) : DSV_OK;
}

template <typename T>
static DsvStatus layer_norm_bwd_of_type(DsviStream *stream, const DsviLayerNormArgs *args)
{
    const DsviGateResidualArgs none = {}, *then = args->then;
    int64_t kept = then ? KEPT : KEPT_OF_NORM, sums = then ? SUMS : SUMS_OF_NORM;
    int64_t blocks_max = (int64_t)(DSVI_CUDA_PARTIALS / kept_bytes(args->channels, sums));
    if (row_fits(stream, args->channels, N, TWO_ROWS_THREADS, kept_bytes(args->channels, kept)) &&
        args->batch <= blocks_max && layer_norm_aligned(args) &&
        aligned((const float *)args->dx, args->channels, 16) &&
        aligned((const T *)args->dy, args->channels, N * sizeof(T)) && (!then || gate_bwd_aligned<T>(then)))
        return then ? launch_layer_norm_bwd<T, true>(stream, args, then, blocks_max)
                    : launch_layer_norm_bwd<T, false>(stream, args, &none, blocks_max);
    return launch_layer_norm_bwd_long<T>(stream, args);
}

/* ---- the ops ---- */

static DsvStatus cuda_layer_norm_fwd(DsviStream *stream, const DsviLayerNormArgs *args)
{
    DsviLayerNormArgs all = joined_samples(args);
    if (all.batch * all.tokens * all.channels == 0)
        return DSV_OK;
    DSVI_FOR_ACT("layer_norm", args->act, return layer_norm_fwd_of_type<T>(stream, &all));
}

static DsvStatus cuda_layer_norm_bwd(DsviStream *stream, const DsviLayerNormArgs *args)
{
    DsviLayerNormArgs all = joined_samples(args);
    if (all.batch * all.tokens * all.channels == 0)
        return DSV_OK;
    DSVI_FOR_ACT("layer_norm", args->act, return layer_norm_bwd_of_type<T>(stream, &all));
}

} // namespace

void dsvi_cuda_fill_layer_norm(DsviOps *ops)
{
    DSVI_OPS_SET(ops, layer_norm_fwd, cuda_layer_norm_fwd, "cuda");
    DSVI_OPS_SET(ops, layer_norm_bwd, cuda_layer_norm_bwd, "cuda");
}
