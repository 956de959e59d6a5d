/* Reference implementation of the elementwise ops. See pointwise.h. */
#include "ops/pointwise.h"

#include <math.h>

static double logistic(double x)
{
    return 1 / (1 + exp(-x));
}

/* The distribution function of N(0, 1), and its density. */
static double normal_below(double x)
{
    return erfc(-x * sqrt(0.5)) / 2;
}

static double normal_density(double x)
{
    return exp(-x * x / 2) / sqrt(8 * atan(1));
}

/* Sets *inner and *slope so that the activation is x s(inner), with the logistic function s, and the
 * derivative of inner is *slope. */
static void inner_of(DsviActivation kind, double x, double *inner, double *slope)
{
    double factor = kind == DSVI_GELU_QUICK ? DSVI_GELU_QUICK_SLOPE : 1;
    *inner = factor * x;
    *slope = factor;
    if (kind != DSVI_GELU_TANH)
        return;
    *inner = DSVI_GELU_SLOPE * (x + DSVI_GELU_CUBIC * x * x * x);
    *slope = DSVI_GELU_SLOPE * (1 + 3 * DSVI_GELU_CUBIC * x * x);
}

static double activation_value(DsviActivation kind, double x)
{
    double inner, slope;
    if (kind == DSVI_GELU_ERF)
        return x * normal_below(x);
    inner_of(kind, x, &inner, &slope);
    return x * logistic(inner);
}

static double activation_slope(DsviActivation kind, double x)
{
    double inner, slope;
    if (kind == DSVI_GELU_ERF)
        return normal_below(x) + x * normal_density(x);
    inner_of(kind, x, &inner, &slope);
    return logistic(inner) * (1 + x * slope * logistic(-inner));
}

DsvStatus dsvi_activation_fwd_ref(DsviStream *stream, const DsviActivationArgs *args)
{
    (void)stream;
    for (int64_t i = 0; i < args->n; i++)
        dsvi_store(args->dtype, args->y, i,
                   activation_value(args->activation, dsvi_load(args->dtype, args->x, i)));
    return DSV_OK;
}

DsvStatus dsvi_activation_bwd_ref(DsviStream *stream, const DsviActivationArgs *args)
{
    (void)stream;
    for (int64_t i = 0; i < args->n; i++) {
        double slope = activation_slope(args->activation, dsvi_load(args->dtype, args->x, i));
        dsvi_store(args->dtype, args->dx, i, dsvi_load(args->dtype, args->dy, i) * slope);
    }
    return DSV_OK;
}

static double gate_of(const DsviGateResidualArgs *args, int64_t b, int64_t c)
{
    return args->gate ? dsvi_load(args->acc, args->gate, b * args->gate_stride + c) : 1;
}

DsvStatus dsvi_gate_residual_fwd_ref(DsviStream *stream, const DsviGateResidualArgs *args)
{
    int64_t listed = dsvi_listed_tokens(&args->only, args->tokens), channels = args->channels;
    (void)stream;
    for (int64_t row = 0; row < args->batch * listed; row++)
        for (int64_t c = 0; c < channels; c++) {
            int64_t at = dsvi_listed_row(&args->only, args->tokens, row) * channels + c;
            double gate = gate_of(args, row / listed, c);
            dsvi_store(args->acc, args->out, at,
                       dsvi_load(args->acc, args->x, at) + gate * dsvi_load(args->act, args->y, at));
        }
    return DSV_OK;
}

DsvStatus dsvi_gate_residual_bwd_ref(DsviStream *stream, const DsviGateResidualArgs *args)
{
    int64_t listed = dsvi_listed_tokens(&args->only, args->tokens), channels = args->channels;
    (void)stream;
    for (int64_t row = 0; row < args->batch * listed; row++)
        for (int64_t c = 0; c < channels; c++) {
            int64_t at = dsvi_listed_row(&args->only, args->tokens, row) * channels + c;
            double gate = gate_of(args, row / listed, c);
            dsvi_store(args->act, args->dy, at, gate * dsvi_load(args->acc, args->dout, at));
        }
    for (int64_t i = 0; args->gate && i < args->batch * channels; i++) {
        int64_t b = i / channels, c = i % channels, of_gate = b * args->gate_stride + c;
        double sum = dsvi_load(args->acc, args->dgate, of_gate);
        for (int64_t row = b * listed; row < (b + 1) * listed; row++) {
            int64_t at = dsvi_listed_row(&args->only, args->tokens, row) * channels + c;
            sum += dsvi_load(args->acc, args->dout, at) * dsvi_load(args->act, args->y, at);
        }
        dsvi_store(args->acc, args->dgate, of_gate, sum);
    }
    for (int64_t c = 0; args->dy_sum && c < channels; c++) {
        double sum = dsvi_load(args->acc, args->dy_sum, c);
        for (int64_t row = 0; row < args->batch * listed; row++)
            sum += dsvi_load(args->act, args->dy,
                             dsvi_listed_row(&args->only, args->tokens, row) * channels + c);
        dsvi_store(args->acc, args->dy_sum, c, sum);
    }
    return DSV_OK;
}

DsvStatus dsvi_add_ref(DsviStream *stream, const DsviAddArgs *args)
{
    (void)stream;
    for (int64_t i = 0; i < args->n; i++) {
        double sum = args->a * dsvi_load(args->x_dtype, args->x, i);
        if (args->b != 0)
            sum += args->b * dsvi_load(args->y_dtype, args->y, i);
        dsvi_store(args->y_dtype, args->y, i, sum);
    }
    return DSV_OK;
}

DsvStatus dsvi_dropout_ref(DsviStream *stream, const DsviDropoutArgs *args)
{
    const uint32_t threshold = dsvi_dropout_threshold(args->p);
    (void)stream;
    for (int64_t i = 0; i < args->n; i++) {
        uint64_t number = args->first + (uint64_t)i;
        uint32_t words[4];
        dsvi_rng_words(args->rng, number / 4, words);
        double kept = words[number % 4] >= threshold ? dsvi_load(args->x_dtype, args->x, i) / (1 - args->p)
                                                     : 0;
        dsvi_store(args->y_dtype, args->y, i, args->add ? dsvi_load(args->y_dtype, args->y, i) + kept : kept);
    }
    return DSV_OK;
}

DsvStatus dsvi_add_rows_fwd_ref(DsviStream *stream, const DsviAddRowsArgs *args)
{
    (void)stream;
    for (int64_t i = 0; i < args->rows * args->cols; i++) {
        int64_t row = i / args->cols, col = i % args->cols;
        dsvi_store(args->acc, args->out, i,
                   dsvi_load(args->acc, args->x, row * args->x_cols + col % args->x_cols) +
                       dsvi_load(args->acc, args->table, col));
    }
    return DSV_OK;
}

DsvStatus dsvi_add_rows_bwd_ref(DsviStream *stream, const DsviAddRowsArgs *args)
{
    (void)stream;
    for (int64_t col = 0; col < args->cols; col++) {
        double sum = dsvi_load(args->acc, args->dtable, col);
        for (int64_t row = 0; row < args->rows; row++)
            sum += dsvi_load(args->acc, args->dout, row * args->cols + col);
        dsvi_store(args->acc, args->dtable, col, sum);
    }
    for (int64_t i = 0; i < args->rows * args->x_cols; i++) {
        double sum = dsvi_load(args->acc, args->dx, i);
        for (int64_t col = i % args->x_cols; col < args->cols; col += args->x_cols)
            sum += dsvi_load(args->acc, args->dout, i / args->x_cols * args->cols + col);
        dsvi_store(args->acc, args->dx, i, sum);
    }
    return DSV_OK;
}
