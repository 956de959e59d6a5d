/* rms_norm_rope: RMS norm over all heads of a token, then rotary position embedding, which rotates pairs of
 * channels. The formulas are in ops/norm_ref.c; common/rows.cuh describes how the threads of a block divide a
 * row.
 *
 * The usual kernels read memory once: a row stays in registers, in vectors of 16 bytes that do not cross a
 * head, and the weight stays in shared memory. Backward, a thread loads the next row while it computes with
 * the current one (in the forward pass such a prefetch costs more than it saves). The thread also sums, for
 * its channels, the gradient of the weight and, if requested, dx over rows, and writes the sums as partial
 * rows (common/two_stage_sum.cuh). The kernels named `long` serve rows that are too long for registers or do
 * not begin at multiples of 16 bytes: they read a row again in each pass, pair by pair, and backward they
 * read the tensor once more, column by column. */
#include "cuda/common/two_stage_sum.cuh"
#include "cuda/common/cuda.h"
#include "cuda/common/rows.cuh"

using namespace dsvi;

namespace {

__host__ __device__ __forceinline__ int64_t channels_of(const DsviRmsNormRopeArgs &args)
{
    return args.heads * args.head_dim;
}

__device__ __forceinline__ float rstd_of(float square, const DsviRmsNormRopeArgs &args)
{
    return 1.f / sqrtf(square / (float)channels_of(args) + (float)args.eps);
}

/* Rotates the pair (a, b) by the angle with this cosine and sine. */
__device__ __forceinline__ void rotate(float cosine, float sine, float *a, float *b)
{
    float rotated = *a * cosine - *b * sine;
    *b = *a * sine + *b * cosine;
    *a = rotated;
}

/* Cosines and sines of the angles by which this thread's pairs of channels in a row are rotated. */
template <int N> struct Angles {
    float cosine[ROW_CHANNELS / N][N / 2], sine[ROW_CHANNELS / N][N / 2];
};

/* Loads the rotation angles of `token`; does nothing if there is no rotation (args.cos NULL). pair[v] is the
 * number, within its head, of the first pair of channels of vector v. */
template <int N>
__device__ __forceinline__ void load_angles(const DsviRmsNormRopeArgs &args, int64_t token,
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

/* Rotates the pairs of channels in vector v, which u holds; direction -1 rotates back. */
template <int N>
__device__ __forceinline__ void rotate_vector(const Angles<N> &angles, int v, float direction, float (&u)[N])
{
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        rotate(angles.cosine[v][i], direction * angles.sine[v][i], &u[2 * i], &u[2 * i + 1]);
}

/* Stores in pair[v] the number, within its head, of the first pair of channels in this thread's vector v. */
template <int N> __device__ __forceinline__ void list_pairs(int head_dim, int (&pair)[ROW_CHANNELS / N])
{
#pragma unroll
    for (int v = 0; v < ROW_CHANNELS / N; v++)
        pair[v] = row_channel<N>(v) % head_dim / 2;
}

/* Rotates the pair (a, b), which are channels c and c + 1 of `token`; direction -1 rotates back. Does
 * nothing if there is no rotation (args.cos NULL). */
__device__ __forceinline__ void rotate_pair(const DsviRmsNormRopeArgs &args, int64_t token, int64_t c,
                                            float direction, float *a, float *b)
{
    if (!args.cos)
        return;
    int64_t at = token * (args.head_dim / 2) + c % args.head_dim / 2;
    rotate(((const float *)args.cos)[at], direction * ((const float *)args.sin)[at], a, b);
}

/* ---- forward ---- */

/* Multiplies this thread's channels of a row by rstd and by the weight, which `kept` holds in shared memory,
 * and rotates their pairs. */
template <int N>
__device__ __forceinline__ void scale_and_rotate(const DsviRmsNormRopeArgs &args, float rstd,
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
            rotate_vector<N>(angles, v, 1.f, x[v]);
    }
}

template <typename T, int N = ROW_VECTOR<T>>
__global__ void __launch_bounds__(TWO_ROWS_THREADS) rms_norm_rope_fwd_kernel(const DsviRmsNormRopeArgs args)
{
    /* the weight, once for each row that the block processes at the same time */
    extern __shared__ __align__(16) float kept[];
    __shared__ float sums[2][WARP]; /* used for rows in turn, so that one barrier per row suffices */
    int channels = (int)channels_of(args), pair[ROW_CHANNELS / N], turn = 0;
    float *weight = kept + threadIdx.y * channels;
    keep_row<N>(weight, (const float *)args.weight, channels, 0.f);
    list_pairs<N>((int)args.head_dim, pair);
    for (int64_t sample = blockIdx.y; sample < args.batch; sample += gridDim.y) {
        for (int64_t token = row_first_token(); token < args.tokens; token += row_token_step(), turn ^= 1) {
            int64_t row = sample * args.tokens + token;
            RowPart<N> x;
            Angles<N> angles;
            float square = 0.f;
            load_row<N>((const T *)args.x + row * channels, channels, x);
            load_angles<N>(args, token, pair, angles); /* loads start before the barrier of the sum */
#pragma unroll
            for (int v = 0; v < ROW_CHANNELS / N; v++)
#pragma unroll
                for (int i = 0; i < N; i++)
                    square += x[v][i] * x[v][i];
            float rstd = rstd_of(row_sum(square, sums[turn]), args);
            scale_and_rotate<N>(args, rstd, angles, weight, x);
            store_row<N>((T *)args.y + row * channels, channels, x);
            if (threadIdx.x == 0)
                ((float *)args.rstd)[row] = rstd;
        }
    }
}

template <typename T>
__global__ void __launch_bounds__(LONG_ROW_THREADS)
    rms_norm_rope_fwd_long_kernel(const DsviRmsNormRopeArgs args)
{
    __shared__ float sums[2][WARP];
    int64_t channels = channels_of(args);
    const float *weight = (const float *)args.weight;
    int turn = 0;
    for (int64_t row = blockIdx.x; row < args.batch * args.tokens; row += gridDim.x, turn ^= 1) {
        const T *x = (const T *)args.x + row * channels;
        T *y = (T *)args.y + row * channels;
        float square = 0.f;
        for (int64_t c = threadIdx.x; c < channels; c += blockDim.x)
            square += to_float(x[c]) * to_float(x[c]);
        float rstd = rstd_of(row_sum(square, sums[turn]), args);
        for (int64_t c = 2 * threadIdx.x; c < channels; c += 2 * blockDim.x) {
            bool whole = c + 1 < channels;
            float a = to_float(x[c]) * rstd * weight[c];
            float b = whole ? to_float(x[c + 1]) * rstd * weight[c + 1] : 0.f;
            rotate_pair(args, row % args.tokens, c, 1.f, &a, &b);
            y[c] = from_float<T>(a);
            if (whole)
                y[c + 1] = from_float<T>(b);
        }
        if (threadIdx.x == 0)
            ((float *)args.rstd)[row] = rstd;
    }
}

/* Returns whether x, the weight and the tables of angles allow accesses of 16 bytes, and no vector of 16
 * bytes crosses the end of a head; forward and backward kernels need this. */
template <typename T> static bool rms_norm_rope_aligned(const DsviRmsNormRopeArgs *args)
{
    constexpr int N = ROW_VECTOR<T>;
    int64_t half = args->head_dim / 2;
    bool tables = !args->cos || (args->head_dim % N == 0 &&
                                 aligned((const float *)args->cos, half, N / 2 * sizeof(float)) &&
                                 aligned((const float *)args->sin, half, N / 2 * sizeof(float)));
    return tables && aligned((const T *)args->x, channels_of(*args), 16) &&
           aligned((const float *)args->weight, 0, 16);
}

template <typename T>
static DsvStatus rms_norm_rope_fwd_of_type(DsviStream *stream, const DsviRmsNormRopeArgs *args)
{
    int64_t rows = args->batch * args->tokens, channels = channels_of(*args);
    size_t kept = kept_bytes(channels, 1);
    if (row_fits(stream, channels, ROW_VECTOR<T>, TWO_ROWS_THREADS, kept) && rms_norm_rope_aligned<T>(args) &&
        aligned((const T *)args->y, channels, 16)) {
        dim3 block = row_block(channels), grid;
        DSVI_TRY(row_grid(stream, rms_norm_rope_fwd_kernel<T>, block, kept, args->batch, args->tokens, rows,
                          &grid));
        DSVI_CUDA_LAUNCH(stream, "rms_norm_rope_fwd", rms_norm_rope_fwd_kernel<T>, grid, block, kept, *args);
    } else {
        DSVI_CUDA_LAUNCH(stream, "rms_norm_rope_fwd", rms_norm_rope_fwd_long_kernel<T>,
                         long_row_blocks(stream, rows), LONG_ROW_THREADS, 0, *args);
    }
    return DSV_OK;
}

/* ---- backward ---- */

/* Replaces x by z = x rstd; rotates dy back to du and replaces it by g = dL/dz = du weight; adds du z to
 * dweight. Returns the sum of g z over the channels of this thread. */
template <int N>
__device__ __forceinline__ float to_normalised(const DsviRmsNormRopeArgs &args, float rstd,
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
            rotate_vector<N>(angles, v, -1.f, dy[v]);
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

/* sum += x for this thread's channels of a row. `sum` is in shared memory that no other thread uses, so no
 * barrier is needed. */
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

/* The data of a row whose loads have been issued before the row is needed. */
template <typename T> struct PrefetchedRow {
    RawPart<ROW_VECTOR<T>, T> x, dy;
    Angles<ROW_VECTOR<T>> angles;
    float rstd;
};

template <typename T>
__device__ __forceinline__ void prefetch_row(const DsviRmsNormRopeArgs &args, int64_t sample, int64_t token,
                                             const int (&pair)[ROW_CHANNELS / ROW_VECTOR<T>],
                                             PrefetchedRow<T> &next)
{
    int channels = (int)channels_of(args);
    int64_t row = sample * args.tokens + token;
    load_raw<ROW_VECTOR<T>>((const T *)args.x + row * channels, channels, next.x);
    load_raw<ROW_VECTOR<T>>((const T *)args.dy + row * channels, channels, next.dy);
    next.rstd = ((const float *)args.rstd)[row];
    load_angles<ROW_VECTOR<T>>(args, token, pair, next.angles);
}

/* Backward kernel for rows that fit in registers. dx may be the same memory as dy: a thread has loaded its
 * channels of a row before it writes them. The threads that share a row write the sums of dweight and of dx
 * over the rows that they processed to partials, (part, 2, channels). */
template <typename T, int N = ROW_VECTOR<T>>
__global__ void __launch_bounds__(TWO_ROWS_THREADS)
    rms_norm_rope_bwd_kernel(const DsviRmsNormRopeArgs args, float *partials)
{
    /* the weight and the sum of dx, once for each row that the block processes at the same time */
    extern __shared__ __align__(16) float kept[];
    __shared__ float sums[2][WARP]; /* used for rows in turn, so that one barrier per row suffices */
    int channels = (int)channels_of(args), pair[ROW_CHANNELS / N], turn = 0;
    float *weight = kept + threadIdx.y * 2 * channels, *dx_sum = weight + channels;
    RowPart<N> dweight = {};
    fill_row<N>(dx_sum, channels, 0.f);
    keep_row<N>(weight, (const float *)args.weight, channels, 0.f);
    list_pairs<N>((int)args.head_dim, pair);
    for (int64_t sample = blockIdx.y; sample < args.batch; sample += gridDim.y) {
        int64_t token = row_first_token();
        PrefetchedRow<T> next;
        if (token < args.tokens)
            prefetch_row<T>(args, sample, token, pair, next);
        for (; token < args.tokens; token += row_token_step(), turn ^= 1) {
            int64_t row = sample * args.tokens + token;
            float rstd = next.rstd;
            RowPart<N> z, g;
            unpack_row<N>(next.x, z);
            unpack_row<N>(next.dy, g);
            float sum = to_normalised<N>(args, rstd, next.angles, weight, z, g, dweight);
            if (token + row_token_step() < args.tokens)
                prefetch_row<T>(args, sample, token + row_token_step(), pair, next);
            float mean = row_sum(sum, sums[turn]) / (float)channels;
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

/* Returns dy of the pair of channels c and c + 1 of a row, rotated back; the second is 0 if the row ends
 * with channel c. */
template <typename T>
__device__ __forceinline__ float2 load_du(const DsviRmsNormRopeArgs &args, int64_t row, int64_t c)
{
    int64_t channels = channels_of(args);
    const T *dy = (const T *)args.dy + row * channels;
    float2 du = make_float2(to_float(dy[c]), c + 1 < channels ? to_float(dy[c + 1]) : 0.f);
    rotate_pair(args, row % args.tokens, c, -1.f, &du.x, &du.y);
    return du;
}

template <typename T>
__global__ void __launch_bounds__(LONG_ROW_THREADS)
    rms_norm_rope_bwd_long_kernel(const DsviRmsNormRopeArgs args)
{
    __shared__ float sums[2][WARP];
    int64_t channels = channels_of(args);
    const float *weight = (const float *)args.weight;
    int turn = 0;
    for (int64_t row = blockIdx.x; row < args.batch * args.tokens; row += gridDim.x, turn ^= 1) {
        const T *x = (const T *)args.x + row * channels;
        T *dx = (T *)args.dx + row * channels;
        float rstd = ((const float *)args.rstd)[row], mean = 0.f;
        for (int64_t c = 2 * threadIdx.x; c < channels; c += 2 * blockDim.x) {
            float2 du = load_du<T>(args, row, c);
            mean += du.x * weight[c] * (to_float(x[c]) * rstd);
            if (c + 1 < channels)
                mean += du.y * weight[c + 1] * (to_float(x[c + 1]) * rstd);
        }
        mean = row_sum(mean, sums[turn]) / (float)channels;
        for (int64_t c = 2 * threadIdx.x; c < channels; c += 2 * blockDim.x) {
            /* reads the whole pair of dy before dx changes, because dx may be the same memory as dy */
            float2 du = load_du<T>(args, row, c);
            dx[c] = from_float<T>(rstd * (du.x * weight[c] - to_float(x[c]) * rstd * mean));
            if (c + 1 < channels)
                dx[c + 1] = from_float<T>(rstd * (du.y * weight[c + 1] - to_float(x[c + 1]) * rstd * mean));
        }
    }
}

/* Adds the gradient of the weight to dweight, for rows too long for registers. A thread adds every
 * SUM_LINES-th row in one column. */
template <typename T>
__global__ void __launch_bounds__(WARP *SUM_LINES) weight_bwd_long_kernel(const DsviRmsNormRopeArgs args)
{
    int64_t column = (int64_t)blockIdx.x * WARP + threadIdx.x, channels = channels_of(args);
    int64_t rows = column < channels ? args.batch * args.tokens : 0;
    float sum[1] = {0.f};
    for (int64_t row = threadIdx.y; row < rows; row += SUM_LINES) {
        float2 du = load_du<T>(args, row, column - column % 2);
        float z = to_float(((const T *)args.x)[row * channels + column]) * ((const float *)args.rstd)[row];
        sum[0] += (column % 2 == 0 ? du.x : du.y) * z;
    }
    sum_along_y<SUM_LINES>(sum);
    if (threadIdx.y == 0 && column < channels)
        ((float *)args.dweight)[column] += sum[0];
}

template <typename T>
static DsvStatus launch_rms_norm_rope_bwd(DsviStream *stream, const DsviRmsNormRopeArgs *args)
{
    int64_t channels = channels_of(*args);
    dim3 block = row_block(channels), grid;
    size_t kept = kept_bytes(
        channels, 2); /* bytes of shared memory of a block, which also writes as many bytes of partial sums */
    int64_t blocks_max = (int64_t)(DSVI_CUDA_PARTIALS / kept);
    float *partials = (float *)stream->partials;
    DSVI_TRY(row_grid(stream, rms_norm_rope_bwd_kernel<T>, block, kept, args->batch, args->tokens, blocks_max,
                      &grid));
    DSVI_CUDA_LAUNCH(stream, "rms_norm_rope_bwd", rms_norm_rope_bwd_kernel<T>, grid, block, kept, *args,
                     partials);
    int64_t parts = (int64_t)grid.x * grid.y * block.y;
    ColumnSums sums = {partials, 1, parts, 2, channels, {(float *)args->dweight, (float *)args->dx_sum}, {0}};
    return launch_add_partials(stream, &sums);
}

template <typename T>
static DsvStatus rms_norm_rope_bwd_of_type(DsviStream *stream, const DsviRmsNormRopeArgs *args)
{
    int64_t rows = args->batch * args->tokens, channels = channels_of(*args);
    if (row_fits(stream, channels, ROW_VECTOR<T>, TWO_ROWS_THREADS, kept_bytes(channels, 2)) &&
        rms_norm_rope_aligned<T>(args) && aligned((const T *)args->dy, channels, 16) &&
        aligned((const T *)args->dx, channels, 16))
        return launch_rms_norm_rope_bwd<T>(stream, args);
    /* dweight is computed first, because the next kernel writes dx, which may be the same memory as dy */
    DSVI_CUDA_LAUNCH(stream, "rms_norm_rope_bwd", weight_bwd_long_kernel<T>,
                     (unsigned)ceil_div(channels, WARP), dim3(WARP, SUM_LINES), 0, *args);
    DSVI_CUDA_LAUNCH(stream, "rms_norm_rope_bwd", rms_norm_rope_bwd_long_kernel<T>,
                     long_row_blocks(stream, rows), LONG_ROW_THREADS, 0, *args);
    DsviColSumArgs sum = {rows, channels, args->act, args->dx, channels, args->acc, args->dx_sum};
    return args->dx_sum ? dsvi_cuda_col_sum(stream, &sum) : DSV_OK;
}

/* ---- the ops ---- */

static DsvStatus cuda_rms_norm_rope_fwd(DsviStream *stream, const DsviRmsNormRopeArgs *args)
{
    if (args->batch * args->tokens * channels_of(*args) == 0)
        return DSV_OK;
    DSVI_FOR_ACT("rms_norm_rope", args->act, return rms_norm_rope_fwd_of_type<T>(stream, args));
}

static DsvStatus cuda_rms_norm_rope_bwd(DsviStream *stream, const DsviRmsNormRopeArgs *args)
{
    if (args->batch * args->tokens * channels_of(*args) == 0)
        return DSV_OK;
    DSVI_FOR_ACT("rms_norm_rope", args->act, return rms_norm_rope_bwd_of_type<T>(stream, args));
}

} // namespace

void dsvi_cuda_fill_rms_norm_rope(DsviOps *ops)
{
    DSVI_OPS_SET(ops, rms_norm_rope_fwd, cuda_rms_norm_rope_fwd, "cuda");
    DSVI_OPS_SET(ops, rms_norm_rope_bwd, cuda_rms_norm_rope_bwd, "cuda");
}
