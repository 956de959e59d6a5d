/* sum_squares for the gradient norm, and adamw: the AdamW update, the moving average of the weights and their
 * copy in another dtype, in one pass.
 *
 * Both ops process n elements with a grid-stride loop: a thread takes N neighbouring elements at a time. The
 * first n % N threads take one of the last n % N elements each. */
#include <math.h>

#include "cuda/common/cuda.h"
#include "cuda/common/kernel.cuh"

namespace {

using namespace dsvi;

constexpr int THREADS = 256;
/* Thread blocks to launch per multiprocessor: many times as many as it holds at the same time, so that a
 * multiprocessor that is ahead takes more. */
constexpr int BLOCKS_PER_MULTIPROCESSOR = 64;
constexpr int BATCH = 4; /* vectors whose loads a thread of sum_squares has in flight */
constexpr int FINAL_THREADS = 1024;

__device__ __forceinline__ int64_t thread_number()
{
    return (int64_t)blockIdx.x * THREADS + threadIdx.x;
}

/* Returns the number of thread blocks for n elements, N per thread, but at most BLOCKS_PER_MULTIPROCESSOR
 * per multiprocessor. */
unsigned optim_blocks(const DsviStream *stream, int64_t n, int N)
{
    int64_t blocks_max = (int64_t)stream->multiprocessors * BLOCKS_PER_MULTIPROCESSOR;
    int64_t blocks = ceil_div(n, (int64_t)THREADS * N);
    return (unsigned)(blocks < 1 ? 1 : blocks < blocks_max ? blocks : blocks_max);
}

/* ---- sum of squares ---- */

/* Adds `sum` over the COUNT threads of the block, pairwise in a fixed order. Thread 0 gets the total; the
 * other threads get a value without meaning. All threads of the block must call. */
template <int COUNT> __device__ double sum_block_pairwise(double sum)
{
    __shared__ double shared[COUNT];
    shared[threadIdx.x] = sum;
    for (int half = COUNT / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half)
            shared[threadIdx.x] += shared[threadIdx.x + half];
    }
    return shared[0];
}

template <int N> __device__ __forceinline__ double squares(const float (&x)[N])
{
    double sum = 0;
#pragma unroll
    for (int i = 0; i < N; i++)
        sum += (double)x[i] * x[i];
    return sum;
}

/* First stage of sum_squares: writes the sum of squares of each thread block's elements to
 * partials[block]. */
template <int N>
__global__ void __launch_bounds__(THREADS) square_sums(const float *x, int64_t n, double *partials)
{
    int64_t thread = thread_number(), step = (int64_t)gridDim.x * THREADS * N, i = thread * N;
    int64_t whole = n - n % N;
    float element[BATCH][N], one[1];
    double sum = 0;
    for (; i + (BATCH - 1) * step < whole; i += BATCH * step) {
#pragma unroll
        for (int j = 0; j < BATCH; j++)
            load<N>(x + i + j * step, element[j]);
#pragma unroll
        for (int j = 0; j < BATCH; j++)
            sum += squares<N>(element[j]);
    }
    for (; i < whole; i += step) {
        load<N>(x + i, element[0]);
        sum += squares<N>(element[0]);
    }
    if (thread < n - whole) {
        load<1>(x + whole + thread, one);
        sum += squares<1>(one);
    }
    sum = sum_block_pairwise<THREADS>(sum);
    if (threadIdx.x == 0)
        partials[blockIdx.x] = sum;
}

/* Second stage of sum_squares, one thread block: *out = the sum of partials[0 .. count). */
__global__ void __launch_bounds__(FINAL_THREADS)
    add_square_sums(const double *partials, int count, double *out)
{
    double sum = 0;
    for (int i = threadIdx.x; i < count; i += FINAL_THREADS)
        sum += partials[i];
    sum = sum_block_pairwise<FINAL_THREADS>(sum);
    if (threadIdx.x == 0)
        *out = sum;
}

DsvStatus cuda_sum_squares(DsviStream *stream, const DsviSumSquaresArgs *args)
{
    constexpr int N = 4;
    const float *x = (const float *)args->x;
    double *partials = (double *)stream->partials; /* (blocks) */
    if (args->acc != DSVI_F32)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "sum_squares: this variant takes F32, not %s",
                         dsvi_dtype_name(args->acc));
    unsigned blocks = optim_blocks(stream, args->n, N);
    if (aligned(x, N, 16))
        DSVI_CUDA_LAUNCH(stream, "sum_squares", square_sums<N>, blocks, THREADS, 0, x, args->n, partials);
    else
        DSVI_CUDA_LAUNCH(stream, "sum_squares", square_sums<1>, blocks, THREADS, 0, x, args->n, partials);
    DSVI_CUDA_LAUNCH(stream, "sum_squares", add_square_sums, 1, FINAL_THREADS, 0, partials, (int)blocks,
                     args->out);
    return DSV_OK;
}

/* ---- AdamW ---- */

/* Arguments of the AdamW kernel; rest1 = 1 - beta1, rest2 = 1 - beta2. */
template <typename T> struct Adamw {
    const float *grad;
    float *weight, *m, *v;
    float *ema; /* exponential moving average of the weights, or NULL */
    T *copy;    /* copy of the weights in type T, or NULL */
    float grad_scale, beta1, rest1, beta2, rest2, eps;
    float keep;     /* 1 - lr weight_decay */
    float rate;     /* learning rate / (1 - beta1^t), where t is the number of the step */
    float root;     /* 1 / sqrt(1 - beta2^t) */
    float ema_rest; /* 1 - decay of the moving average */
};

/* Updates the moving average of the weights and their copy in type T from N new weights, beginning with
 * element `at`. */
template <int N, typename T>
__device__ __forceinline__ void derive(const Adamw<T> &p, int64_t at, const float (&weight)[N])
{
    if (p.ema) {
        float ema[N];
        load<N>(p.ema + at, ema);
#pragma unroll
        for (int i = 0; i < N; i++)
            ema[i] += p.ema_rest * (weight[i] - ema[i]);
        store<N>(p.ema + at, ema);
    }
    if (p.copy)
        store<N>(p.copy + at, weight);
}

/* Does the AdamW update of elements at .. at + N - 1. */
template <int N, typename T> __device__ __forceinline__ void update(const Adamw<T> &p, int64_t at)
{
    float grad[N], weight[N], m[N], v[N];
    load<N>(p.grad + at, grad);
    load<N>(p.m + at, m);
    load<N>(p.v + at, v);
    load<N>(p.weight + at, weight);
#pragma unroll
    for (int i = 0; i < N; i++) {
        float g = grad[i] * p.grad_scale;
        m[i] = p.beta1 * m[i] + p.rest1 * g;
        v[i] = p.beta2 * v[i] + p.rest2 * g * g;
        weight[i] = p.keep * weight[i] - p.rate * m[i] / (sqrtf(v[i]) * p.root + p.eps);
    }
    store<N>(p.m + at, m);
    store<N>(p.v + at, v);
    store<N>(p.weight + at, weight);
    derive<N>(p, at, weight);
}

template <int N, typename T> __global__ void __launch_bounds__(THREADS) adamw_step(Adamw<T> p, int64_t n)
{
    int64_t thread = thread_number(), step = (int64_t)gridDim.x * THREADS * N, whole = n - n % N;
    for (int64_t i = thread * N; i < whole; i += step)
        update<N>(p, i);
    if (thread < n - whole)
        update<1>(p, whole + thread);
}

/* Returns whether all arrays of the update are aligned for accesses of N elements. */
template <typename T> bool adamw_aligned(const Adamw<T> &p, int N)
{
    size_t bytes = N * sizeof(float);
    return aligned(p.grad, N, bytes) && aligned(p.weight, N, bytes) && aligned(p.m, N, bytes) &&
           aligned(p.v, N, bytes) && aligned(p.ema, N, bytes) && aligned(p.copy, N, N * sizeof(T));
}

template <typename T> DsvStatus adamw_of_type(DsviStream *stream, const DsviAdamwArgs *args)
{
    constexpr int N = 4;
    Adamw<T> p = {
        (const float *)args->grad,
        (float *)args->weight,
        (float *)args->m,
        (float *)args->v,
        (float *)args->ema,
        (T *)args->copy,
        (float)args->grad_scale,
        (float)args->beta1,
        (float)(1 - args->beta1),
        (float)args->beta2,
        (float)(1 - args->beta2),
        (float)args->eps,
        (float)(1 - args->lr * args->weight_decay),
        (float)(args->lr / (1 - pow(args->beta1, (double)args->step))),
        (float)(1 / sqrt(1 - pow(args->beta2, (double)args->step))),
        (float)(1 - args->ema_decay),
    };
    unsigned blocks = optim_blocks(stream, args->n, N);
    if (adamw_aligned(p, N))
        DSVI_CUDA_LAUNCH(stream, "adamw", adamw_step<N>, blocks, THREADS, 0, p, args->n);
    else
        DSVI_CUDA_LAUNCH(stream, "adamw", adamw_step<1>, blocks, THREADS, 0, p, args->n);
    return DSV_OK;
}

DsvStatus cuda_adamw(DsviStream *stream, const DsviAdamwArgs *args)
{
    if (args->acc != DSVI_F32)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "adamw: this variant takes F32, not %s",
                         dsvi_dtype_name(args->acc));
    if (args->n == 0)
        return DSV_OK;
    DSVI_FOR_ACT("adamw", args->copy ? args->copy_dtype : DSVI_F32, return adamw_of_type<T>(stream, args));
}

} // namespace

void dsvi_cuda_fill_optim(DsviOps *ops)
{
    DSVI_OPS_SET(ops, sum_squares, cuda_sum_squares, "cuda");
    DSVI_OPS_SET(ops, adamw, cuda_adamw, "cuda");
}
