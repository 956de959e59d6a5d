/* SIMD variants of the activations. Formulas: ops/pointwise_ref.c; s is the logistic function. */
#include "cpu/simd_fill.h"
#include "cpu/simd_math.h"
#include "cpu/simd_rows.h"

enum { CHUNK = 256 }; /* elements processed at a time, in local arrays of floats */

static const float GELU_SLOPE = 1.59576912f; /* 2 sqrt(2 / pi): factor in the tanh approximation of GELU */
static const float GELU_CUBIC = 0.044715f;
static const float GELU_QUICK_SLOPE = 1.702f;
static const float NORMAL_PEAK = 0.398942280f; /* 1 / sqrt(2 pi) */
static const float FINITE = 3.4028235e38f;

/* Returns the argument of the logistic function s: SiLU and both approximations of GELU are x
 * s(inner_of(x)). */
DSVI_SPECIALISED DsviVec inner_of(DsviActivation kind, DsviVec x)
{
    if (kind == DSVI_GELU_QUICK)
        return GELU_QUICK_SLOPE * x;
    return kind == DSVI_SILU ? x : GELU_SLOPE * (x + GELU_CUBIC * x * x * x);
}

DSVI_SPECIALISED DsviVec activation_vec(DsviActivation kind, DsviVec x)
{
    DsviVec density;
    if (kind == DSVI_GELU_ERF)
        return x * dsvi_vec_normal_below(x, &density);
    return x / (1.0f + dsvi_vec_exp(-inner_of(kind, x)));
}

/* Returns the derivative of x s(inner), which is s(inner) (1 + x inner' s(-inner)). s is the logistic
 * function, and s(-t) = exp(-t) s(t). For |x| > 100 the derivative is 0 or 1; x is clamped to +-100 so
 * that x^3 stays finite where s is 0. The derivative of the exact GELU, x P(x) with the distribution
 * function P of N(0, 1), is P(x) + x P'(x). */
DSVI_SPECIALISED DsviVec activation_slope_vec(DsviActivation kind, DsviVec x)
{
    x = dsvi_vec_min(dsvi_vec_all(100), dsvi_vec_max(dsvi_vec_all(-100), x));
    DsviVec inner_slope = dsvi_vec_all(kind == DSVI_GELU_QUICK ? GELU_QUICK_SLOPE : 1), density;
    if (kind == DSVI_GELU_ERF) {
        DsviVec below = dsvi_vec_normal_below(x, &density);
        return below + x * (NORMAL_PEAK * density);
    }
    if (kind == DSVI_GELU_TANH)
        inner_slope = GELU_SLOPE * (1.0f + 3 * GELU_CUBIC * x * x);
    DsviVec e = dsvi_vec_exp(-inner_of(kind, x));
    DsviVec s = 1.0f / (1.0f + e);
    return s * (1.0f + x * inner_slope * (dsvi_vec_min(dsvi_vec_all(FINITE), e) * s));
}

/* Replaces x[0 .. count) by the activation or, if `backward`, by its derivative times dy. Lanes after `count`
 * may hold any finite values. */
DSVI_SPECIALISED void activation_chunk(DsviActivation kind, bool backward, int64_t count, float *x,
                                       const float *dy)
{
    for (int64_t i = 0; i < count; i += DSVI_LANES) {
        DsviVec v = dsvi_vec_load(x + i);
        v = backward ? activation_slope_vec(kind, v) * dsvi_vec_load(dy + i) : activation_vec(kind, v);
        dsvi_vec_store(x + i, v);
    }
}

/* Computes the activation, or with `backward` its gradient, of elements [begin, end). The output may be
 * the same memory as x or dy, because each chunk is read before it is written. */
DSVI_SPECIALISED void activation_range(DsviDtype dtype, bool backward, const DsviActivationArgs *args,
                                       int64_t begin, int64_t end)
{
    float x[CHUNK] = {0}, dy[CHUNK] = {0};
    void *out = backward ? args->dx : args->y;
    for (int64_t first = begin; first < end; first += CHUNK) {
        int64_t count = dsvi_min(CHUNK, end - first);
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            x[i] = dsvi_get(dtype, args->x, first + i);
        if (backward) {
#pragma omp simd
            for (int64_t i = 0; i < count; i++)
                dy[i] = dsvi_get(dtype, args->dy, first + i);
        }
        switch (args->activation) {
        case DSVI_SILU: activation_chunk(DSVI_SILU, backward, count, x, dy); break;
        case DSVI_GELU_ERF: activation_chunk(DSVI_GELU_ERF, backward, count, x, dy); break;
        case DSVI_GELU_QUICK: activation_chunk(DSVI_GELU_QUICK, backward, count, x, dy); break;
        case DSVI_GELU_TANH: activation_chunk(DSVI_GELU_TANH, backward, count, x, dy); break;
        }
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            dsvi_put(dtype, out, first + i, x[i]);
    }
}

static void activation_forward_range(void *context, int64_t begin, int64_t end, int worker)
{
    const DsviActivationArgs *args = context;
    (void)worker;
    if (args->dtype == DSVI_BF16)
        activation_range(DSVI_BF16, false, args, begin, end);
    else
        activation_range(DSVI_F32, false, args, begin, end);
}

static void activation_backward_range(void *context, int64_t begin, int64_t end, int worker)
{
    const DsviActivationArgs *args = context;
    (void)worker;
    if (args->dtype == DSVI_BF16)
        activation_range(DSVI_BF16, true, args, begin, end);
    else
        activation_range(DSVI_F32, true, args, begin, end);
}

static DsvStatus cpu_activation_fwd(DsviStream *stream, const DsviActivationArgs *args)
{
    (void)stream;
    DSVI_TRY(dsvi_simd_check("activation", args->dtype, DSVI_F32));
    dsvi_parallel_for(args->n, DSVI_PIECE, activation_forward_range, (void *)args);
    return DSV_OK;
}

static DsvStatus cpu_activation_bwd(DsviStream *stream, const DsviActivationArgs *args)
{
    (void)stream;
    DSVI_TRY(dsvi_simd_check("activation", args->dtype, DSVI_F32));
    dsvi_parallel_for(args->n, DSVI_PIECE, activation_backward_range, (void *)args);
    return DSV_OK;
}

void DSVI_SIMD(fill_activation)(DsviOps *ops)
{
    DSVI_OPS_SET(ops, activation_fwd, cpu_activation_fwd, DSVI_SIMD_NAME);
    DSVI_OPS_SET(ops, activation_bwd, cpu_activation_bwd, DSVI_SIMD_NAME);
}
