/* Shared by the kernels of optimizers: how threads divide the elements, the AdamW update of one element, and
 * what is derived from new weights: their moving average and their copy. */
#ifndef DSVI_OPTIM_CUH
#define DSVI_OPTIM_CUH

#include <math.h>

#include "cuda/common/cuda.h"
#include "cuda/common/kernel.cuh"
#include "ops/optim.h"

namespace dsvi {

constexpr int OPTIM_THREADS = 256;
/* Thread blocks to launch per multiprocessor: many times as many as it holds at the same time, so that a
 * multiprocessor that is ahead takes more. */
constexpr int BLOCKS_PER_MULTIPROCESSOR = 64;

__device__ __forceinline__ int64_t thread_number()
{
    return (int64_t)blockIdx.x * OPTIM_THREADS + threadIdx.x;
}

/* Returns the number of thread blocks for n elements, N per thread, but at most BLOCKS_PER_MULTIPROCESSOR
 * per multiprocessor. */
static inline unsigned optim_blocks(const DsviStream *stream, int64_t n, int N)
{
    int64_t blocks_max = (int64_t)stream->multiprocessors * BLOCKS_PER_MULTIPROCESSOR;
    int64_t blocks = ceil_div(n, (int64_t)OPTIM_THREADS * N);
    return (unsigned)(blocks < 1 ? 1 : blocks < blocks_max ? blocks : blocks_max);
}

template <typename T> struct Derived {
    float *ema;     /* exponential moving average of the weights, or NULL */
    T *copy;        /* copy of the weights in type T, or NULL */
    float ema_rest; /* 1 - decay of the moving average */
};

/* Updates the moving average of the weights and their copy in type T from N new weights, beginning with
 * element `at`. */
template <int N, typename T>
__device__ __forceinline__ void derive(const Derived<T> &p, int64_t at, const float (&weight)[N])
{
    if (p.ema) {
        float ema[N];
        load<N>(p.ema + at, ema);
#pragma unroll
        for (int i = 0; i < N; i++)
            ema[i] = __fadd_rn(ema[i], __fmul_rn(p.ema_rest, __fsub_rn(weight[i], ema[i])));
        store<N>(p.ema + at, ema);
    }
    if (p.copy)
        store<N>(p.copy + at, weight);
}

/* Arguments of an AdamW kernel; rest1 = 1 - beta1, rest2 = 1 - beta2. */
template <typename T> struct AdamwStep {
    const float *grad;
    float *weight;
    Derived<T> derived;
    float grad_scale, beta1, rest1, beta2, rest2, eps;
    float keep;    /* 1 - lr weight_decay */
    float rate;    /* learning rate / (1 - beta1^t), where t is the number of the step */
    float root;    /* 1 / sqrt(1 - beta2^t) */
    DsviRng rng;   /* for moments in BF16 */
    int64_t first; /* place of element 0 in the whole array, for the same */
};

template <typename T> static inline AdamwStep<T> adamw_arguments(const DsviAdamwArgs *args)
{
    AdamwStep<T> p = {
        (const float *)args->grad,
        (float *)args->weight,
        {(float *)args->ema, (T *)args->copy, (float)(1 - args->ema_decay)},
        (float)args->grad_scale,
        (float)args->beta1,
        (float)(1 - args->beta1),
        (float)args->beta2,
        (float)(1 - args->beta2),
        (float)args->eps,
        (float)(1 - args->lr * args->weight_decay),
        (float)(args->lr / (1 - pow(args->beta1, (double)args->step))),
        (float)(1 / sqrt(1 - pow(args->beta2, (double)args->step))),
        args->rng,
        args->first,
    };
    return p;
}

/* Does the AdamW update of one element, with the operations that ops/optim.h states: each is rounded, none is
 * fused. */
template <typename T>
__device__ __forceinline__ void adamw_element(const AdamwStep<T> &p, float grad, float &weight, float &m,
                                              float &v)
{
    float g = __fmul_rn(grad, p.grad_scale);
    m = __fadd_rn(__fmul_rn(p.beta1, m), __fmul_rn(p.rest1, g));
    v = __fadd_rn(__fmul_rn(p.beta2, v), __fmul_rn(__fmul_rn(p.rest2, g), g));
    float size = __fadd_rn(__fmul_rn(__fsqrt_rn(v), p.root), p.eps);
    weight = __fsub_rn(__fmul_rn(p.keep, weight), __fdiv_rn(__fmul_rn(p.rate, m), size));
}

} // namespace dsvi

#endif
