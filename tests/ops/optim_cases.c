/* Cases of the operations over all parameters for the checker (check.h): AdamW with moments in F32, BF16 and
 * 8 bits and with moving average, Muon, and the sum of squares. */
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
        .state_dtype = c->buffer[2].dtype,
        .rng = {.seed = 5, .purpose = DSVI_RNG_ROUNDING, .stream = 3},
        .first = 8,
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

/* `state`: CHECK_ACC for moments in F32, CHECK_ACT for moments in BF16. Rounding at random may err by a whole
 * place, which is twice the unit roundoff. */
static void check_adamw(const DsviBackend *backend, int64_t n, bool derive, CheckKind state)
{
    CheckCase adamw = length_case("adamw", n, run_adamw);
    check_buffer(&adamw, "grad", CHECK_ACC, CHECK_IN, n);
    check_buffer(&adamw, "weight", CHECK_ACC, CHECK_IN_OUT, n);
    check_buffer(&adamw, "m", state, CHECK_IN_OUT, n);
    check_buffer(&adamw, "v", state, CHECK_IN_OUT, n)->positive = true;
    adamw.f32_only = state == CHECK_ACC;
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
        .state_dtype = DSVI_F32,
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

/* Moments in BF16: the mean over many elements is exact, each element is one of the two neighbours in BF16,
 * the numbers depend on the step, and a call on a part of the array gives the bits of a call on the whole. */
static void check_random_rounding(const DsviBackend *backend)
{
    enum { N = 40000, CUT = 12352 };
    static float grad[N], weight[N];
    static uint16_t m[3][N], v[N];
    DsviStream *stream = backend->device ? backend->device->stream : NULL;
    const double target = 0.1 * 1.001; /* not a number of BF16 */
    double sum = 0;
    memset(m, 0, sizeof m);
    memset(v, 0, sizeof v);
    for (int i = 0; i < N; i++)
        grad[i] = 1.001f;
    for (int way = 0; way < 3; way++) { /* whole, in two parts, another step */
        DsviAdamwArgs args = {
            .n = way == 1 ? CUT : N,
            .step = 1,
            .beta1 = 0.9,
            .beta2 = 0.999,
            .eps = 1e-8,
            .grad_scale = 1,
            .acc = DSVI_F32,
            .grad = check_upload(backend, stream, grad, sizeof grad),
            .weight = check_upload(backend, stream, weight, sizeof weight),
            .state_dtype = DSVI_BF16,
            .m = check_upload(backend, stream, m[way], sizeof m[way]),
            .v = check_upload(backend, stream, v, sizeof v),
            .rng = {.seed = 5, .purpose = DSVI_RNG_ROUNDING, .stream = way == 2},
        };
        DsviAdamwArgs rest = args;
        assert_ok(backend->ops.adamw.run(stream, &args));
        rest.n = N - CUT;
        rest.first = CUT;
        rest.grad = (const float *)args.grad + CUT;
        rest.weight = (float *)args.weight + CUT;
        rest.m = (uint16_t *)args.m + CUT;
        rest.v = (uint16_t *)args.v + CUT;
        if (way == 1)
            assert_ok(backend->ops.adamw.run(stream, &rest));
        check_release(backend, stream, args.grad);
        check_release(backend, stream, args.weight);
        check_download(backend, stream, m[way], args.m, sizeof m[way]);
        check_download(backend, stream, v, args.v, sizeof v);
    }
    for (int i = 0; i < N; i++) {
        double got = dsvi_bf16_to_f32(m[0][i]);
        assert_error_below(fabs(got - target) / target, 0x1p-7, "rounding error");
        sum += got;
    }
    /* a place of BF16 near 0.1 is 2^-11; the deviation of one rounding is at most half of it */
    assert_error_below(fabs(sum / N - target), 5 * 0x1p-12 / sqrt(N), "mean rounding error");
    assert_memory_equal(m[0], m[1], sizeof m[0]);
    assert_memory_not_equal(m[0], m[2], sizeof m[0]);
}

enum { CODED = 1000, CODED_BLOCKS = 4 };

/* What adamw_8bit changes. */
typedef struct Coded {
    float weight[CODED], m_scale[CODED_BLOCKS], v_scale[CODED_BLOCKS];
    uint8_t m[CODED], v[CODED];
} Coded;

/* Runs `steps` steps on `backend`, or with the reference implementation if it is NULL. */
static void run_coded(const DsviBackend *backend, const float *grad, int steps, Coded *c)
{
    const DsviBackend host = {.ops.adamw_8bit = {dsvi_adamw_8bit_ref, "ref"}};
    const DsviBackend *on = backend ? backend : &host;
    DsviStream *stream = on->device ? on->device->stream : NULL;
    DsviAdamwArgs args = {
        .n = CODED,
        .lr = 1e-2,
        .beta1 = 0.9,
        .beta2 = 0.999,
        .eps = 1e-8,
        .weight_decay = 0.1,
        .grad_scale = 0.5,
        .acc = DSVI_F32,
        .grad = check_upload(on, stream, grad, CODED * sizeof *grad),
        .weight = check_upload(on, stream, c->weight, sizeof c->weight),
        .m = check_upload(on, stream, c->m, sizeof c->m),
        .v = check_upload(on, stream, c->v, sizeof c->v),
        .m_scale = check_upload(on, stream, c->m_scale, sizeof c->m_scale),
        .v_scale = check_upload(on, stream, c->v_scale, sizeof c->v_scale),
    };
    for (args.step = 1; args.step <= steps; args.step++)
        assert_ok(on->ops.adamw_8bit.run(stream, &args));
    check_release(on, stream, args.grad);
    check_download(on, stream, c->weight, args.weight, sizeof c->weight);
    check_download(on, stream, c->m, args.m, sizeof c->m);
    check_download(on, stream, c->v, args.v, sizeof c->v);
    check_download(on, stream, c->m_scale, args.m_scale, sizeof c->m_scale);
    check_download(on, stream, c->v_scale, args.v_scale, sizeof c->v_scale);
}

/* One step from the same codes: scales and weights agree to rounding, and a code is at most one away, where
 * rounding moved a number across the border between two codes. */
static void check_codes(const DsviBackend *backend)
{
    static Coded got, expected;
    static float grad[CODED];
    dsvi_rng_fill_normal((DsviRng){3, DSVI_RNG_TEST, 0}, 0, grad, CODED);
    dsvi_rng_fill_normal((DsviRng){3, DSVI_RNG_TEST, 1}, 0, expected.weight, CODED);
    for (int i = 0; i < CODED; i++)
        grad[i] = i % 7 == 0 ? 0 : grad[i] * (float)pow(10, -(i % 5));
    memset(expected.m, 0, sizeof expected.m);
    memset(expected.v, 0, sizeof expected.v);
    memset(expected.m_scale, 0, sizeof expected.m_scale);
    memset(expected.v_scale, 0, sizeof expected.v_scale);
    run_coded(NULL, grad, 2, &expected);
    got = expected;
    run_coded(backend, grad, 1, &got);
    run_coded(NULL, grad, 1, &expected);
    for (int i = 0; i < CODED; i++) {
        assert_error_below(fabs((double)got.weight[i] - expected.weight[i]), 1e-6, "weight");
        assert_true(abs(got.m[i] - expected.m[i]) <= 1 && abs(got.v[i] - expected.v[i]) <= 1);
        assert_true(i % 7 == 0 || got.v[i] > 0);
    }
    for (int b = 0; b < CODED_BLOCKS; b++) {
        assert_error_below(fabs(got.m_scale[b] / expected.m_scale[b] - 1), 1e-6, "scale of m");
        assert_error_below(fabs(got.v_scale[b] / expected.v_scale[b] - 1), 1e-6, "scale of v");
    }
}

static DsvStatus run_muon(const CheckCase *c, const DsviOps *ops, DsviStream *stream)
{
    DsviMuonArgs args = {
        .n = c->buffer[0].n,
        .momentum = 0.95,
        .grad_scale = 0.5,
        .lr = 1e-2,
        .weight_decay = 0.1,
        .rate = 0.3,
        .acc = c->acc,
        .grad = c->buffer[0].data,
        .m = c->buffer[1].data,
        .weight = c->buffer[1].data,
    };
    if (c->buffers > 2) {
        args.ema = c->buffer[2].data;
        args.ema_decay = 0.9999;
        args.copy = c->buffer[3].data;
        args.copy_dtype = c->buffer[3].dtype;
    }
    return c->parameters ? ops->muon_momentum.run(stream, &args) : ops->muon_step.run(stream, &args);
}

static void check_muon(const DsviBackend *backend, int64_t n)
{
    CheckCase momentum = length_case("muon_momentum", n, run_muon);
    momentum.parameters = &momentum;
    check_buffer(&momentum, "grad", CHECK_ACC, CHECK_IN_OUT, n);
    check_buffer(&momentum, "m", CHECK_ACC, CHECK_IN_OUT, n);
    assert_case(&momentum, backend);
    CheckCase step = length_case("muon_step", n, run_muon);
    check_buffer(&step, "direction", CHECK_ACC, CHECK_IN, n);
    check_buffer(&step, "weight", CHECK_ACC, CHECK_IN_OUT, n);
    assert_case(&step, backend);
    check_buffer(&step, "ema", CHECK_ACC, CHECK_IN_OUT, n);
    check_buffer(&step, "copy", CHECK_ACT, CHECK_OUT, n);
    step.f32_only = false;
    assert_case(&step, backend);
}

enum { EXACT = 20001 };

/* What adamw reads and writes. */
typedef struct Exact {
    float grad[EXACT], weight[EXACT], m[EXACT], v[EXACT], ema[EXACT];
    uint16_t copy[EXACT];
} Exact;

/* Does the step as optim.h states it, with the options of run_adamw. This file is compiled without fused
 * products and sums. */
static void exact_step(Exact *x)
{
    const float rest1 = (float)(1 - 0.9), rest2 = (float)(1 - 0.999), keep = (float)(1 - 1e-2 * 0.1);
    const float rate = (float)(1e-2 / (1 - pow(0.9, 3))), root = (float)(1 / sqrt(1 - pow(0.999, 3)));
    for (int i = 0; i < EXACT; i++) {
        float g = x->grad[i] * 0.5f;
        x->m[i] = 0.9f * x->m[i] + rest1 * g;
        x->v[i] = 0.999f * x->v[i] + rest2 * g * g;
        x->weight[i] = keep * x->weight[i] - rate * x->m[i] / (sqrtf(x->v[i]) * root + 1e-8f);
        x->ema[i] += (float)(1 - 0.9999) * (x->weight[i] - x->ema[i]);
        x->copy[i] = dsvi_f32_to_bf16(x->weight[i]);
    }
}

/* Every variant has the same bits. Some gradients are so small that their squares are denormal. */
static void check_bits(const DsviBackend *backend)
{
    static Exact expected, got;
    DsviStream *stream = backend->device ? backend->device->stream : NULL;
    if (strcmp(backend->ops.adamw.variant, "ref") == 0)
        return;
    dsvi_rng_fill_normal((DsviRng){3, DSVI_RNG_TEST, 2}, 0, expected.grad, 5 * EXACT);
    for (int i = 0; i < EXACT; i++) {
        expected.grad[i] *= (float)pow(10, -(i % 24));
        expected.v[i] *= i % 3 == 0 ? 0 : expected.v[i];
    }
    got = expected;
    CheckCase c = {.acc = DSVI_F32, .buffers = 6};
    const CheckBuffer buffer[] = {
        {.n = EXACT, .data = check_upload(backend, stream, got.grad, sizeof got.grad)},
        {.n = EXACT, .data = check_upload(backend, stream, got.weight, sizeof got.weight)},
        {.n = EXACT, .dtype = DSVI_F32, .data = check_upload(backend, stream, got.m, sizeof got.m)},
        {.n = EXACT, .dtype = DSVI_F32, .data = check_upload(backend, stream, got.v, sizeof got.v)},
        {.n = EXACT, .data = check_upload(backend, stream, got.ema, sizeof got.ema)},
        {.n = EXACT, .dtype = DSVI_BF16, .data = check_upload(backend, stream, got.copy, sizeof got.copy)},
    };
    memcpy(c.buffer, buffer, sizeof buffer);
    exact_step(&expected);
    assert_ok(run_adamw(&c, &backend->ops, stream));
    check_release(backend, stream, buffer[0].data);
    check_download(backend, stream, got.weight, buffer[1].data, sizeof got.weight);
    check_download(backend, stream, got.m, buffer[2].data, sizeof got.m);
    check_download(backend, stream, got.v, buffer[3].data, sizeof got.v);
    check_download(backend, stream, got.ema, buffer[4].data, sizeof got.ema);
    check_download(backend, stream, got.copy, buffer[5].data, sizeof got.copy);
    assert_memory_equal(&got, &expected, sizeof got);
}

void check_optim_cases(const DsviBackend *backend)
{
    check_average(backend);
    check_bits(backend);
    check_random_rounding(backend);
    check_codes(backend);
    for (size_t i = 0; i < sizeof LENGTHS / sizeof LENGTHS[0]; i++) {
        int64_t n = LENGTHS[i];
        CheckCase squares = length_case("sum_squares", n, run_sum_squares);
        check_buffer(&squares, "x", CHECK_ACC, CHECK_IN, n);
        check_buffer(&squares, "out", CHECK_DOUBLE, CHECK_OUT, 1);
        /* n additions in double, in any order: at most n roundings of the sum, as no term is negative */
        squares.ulps = (double)n + 4;
        assert_case(&squares, backend);
        check_adamw(backend, n, false, CHECK_ACC);
        check_adamw(backend, n, true, CHECK_ACC);
        check_adamw(backend, n, true, CHECK_ACT);
        check_muon(backend, n);
    }
}
