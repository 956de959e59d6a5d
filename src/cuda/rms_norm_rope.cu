/* RMS norm over all heads and rotation of pairs. The formulas are those of norm_ref.c; rows.cuh says how
 * threads lie on a row.
 *
 * The way for every width that matters reads memory once: a row stays in registers, in vectors of 16 bytes
 * that lie inside a head, the weight in shared memory. Backward a row is loaded while a thread works on the
 * one before, which forward would cost more than it gives, and a thread sums its channels' gradient of the
 * weight, and dx if asked, for column_sums.cuh to add. Rows too long for that, or not at multiples of 16
 * bytes, are read anew for each pass (`any`), pair by pair, and backward once more column by column. */
#include "cuda/column_sums.cuh"
#include "cuda/cuda.h"
#include "cuda/rows.cuh"

using namespace dsvi;

namespace {

/* Channels of a vector. */
template <typename T> constexpr int WIDTH = 16 / (int)sizeof(T);

__host__ __device__ __forceinline__ int64_t channels_of(const DsvRmsNormRopeArgs &args)
{
    return args.heads * args.head_dim;
}

__device__ __forceinline__ float rstd_of(float square, const DsvRmsNormRopeArgs &args)
{
    return 1.f / sqrtf(square / (float)channels_of(args) + (float)args.eps);
}

/* Turns the pair (a, b) by the angle of this cosine and sine. */
__device__ __forceinline__ void turn(float cosine, float sine, float *a, float *b)
{
    float turned = *a * cosine - *b * sine;
    *b = *a * sine + *b * cosine;
    *a = turned;
}

/* The angles of a row's pairs. */
template <int N> struct Angles {
    float cosine[ROW_CHANNELS / N][N / 2], sine[ROW_CHANNELS / N][N / 2];
};

/* Those of `token`, where there is a rotation; pair: the first of each vector. */
template <int N>
__device__ __forceinline__ void load_angles(const DsvRmsNormRopeArgs &args, int64_t token,
                                            const int (&pair)[ROW_CHANNELS / N], Angles<N> &angles)
{
    if (!args.cos)
        return;
#pragma unroll
    for (int v = 0; v < ROW_CHANNELS / N; v++) {
        int64_t at = token * (args.head_dim / 2) + pair[v];
        load<N / 2>((const float *)args.cos + at, angles.cosine[v]);
        load<N / 2>((const float *)args.sin + at, angles.sine[v]);
    }
}

/* Turns the pairs of vector v; back with direction -1. */
template <int N>
__device__ __forceinline__ void turn_vector(const Angles<N> &angles, int v, float direction, float (&u)[N])
{
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        turn(angles.cosine[v][i], direction * angles.sine[v][i], &u[2 * i], &u[2 * i + 1]);
}

/* The first pair of each of this thread's vectors, counted in its head. */
template <int N> __device__ __forceinline__ void list_pairs(int head_dim, int (&pair)[ROW_CHANNELS / N])
{
#pragma unroll
    for (int v = 0; v < ROW_CHANNELS / N; v++)
        pair[v] = row_channel<N>(v) % head_dim / 2;
}

/* Turns channels c and c + 1 of `token`, where there is a rotation. */
__device__ __forceinline__ void turn_pair(const DsvRmsNormRopeArgs &args, int64_t token, int64_t c,
                                          float direction, float *a, float *b)
{
    if (!args.cos)
        return;
    int64_t at = token * (args.head_dim / 2) + c % args.head_dim / 2;
    turn(((const float *)args.cos)[at], direction * ((const float *)args.sin)[at], a, b);
}

/* ---- forward ---- */

/* Multiplies a row by its rstd and the weight, kept in shared memory, and turns it. */
template <int N>
__device__ __forceinline__ void scale_and_turn(const DsvRmsNormRopeArgs &args, float rstd,
                                               const Angles<N> &angles, const float *kept, RowPart<N> &x)
{
    int channels = (int)channels_of(args);
#pragma unroll
    for (int v = 0; v < ROW_CHANNELS / N; v++) {
        float weight[N];
        if (row_channel<N>(v) >= channels)
            continue;
        load_vector<N>(kept + row_channel<N>(v), weight);
#pragma unroll
        for (int i = 0; i < N; i++)
            x[v][i] *= rstd * weight[i];
        if (args.cos)
            turn_vector<N>(angles, v, 1.f, x[v]);
    }
}

template <typename T>
__global__ void __launch_bounds__(TWO_ROWS_THREADS) forward_rows(const DsvRmsNormRopeArgs args)
{
    constexpr int N = WIDTH<T>;
    extern __shared__ __align__(16) float kept[]; /* the weight, for each row that the block walks at once */
    __shared__ float sums[2][WARP];               /* in turn: there is one barrier to a row */
    int channels = (int)channels_of(args), pair[ROW_CHANNELS / N], at = 0;
    float *weight = kept + threadIdx.y * channels;
    keep_row<N>(weight, (const float *)args.weight, channels, 0.f);
    list_pairs<N>((int)args.head_dim, pair);
    for (int64_t sample = blockIdx.y; sample < args.batch; sample += gridDim.y) {
        for (int64_t token = row_first_token(); token < args.tokens; token += row_token_step(), at ^= 1) {
            int64_t row = sample * args.tokens + token;
            RowPart<N> x;
            Angles<N> angles;
            float square = 0.f;
            load_row<N>((const T *)args.x + row * channels, channels, x);
            load_angles<N>(args, token, pair, angles); /* before the sum, for which they need not wait */
#pragma unroll
            for (int v = 0; v < ROW_CHANNELS / N; v++)
#pragma unroll
                for (int i = 0; i < N; i++)
                    square += x[v][i] * x[v][i];
            float rstd = rstd_of(row_sum(square, sums[at]), args);
            scale_and_turn<N>(args, rstd, angles, weight, x);
            store_row<N>((T *)args.y + row * channels, channels, x);
            if (threadIdx.x == 0)
                ((float *)args.rstd)[row] = rstd;
        }
    }
}

template <typename T>
__global__ void __launch_bounds__(LONG_ROW_THREADS) forward_any(const DsvRmsNormRopeArgs args)
{
    __shared__ float sums[2][WARP];
    int64_t channels = channels_of(args);
    const float *weight = (const float *)args.weight;
    int at = 0;
    for (int64_t row = blockIdx.x; row < args.batch * args.tokens; row += gridDim.x, at ^= 1) {
        const T *x = (const T *)args.x + row * channels;
        T *y = (T *)args.y + row * channels;
        float square = 0.f;
        for (int64_t c = threadIdx.x; c < channels; c += blockDim.x)
            square += to_float(x[c]) * to_float(x[c]);
        float rstd = rstd_of(row_sum(square, sums[at]), args);
        for (int64_t c = 2 * threadIdx.x; c < channels; c += 2 * blockDim.x) {
            bool whole = c + 1 < channels;
            float a = to_float(x[c]) * rstd * weight[c];
            float b = whole ? to_float(x[c + 1]) * rstd * weight[c + 1] : 0.f;
            turn_pair(args, row % args.tokens, c, 1.f, &a, &b);
            y[c] = from_float<T>(a);
            if (whole)
                y[c + 1] = from_float<T>(b);
        }
        if (threadIdx.x == 0)
            ((float *)args.rstd)[row] = rstd;
    }
}

/* What both directions ask of x, the weight and the tables: a vector lies inside a head. */
template <typename T> static bool vectors_fit(const DsvRmsNormRopeArgs *args)
{
    constexpr int N = WIDTH<T>;
    int64_t half = args->head_dim / 2;
    bool tables = !args->cos || (args->head_dim % N == 0 &&
                                 aligned((const float *)args->cos, half, N / 2 * sizeof(float)) &&
                                 aligned((const float *)args->sin, half, N / 2 * sizeof(float)));
    return tables && aligned((const T *)args->x, channels_of(*args), 16) &&
           aligned((const float *)args->weight, 0, 16);
}

template <typename T> static DsvStatus forward(DsvStream *stream, const DsvRmsNormRopeArgs *args)
{
    int64_t rows = args->batch * args->tokens, channels = channels_of(*args);
    size_t kept = kept_bytes(channels, 1);
    if (row_fits(stream, channels, WIDTH<T>, TWO_ROWS_THREADS, kept) && vectors_fit<T>(args) &&
        aligned((const T *)args->y, channels, 16)) {
        dim3 block = row_block(channels), grid;
        DSVI_TRY(row_grid(stream, forward_rows<T>, block, kept, args->batch, args->tokens, rows, &grid));
        forward_rows<T><<<grid, block, kept, stream->handle>>>(*args);
    } else {
        forward_any<T><<<long_row_blocks(stream, rows), LONG_ROW_THREADS, 0, stream->handle>>>(*args);
    }
    DSVI_CUDA_LAUNCHED("rms_norm_rope_fwd");
    return DSV_OK;
}

/* ---- backward ---- */

/* Scales x to z and turns dy back to du, adds du z to dweight, and makes du g = dL/dz; returns this thread's
 * share of the sum of g z. */
template <int N>
__device__ __forceinline__ float to_normalised(const DsvRmsNormRopeArgs &args, float rstd,
                                               const Angles<N> &angles, const float *kept, RowPart<N> &x,
                                               RowPart<N> &dy, RowPart<N> &dweight)
{
    int channels = (int)channels_of(args);
    float sum = 0.f;
#pragma unroll
    for (int v = 0; v < ROW_CHANNELS / N; v++) {
        float weight[N];
        if (row_channel<N>(v) >= channels)
            continue;
        load_vector<N>(kept + row_channel<N>(v), weight);
        if (args.cos)
            turn_vector<N>(angles, v, -1.f, dy[v]);
#pragma unroll
        for (int i = 0; i < N; i++) {
            x[v][i] *= rstd;
            dweight[v][i] += dy[v][i] * x[v][i];
            dy[v][i] *= weight[i];
            sum += dy[v][i] * x[v][i];
        }
    }
    return sum;
}

/* sum += x, in shared memory that only this thread uses. */
template <int N> __device__ __forceinline__ void add_row(float *sum, int channels, const RowPart<N> &x)
{
    RowPart<N> total;
    load_row<N>(sum, channels, total);
#pragma unroll
    for (int v = 0; v < ROW_CHANNELS / N; v++)
#pragma unroll
        for (int i = 0; i < N; i++)
            total[v][i] += x[v][i];
    store_row<N>(sum, channels, total);
}

/* A row on its way from memory. */
template <typename T> struct Arriving {
    RawPart<WIDTH<T>, T> x, dy;
    Angles<WIDTH<T>> angles;
    float rstd;
};

template <typename T>
__device__ __forceinline__ void order_row(const DsvRmsNormRopeArgs &args, int64_t sample, int64_t token,
                                          const int (&pair)[ROW_CHANNELS / WIDTH<T>], Arriving<T> &next)
{
    int channels = (int)channels_of(args);
    int64_t row = sample * args.tokens + token;
    load_raw<WIDTH<T>>((const T *)args.x + row * channels, channels, next.x);
    load_raw<WIDTH<T>>((const T *)args.dy + row * channels, channels, next.dy);
    next.rstd = ((const float *)args.rstd)[row];
    load_angles<WIDTH<T>>(args, token, pair, next.angles);
}

/* dx may be dy: a thread has loaded its channels of a row before it writes them. dweight and dx_sum of the
 * rows that a thread walks go to (part, 2, channels) of `partials`. */
template <typename T>
__global__ void __launch_bounds__(TWO_ROWS_THREADS)
backward_rows(const DsvRmsNormRopeArgs args, float *partials)
{
    constexpr int N = WIDTH<T>;
    /* for each row that the block walks at once: the weight, and dx_sum */
    extern __shared__ __align__(16) float kept[];
    __shared__ float sums[2][WARP]; /* in turn: there is one barrier to a row */
    int channels = (int)channels_of(args), pair[ROW_CHANNELS / N], at = 0;
    float *weight = kept + threadIdx.y * 2 * channels, *dx_sum = weight + channels;
    RowPart<N> dweight = {};
    fill_row<N>(dx_sum, channels, 0.f);
    keep_row<N>(weight, (const float *)args.weight, channels, 0.f);
    list_pairs<N>((int)args.head_dim, pair);
    for (int64_t sample = blockIdx.y; sample < args.batch; sample += gridDim.y) {
        int64_t token = row_first_token();
        Arriving<T> next;
        if (token < args.tokens)
            order_row<T>(args, sample, token, pair, next);
        for (; token < args.tokens; token += row_token_step(), at ^= 1) {
            int64_t row = sample * args.tokens + token;
            float rstd = next.rstd;
            RowPart<N> z, g;
            unpack_row<N>(next.x, z);
            unpack_row<N>(next.dy, g);
            float sum = to_normalised<N>(args, rstd, next.angles, weight, z, g, dweight);
            if (token + row_token_step() < args.tokens)
                order_row<T>(args, sample, token + row_token_step(), pair, next);
            float mean = row_sum(sum, sums[at]) / (float)channels;
#pragma unroll
            for (int v = 0; v < ROW_CHANNELS / N; v++)
#pragma unroll
                for (int i = 0; i < N; i++)
                    g[v][i] = rstd * (g[v][i] - z[v][i] * mean);
            store_row<N>((T *)args.dx + row * channels, channels, g);
            if (args.dx_sum)
                add_row<N>(dx_sum, channels, g);
        }
    }
    int64_t part = ((int64_t)blockIdx.y * gridDim.x + blockIdx.x) * blockDim.y + threadIdx.y;
    store_row<N>(partials + 2 * part * channels, channels, dweight);
    load_row<N>(dx_sum, channels, dweight);
    store_row<N>(partials + (2 * part + 1) * channels, channels, dweight);
}

/* dy of channels c and c + 1 of a row turned back, the second 0 past the end. */
template <typename T>
__device__ __forceinline__ float2 load_du(const DsvRmsNormRopeArgs &args, int64_t row, int64_t c)
{
    int64_t channels = channels_of(args);
    const T *dy = (const T *)args.dy + row * channels;
    float2 du = make_float2(to_float(dy[c]), c + 1 < channels ? to_float(dy[c + 1]) : 0.f);
    turn_pair(args, row % args.tokens, c, -1.f, &du.x, &du.y);
    return du;
}

template <typename T>
__global__ void __launch_bounds__(LONG_ROW_THREADS) backward_any(const DsvRmsNormRopeArgs args)
{
    __shared__ float sums[2][WARP];
    int64_t channels = channels_of(args);
    const float *weight = (const float *)args.weight;
    int at = 0;
    for (int64_t row = blockIdx.x; row < args.batch * args.tokens; row += gridDim.x, at ^= 1) {
        const T *x = (const T *)args.x + row * channels;
        T *dx = (T *)args.dx + row * channels;
        float rstd = ((const float *)args.rstd)[row], mean = 0.f;
        for (int64_t c = 2 * threadIdx.x; c < channels; c += 2 * blockDim.x) {
            float2 du = load_du<T>(args, row, c);
            mean += du.x * weight[c] * (to_float(x[c]) * rstd);
            if (c + 1 < channels)
                mean += du.y * weight[c + 1] * (to_float(x[c + 1]) * rstd);
        }
        mean = row_sum(mean, sums[at]) / (float)channels;
        for (int64_t c = 2 * threadIdx.x; c < channels; c += 2 * blockDim.x) {
            float2 du = load_du<T>(args, row, c); /* both of the pair before dx, which may be dy */
            dx[c] = from_float<T>(rstd * (du.x * weight[c] - to_float(x[c]) * rstd * mean));
            if (c + 1 < channels)
                dx[c + 1] = from_float<T>(rstd * (du.y * weight[c + 1] - to_float(x[c + 1]) * rstd * mean));
        }
    }
}

/* dweight: a thread for a column and every STRANDS-th row. */
template <typename T>
__global__ void __launch_bounds__(WARP *STRANDS) weight_any(const DsvRmsNormRopeArgs args)
{
    int64_t column = (int64_t)blockIdx.x * WARP + threadIdx.x, channels = channels_of(args);
    int64_t rows = column < channels ? args.batch * args.tokens : 0;
    float sum[1] = {0.f};
    for (int64_t row = threadIdx.y; row < rows; row += STRANDS) {
        float2 du = load_du<T>(args, row, column - column % 2);
        float z = to_float(((const T *)args.x)[row * channels + column]) * ((const float *)args.rstd)[row];
        sum[0] += (column % 2 == 0 ? du.x : du.y) * z;
    }
    sum_strands<STRANDS>(sum);
    if (threadIdx.y == 0 && column < channels)
        ((float *)args.dweight)[column] += sum[0];
}

template <typename T> static DsvStatus backward_by_rows(DsvStream *stream, const DsvRmsNormRopeArgs *args)
{
    int64_t channels = channels_of(*args);
    dim3 block = row_block(channels), grid;
    size_t kept = kept_bytes(channels, 2); /* and as much of partial sums for a block */
    int64_t most = (int64_t)(DSVI_CUDA_PARTIALS / kept);
    float *partials = (float *)stream->partials;
    DSVI_TRY(row_grid(stream, backward_rows<T>, block, kept, args->batch, args->tokens, most, &grid));
    backward_rows<T><<<grid, block, kept, stream->handle>>>(*args, partials);
    DSVI_CUDA_LAUNCHED("rms_norm_rope_bwd");
    int64_t parts = (int64_t)grid.x * grid.y * block.y;
    ColumnSums sums = {partials, 1, parts, 2, channels, {(float *)args->dweight, (float *)args->dx_sum}, {0}};
    return launch_add_partials(stream, &sums);
}

template <typename T> static DsvStatus backward(DsvStream *stream, const DsvRmsNormRopeArgs *args)
{
    int64_t rows = args->batch * args->tokens, channels = channels_of(*args);
    if (row_fits(stream, channels, WIDTH<T>, TWO_ROWS_THREADS, kept_bytes(channels, 2)) &&
        vectors_fit<T>(args) && aligned((const T *)args->dy, channels, 16) &&
        aligned((const T *)args->dx, channels, 16))
        return backward_by_rows<T>(stream, args);
    /* the weight first: dx may be dy */
    weight_any<T><<<(unsigned)ceil_div(channels, WARP), dim3(WARP, STRANDS), 0, stream->handle>>>(*args);
    backward_any<T><<<long_row_blocks(stream, rows), LONG_ROW_THREADS, 0, stream->handle>>>(*args);
    DSVI_CUDA_LAUNCHED("rms_norm_rope_bwd");
    DsvColSumArgs sum = {rows, channels, args->act, args->dx, channels, args->acc, args->dx_sum};
    return args->dx_sum ? dsvi_cuda_col_sum(stream, &sum) : DSV_OK;
}

/* ---- the ops ---- */

static DsvStatus rms_norm_rope_fwd(DsvStream *stream, const DsvRmsNormRopeArgs *args)
{
    if (args->batch * args->tokens * channels_of(*args) == 0)
        return DSV_OK;
    DSVI_FOR_ACT("rms_norm_rope", args->act, return forward<T>(stream, args));
}

static DsvStatus rms_norm_rope_bwd(DsvStream *stream, const DsvRmsNormRopeArgs *args)
{
    if (args->batch * args->tokens * channels_of(*args) == 0)
        return DSV_OK;
    DSVI_FOR_ACT("rms_norm_rope", args->act, return backward<T>(stream, args));
}

} // namespace

void dsvi_cuda_fill_rms_norm_rope(DsvOps *ops)
{
    DSVI_OPS_SET(ops, rms_norm_rope_fwd, rms_norm_rope_fwd, "cuda");
    DSVI_OPS_SET(ops, rms_norm_rope_bwd, rms_norm_rope_bwd, "cuda");
}
