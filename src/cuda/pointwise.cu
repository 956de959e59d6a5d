/* Activations, gated residuals, sums and casts. The formulas are those of pointwise_ref.c.
 *
 * Gated residuals go by strips of columns: a thread holds the gate of its columns, N of them, and walks rows;
 * the GATE_STRANDS threads of a block along y take rows in turn, each with GATE_ROWS of them in flight. */
#include "cuda/column_sums.cuh"
#include "cuda/cuda.h"
#include "cuda/elementwise.cuh"

using namespace dsvi;

namespace {

/* ---- activations ---- */

constexpr float GELU_SLOPE = 1.59576912f; /* 2 sqrt(2 / pi) */
constexpr float GELU_CUBIC = 0.044715f;
constexpr float FINITE = 3.4028235e38f;

/* exp and the reciprocal, as exact as results of type T ask: those of BF16 are bound by arithmetic else. */
template <typename T> __device__ __forceinline__ float exp_for(float x)
{
    return sizeof(T) == sizeof(float) ? expf(x) : __expf(x);
}

template <typename T> __device__ __forceinline__ float divide_for(float x, float y)
{
    return sizeof(T) == sizeof(float) ? x / y : __fdividef(x, y);
}

/* The argument of the logistic function s: x s(inner) is the activation. */
template <DsvActivation KIND> __device__ __forceinline__ float inner_of(float x)
{
    return KIND == DSV_SILU ? x : GELU_SLOPE * (x + GELU_CUBIC * x * x * x);
}

template <typename T, DsvActivation KIND> __device__ __forceinline__ float activation(float x)
{
    return divide_for<T>(x, 1.f + exp_for<T>(-inner_of<KIND>(x)));
}

/* s(inner) (1 + x inner' s(-inner)), s(-t) = exp(-t) s(t). Beyond +-100 it is 0 or 1: the bounds keep x^3
 * finite where s is 0. */
template <typename T, DsvActivation KIND> __device__ __forceinline__ float slope(float x)
{
    x = x > 100.f ? 100.f : x < -100.f ? -100.f : x; /* NaN stays */
    float inner_slope = KIND == DSV_SILU ? 1.f : GELU_SLOPE * (1.f + 3.f * GELU_CUBIC * x * x);
    float e = exp_for<T>(-inner_of<KIND>(x)), s = divide_for<T>(1.f, 1.f + e);
    return s * (1.f + x * inner_slope * (fminf(e, FINITE) * s));
}

/* y may be x, and dx dy: a thread reads before it writes. */
template <typename T, DsvActivation KIND, int N>
__global__ void __launch_bounds__(ELEMENT_THREADS) activate(const DsvActivationArgs args)
{
    float x[VECTORS][N] = {};
#pragma unroll
    for (int v = 0; v < VECTORS; v++)
        load_upto<N>((const T *)args.x, vector_start<N>(blockIdx.x, v), args.n, x[v]);
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[v][i] = activation<T, KIND>(x[v][i]);
        store_upto<N>((T *)args.y, vector_start<N>(blockIdx.x, v), args.n, x[v]);
    }
}

template <typename T, DsvActivation KIND, int N>
__global__ void __launch_bounds__(ELEMENT_THREADS) activate_back(const DsvActivationArgs args)
{
    float x[VECTORS][N] = {}, dy[VECTORS][N] = {};
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        load_upto<N>((const T *)args.x, vector_start<N>(blockIdx.x, v), args.n, x[v]);
        load_upto<N>((const T *)args.dy, vector_start<N>(blockIdx.x, v), args.n, dy[v]);
    }
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
#pragma unroll
        for (int i = 0; i < N; i++)
            dy[v][i] *= slope<T, KIND>(x[v][i]);
        store_upto<N>((T *)args.dx, vector_start<N>(blockIdx.x, v), args.n, dy[v]);
    }
}

template <typename T, DsvActivation KIND>
static void launch_activate(DsvStream *stream, const DsvActivationArgs *args)
{
    constexpr int N = VECTOR<T>;
    if (aligned((const T *)args->x, 0, 16) && aligned((const T *)args->y, 0, 16))
        activate<T, KIND, N><<<element_blocks<N>(args->n), ELEMENT_THREADS, 0, stream->handle>>>(*args);
    else
        activate<T, KIND, 1><<<element_blocks<1>(args->n), ELEMENT_THREADS, 0, stream->handle>>>(*args);
}

template <typename T, DsvActivation KIND>
static void launch_activate_back(DsvStream *stream, const DsvActivationArgs *args)
{
    constexpr int N = VECTOR<T>;
    if (aligned((const T *)args->x, 0, 16) && aligned((const T *)args->dy, 0, 16) &&
        aligned((const T *)args->dx, 0, 16))
        activate_back<T, KIND, N><<<element_blocks<N>(args->n), ELEMENT_THREADS, 0, stream->handle>>>(*args);
    else
        activate_back<T, KIND, 1><<<element_blocks<1>(args->n), ELEMENT_THREADS, 0, stream->handle>>>(*args);
}

static DsvStatus activation_fwd(DsvStream *stream, const DsvActivationArgs *args)
{
    if (args->n == 0)
        return DSV_OK;
    if (args->activation == DSV_SILU)
        DSVI_FOR_ACT("activation", args->dtype, (launch_activate<T, DSV_SILU>(stream, args)));
    else
        DSVI_FOR_ACT("activation", args->dtype, (launch_activate<T, DSV_GELU_TANH>(stream, args)));
    DSVI_CUDA_LAUNCHED("activation_fwd");
    return DSV_OK;
}

static DsvStatus activation_bwd(DsvStream *stream, const DsvActivationArgs *args)
{
    if (args->n == 0)
        return DSV_OK;
    if (args->activation == DSV_SILU)
        DSVI_FOR_ACT("activation", args->dtype, (launch_activate_back<T, DSV_SILU>(stream, args)));
    else
        DSVI_FOR_ACT("activation", args->dtype, (launch_activate_back<T, DSV_GELU_TANH>(stream, args)));
    DSVI_CUDA_LAUNCHED("activation_bwd");
    return DSV_OK;
}

/* ---- add ---- */

/* x may be y. */
template <typename X, typename Y, int N>
__global__ void __launch_bounds__(ELEMENT_THREADS) add_scaled(const DsvAddArgs args)
{
    float a = (float)args.a, b = (float)args.b, x[VECTORS][N] = {}, y[VECTORS][N] = {};
    bool read = args.b != 0;
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        load_upto<N>((const X *)args.x, vector_start<N>(blockIdx.x, v), args.n, x[v]);
        if (read)
            load_upto<N>((const Y *)args.y, vector_start<N>(blockIdx.x, v), args.n, y[v]);
    }
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
#pragma unroll
        for (int i = 0; i < N; i++)
            y[v][i] = read ? a * x[v][i] + b * y[v][i] : a * x[v][i];
        store_upto<N>((Y *)args.y, vector_start<N>(blockIdx.x, v), args.n, y[v]);
    }
}

template <typename X, typename Y> static void launch_add(DsvStream *stream, const DsvAddArgs *args)
{
    constexpr int N = VECTOR<X, Y>;
    if (aligned((const X *)args->x, 0, N * sizeof(X)) && aligned((const Y *)args->y, 0, N * sizeof(Y)))
        add_scaled<X, Y, N><<<element_blocks<N>(args->n), ELEMENT_THREADS, 0, stream->handle>>>(*args);
    else
        add_scaled<X, Y, 1><<<element_blocks<1>(args->n), ELEMENT_THREADS, 0, stream->handle>>>(*args);
}

/* Counts and sums of several ranks: few numbers. */
__global__ void __launch_bounds__(ELEMENT_THREADS) add_doubles(const DsvAddArgs args)
{
    int64_t i = (int64_t)blockIdx.x * ELEMENT_THREADS + threadIdx.x;
    if (i >= args.n)
        return;
    double x = args.a * ((const double *)args.x)[i], *y = (double *)args.y + i;
    *y = args.b != 0 ? x + args.b * *y : x;
}

static DsvStatus add(DsvStream *stream, const DsvAddArgs *args)
{
    if (args->n == 0)
        return DSV_OK;
    unsigned blocks = (unsigned)ceil_div(args->n, (int64_t)ELEMENT_THREADS);
    if (args->y_dtype == DSV_F64 && args->x_dtype == DSV_F64)
        add_doubles<<<blocks, ELEMENT_THREADS, 0, stream->handle>>>(*args);
    else if (args->y_dtype == DSV_BF16)
        DSVI_FOR_ACT("add", args->x_dtype, (launch_add<T, __nv_bfloat16>(stream, args)));
    else if (args->y_dtype == DSV_F32)
        DSVI_FOR_ACT("add", args->x_dtype, (launch_add<T, float>(stream, args)));
    else
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "add: this variant makes no %s of %s",
                         dsvi_dtype_name(args->y_dtype), dsvi_dtype_name(args->x_dtype));
    DSVI_CUDA_LAUNCHED("add");
    return DSV_OK;
}

/* ---- gate_residual ---- */

constexpr int GATE_STRANDS = 8, GATE_ROWS = 4;

/* Blocks along x have WARP N columns each; the rows of a thread are, in every sample that its block has: */
__device__ __forceinline__ int64_t strip_first_token()
{
    return (int64_t)blockIdx.y * GATE_STRANDS + threadIdx.y;
}

__device__ __forceinline__ int64_t strip_token_step()
{
    return (int64_t)gridDim.y * GATE_STRANDS;
}

template <int N>
__device__ __forceinline__ void load_gate(const DsvGateResidualArgs &args, int64_t sample, int64_t column,
                                          float (&gate)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        gate[i] = 1.f;
    if (args.gate)
        load<N>((const float *)args.gate + sample * args.gate_stride + column, gate);
}

/* N columns of x and y in GATE_ROWS rows, from row `first` of the sample on, those of other threads between:
 * all loads are in flight at a time. Rows behind the last are left as they are. */
template <typename T, int N>
__device__ __forceinline__ void load_rows(const DsvGateResidualArgs &args, const void *x_base, int64_t start,
                                          int64_t first, float (&x)[GATE_ROWS][N], float (&y)[GATE_ROWS][N])
{
    int64_t step = strip_token_step();
#pragma unroll
    for (int r = 0; r < GATE_ROWS; r++) {
        if (first + r * step >= args.tokens)
            continue;
        load<N>((const float *)x_base + start + (first + r * step) * args.channels, x[r]);
        if (args.y)
            load<N>((const T *)args.y + start + (first + r * step) * args.channels, y[r]);
    }
}

/* out may be x: a thread reads before it writes. */
template <typename T, int N>
__global__ void __launch_bounds__(WARP *GATE_STRANDS) gate_strips(const DsvGateResidualArgs args)
{
    int64_t column = ((int64_t)blockIdx.x * WARP + threadIdx.x) * N, step = strip_token_step();
    if (column >= args.channels)
        return;
    for (int64_t sample = blockIdx.z; sample < args.batch; sample += gridDim.z) {
        int64_t start = sample * args.tokens * args.channels + column;
        float gate[N];
        load_gate<N>(args, sample, column, gate);
        for (int64_t first = strip_first_token(); first < args.tokens; first += step * GATE_ROWS) {
            float x[GATE_ROWS][N] = {}, y[GATE_ROWS][N] = {};
            load_rows<T, N>(args, args.x, start, first, x, y);
#pragma unroll
            for (int r = 0; r < GATE_ROWS; r++) {
                if (first + r * step >= args.tokens)
                    continue;
#pragma unroll
                for (int i = 0; i < N; i++)
                    x[r][i] += gate[i] * y[r][i];
                store<N>((float *)args.out + start + (first + r * step) * args.channels, x[r]);
            }
        }
    }
}

/* dy of this thread's columns in its rows of a sample; adds dout y to half of `sum`, dy to the other half. */
template <typename T, int N>
__device__ __forceinline__ void gate_columns_back(const DsvGateResidualArgs &args, int64_t start,
                                                  const float (&gate)[N], float (&sum)[2 * N])
{
    int64_t step = strip_token_step();
    for (int64_t first = strip_first_token(); first < args.tokens; first += step * GATE_ROWS) {
        float dout[GATE_ROWS][N] = {}, y[GATE_ROWS][N] = {};
        load_rows<T, N>(args, args.dout, start, first, dout, y);
#pragma unroll
        for (int r = 0; r < GATE_ROWS; r++) {
            if (first + r * step >= args.tokens)
                continue;
#pragma unroll
            for (int i = 0; i < N; i++) {
                sum[i] += dout[r][i] * y[r][i];
                dout[r][i] *= gate[i];
                sum[N + i] += dout[r][i];
            }
            store<N>((T *)args.dy + start + (first + r * step) * args.channels, dout[r]);
        }
    }
}

/* dgate and dy_sum of a block's rows go to (sample, block y, 2, channels) of `partials`. */
template <typename T, int N>
__global__ void __launch_bounds__(WARP *GATE_STRANDS) gate_strips_back(const DsvGateResidualArgs args,
                                                                       float *partials)
{
    int64_t column = ((int64_t)blockIdx.x * WARP + threadIdx.x) * N;
    for (int64_t sample = blockIdx.z; sample < args.batch; sample += gridDim.z) {
        float gate[N], sum[2 * N] = {};
        if (column < args.channels) {
            load_gate<N>(args, sample, column, gate);
            gate_columns_back<T, N>(args, sample * args.tokens * args.channels + column, gate, sum);
        }
        sum_strands<GATE_STRANDS>(sum);
        if (threadIdx.y != 0 || column >= args.channels)
            continue;
        float *partial = partials + (sample * gridDim.y + blockIdx.y) * 2 * args.channels + column;
#pragma unroll
        for (int i = 0; i < N; i++) {
            partial[i] = sum[i];
            partial[args.channels + i] = sum[N + i];
        }
    }
}

/* Strips of WARP * n columns; along y shares of a sample's rows, `most` at most, that fill the device. */
static dim3 strip_grid(const DsvStream *stream, const DsvGateResidualArgs *args, int n, int64_t most)
{
    int64_t strips = ceil_div(args->channels, (int64_t)WARP * n);
    int64_t parts = (int64_t)8 * stream->multiprocessors / (strips * args->batch);
    int64_t useful = ceil_div(args->tokens, GATE_STRANDS * GATE_ROWS);
    parts = parts < useful ? parts : useful;
    parts = parts < most ? parts : most;
    return dim3((unsigned)strips, blocks_in_turn(parts > 1 ? parts : 1), blocks_in_turn(args->batch));
}

static bool gate_aligned(const DsvGateResidualArgs *args)
{
    return args->channels % VECTOR<float> == 0 &&
           (!args->gate || aligned((const float *)args->gate, args->gate_stride, 16));
}

template <typename T> static DsvStatus gate_forward(DsvStream *stream, const DsvGateResidualArgs *args)
{
    constexpr int N = VECTOR<float>;
    dim3 block(WARP, GATE_STRANDS);
    if (gate_aligned(args) && aligned((const float *)args->x, 0, 16) &&
        aligned((const float *)args->out, 0, 16) && aligned((const T *)args->y, 0, N * sizeof(T)))
        gate_strips<T, N><<<strip_grid(stream, args, N, args->tokens), block, 0, stream->handle>>>(*args);
    else
        gate_strips<T, 1><<<strip_grid(stream, args, 1, args->tokens), block, 0, stream->handle>>>(*args);
    DSVI_CUDA_LAUNCHED("gate_residual_fwd");
    return DSV_OK;
}

template <typename T> static DsvStatus gate_backward(DsvStream *stream, const DsvGateResidualArgs *args)
{
    constexpr int N = VECTOR<float>;
    int64_t most = (int64_t)(DSVI_CUDA_PARTIALS / sizeof(float)) / args->batch / args->channels / 2;
    if (most == 0)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "gate_residual: this variant takes at most %lld channels of all "
                         "samples, not %lld", (long long)(DSVI_CUDA_PARTIALS / (2 * sizeof(float))),
                         (long long)(args->batch * args->channels));
    float *partials = (float *)stream->partials;
    dim3 block(WARP, GATE_STRANDS), grid = strip_grid(stream, args, 1, most);
    if (gate_aligned(args) && aligned((const float *)args->dout, 0, 16) &&
        aligned((const T *)args->y, 0, N * sizeof(T)) && aligned((const T *)args->dy, 0, N * sizeof(T))) {
        grid = strip_grid(stream, args, N, most);
        gate_strips_back<T, N><<<grid, block, 0, stream->handle>>>(*args, partials);
    } else {
        gate_strips_back<T, 1><<<grid, block, 0, stream->handle>>>(*args, partials);
    }
    DSVI_CUDA_LAUNCHED("gate_residual_bwd");
    ColumnSums sums = {partials, args->batch, grid.y, 2, args->channels,
                       {(float *)args->dgate, (float *)args->dy_sum}, {args->gate_stride, 0}};
    return launch_add_partials(stream, &sums);
}

static DsvStatus gate_residual_fwd(DsvStream *stream, const DsvGateResidualArgs *args)
{
    if (args->batch * args->tokens * args->channels == 0)
        return DSV_OK;
    DSVI_FOR_ACT("gate_residual", args->act, return gate_forward<T>(stream, args));
}

static DsvStatus gate_residual_bwd(DsvStream *stream, const DsvGateResidualArgs *args)
{
    int64_t n = args->batch * args->tokens * args->channels;
    DsvAddArgs cast = {n, 1, 0, args->acc, args->act, args->dout, args->dy};
    if (n == 0)
        return DSV_OK;
    if (!args->gate && !args->dy_sum)
        return add(stream, &cast);
    DSVI_FOR_ACT("gate_residual", args->act, return gate_backward<T>(stream, args));
}

/* ---- add_rows: there is a row per sample, too few to share out ---- */

constexpr int ADD_ROWS_THREADS = 128;

__global__ void add_rows(const DsvAddRowsArgs args)
{
    int64_t column = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= args.cols)
        return;
    float addend = ((const float *)args.table)[column];
    for (int64_t row = 0; row < args.rows; row++)
        ((float *)args.out)[row * args.cols + column] =
            ((const float *)args.x)[row * args.x_cols + column % args.x_cols] + addend;
}

/* A thread has a column of x, and those of the table that repeat it. */
__global__ void add_rows_back(const DsvAddRowsArgs args)
{
    int64_t x_column = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (x_column >= args.x_cols)
        return;
    for (int64_t row = 0; row < args.rows; row++) {
        float sum = ((const float *)args.dx)[row * args.x_cols + x_column];
        for (int64_t column = x_column; column < args.cols; column += args.x_cols) {
            float dout = ((const float *)args.dout)[row * args.cols + column];
            ((float *)args.dtable)[column] += dout;
            sum += dout;
        }
        ((float *)args.dx)[row * args.x_cols + x_column] = sum;
    }
}

static DsvStatus add_rows_takes(DsvDtype acc)
{
    if (acc == DSV_F32)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_UNSUPPORTED, "add_rows: this variant takes F32, not %s", dsvi_dtype_name(acc));
}

static DsvStatus add_rows_fwd(DsvStream *stream, const DsvAddRowsArgs *args)
{
    DSVI_TRY(add_rows_takes(args->acc));
    if (args->rows * args->cols == 0)
        return DSV_OK;
    unsigned blocks = (unsigned)ceil_div(args->cols, ADD_ROWS_THREADS);
    add_rows<<<blocks, ADD_ROWS_THREADS, 0, stream->handle>>>(*args);
    DSVI_CUDA_LAUNCHED("add_rows_fwd");
    return DSV_OK;
}

static DsvStatus add_rows_bwd(DsvStream *stream, const DsvAddRowsArgs *args)
{
    DSVI_TRY(add_rows_takes(args->acc));
    if (args->rows * args->cols == 0)
        return DSV_OK;
    unsigned blocks = (unsigned)ceil_div(args->x_cols, ADD_ROWS_THREADS);
    add_rows_back<<<blocks, ADD_ROWS_THREADS, 0, stream->handle>>>(*args);
    DSVI_CUDA_LAUNCHED("add_rows_bwd");
    return DSV_OK;
}

} // namespace

DsvStatus dsvi_cuda_gate_residual_bwd(DsvStream *stream, const DsvGateResidualArgs *args)
{
    return gate_residual_bwd(stream, args);
}

void dsvi_cuda_fill_pointwise(DsvOps *ops)
{
    DSVI_OPS_SET(ops, activation_fwd, activation_fwd, "cuda");
    DSVI_OPS_SET(ops, activation_bwd, activation_bwd, "cuda");
    DSVI_OPS_SET(ops, gate_residual_fwd, gate_residual_fwd, "cuda");
    DSVI_OPS_SET(ops, gate_residual_bwd, gate_residual_bwd, "cuda");
    DSVI_OPS_SET(ops, add, add, "cuda");
    DSVI_OPS_SET(ops, add_rows_fwd, add_rows_fwd, "cuda");
    DSVI_OPS_SET(ops, add_rows_bwd, add_rows_bwd, "cuda");
}
