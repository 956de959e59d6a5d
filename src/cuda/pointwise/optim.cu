/* sum_squares for the gradient norm, adamw with states in F32 or BF16, and the ops of Muon. The update, the
 * moving average of the weights and their copy in another dtype are one pass.
 *
 * All ops process n elements with a grid-stride loop: a thread takes N neighbouring elements at a time. The
 * first n % N threads take one of the last n % N elements each. */
#include "cuda/common/cuda.h"
#include "cuda/common/kernel.cuh"
#include "cuda/common/rng.cuh"
#include "cuda/pointwise/optim.cuh"

namespace {

using namespace dsvi;

constexpr int BATCH = 4; /* vectors whose loads a thread of sum_squares has in flight */
constexpr int FINAL_THREADS = 1024;

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
__global__ void __launch_bounds__(OPTIM_THREADS) square_sums(const float *x, int64_t n, double *partials)
{
    int64_t thread = thread_number(), step = (int64_t)gridDim.x * OPTIM_THREADS * N, i = thread * N;
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
    sum = sum_block_pairwise<OPTIM_THREADS>(sum);
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
        DSVI_CUDA_LAUNCH(stream, "sum_squares", square_sums<N>, blocks, OPTIM_THREADS, 0, x, args->n,
                         partials);
    else
        DSVI_CUDA_LAUNCH(stream, "sum_squares", square_sums<1>, blocks, OPTIM_THREADS, 0, x, args->n,
                         partials);
    DSVI_CUDA_LAUNCH(stream, "sum_squares", add_square_sums, 1, FINAL_THREADS, 0, partials, (int)blocks,
                     args->out);
    return DSV_OK;
}

/* ---- AdamW ---- */

/* Loads N moments, rounded as stored. */
template <int N> __device__ __forceinline__ void load_state(const float *p, int64_t at, float (&x)[N])
{
    load<N>(p + at, x);
}

template <int N> __device__ __forceinline__ void load_state(const uint16_t *p, int64_t at, float (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = __uint_as_float((uint32_t)p[at + i] << 16);
}

/* Stores N moments m and v. */
template <int N, typename T>
__device__ __forceinline__ void store_states(const AdamwStep<T> &p, float *m, float *v, int64_t at,
                                             const float (&new_m)[N], const float (&new_v)[N])
{
    store<N>(m + at, new_m);
    store<N>(v + at, new_v);
}

/* Rounds at random, as dsvi_f32_to_bf16_random. */
__device__ __forceinline__ uint16_t round_random(float x, uint32_t random)
{
    uint32_t bits = __float_as_uint(x);
    if ((bits & 0x7f800000u) == 0x7f800000u)
        return (uint16_t)((bits & 0x7fffffu) ? (bits >> 16) | 0x40u : bits >> 16);
    return (uint16_t)((bits + (random & 0xffffu)) >> 16);
}

template <int N, typename T>
__device__ __forceinline__ void store_states(const AdamwStep<T> &p, uint16_t *m, uint16_t *v, int64_t at,
                                             const float (&new_m)[N], const float (&new_v)[N])
{
    uint64_t place = (uint64_t)(p.first + at);
    uint4 words = rng_words(p.rng, place / 4);
    const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < N; i++) {
        uint32_t random = word[N == 4 ? i : (int)(place % 4)];
        m[at + i] = round_random(new_m[i], random);
        v[at + i] = round_random(new_v[i], random >> 16);
    }
}

/* Does the AdamW update of elements at .. at + N - 1. */
template <int N, typename T, typename S>
__device__ __forceinline__ void update(const AdamwStep<T> &p, S *state_m, S *state_v, int64_t at)
{
    float grad[N], weight[N], m[N], v[N];
    load<N>(p.grad + at, grad);
    load_state<N>(state_m, at, m);
    load_state<N>(state_v, at, v);
    load<N>(p.weight + at, weight);
#pragma unroll
    for (int i = 0; i < N; i++)
        adamw_element(p, grad[i], weight[i], m[i], v[i]);
    store_states<N>(p, state_m, state_v, at, m, v);
    store<N>(p.weight + at, weight);
    derive<N>(p.derived, at, weight);
}

template <int N, typename T, typename S>
__global__ void __launch_bounds__(OPTIM_THREADS) adamw_step(AdamwStep<T> p, S *m, S *v, int64_t n)
{
    int64_t thread = thread_number(), step = (int64_t)gridDim.x * OPTIM_THREADS * N, whole = n - n % N;
    for (int64_t i = thread * N; i < whole; i += step)
        update<N>(p, m, v, i);
    if (thread < n - whole)
        update<1>(p, m, v, whole + thread);
}

/* Returns whether all arrays of the update are aligned for accesses of N elements. */
template <typename T> bool adamw_aligned(const AdamwStep<T> &p, const void *m, const void *v, int N)
{
    size_t bytes = N * sizeof(float);
    return aligned(p.grad, N, bytes) && aligned(p.weight, N, bytes) && aligned((const float *)m, N, bytes) &&
           aligned((const float *)v, N, bytes) && aligned(p.derived.ema, N, bytes) &&
           aligned(p.derived.copy, N, N * sizeof(T));
}

template <typename T, typename S> DsvStatus adamw_of_types(DsviStream *stream, const DsviAdamwArgs *args)
{
    constexpr int N = 4;
    AdamwStep<T> p = adamw_arguments<T>(args);
    S *m = (S *)args->m, *v = (S *)args->v;
    unsigned blocks = optim_blocks(stream, args->n, N);
    if (adamw_aligned(p, m, v, N))
        DSVI_CUDA_LAUNCH(stream, "adamw", adamw_step<N>, blocks, OPTIM_THREADS, 0, p, m, v, args->n);
    else
        DSVI_CUDA_LAUNCH(stream, "adamw", adamw_step<1>, blocks, OPTIM_THREADS, 0, p, m, v, args->n);
    return DSV_OK;
}

template <typename T> DsvStatus adamw_of_type(DsviStream *stream, const DsviAdamwArgs *args)
{
    if (args->state_dtype == DSVI_BF16)
        return adamw_of_types<T, uint16_t>(stream, args);
    return adamw_of_types<T, float>(stream, args);
}

DsvStatus cuda_adamw(DsviStream *stream, const DsviAdamwArgs *args)
{
    if (args->acc != DSVI_F32 || (args->state_dtype != DSVI_BF16 && args->state_dtype != DSVI_F32))
        return DSVI_FAIL(DSV_E_UNSUPPORTED,
                         "adamw: this variant takes F32 and moments in F32 or BF16, not %s",
                         dsvi_dtype_name(args->acc != DSVI_F32 ? args->acc : args->state_dtype));
    if (args->n == 0)
        return DSV_OK;
    DSVI_FOR_ACT("adamw", args->copy ? args->copy_dtype : DSVI_F32, return adamw_of_type<T>(stream, args));
}

/* ---- Muon ---- */

__global__ void __launch_bounds__(OPTIM_THREADS)
    muon_momentum(float *grad, float *m, float momentum, float grad_scale, int64_t n)
{
    for (int64_t i = thread_number(); i < n; i += (int64_t)gridDim.x * OPTIM_THREADS) {
        float g = grad[i] * grad_scale, new_m = momentum * m[i] + g;
        m[i] = new_m;
        grad[i] = g + momentum * new_m;
    }
}

template <typename T>
__global__ void __launch_bounds__(OPTIM_THREADS)
    muon_step(const float *direction, float *weight, float keep, float rate, Derived<T> derived, int64_t n)
{
    for (int64_t i = thread_number(); i < n; i += (int64_t)gridDim.x * OPTIM_THREADS) {
        float w[1] = {keep * weight[i] - rate * direction[i]};
        weight[i] = w[0];
        derive<1>(derived, i, w);
    }
}

DsvStatus cuda_muon_momentum(DsviStream *stream, const DsviMuonArgs *args)
{
    if (args->acc != DSVI_F32)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "muon_momentum: this variant takes F32, not %s",
                         dsvi_dtype_name(args->acc));
    if (args->n == 0)
        return DSV_OK;
    DSVI_CUDA_LAUNCH(stream, "muon_momentum", muon_momentum, optim_blocks(stream, args->n, 1), OPTIM_THREADS,
                     0, (float *)args->grad, (float *)args->m, (float)args->momentum, (float)args->grad_scale,
                     args->n);
    return DSV_OK;
}

template <typename T> DsvStatus muon_step_of_type(DsviStream *stream, const DsviMuonArgs *args)
{
    Derived<T> derived = {(float *)args->ema, (T *)args->copy, (float)(1 - args->ema_decay)};
    DSVI_CUDA_LAUNCH(stream, "muon_step", muon_step<T>, optim_blocks(stream, args->n, 1), OPTIM_THREADS, 0,
                     (const float *)args->grad, (float *)args->weight,
                     (float)(1 - args->lr * args->weight_decay), (float)args->rate, derived, args->n);
    return DSV_OK;
}

DsvStatus cuda_muon_step(DsviStream *stream, const DsviMuonArgs *args)
{
    if (args->acc != DSVI_F32)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "muon_step: this variant takes F32, not %s",
                         dsvi_dtype_name(args->acc));
    if (args->n == 0)
        return DSV_OK;
    DSVI_FOR_ACT("muon_step", args->copy ? args->copy_dtype : DSVI_F32,
                 return muon_step_of_type<T>(stream, args));
}

} // namespace

void dsvi_cuda_fill_optim(DsviOps *ops)
{
    DSVI_OPS_SET(ops, sum_squares, cuda_sum_squares, "cuda");
    DSVI_OPS_SET(ops, adamw, cuda_adamw, "cuda");
    DSVI_OPS_SET(ops, muon_momentum, cuda_muon_momentum, "cuda");
    DSVI_OPS_SET(ops, muon_step, cuda_muon_step, "cuda");
}
