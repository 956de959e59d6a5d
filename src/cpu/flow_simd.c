/* The objective of flow matching. */
#include "cpu/simd_fill.h"
#include "cpu/simd_rows.h"

/* Philox and the logarithm take the time: the threads are all there is to gain. */
static DsvStatus noise(DsvStream *stream, const DsvNoiseArgs *args)
{
    (void)stream;
    DSVI_TRY(dsvi_simd_takes("noise", args->acc, args->acc));
    dsvi_rng_fill_normal(args->rng, args->first, args->out, args->n);
    return DSV_OK;
}

static void mix_piece(void *context, int64_t begin, int64_t end, int worker)
{
    const DsvFlowMixArgs *args = context;
    const float *x0 = args->x0, *noise = args->noise;
    float *x_t = args->x_t, *target = args->target;
    (void)worker;
    while (begin < end) { /* a piece may reach into the next samples */
        int64_t sample = begin / args->n, sample_end = dsvi_least(end, (sample + 1) * args->n);
        float sigma = ((const float *)args->sigma)[sample];
#pragma omp simd
        for (int64_t i = begin; i < sample_end; i++) {
            float clean = x0[i], dirt = noise[i];
            x_t[i] = (1 - sigma) * clean + sigma * dirt;
            target[i] = dirt - clean;
        }
        begin = sample_end;
    }
}

static DsvStatus flow_mix(DsvStream *stream, const DsvFlowMixArgs *args)
{
    (void)stream;
    DSVI_TRY(dsvi_simd_takes("flow_mix", args->acc, args->acc));
    dsvi_parallel_for(args->batch * args->n, DSVI_PIECE, mix_piece, (void *)args);
    return DSV_OK;
}

/* A sample is cut into so many pieces, whatever its size; their sums are added in order. */
enum { PIECES = 64 };

typedef struct Mse {
    const DsvMseArgs *args;
    int64_t first; /* of the sample */
    int64_t piece; /* elements */
    double sum[PIECES];
} Mse;

/* Sum of the squares of n elements; doutput may be NULL, or output. */
static double plain_squares(int64_t n, const float *output, const float *target, float factor, float *doutput)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        float difference = output[i] - target[i];
        sum += (double)difference * difference;
    }
    if (doutput) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            doutput[i] = factor * (output[i] - target[i]);
    }
    return sum;
}

/* The same with a weight for each element. */
static double weighted_squares(int64_t n, const float *weight, const float *output, const float *target,
                               float factor, float *doutput)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        float difference = output[i] - target[i];
        sum += (double)(weight[i] * difference) * difference;
    }
    if (doutput) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            doutput[i] = factor * (weight[i] * (output[i] - target[i]));
    }
    return sum;
}

static void mse_piece(void *context, int64_t begin, int64_t end, int worker)
{
    Mse *mse = context;
    const DsvMseArgs *args = mse->args;
    const float *output = (const float *)args->output + mse->first;
    const float *target = (const float *)args->target + mse->first;
    float *doutput = args->doutput ? (float *)args->doutput + mse->first : NULL;
    float factor = (float)(2 * args->grad_scale / ((double)args->batch * (double)args->n));
    double sum = 0;
    (void)worker;
    for (int64_t i = begin, count; i < end; i += count) {
        int64_t phase = args->weight ? i % args->period : 0, whole = args->weight ? args->period : end - i;
        count = whole - phase < end - i ? whole - phase : end - i;
        float *gradient = doutput ? doutput + i : NULL;
        sum += args->weight ? weighted_squares(count, (const float *)args->weight + phase, output + i,
                                               target + i, factor, gradient)
                            : plain_squares(count, output + i, target + i, factor, gradient);
    }
    mse->sum[begin / mse->piece] = sum;
}

static DsvStatus mse(DsvStream *stream, const DsvMseArgs *args)
{
    (void)stream;
    DSVI_TRY(dsvi_simd_takes("mse", args->acc, args->acc));
    for (int64_t b = 0; b < args->batch; b++) {
        Mse job = {.args = args, .first = b * args->n, .piece = dsvi_pieces(args->n, PIECES)};
        double sum = 0;
        dsvi_parallel_for(args->n, job.piece, mse_piece, &job);
        for (int i = 0; i < PIECES; i++)
            sum += job.sum[i];
        ((float *)args->loss)[b] = args->n > 0 ? (float)(sum / (double)args->n) : 0;
    }
    return DSV_OK;
}

void DSVI_SIMD(fill_flow)(DsvOps *ops)
{
    DSVI_OPS_SET(ops, noise, noise, DSVI_SIMD_NAME);
    DSVI_OPS_SET(ops, flow_mix, flow_mix, DSVI_SIMD_NAME);
    DSVI_OPS_SET(ops, mse, mse, DSVI_SIMD_NAME);
}
