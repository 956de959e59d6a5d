/* The ops of flow matching: noise, the mix of clean latents and noise, the loss (mse), and the time
 * embedding. mse squares and sums differences in double, in two stages: each block writes the sum of its part
 * of a sample, then one warp per sample adds these sums. Both stages add in a fixed order. */
#include "cuda/common/cuda.h"
#include "cuda/common/elementwise.cuh"
#include "cuda/common/rng.cuh"

using namespace dsvi;

namespace {

static DsvStatus flow_check_acc(const char *op, DsviDtype acc)
{
    if (acc == DSVI_F32)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: this variant takes F32, not %s", op, dsvi_dtype_name(acc));
}

/* ---- noise ---- */

/* Writes n normally distributed numbers, beginning with number `first` of the stream of `rng`. A thread
 * computes two numbers from one block of four random words (Box-Muller), with the formulas of base/rng.c and,
 * as there, in double. */
__global__ void __launch_bounds__(ELEMENT_THREADS)
    noise_kernel(DsviRng rng, uint64_t first, int64_t n, float *out)
{
    uint64_t block = first / 2 + (uint64_t)blockIdx.x * ELEMENT_THREADS + threadIdx.x;
    uint4 words = rng_words(rng, block);
    double radius = sqrt(-2.0 * log(1.0 - rng_unit(words.x, words.y))), sine, cosine;
    sincos(6.283185307179586476925 * rng_unit(words.z, words.w), &sine, &cosine);
    int64_t at = (int64_t)(2 * block - first); /* -1 if number `first` is the second of its block */
    if (at >= 0 && at < n)
        out[at] = (float)(radius * cosine);
    if (at + 1 < n)
        out[at + 1] = (float)(radius * sine);
}

static DsvStatus cuda_noise(DsviStream *stream, const DsviNoiseArgs *args)
{
    int64_t blocks = (int64_t)((args->first + (uint64_t)args->n + 1) / 2 - args->first / 2);
    DSVI_TRY(flow_check_acc("noise", args->acc));
    if (args->n == 0)
        return DSV_OK;
    DSVI_CUDA_LAUNCH(stream, "noise", noise_kernel, (unsigned)ceil_div(blocks, ELEMENT_THREADS),
                     ELEMENT_THREADS, 0, args->rng, args->first, args->n, (float *)args->out);
    return DSV_OK;
}

/* ---- flow_mix ---- */

/* x_t = (1 - sigma) x0 + sigma noise, target = noise - x0. x_t may be the same memory as x0, and target the
 * same as noise: a thread reads before it writes. */
template <int N>
__global__ void __launch_bounds__(ELEMENT_THREADS) flow_mix_kernel(const DsviFlowMixArgs args)
{
    for (int64_t sample = blockIdx.y; sample < args.batch; sample += gridDim.y) {
        int64_t start = sample * args.n;
        float sigma = ((const float *)args.sigma)[sample], x0[VECTORS][N] = {}, noise[VECTORS][N] = {};
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            load_upto<N>((const float *)args.x0 + start, vector_start<N>(blockIdx.x, v), args.n, x0[v]);
            load_upto<N>((const float *)args.noise + start, vector_start<N>(blockIdx.x, v), args.n, noise[v]);
        }
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
#pragma unroll
            for (int i = 0; i < N; i++) {
                float clean = x0[v][i];
                x0[v][i] = (1.f - sigma) * clean + sigma * noise[v][i];
                noise[v][i] -= clean;
            }
            store_upto<N>((float *)args.x_t + start, vector_start<N>(blockIdx.x, v), args.n, x0[v]);
            store_upto<N>((float *)args.target + start, vector_start<N>(blockIdx.x, v), args.n, noise[v]);
        }
    }
}

template <int N> static DsvStatus launch_flow_mix(DsviStream *stream, const DsviFlowMixArgs *args)
{
    dim3 grid(element_blocks<N>(args->n), blocks_in_turn(args->batch));
    DSVI_CUDA_LAUNCH(stream, "flow_mix", flow_mix_kernel<N>, grid, ELEMENT_THREADS, 0, *args);
    return DSV_OK;
}

static DsvStatus cuda_flow_mix(DsviStream *stream, const DsviFlowMixArgs *args)
{
    DSVI_TRY(flow_check_acc("flow_mix", args->acc));
    if (args->batch * args->n == 0)
        return DSV_OK;
    if (aligned((const float *)args->x0, args->n, 16) && aligned((const float *)args->noise, args->n, 16) &&
        aligned((const float *)args->x_t, args->n, 16) && aligned((const float *)args->target, args->n, 16))
        return launch_flow_mix<VECTOR<float>>(stream, args);
    return launch_flow_mix<1>(stream, args);
}

/* ---- mse ---- */

/* Returns the sum of weight (output - target)^2 over this thread's elements, and writes doutput unless it is
 * NULL. The elements are in element block `block` of the sample that begins at `start`. doutput may be the
 * same memory as output. */
template <int N>
__device__ __forceinline__ double squares_of_block(const DsviMseArgs &args, float factor, int64_t start,
                                                   int64_t block)
{
    float output[VECTORS][N] = {}, target[VECTORS][N] = {};
    double sum = 0;
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        load_upto<N>((const float *)args.output + start, vector_start<N>(block, v), args.n, output[v]);
        load_upto<N>((const float *)args.target + start, vector_start<N>(block, v), args.n, target[v]);
    }
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            float difference = output[v][i] - target[v][i], weighted = difference;
            if (args.weight)
                weighted *= ((const float *)args.weight)[(vector_start<N>(block, v) + i) % args.period];
            sum += (double)weighted * difference;
            output[v][i] = factor * weighted;
        }
        if (args.doutput)
            store_upto<N>((float *)args.doutput + start, vector_start<N>(block, v), args.n, output[v]);
    }
    return sum;
}

/* First stage of mse: each thread block writes the sum over its part of a sample to partials, (batch,
 * gridDim.x) F64. Grid: x, parts of a sample; y, samples of the batch. */
template <int N>
__global__ void __launch_bounds__(ELEMENT_THREADS)
    mse_sum_kernel(const DsviMseArgs args, float factor, double *partials)
{
    __shared__ double shared[ELEMENT_THREADS / WARP];
    for (int64_t sample = blockIdx.y; sample < args.batch; sample += gridDim.y) {
        double sum = 0;
        for (int64_t block = blockIdx.x; block * BLOCK_ELEMENTS<N> < args.n; block += gridDim.x)
            sum += squares_of_block<N>(args, factor, sample * args.n, block);
        sum = block_sum(sum, shared);
        __syncthreads(); /* because the next sample's sums overwrite `shared` */
        if (threadIdx.x == 0)
            partials[sample * gridDim.x + blockIdx.x] = sum;
    }
}

/* Second stage of mse: one warp per sample adds the sample's `parts` partial sums and writes the sample's
 * loss. */
__global__ void __launch_bounds__(ELEMENT_THREADS)
    mse_loss_kernel(const DsviMseArgs args, const double *partials, int64_t parts)
{
    int64_t sample = ((int64_t)blockIdx.x * ELEMENT_THREADS + threadIdx.x) / WARP;
    if (sample >= args.batch)
        return;
    double sum = 0;
    for (int64_t part = threadIdx.x % WARP; part < parts; part += WARP)
        sum += partials[sample * parts + part];
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0)
        ((float *)args.loss)[sample] = args.n > 0 ? (float)(sum / (double)args.n) : 0.f;
}

template <int N> static DsvStatus launch_mse(DsviStream *stream, const DsviMseArgs *args)
{
    double *partials = (double *)stream->partials;
    float factor = (float)(2 * args->grad_scale / ((double)args->batch * (double)args->n));
    int64_t parts = (int64_t)8 * stream->multiprocessors / args->batch, useful = element_blocks<N>(args->n);
    parts = parts < useful ? parts : useful;
    parts = parts > 1 ? parts : 1;
    dim3 grid((unsigned)parts, blocks_in_turn(args->batch));
    DSVI_CUDA_LAUNCH(stream, "mse", mse_sum_kernel<N>, grid, ELEMENT_THREADS, 0, *args, factor, partials);
    unsigned blocks = (unsigned)ceil_div(args->batch, ELEMENT_THREADS / WARP);
    DSVI_CUDA_LAUNCH(stream, "mse", mse_loss_kernel, blocks, ELEMENT_THREADS, 0, *args, partials, parts);
    return DSV_OK;
}

static DsvStatus cuda_mse(DsviStream *stream, const DsviMseArgs *args)
{
    int64_t batch_max = (int64_t)(DSVI_CUDA_PARTIALS / sizeof(double));
    DSVI_TRY(flow_check_acc("mse", args->acc));
    if (args->batch > batch_max)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "mse: this variant takes batches of at most %lld, not %lld",
                         (long long)batch_max, (long long)args->batch);
    if (args->batch == 0)
        return DSV_OK;
    if (aligned((const float *)args->output, args->n, 16) &&
        aligned((const float *)args->target, args->n, 16) &&
        aligned((const float *)args->doutput, args->n, 16))
        return launch_mse<VECTOR<float>>(stream, args);
    return launch_mse<1>(stream, args);
}

/* ---- time_embed ---- */

__global__ void __launch_bounds__(ELEMENT_THREADS) time_embed_kernel(const DsviTimeEmbedArgs args)
{
    int64_t i = (int64_t)blockIdx.x * ELEMENT_THREADS + threadIdx.x, half = args.dim / 2;
    if (i >= args.batch * half)
        return;
    int64_t sample = i / half, j = i % half;
    float exponent = __fdiv_rn((float)-log(10000.) * (float)j, (float)half);
    float angle = ((const float *)args.t)[sample] * (float)exp((double)exponent);
    ((float *)args.row)[sample * args.dim + j] = (float)cos((double)angle);
    ((float *)args.row)[sample * args.dim + half + j] = (float)sin((double)angle);
}

static DsvStatus cuda_time_embed(DsviStream *stream, const DsviTimeEmbedArgs *args)
{
    int64_t n = args->batch * (args->dim / 2);
    DSVI_TRY(flow_check_acc("time_embed", args->acc));
    if (n == 0)
        return DSV_OK;
    DSVI_CUDA_LAUNCH(stream, "time_embed", time_embed_kernel, (unsigned)ceil_div(n, ELEMENT_THREADS),
                     ELEMENT_THREADS, 0, *args);
    return DSV_OK;
}

} // namespace

void dsvi_cuda_fill_flow(DsviOps *ops)
{
    DSVI_OPS_SET(ops, noise, cuda_noise, "cuda");
    DSVI_OPS_SET(ops, flow_mix, cuda_flow_mix, "cuda");
    DSVI_OPS_SET(ops, mse, cuda_mse, "cuda");
    DSVI_OPS_SET(ops, time_embed, cuda_time_embed, "cuda");
}
