/* Reference implementation of the flow-matching objective and the time embedding. See flow.h. */
#include "ops/flow.h"

#include <math.h>

DsvStatus dsvi_noise_ref(DsviStream *stream, const DsviNoiseArgs *args)
{
    (void)stream;
    for (int64_t i = 0; i < args->n; i++)
        dsvi_store(args->acc, args->out, i, dsvi_rng_normal(args->rng, args->first + (uint64_t)i));
    return DSV_OK;
}

DsvStatus dsvi_flow_mix_ref(DsviStream *stream, const DsviFlowMixArgs *args)
{
    (void)stream;
    for (int64_t i = 0; i < args->batch * args->n; i++) {
        double sigma = dsvi_load(args->acc, args->sigma, i / args->n);
        double x0 = dsvi_load(args->acc, args->x0, i), noise = dsvi_load(args->acc, args->noise, i);
        dsvi_store(args->acc, args->x_t, i, (1 - sigma) * x0 + sigma * noise);
        dsvi_store(args->acc, args->target, i, noise - x0);
    }
    return DSV_OK;
}

DsvStatus dsvi_mse_ref(DsviStream *stream, const DsviMseArgs *args)
{
    double factor = 2 * args->grad_scale / ((double)args->batch * (double)args->n);
    (void)stream;
    for (int64_t b = 0; b < args->batch; b++) {
        double sum = 0;
        for (int64_t i = b * args->n; i < (b + 1) * args->n; i++) {
            double difference = dsvi_load(args->acc, args->output, i) - dsvi_load(args->acc, args->target, i);
            double weighted = args->weight ? dsvi_load(args->acc, args->weight, i % args->period) * difference
                                           : difference;
            sum += weighted * difference;
            if (args->doutput)
                dsvi_store(args->acc, args->doutput, i, factor * weighted);
        }
        dsvi_store(args->acc, args->loss, b, args->n > 0 ? sum / (double)args->n : 0);
    }
    return DSV_OK;
}

DsvStatus dsvi_time_embed_ref(DsviStream *stream, const DsviTimeEmbedArgs *args)
{
    int64_t half = args->dim / 2;
    (void)stream;
    for (int64_t i = 0; i < args->batch * half; i++) {
        int64_t b = i / half, j = i % half;
        float exponent = (float)-log(10000) * (float)j / (float)half;
        float angle = (float)dsvi_load(args->acc, args->t, b) * (float)exp((double)exponent);
        dsvi_store(args->acc, args->row, b * args->dim + j, cos((double)angle));
        dsvi_store(args->acc, args->row, b * args->dim + half + j, sin((double)angle));
    }
    return DSV_OK;
}
