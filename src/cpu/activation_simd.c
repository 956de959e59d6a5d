/* Activations, a vector at a time. Formulas: pointwise_ref.c; s is the logistic function. */
#include "cpu/simd_fill.h"
#include "cpu/simd_math.h"
#include "cpu/simd_rows.h"

enum { CHUNK = 256 }; /* elements handled at a time: local arrays of floats */

static const float GELU_SLOPE = 1.59576912f; /* 2 sqrt(2 / pi) */
static const float GELU_CUBIC = 0.044715f;
static const float FINITE = 3.4028235e38f;

/* The argument of s: x s(inner) is the activation. */
DSVI_SPECIALISED DsvVec inner_of(DsvActivation kind, DsvVec x)
{
    return kind == DSV_SILU ? x : GELU_SLOPE * (x + GELU_CUBIC * x * x * x);
}

DSVI_SPECIALISED DsvVec activation(DsvActivation kind, DsvVec x)
{
    return x / (1.0f + dsvi_vec_exp(-inner_of(kind, x)));
}

/* s(inner) (1 + x inner' s(-inner)), s(-t) = exp(-t) s(t). Beyond +-100 it is 0 or 1: the bounds keep x^3
 * finite where s is 0. */
DSVI_SPECIALISED DsvVec slope(DsvActivation kind, DsvVec x)
{
    x = dsvi_vec_min(dsvi_vec_all(100), dsvi_vec_max(dsvi_vec_all(-100), x));
    DsvVec inner_slope = dsvi_vec_all(1);
    if (kind == DSV_GELU_TANH)
        inner_slope = GELU_SLOPE * (1.0f + 3 * GELU_CUBIC * x * x);
    DsvVec e = dsvi_vec_exp(-inner_of(kind, x));
    DsvVec s = 1.0f / (1.0f + e);
    return s * (1.0f + x * inner_slope * (dsvi_vec_min(dsvi_vec_all(FINITE), e) * s));
}

/* One chunk: x[] and, for the gradient, dy[]; the lanes after `count` hold anything finite. */
DSVI_SPECIALISED void chunk(DsvActivation kind, bool backward, int64_t count, float *x, const float *dy)
{
    for (int64_t i = 0; i < count; i += DSVI_LANES) {
        DsvVec v = dsvi_vec_load(x + i);
        v = backward ? slope(kind, v) * dsvi_vec_load(dy + i) : activation(kind, v);
        dsvi_vec_store(x + i, v);
    }
}

/* Elements [begin, end). `out` may be x or dy: a chunk is read before it is written. */
DSVI_SPECIALISED void range(DsvDtype dtype, bool backward, const DsvActivationArgs *args, int64_t begin,
                            int64_t end)
{
    float x[CHUNK] = {0}, dy[CHUNK] = {0};
    void *out = backward ? args->dx : args->y;
    for (int64_t first = begin; first < end; first += CHUNK) {
        int64_t count = dsvi_least(CHUNK, end - first);
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            x[i] = dsvi_get(dtype, args->x, first + i);
        if (backward) {
#pragma omp simd
            for (int64_t i = 0; i < count; i++)
                dy[i] = dsvi_get(dtype, args->dy, first + i);
        }
        if (args->activation == DSV_SILU)
            chunk(DSV_SILU, backward, count, x, dy);
        else
            chunk(DSV_GELU_TANH, backward, count, x, dy);
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            dsvi_put(dtype, out, first + i, x[i]);
    }
}

static void forward_range(void *context, int64_t begin, int64_t end, int worker)
{
    const DsvActivationArgs *args = context;
    (void)worker;
    if (args->dtype == DSV_BF16)
        range(DSV_BF16, false, args, begin, end);
    else
        range(DSV_F32, false, args, begin, end);
}

static void backward_range(void *context, int64_t begin, int64_t end, int worker)
{
    const DsvActivationArgs *args = context;
    (void)worker;
    if (args->dtype == DSV_BF16)
        range(DSV_BF16, true, args, begin, end);
    else
        range(DSV_F32, true, args, begin, end);
}

static DsvStatus activation_fwd(DsvStream *stream, const DsvActivationArgs *args)
{
    (void)stream;
    DSVI_TRY(dsvi_simd_takes("activation", args->dtype, DSV_F32));
    dsvi_parallel_for(args->n, DSVI_PIECE, forward_range, (void *)args);
    return DSV_OK;
}

static DsvStatus activation_bwd(DsvStream *stream, const DsvActivationArgs *args)
{
    (void)stream;
    DSVI_TRY(dsvi_simd_takes("activation", args->dtype, DSV_F32));
    dsvi_parallel_for(args->n, DSVI_PIECE, backward_range, (void *)args);
    return DSV_OK;
}

void DSVI_SIMD(fill_activation)(DsvOps *ops)
{
    DSVI_OPS_SET(ops, activation_fwd, activation_fwd, DSVI_SIMD_NAME);
    DSVI_OPS_SET(ops, activation_bwd, activation_bwd, DSVI_SIMD_NAME);
}
