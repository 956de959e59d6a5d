/* Gradient norm; AdamW with moving average and copy, in one pass.
 *
 * Both walk n elements: N neighbouring ones a thread at a time, then on by as many as all threads have. Where
 * vectors are used, the last n % N elements are left to the first threads, one each. */
#include <math.h>

#include "cuda/cuda.h"
#include "cuda/kernel.cuh"

namespace {

using namespace dsvi;

constexpr int THREADS = 256;
constexpr int BLOCKS_PER_MULTIPROCESSOR = 64; /* many times what it holds: who is ahead takes more */
constexpr int BATCH = 4; /* vectors a thread of sum_squares has in flight */
constexpr int FOLD_THREADS = 1024;

__device__ __forceinline__ int64_t thread_number()
{
    return (int64_t)blockIdx.x * THREADS + threadIdx.x;
}

/* Blocks for n elements, N a thread, but no more than the machine can share out evenly. */
unsigned blocks_for(const DsvStream *stream, int64_t n, int N)
{
    int64_t all = (int64_t)stream->multiprocessors * BLOCKS_PER_MULTIPROCESSOR;
    int64_t wanted = ceil_div(n, (int64_t)THREADS * N);
    return (unsigned)(wanted < 1 ? 1 : wanted < all ? wanted : all);
}

/* ---- sum of squares ---- */

/* Pairwise: the same order whatever the values. Thread 0 gets the sum. */
template <int COUNT> __device__ double fold(double sum)
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
    sum = fold<THREADS>(sum);
    if (threadIdx.x == 0)
        partials[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(FOLD_THREADS) add_partials(const double *partials, int count, double *out)
{
    double sum = 0;
    for (int i = threadIdx.x; i < count; i += FOLD_THREADS)
        sum += partials[i];
    sum = fold<FOLD_THREADS>(sum);
    if (threadIdx.x == 0)
        *out = sum;
}

DsvStatus sum_squares(DsvStream *stream, const DsvSumSquaresArgs *args)
{
    constexpr int N = 4;
    const float *x = (const float *)args->x;
    double *partials = (double *)stream->partials; /* one for each block */
    if (args->acc != DSV_F32)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "sum_squares: this variant takes F32, not %s",
                         dsvi_dtype_name(args->acc));
    unsigned blocks = blocks_for(stream, args->n, N);
    if (aligned(x, N, 16))
        square_sums<N><<<blocks, THREADS, 0, stream->handle>>>(x, args->n, partials);
    else
        square_sums<1><<<blocks, THREADS, 0, stream->handle>>>(x, args->n, partials);
    DSVI_CUDA_LAUNCHED("sum_squares");
    add_partials<<<1, FOLD_THREADS, 0, stream->handle>>>(partials, (int)blocks, args->out);
    DSVI_CUDA_LAUNCHED("sum_squares");
    return DSV_OK;
}

/* ---- AdamW ---- */

template <typename T> struct Adamw {
    const float *grad;
    float *weight, *m, *v;
    float *ema; /* or NULL */
    T *copy;    /* or NULL */
    float grad_scale, beta1, rest1, beta2, rest2, eps;
    float keep; /* 1 - lr weight_decay */
    float rate; /* lr / (1 - b1^t) */
    float root; /* 1 / sqrt(1 - b2^t) */
    float ema_rest; /* 1 - ema_decay */
};

/* What follows from the new weights. */
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

/* Whether all arrays begin where vectors of N elements may. */
template <typename T> bool vectors_fit(const Adamw<T> &p, int N)
{
    size_t bytes = N * sizeof(float);
    return aligned(p.grad, N, bytes) && aligned(p.weight, N, bytes) && aligned(p.m, N, bytes) &&
           aligned(p.v, N, bytes) && aligned(p.ema, N, bytes) && aligned(p.copy, N, N * sizeof(T));
}

template <typename T> DsvStatus adamw_as(DsvStream *stream, const DsvAdamwArgs *args)
{
    constexpr int N = 4;
    Adamw<T> p = {
        (const float *)args->grad,
        (float *)args->weight, (float *)args->m, (float *)args->v,
        (float *)args->ema,
        (T *)args->copy,
        (float)args->grad_scale, (float)args->beta1, (float)(1 - args->beta1), (float)args->beta2,
        (float)(1 - args->beta2), (float)args->eps,
        (float)(1 - args->lr * args->weight_decay),
        (float)(args->lr / (1 - pow(args->beta1, (double)args->step))),
        (float)(1 / sqrt(1 - pow(args->beta2, (double)args->step))),
        (float)(1 - args->ema_decay),
    };
    unsigned blocks = blocks_for(stream, args->n, N);
    if (vectors_fit(p, N))
        adamw_step<N><<<blocks, THREADS, 0, stream->handle>>>(p, args->n);
    else
        adamw_step<1><<<blocks, THREADS, 0, stream->handle>>>(p, args->n);
    DSVI_CUDA_LAUNCHED("adamw");
    return DSV_OK;
}

DsvStatus adamw(DsvStream *stream, const DsvAdamwArgs *args)
{
    if (args->acc != DSV_F32)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "adamw: this variant takes F32, not %s",
                         dsvi_dtype_name(args->acc));
    if (args->n == 0)
        return DSV_OK;
    DSVI_FOR_ACT("adamw", args->copy ? args->copy_dtype : DSV_F32, return adamw_as<T>(stream, args));
}

} // namespace

void dsvi_cuda_fill_optim(DsvOps *ops)
{
    DSVI_OPS_SET(ops, sum_squares, sum_squares, "cuda");
    DSVI_OPS_SET(ops, adamw, adamw, "cuda");
}
