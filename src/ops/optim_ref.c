/* Reference implementation of the ops over all parameters. See optim.h. */
#include "ops/optim.h"

#include <math.h>

DsvStatus dsvi_sum_squares_ref(DsviStream *stream, const DsviSumSquaresArgs *args)
{
    double sum = 0;
    (void)stream;
    for (int64_t i = 0; i < args->n; i++) {
        double x = dsvi_load(args->acc, args->x, i);
        sum += x * x;
    }
    *args->out = sum;
    return DSV_OK;
}

/* Stores moments m and v of element i. */
static void store_moments(const DsviAdamwArgs *args, int64_t i, double m, double v)
{
    uint32_t words[4];
    if (args->state_dtype != DSVI_BF16) {
        dsvi_store(args->state_dtype, args->m, i, m);
        dsvi_store(args->state_dtype, args->v, i, v);
        return;
    }
    dsvi_rng_words(args->rng, (uint64_t)(args->first + i) / 4, words);
    uint32_t word = words[(args->first + i) % 4];
    ((uint16_t *)args->m)[i] = dsvi_f32_to_bf16_random((float)m, word);
    ((uint16_t *)args->v)[i] = dsvi_f32_to_bf16_random((float)v, word >> 16);
}

/* Computes the moving average and the copy from weight i as stored, after rounding. */
static void store_derived(DsviDtype acc, const void *weight, int64_t i, double ema_decay, void *ema,
                          DsviDtype copy_dtype, void *copy)
{
    double w = dsvi_load(acc, weight, i);
    if (ema) {
        double e = dsvi_load(acc, ema, i);
        dsvi_store(acc, ema, i, e + (1 - ema_decay) * (w - e));
    }
    if (copy)
        dsvi_store(copy_dtype, copy, i, w);
}

DsvStatus dsvi_adamw_ref(DsviStream *stream, const DsviAdamwArgs *args)
{
    double correction1 = 1 - pow(args->beta1, (double)args->step);
    double correction2 = 1 - pow(args->beta2, (double)args->step);
    (void)stream;
    for (int64_t i = 0; i < args->n; i++) {
        double g = dsvi_load(args->acc, args->grad, i) * args->grad_scale;
        double w = dsvi_load(args->acc, args->weight, i) * (1 - args->lr * args->weight_decay);
        double m = args->beta1 * dsvi_load(args->state_dtype, args->m, i) + (1 - args->beta1) * g;
        double v = args->beta2 * dsvi_load(args->state_dtype, args->v, i) + (1 - args->beta2) * g * g;
        w -= args->lr * (m / correction1) / (sqrt(v / correction2) + args->eps);
        store_moments(args, i, m, v);
        dsvi_store(args->acc, args->weight, i, w);
        store_derived(args->acc, args->weight, i, args->ema_decay, args->ema, args->copy_dtype, args->copy);
    }
    return DSV_OK;
}

DsvStatus dsvi_muon_momentum_ref(DsviStream *stream, const DsviMuonArgs *args)
{
    (void)stream;
    for (int64_t i = 0; i < args->n; i++) {
        double g = dsvi_load(args->acc, args->grad, i) * args->grad_scale;
        double m = args->momentum * dsvi_load(args->acc, args->m, i) + g;
        dsvi_store(args->acc, args->m, i, m);
        dsvi_store(args->acc, args->grad, i, g + args->momentum * m);
    }
    return DSV_OK;
}

DsvStatus dsvi_muon_step_ref(DsviStream *stream, const DsviMuonArgs *args)
{
    (void)stream;
    for (int64_t i = 0; i < args->n; i++) {
        double w = dsvi_load(args->acc, args->weight, i) * (1 - args->lr * args->weight_decay);
        w -= args->rate * dsvi_load(args->acc, args->grad, i);
        dsvi_store(args->acc, args->weight, i, w);
        store_derived(args->acc, args->weight, i, args->ema_decay, args->ema, args->copy_dtype, args->copy);
    }
    return DSV_OK;
}
