/* SIMD variants of the flow-matching objective. */
#include "cpu/simd_fill.h"
#include "cpu/simd_rows.h"

/* Draws normal random numbers. Nearly all time goes to Philox and the logarithm in dsvi_rng_fill_normal,
 * so this variant uses no SIMD and only divides the numbers among threads. */
static DsvStatus cpu_flow_noise(DsviStream *stream, const DsviNoiseArgs *args)
{
    (void)stream;
    DSVI_TRY(dsvi_simd_check("noise", args->acc, args->acc));
    dsvi_rng_fill_normal(args->rng, args->first, args->out, args->n);
    return DSV_OK;
}

static void mix_piece(void *context, int64_t begin, int64_t end, int worker)
{
    const DsviFlowMixArgs *args = context;
    const float *x0 = args->x0, *noise = args->noise;
    float *x_t = args->x_t, *target = args->target;
    (void)worker;
    while (begin < end) { /* a piece may contain parts of several samples */
        int64_t sample = begin / args->n, sample_end = dsvi_min(end, (sample + 1) * args->n);
        float sigma = ((const float *)args->sigma)[sample];
#pragma omp simd
        for (int64_t i = begin; i < sample_end; i++) {
            float x0_i = x0[i], noise_i = noise[i];
            x_t[i] = (1 - sigma) * x0_i + sigma * noise_i;
            target[i] = noise_i - x0_i;
        }
        begin = sample_end;
    }
}

static DsvStatus cpu_flow_mix(DsviStream *stream, const DsviFlowMixArgs *args)
{
    (void)stream;
    DSVI_TRY(dsvi_simd_check("flow_mix", args->acc, args->acc));
    dsvi_parallel_for(args->batch * args->n, DSVI_PIECE, mix_piece, (void *)args);
    return DSV_OK;
}

/* Every sample is divided into this many pieces, whose sums are added in order. The result does not depend on
 * the number of threads. */
enum { PIECES = 64 };

typedef struct Mse {
    const DsviMseArgs *args;
    int64_t first; /* first element of the sample */
    int64_t piece; /* elements of a piece */
    double sum[PIECES];
} Mse;

/* Returns the sum of squared differences of n elements, and writes their gradient. `doutput` may be NULL or
 * `output`. */
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

/* Returns the sum of squared differences of n elements, each multiplied by its weight, and writes the
 * gradient of the sum. `doutput` may be NULL or `output`. */
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
    const DsviMseArgs *args = mse->args;
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

static DsvStatus cpu_flow_mse(DsviStream *stream, const DsviMseArgs *args)
{
    (void)stream;
    DSVI_TRY(dsvi_simd_check("mse", args->acc, args->acc));
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

void DSVI_SIMD(fill_flow)(DsviOps *ops)
{
    DSVI_OPS_SET(ops, noise, cpu_flow_noise, DSVI_SIMD_NAME);
    DSVI_OPS_SET(ops, flow_mix, cpu_flow_mix, DSVI_SIMD_NAME);
    DSVI_OPS_SET(ops, mse, cpu_flow_mse, DSVI_SIMD_NAME);
}
