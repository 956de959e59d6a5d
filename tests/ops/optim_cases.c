/* Cases of the operations over all parameters for the checker (check.h): AdamW with moving average, and the
 * sum of squares. */
#include "ops/cases.h"
#include "ops/sparse_cases.h"
#include "test.h"

static const int64_t LENGTHS[] = {0, 1, 3, 17, 63, 65, 17000};

static DsvStatus run_sum_squares(const CheckCase *c, const DsviOps *ops, DsviStream *stream)
{
    DsviSumSquaresArgs args = {
        .n = c->buffer[0].n, .acc = c->acc, .x = c->buffer[0].data, .out = c->buffer[1].data};
    return ops->sum_squares.run(stream, &args);
}

static DsvStatus run_adamw(const CheckCase *c, const DsviOps *ops, DsviStream *stream)
{
    DsviAdamwArgs args = {
        .n = c->buffer[0].n,
        .step = 3,
        .lr = 1e-2,
        .beta1 = 0.9,
        .beta2 = 0.999,
        .eps = 1e-8,
        .weight_decay = 0.1,
        .grad_scale = 0.5,
        .acc = c->acc,
        .grad = c->buffer[0].data,
        .weight = c->buffer[1].data,
        .m = c->buffer[2].data,
        .v = c->buffer[3].data,
    };
    if (c->buffers > 4) {
        args.ema = c->buffer[4].data;
        args.ema_decay = 0.9999;
        args.copy = c->buffer[5].data;
        args.copy_dtype = c->buffer[5].dtype;
    }
    return ops->adamw.run(stream, &args);
}

static CheckCase length_case(const char *op, int64_t n, check_run_fn *run)
{
    CheckCase c = {.op = op, .run = run, .ulps = 4, .f32_only = true};
    snprintf(c.shape, sizeof c.shape, "n %lld", (long long)n);
    return c;
}

static void check_adamw(const DsviBackend *backend, int64_t n, bool derive)
{
    CheckCase adamw = length_case("adamw", n, run_adamw);
    check_buffer(&adamw, "grad", CHECK_ACC, CHECK_IN, n);
    check_buffer(&adamw, "weight", CHECK_ACC, CHECK_IN_OUT, n);
    check_buffer(&adamw, "m", CHECK_ACC, CHECK_IN_OUT, n);
    check_buffer(&adamw, "v", CHECK_ACC, CHECK_IN_OUT, n)->positive = true;
    if (derive) {
        check_buffer(&adamw, "ema", CHECK_ACC, CHECK_IN_OUT, n);
        check_buffer(&adamw, "copy", CHECK_ACT, CHECK_OUT, n);
        adamw.f32_only = false;
    }
    assert_case(&adamw, backend);
}

/* Checks that the moving average moves by the fraction 1 - decay towards the weights, in the mean of many
 * elements. An implementation that rounds decay and 1 - decay separately fails: their sum would not be 1,
 * which pulls the average towards zero by a fifteenth of this movement. */
static void check_average(const DsviBackend *backend)
{
    enum { N = 20000 };
    static float grad[N], weight[N], m[N], v[N], ema[N];
    DsviStream *stream = backend->device ? backend->device->stream : NULL;
    const double decay = 0.99999;
    double before = 0, after = 0, way = 0;
    for (int i = 0; i < N; i++) {
        ema[i] = 1 + (float)i / N;
        weight[i] = (1 + 4e-5f * (float)(37 * i % 1000)) * ema[i]; /* ema moves by at most seven roundings */
        grad[i] = m[i] = v[i] = 0;
        before += ema[i];
        way += (1 - decay) * ((double)weight[i] - ema[i]);
    }
    DsviAdamwArgs args = {
        .n = N,
        .step = 1,
        .lr = 0,
        .beta1 = 0.9,
        .beta2 = 0.999,
        .eps = 1e-8,
        .grad_scale = 1,
        .acc = DSVI_F32,
        .grad = check_upload(backend, stream, grad, sizeof grad),
        .weight = check_upload(backend, stream, weight, sizeof weight),
        .m = check_upload(backend, stream, m, sizeof m),
        .v = check_upload(backend, stream, v, sizeof v),
        .ema_decay = decay,
        .ema = check_upload(backend, stream, ema, sizeof ema),
    };
    assert_ok(backend->ops.adamw.run(stream, &args));
    check_release(backend, stream, args.grad);
    check_release(backend, stream, args.weight);
    check_release(backend, stream, args.m);
    check_release(backend, stream, args.v);
    check_download(backend, stream, ema, args.ema, sizeof ema);
    for (int i = 0; i < N; i++)
        after += ema[i];
    assert_error_below(fabs((after - before) / way - 1), 0.01, "the average's way");
}

void check_optim_cases(const DsviBackend *backend)
{
    check_average(backend);
    for (size_t i = 0; i < sizeof LENGTHS / sizeof LENGTHS[0]; i++) {
        int64_t n = LENGTHS[i];
        CheckCase squares = length_case("sum_squares", n, run_sum_squares);
        check_buffer(&squares, "x", CHECK_ACC, CHECK_IN, n);
        check_buffer(&squares, "out", CHECK_DOUBLE, CHECK_OUT, 1);
        /* n additions in double, in any order: at most n roundings of the sum, as no term is negative */
        squares.ulps = (double)n + 4;
        assert_case(&squares, backend);
        check_adamw(backend, n, false);
        check_adamw(backend, n, true);
    }
}
