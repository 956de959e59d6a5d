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

DsvStatus dsvi_adamw_ref(DsviStream *stream, const DsviAdamwArgs *args)
{
    double correction1 = 1 - pow(args->beta1, (double)args->step);
    double correction2 = 1 - pow(args->beta2, (double)args->step);
    (void)stream;
    for (int64_t i = 0; i < args->n; i++) {
        double g = dsvi_load(args->acc, args->grad, i) * args->grad_scale;
        double w = dsvi_load(args->acc, args->weight, i) * (1 - args->lr * args->weight_decay);
        double m = args->beta1 * dsvi_load(args->acc, args->m, i) + (1 - args->beta1) * g;
        double v = args->beta2 * dsvi_load(args->acc, args->v, i) + (1 - args->beta2) * g * g;
        w -= args->lr * (m / correction1) / (sqrt(v / correction2) + args->eps);
        dsvi_store(args->acc, args->m, i, m);
        dsvi_store(args->acc, args->v, i, v);
        dsvi_store(args->acc, args->weight, i, w);
        /* The moving average and the copy are computed from the weight as stored, after rounding. */
        w = dsvi_load(args->acc, args->weight, i);
        if (args->ema) {
            double ema = dsvi_load(args->acc, args->ema, i);
            dsvi_store(args->acc, args->ema, i, ema + (1 - args->ema_decay) * (w - ema));
        }
        if (args->copy)
            dsvi_store(args->copy_dtype, args->copy, i, w);
    }
    return DSV_OK;
}
