/* Activations, gated residuals, sums and casts. The formulas are in ops/pointwise_ref.c.
 *
 * The kernels of gated residuals divide the columns into strips: a thread holds the gate of N columns and
 * loops over rows. The GATE_LINES threads of a block along y take different rows, and each thread has the
 * loads of GATE_ROWS rows in flight. */
#include "cuda/common/two_stage_sum.cuh"
#include "cuda/common/activation.cuh"
#include "cuda/common/cuda.h"
#include "cuda/common/elementwise.cuh"
#include "cuda/common/rng.cuh"
#include "cuda/common/token_list.cuh"

using namespace dsvi;

namespace {

/* ---- activations ---- */

constexpr float FINITE = 3.4028235e38f;
constexpr float NORMAL_PEAK = 0.398942280f; /* 1 / sqrt(2 pi) */

/* Returns the derivative of the activation x s(inner): s(inner) (1 + x inner' s(-inner)), where s is the
 * logistic function and s(-t) = exp(-t) s(t). Beyond +-100 the derivative is 0 or 1; limiting x to this
 * range keeps x^3 finite. The derivative of the exact GELU, x P(x) with the distribution function P of
 * N(0, 1), is P(x) + x P'(x). */
template <typename T, DsviActivation KIND> __device__ __forceinline__ float slope(float x)
{
    x = x > 100.f ? 100.f : x < -100.f ? -100.f : x; /* leaves NaN unchanged, unlike fminf and fmaxf */
    if (KIND == DSVI_GELU_ERF)
        return normal_below(x) + x * (NORMAL_PEAK * exp_for<T>(-0.5f * x * x));
    float inner_slope = KIND == DSVI_SILU         ? 1.f
                        : KIND == DSVI_GELU_QUICK ? GELU_QUICK_SLOPE
                                                  : GELU_SLOPE * (1.f + 3.f * GELU_CUBIC * x * x);
    float e = exp_for<T>(-inner_of<KIND>(x)), s = divide_for<T>(1.f, 1.f + e);
    return s * (1.f + x * inner_slope * (fminf(e, FINITE) * s));
}

/* Computes the activation y of x. y may be the same memory as x (and in the backward kernel dx the same as
 * dy): a thread reads an element before it writes it. */
template <typename T, DsviActivation KIND, int N>
__global__ void __launch_bounds__(ELEMENT_THREADS) activation_fwd_kernel(const DsviActivationArgs args)
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

template <typename T, DsviActivation KIND, int N>
__global__ void __launch_bounds__(ELEMENT_THREADS) activation_bwd_kernel(const DsviActivationArgs args)
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

template <typename T, DsviActivation KIND>
static DsvStatus launch_activation_fwd(DsviStream *stream, const DsviActivationArgs *args)
{
    constexpr int N = VECTOR<T>;
    if (aligned((const T *)args->x, 0, 16) && aligned((const T *)args->y, 0, 16))
        DSVI_CUDA_LAUNCH(stream, "activation_fwd", (activation_fwd_kernel<T, KIND, N>),
                         element_blocks<N>(args->n), ELEMENT_THREADS, 0, *args);
    else
        DSVI_CUDA_LAUNCH(stream, "activation_fwd", (activation_fwd_kernel<T, KIND, 1>),
                         element_blocks<1>(args->n), ELEMENT_THREADS, 0, *args);
    return DSV_OK;
}

template <typename T, DsviActivation KIND>
static DsvStatus launch_activation_bwd(DsviStream *stream, const DsviActivationArgs *args)
{
    constexpr int N = VECTOR<T>;
    if (aligned((const T *)args->x, 0, 16) && aligned((const T *)args->dy, 0, 16) &&
        aligned((const T *)args->dx, 0, 16))
        DSVI_CUDA_LAUNCH(stream, "activation_bwd", (activation_bwd_kernel<T, KIND, N>),
                         element_blocks<N>(args->n), ELEMENT_THREADS, 0, *args);
    else
        DSVI_CUDA_LAUNCH(stream, "activation_bwd", (activation_bwd_kernel<T, KIND, 1>),
                         element_blocks<1>(args->n), ELEMENT_THREADS, 0, *args);
    return DSV_OK;
}

template <typename T>
static DsvStatus launch_activation_fwd_of(DsviStream *stream, const DsviActivationArgs *args)
{
    switch (args->activation) {
    case DSVI_SILU: return launch_activation_fwd<T, DSVI_SILU>(stream, args);
    case DSVI_GELU_ERF: return launch_activation_fwd<T, DSVI_GELU_ERF>(stream, args);
    case DSVI_GELU_QUICK: return launch_activation_fwd<T, DSVI_GELU_QUICK>(stream, args);
    default: return launch_activation_fwd<T, DSVI_GELU_TANH>(stream, args);
    }
}

template <typename T>
static DsvStatus launch_activation_bwd_of(DsviStream *stream, const DsviActivationArgs *args)
{
    switch (args->activation) {
    case DSVI_SILU: return launch_activation_bwd<T, DSVI_SILU>(stream, args);
    case DSVI_GELU_ERF: return launch_activation_bwd<T, DSVI_GELU_ERF>(stream, args);
    case DSVI_GELU_QUICK: return launch_activation_bwd<T, DSVI_GELU_QUICK>(stream, args);
    default: return launch_activation_bwd<T, DSVI_GELU_TANH>(stream, args);
    }
}

static DsvStatus cuda_activation_fwd(DsviStream *stream, const DsviActivationArgs *args)
{
    if (args->n == 0)
        return DSV_OK;
    DSVI_FOR_ACT("activation", args->dtype, return launch_activation_fwd_of<T>(stream, args));
}

static DsvStatus cuda_activation_bwd(DsviStream *stream, const DsviActivationArgs *args)
{
    if (args->n == 0)
        return DSV_OK;
    DSVI_FOR_ACT("activation", args->dtype, return launch_activation_bwd_of<T>(stream, args));
}

/* ---- add ---- */

/* y = a x + b y; if b is 0, y = a x without reading y. x may be the same memory as y. */
template <typename X, typename Y, int N>
__global__ void __launch_bounds__(ELEMENT_THREADS) add_kernel(const DsviAddArgs args)
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

template <typename X, typename Y> static DsvStatus launch_add(DsviStream *stream, const DsviAddArgs *args)
{
    constexpr int N = VECTOR<X, Y>;
    if (aligned((const X *)args->x, 0, N * sizeof(X)) && aligned((const Y *)args->y, 0, N * sizeof(Y)))
        DSVI_CUDA_LAUNCH(stream, "add", (add_kernel<X, Y, N>), element_blocks<N>(args->n), ELEMENT_THREADS, 0,
                         *args);
    else
        DSVI_CUDA_LAUNCH(stream, "add", (add_kernel<X, Y, 1>), element_blocks<1>(args->n), ELEMENT_THREADS, 0,
                         *args);
    return DSV_OK;
}

/* y = a x + b y in F64, for the few counts and sums that ranks add up. */
__global__ void __launch_bounds__(ELEMENT_THREADS) add_double_kernel(const DsviAddArgs args)
{
    int64_t i = (int64_t)blockIdx.x * ELEMENT_THREADS + threadIdx.x;
    if (i >= args.n)
        return;
    double x = args.a * ((const double *)args.x)[i], *y = (double *)args.y + i;
    *y = args.b != 0 ? x + args.b * *y : x;
}

static DsvStatus cuda_add(DsviStream *stream, const DsviAddArgs *args)
{
    if (args->n == 0)
        return DSV_OK;
    unsigned blocks = (unsigned)ceil_div(args->n, (int64_t)ELEMENT_THREADS);
    if (args->y_dtype == DSVI_F64 && args->x_dtype == DSVI_F64)
        DSVI_CUDA_LAUNCH(stream, "add", add_double_kernel, blocks, ELEMENT_THREADS, 0, *args);
    else if (args->y_dtype == DSVI_BF16)
        DSVI_FOR_ACT("add", args->x_dtype, return (launch_add<T, __nv_bfloat16>(stream, args)));
    else if (args->y_dtype == DSVI_F32)
        DSVI_FOR_ACT("add", args->x_dtype, return (launch_add<T, float>(stream, args)));
    else
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "add: this variant does not add %s to %s",
                         dsvi_dtype_name(args->x_dtype), dsvi_dtype_name(args->y_dtype));
    return DSV_OK;
}

/* ---- dropout ---- */

/* A thread has the four elements that share one set of random words. */
template <typename X, typename Y>
__global__ void __launch_bounds__(ELEMENT_THREADS)
    dropout_kernel(const DsviDropoutArgs args, uint32_t threshold, float scale)
{
    uint64_t index = args.first / 4 + (uint64_t)blockIdx.x * ELEMENT_THREADS + threadIdx.x;
    int64_t begin = (int64_t)(index * 4 - args.first);
    if (begin >= args.n)
        return;
    const X *x = (const X *)args.x;
    Y *y = (Y *)args.y;
    const uint4 words = rng_words(args.rng, index);
    const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int64_t at = begin + i;
        if (at < 0 || at >= args.n)
            continue;
        float kept = word[i] >= threshold ? scale * to_float(x[at]) : 0.f;
        y[at] = from_float<Y>(args.add ? to_float(y[at]) + kept : kept);
    }
}

template <typename X, typename Y>
static DsvStatus launch_dropout(DsviStream *stream, const DsviDropoutArgs *args)
{
    int64_t sets = ceil_div((int64_t)(args->first % 4) + args->n, (int64_t)4);
    DSVI_CUDA_LAUNCH(stream, "dropout", (dropout_kernel<X, Y>),
                     (unsigned)ceil_div(sets, (int64_t)ELEMENT_THREADS), ELEMENT_THREADS, 0, *args,
                     dsvi_dropout_threshold(args->p), (float)(1 / (1 - args->p)));
    return DSV_OK;
}

static DsvStatus cuda_dropout(DsviStream *stream, const DsviDropoutArgs *args)
{
    if (args->n == 0)
        return DSV_OK;
    if (args->y_dtype == DSVI_BF16)
        DSVI_FOR_ACT("dropout", args->x_dtype, return (launch_dropout<T, __nv_bfloat16>(stream, args)));
    if (args->y_dtype == DSVI_F32)
        DSVI_FOR_ACT("dropout", args->x_dtype, return (launch_dropout<T, float>(stream, args)));
    return DSVI_FAIL(DSV_E_UNSUPPORTED, "dropout: this variant does not write %s",
                     dsvi_dtype_name(args->y_dtype));
}

/* ---- gate_residual ---- */

constexpr int GATE_LINES = 8, GATE_ROWS = 4;

/* Returns the first row (token) of a sample that this thread processes. Blocks along x have WARP * N columns
 * each; blocks along y and their threads along y divide the rows. */
__device__ __forceinline__ int64_t strip_first_token()
{
    return (int64_t)blockIdx.y * GATE_LINES + threadIdx.y;
}

/* Returns the distance between consecutive rows (tokens) that this thread processes. */
__device__ __forceinline__ int64_t strip_token_step()
{
    return (int64_t)gridDim.y * GATE_LINES;
}

/* Loads the gate of N neighbouring columns for one sample; 1 if args has no gate. */
template <int N>
__device__ __forceinline__ void load_gate(const DsviGateResidualArgs &args, int64_t sample, int64_t column,
                                          float (&gate)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        gate[i] = 1.f;
    if (args.gate)
        load<N>((const float *)args.gate + sample * args.gate_stride + column, gate);
}

/* Loads N columns of x_base (F32) and of args.y in GATE_ROWS of this thread's rows, the first of which is
 * row `first` of the sample. All loads are in flight at the same time. For rows past the last one, x[r] and
 * y[r] keep their values. */
template <typename T, int N, bool LISTED>
__device__ __forceinline__ void load_rows(const DsviGateResidualArgs &args, const void *x_base, int64_t start,
                                          int64_t first, float (&x)[GATE_ROWS][N], float (&y)[GATE_ROWS][N])
{
    int64_t step = strip_token_step();
#pragma unroll
    for (int r = 0; r < GATE_ROWS; r++) {
        if (first + r * step >= args.only.count)
            continue;
        int64_t at = start + listed_token<LISTED>(args.only, first + r * step) * args.channels;
        load<N>((const float *)x_base + at, x[r]);
        if (args.y)
            load<N>((const T *)args.y + at, y[r]);
    }
}

/* Gated residual sum: out = x + gate y. out may be the same memory as x: a thread reads an element before it
 * writes it. */
template <typename T, int N, bool LISTED>
__global__ void __launch_bounds__(WARP *GATE_LINES) gate_fwd_kernel(const DsviGateResidualArgs args)
{
    int64_t column = ((int64_t)blockIdx.x * WARP + threadIdx.x) * N, step = strip_token_step();
    if (column >= args.channels)
        return;
    for (int64_t sample = blockIdx.z; sample < args.batch; sample += gridDim.z) {
        int64_t start = sample * args.tokens * args.channels + column;
        float gate[N];
        load_gate<N>(args, sample, column, gate);
        for (int64_t first = strip_first_token(); first < args.only.count; first += step * GATE_ROWS) {
            float x[GATE_ROWS][N] = {}, y[GATE_ROWS][N] = {};
            load_rows<T, N, LISTED>(args, args.x, start, first, x, y);
#pragma unroll
            for (int r = 0; r < GATE_ROWS; r++) {
                if (first + r * step >= args.only.count)
                    continue;
#pragma unroll
                for (int i = 0; i < N; i++)
                    x[r][i] += gate[i] * y[r][i];
                int64_t at = start + listed_token<LISTED>(args.only, first + r * step) * args.channels;
                store<N>((float *)args.out + at, x[r]);
            }
        }
    }
}

/* Backward gated residual sum for this thread's columns and rows of a sample: writes dy = gate dout. Adds
 * dout y (the gradient of the gate) to sum[0..N) and dy to sum[N..2 N). */
template <typename T, int N, bool LISTED>
__device__ __forceinline__ void gate_bwd_columns(const DsviGateResidualArgs &args, int64_t start,
                                                 const float (&gate)[N], float (&sum)[2 * N])
{
    int64_t step = strip_token_step();
    for (int64_t first = strip_first_token(); first < args.only.count; first += step * GATE_ROWS) {
        float dout[GATE_ROWS][N] = {}, y[GATE_ROWS][N] = {};
        load_rows<T, N, LISTED>(args, args.dout, start, first, dout, y);
#pragma unroll
        for (int r = 0; r < GATE_ROWS; r++) {
            if (first + r * step >= args.only.count)
                continue;
#pragma unroll
            for (int i = 0; i < N; i++) {
                sum[i] += dout[r][i] * y[r][i];
                dout[r][i] *= gate[i];
                sum[N + i] += dout[r][i];
            }
            int64_t at = start + listed_token<LISTED>(args.only, first + r * step) * args.channels;
            store<N>((T *)args.dy + at, dout[r]);
        }
    }
}

/* Backward kernel of the gated residual sum. Writes each thread block's sums of dgate and of dy over its
 * rows to partials, (samples, gridDim.y, 2, channels) F32. */
template <typename T, int N, bool LISTED>
__global__ void __launch_bounds__(WARP *GATE_LINES)
    gate_bwd_kernel(const DsviGateResidualArgs args, float *partials)
{
    int64_t column = ((int64_t)blockIdx.x * WARP + threadIdx.x) * N;
    for (int64_t sample = blockIdx.z; sample < args.batch; sample += gridDim.z) {
        float gate[N], sum[2 * N] = {};
        if (column < args.channels) {
            load_gate<N>(args, sample, column, gate);
            gate_bwd_columns<T, N, LISTED>(args, sample * args.tokens * args.channels + column, gate, sum);
        }
        sum_along_y<GATE_LINES>(sum);
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

/* Returns the grid of the gated residual kernels: x, strips of WARP * n columns; y, parts of a sample's
 * rows; z, samples. There are as many parts as fill the GPU, but at most parts_max. */
static dim3 strip_grid(const DsviStream *stream, const DsviGateResidualArgs *args, int n, int64_t parts_max)
{
    int64_t strips = ceil_div(args->channels, (int64_t)WARP * n);
    int64_t parts = (int64_t)8 * stream->multiprocessors / (strips * args->batch);
    int64_t useful = ceil_div(args->only.count, GATE_LINES * GATE_ROWS);
    parts = parts < useful ? parts : useful;
    parts = parts < parts_max ? parts : parts_max;
    return dim3((unsigned)strips, blocks_in_turn(parts > 1 ? parts : 1), blocks_in_turn(args->batch));
}

static bool gate_aligned(const DsviGateResidualArgs *args)
{
    return args->channels % VECTOR<float> == 0 &&
           (!args->gate || aligned((const float *)args->gate, args->gate_stride, 16));
}

template <typename T, int N>
static DsvStatus launch_gate_fwd(DsviStream *stream, const DsviGateResidualArgs *args)
{
    auto kernel = args->only.token ? gate_fwd_kernel<T, N, true> : gate_fwd_kernel<T, N, false>;
    DSVI_CUDA_LAUNCH(stream, "gate_residual_fwd", kernel, strip_grid(stream, args, N, args->only.count),
                     dim3(WARP, GATE_LINES), 0, *args);
    return DSV_OK;
}

template <typename T> static DsvStatus gate_fwd_of_type(DsviStream *stream, const DsviGateResidualArgs *args)
{
    constexpr int N = VECTOR<float>;
    if (gate_aligned(args) && aligned((const float *)args->x, 0, 16) &&
        aligned((const float *)args->out, 0, 16) && aligned((const T *)args->y, 0, N * sizeof(T)))
        return launch_gate_fwd<T, N>(stream, args);
    return launch_gate_fwd<T, 1>(stream, args);
}

template <typename T, int N>
static DsvStatus launch_gate_bwd(DsviStream *stream, const DsviGateResidualArgs *args, int64_t parts_max)
{
    float *partials = (float *)stream->partials;
    dim3 grid = strip_grid(stream, args, N, parts_max);
    auto kernel = args->only.token ? gate_bwd_kernel<T, N, true> : gate_bwd_kernel<T, N, false>;
    DSVI_CUDA_LAUNCH(stream, "gate_residual_bwd", kernel, grid, dim3(WARP, GATE_LINES), 0, *args, partials);
    ColumnSums sums = {partials,
                       args->batch,
                       grid.y,
                       2,
                       args->channels,
                       {(float *)args->dgate, (float *)args->dy_sum},
                       {args->gate_stride, 0}};
    return launch_add_partials(stream, &sums);
}

template <typename T> static DsvStatus gate_bwd_of_type(DsviStream *stream, const DsviGateResidualArgs *args)
{
    constexpr int N = VECTOR<float>;
    int64_t parts_max = (int64_t)(DSVI_CUDA_PARTIALS / sizeof(float)) / args->batch / args->channels / 2;
    if (parts_max == 0)
        return DSVI_FAIL(DSV_E_UNSUPPORTED,
                         "gate_residual: this variant supports batch * channels of at most "
                         "%lld, not %lld",
                         (long long)(DSVI_CUDA_PARTIALS / (2 * sizeof(float))),
                         (long long)(args->batch * args->channels));
    if (gate_aligned(args) && aligned((const float *)args->dout, 0, 16) &&
        aligned((const T *)args->y, 0, N * sizeof(T)) && aligned((const T *)args->dy, 0, N * sizeof(T)))
        return launch_gate_bwd<T, N>(stream, args, parts_max);
    return launch_gate_bwd<T, 1>(stream, args, parts_max);
}

static DsvStatus cuda_gate_residual_fwd(DsviStream *stream, const DsviGateResidualArgs *args)
{
    DsviGateResidualArgs some = *args;
    some.only.count = dsvi_listed_tokens(&args->only, args->tokens);
    if (args->batch * args->tokens * args->channels == 0)
        return DSV_OK;
    DSVI_FOR_ACT("gate_residual", args->act, return gate_fwd_of_type<T>(stream, &some));
}

} // namespace

DsvStatus dsvi_cuda_gate_residual_bwd(DsviStream *stream, const DsviGateResidualArgs *args)
{
    int64_t n = args->batch * args->tokens * args->channels;
    DsviAddArgs cast = {n, 1, 0, args->acc, args->act, args->dout, args->dy};
    DsviGateResidualArgs some = *args;
    some.only.count = dsvi_listed_tokens(&args->only, args->tokens);
    if (n == 0)
        return DSV_OK;
    if (!args->gate && !args->dy_sum && !args->only.token)
        return cuda_add(stream, &cast);
    DSVI_FOR_ACT("gate_residual", args->act, return gate_bwd_of_type<T>(stream, &some));
}

namespace {

/* ---- add_rows: a thread loops over all rows of a column, because there is only one row per sample ---- */

constexpr int ADD_ROWS_THREADS = 128;

__global__ void add_rows_fwd_kernel(const DsviAddRowsArgs args)
{
    int64_t column = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= args.cols)
        return;
    float addend = ((const float *)args.table)[column];
    for (int64_t row = 0; row < args.rows; row++)
        ((float *)args.out)[row * args.cols + column] =
            ((const float *)args.x)[row * args.x_cols + column % args.x_cols] + addend;
}

/* Backward add_rows: adds the gradients to dx and dtable. A thread has one column of x and all columns of
 * the table that are added to it. */
__global__ void add_rows_bwd_kernel(const DsviAddRowsArgs args)
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

static DsvStatus add_rows_check_acc(DsviDtype acc)
{
    if (acc == DSVI_F32)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_UNSUPPORTED, "add_rows: this variant takes F32, not %s", dsvi_dtype_name(acc));
}

static DsvStatus cuda_add_rows_fwd(DsviStream *stream, const DsviAddRowsArgs *args)
{
    DSVI_TRY(add_rows_check_acc(args->acc));
    if (args->rows * args->cols == 0)
        return DSV_OK;
    unsigned blocks = (unsigned)ceil_div(args->cols, ADD_ROWS_THREADS);
    DSVI_CUDA_LAUNCH(stream, "add_rows_fwd", add_rows_fwd_kernel, blocks, ADD_ROWS_THREADS, 0, *args);
    return DSV_OK;
}

static DsvStatus cuda_add_rows_bwd(DsviStream *stream, const DsviAddRowsArgs *args)
{
    DSVI_TRY(add_rows_check_acc(args->acc));
    if (args->rows * args->cols == 0)
        return DSV_OK;
    unsigned blocks = (unsigned)ceil_div(args->x_cols, ADD_ROWS_THREADS);
    DSVI_CUDA_LAUNCH(stream, "add_rows_bwd", add_rows_bwd_kernel, blocks, ADD_ROWS_THREADS, 0, *args);
    return DSV_OK;
}

} // namespace

void dsvi_cuda_fill_pointwise(DsviOps *ops)
{
    DSVI_OPS_SET(ops, activation_fwd, cuda_activation_fwd, "cuda");
    DSVI_OPS_SET(ops, activation_bwd, cuda_activation_bwd, "cuda");
    DSVI_OPS_SET(ops, gate_residual_fwd, cuda_gate_residual_fwd, "cuda");
    DSVI_OPS_SET(ops, gate_residual_bwd, dsvi_cuda_gate_residual_bwd, "cuda");
    DSVI_OPS_SET(ops, add, cuda_add, "cuda");
    DSVI_OPS_SET(ops, dropout, cuda_dropout, "cuda");
    DSVI_OPS_SET(ops, add_rows_fwd, cuda_add_rows_fwd, "cuda");
    DSVI_OPS_SET(ops, add_rows_bwd, cuda_add_rows_bwd, "cuda");
}
