/* The objective of flow matching and the time embedding. Differences are squared and summed in double: a
 * block writes the sum of its share of a sample, and a warp adds a sample's sums, both in a fixed order. */
#include "cuda/cuda.h"
#include "cuda/elementwise.cuh"
#include "cuda/rng.cuh"

using namespace dsvi;

namespace {

static DsvStatus takes(const char *op, DsvDtype acc)
{
    if (acc == DSV_F32)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: this variant takes F32, not %s", op, dsvi_dtype_name(acc));
}

/* ---- noise ---- */

/* Two numbers a thread, from one block of words: the formulas of base/rng.c, in double as there. */
__global__ void __launch_bounds__(ELEMENT_THREADS) draw(DsvRng rng, uint64_t first, int64_t n, float *out)
{
    uint64_t block = first / 2 + (uint64_t)blockIdx.x * ELEMENT_THREADS + threadIdx.x;
    uint4 words = rng_words(rng, block);
    double radius = sqrt(-2.0 * log(1.0 - rng_unit(words.x, words.y))), sine, cosine;
    sincos(6.283185307179586476925 * rng_unit(words.z, words.w), &sine, &cosine);
    int64_t at = (int64_t)(2 * block - first); /* -1 where the first number is the second of its block */
    if (at >= 0 && at < n)
        out[at] = (float)(radius * cosine);
    if (at + 1 < n)
        out[at + 1] = (float)(radius * sine);
}

static DsvStatus noise(DsvStream *stream, const DsvNoiseArgs *args)
{
    int64_t blocks = (int64_t)((args->first + (uint64_t)args->n + 1) / 2 - args->first / 2);
    DSVI_TRY(takes("noise", args->acc));
    if (args->n == 0)
        return DSV_OK;
    draw<<<(unsigned)ceil_div(blocks, ELEMENT_THREADS), ELEMENT_THREADS, 0, stream->handle>>>(
        args->rng, args->first, args->n, (float *)args->out);
    DSVI_CUDA_LAUNCHED("noise");
    return DSV_OK;
}

/* ---- flow_mix ---- */

/* x_t may be x0, and target noise: a thread reads before it writes. */
template <int N> __global__ void __launch_bounds__(ELEMENT_THREADS) mix(const DsvFlowMixArgs args)
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

template <int N> static void launch_mix(DsvStream *stream, const DsvFlowMixArgs *args)
{
    dim3 grid(element_blocks<N>(args->n), blocks_in_turn(args->batch));
    mix<N><<<grid, ELEMENT_THREADS, 0, stream->handle>>>(*args);
}

static DsvStatus flow_mix(DsvStream *stream, const DsvFlowMixArgs *args)
{
    DSVI_TRY(takes("flow_mix", args->acc));
    if (args->batch * args->n == 0)
        return DSV_OK;
    if (aligned((const float *)args->x0, args->n, 16) && aligned((const float *)args->noise, args->n, 16) &&
        aligned((const float *)args->x_t, args->n, 16) && aligned((const float *)args->target, args->n, 16))
        launch_mix<VECTOR<float>>(stream, args);
    else
        launch_mix<1>(stream, args);
    DSVI_CUDA_LAUNCHED("flow_mix");
    return DSV_OK;
}

/* ---- mse ---- */

/* The squares of one block's elements of a sample; doutput, where wanted, may be output. */
template <int N>
__device__ __forceinline__ double squares(const DsvMseArgs &args, float factor, int64_t start, int64_t block)
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

/* partials: (batch, gridDim.x) */
template <int N>
__global__ void __launch_bounds__(ELEMENT_THREADS)
sum_parts(const DsvMseArgs args, float factor, double *partials)
{
    __shared__ double shared[ELEMENT_THREADS / WARP];
    for (int64_t sample = blockIdx.y; sample < args.batch; sample += gridDim.y) {
        double sum = 0;
        for (int64_t block = blockIdx.x; block * BLOCK_ELEMENTS<N> < args.n; block += gridDim.x)
            sum += squares<N>(args, factor, sample * args.n, block);
        sum = block_sum(sum, shared);
        __syncthreads(); /* the next sample's sums go there */
        if (threadIdx.x == 0)
            partials[sample * gridDim.x + blockIdx.x] = sum;
    }
}

/* A warp for a sample. */
__global__ void __launch_bounds__(ELEMENT_THREADS) make_loss(const DsvMseArgs args, const double *partials,
                                                             int64_t parts)
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

template <int N> static void launch_mse(DsvStream *stream, const DsvMseArgs *args)
{
    double *partials = (double *)stream->partials;
    float factor = (float)(2 * args->grad_scale / ((double)args->batch * (double)args->n));
    int64_t parts = (int64_t)8 * stream->multiprocessors / args->batch, useful = element_blocks<N>(args->n);
    parts = parts < useful ? parts : useful;
    parts = parts > 1 ? parts : 1;
    dim3 grid((unsigned)parts, blocks_in_turn(args->batch));
    sum_parts<N><<<grid, ELEMENT_THREADS, 0, stream->handle>>>(*args, factor, partials);
    unsigned blocks = (unsigned)ceil_div(args->batch, ELEMENT_THREADS / WARP);
    make_loss<<<blocks, ELEMENT_THREADS, 0, stream->handle>>>(*args, partials, parts);
}

static DsvStatus mse(DsvStream *stream, const DsvMseArgs *args)
{
    int64_t most = (int64_t)(DSVI_CUDA_PARTIALS / sizeof(double));
    DSVI_TRY(takes("mse", args->acc));
    if (args->batch > most)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "mse: this variant takes batches of at most %lld, not %lld",
                         (long long)most, (long long)args->batch);
    if (args->batch == 0)
        return DSV_OK;
    if (aligned((const float *)args->output, args->n, 16) &&
        aligned((const float *)args->target, args->n, 16) &&
        aligned((const float *)args->doutput, args->n, 16))
        launch_mse<VECTOR<float>>(stream, args);
    else
        launch_mse<1>(stream, args);
    DSVI_CUDA_LAUNCHED("mse");
    return DSV_OK;
}

/* ---- time_embed ---- */

__global__ void __launch_bounds__(ELEMENT_THREADS) embed(const DsvTimeEmbedArgs args)
{
    int64_t i = (int64_t)blockIdx.x * ELEMENT_THREADS + threadIdx.x, half = args.dim / 2;
    if (i >= args.batch * half)
        return;
    int64_t sample = i / half, j = i % half;
    double angle = (double)((const float *)args.t)[sample] * pow(10000., -(double)j / (double)half);
    ((float *)args.row)[sample * args.dim + j] = (float)cos(angle);
    ((float *)args.row)[sample * args.dim + half + j] = (float)sin(angle);
}

static DsvStatus time_embed(DsvStream *stream, const DsvTimeEmbedArgs *args)
{
    int64_t n = args->batch * (args->dim / 2);
    DSVI_TRY(takes("time_embed", args->acc));
    if (n == 0)
        return DSV_OK;
    embed<<<(unsigned)ceil_div(n, ELEMENT_THREADS), ELEMENT_THREADS, 0, stream->handle>>>(*args);
    DSVI_CUDA_LAUNCHED("time_embed");
    return DSV_OK;
}

} // namespace

void dsvi_cuda_fill_flow(DsvOps *ops)
{
    DSVI_OPS_SET(ops, noise, noise, "cuda");
    DSVI_OPS_SET(ops, flow_mix, flow_mix, "cuda");
    DSVI_OPS_SET(ops, mse, mse, "cuda");
    DSVI_OPS_SET(ops, time_embed, time_embed, "cuda");
}
