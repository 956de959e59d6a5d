/* Cases of the elementwise operations for the checker (check.h). */
#include "ops/cases.h"
#include "test.h"

/* Numbers of elements. The last is long enough to be divided among threads; few variations use it. */
static const int64_t LENGTHS[] = {0, 1, 3, 15, 17, 63, 65, 300, 17000};
enum { LENGTH_COUNT = sizeof LENGTHS / sizeof LENGTHS[0] };

typedef struct ActivationShape {
    int64_t n;
    DsviActivation activation;
    bool in_place, backward;
} ActivationShape;

static DsvStatus run_activation(const CheckCase *c, const DsviOps *ops, DsviStream *stream)
{
    const ActivationShape *shape = c->parameters;
    DsviActivationArgs args = {
        .activation = shape->activation, .n = shape->n, .dtype = c->act, .x = c->buffer[0].data};
    if (!shape->backward) {
        args.y = c->buffer[1].data;
        return ops->activation_fwd.run(stream, &args);
    }
    args.dy = c->buffer[1].data;
    args.dx = c->buffer[2].data;
    return ops->activation_bwd.run(stream, &args);
}

static void check_activation(const DsviBackend *backend, const ActivationShape *shape)
{
    CheckCase c = {.op = shape->backward ? "activation_bwd" : "activation_fwd",
                   .parameters = shape,
                   .run = run_activation,
                   .ulps = 8};
    static const char *const NAMES[] = {"gelu_tanh", "silu", "gelu_erf", "gelu_quick"};
    snprintf(c.shape, sizeof c.shape, "%s n %lld%s", NAMES[shape->activation], (long long)shape->n,
             shape->in_place ? " in place" : "");
    CheckBuffer *x = check_buffer(&c, "x", CHECK_ACT, CHECK_IN, shape->n);
    x->scale = 3;
    if (!shape->backward) {
        check_buffer(&c, "y", CHECK_ACT, CHECK_OUT, shape->n)->alias = shape->in_place ? 1 : 0;
    } else {
        check_buffer(&c, "dy", CHECK_ACT, CHECK_IN, shape->n);
        check_buffer(&c, "dx", CHECK_ACT, CHECK_OUT, shape->n)->alias = shape->in_place ? 2 : 0;
    }
    assert_case(&c, backend);
}

void check_activation_cases(const DsviBackend *backend)
{
    for (int i = 0; i < LENGTH_COUNT; i++)
        for (int variation = 0; variation < 16; variation += i == LENGTH_COUNT - 1 ? 5 : 1)
            check_activation(backend, &(ActivationShape){LENGTHS[i], (DsviActivation)(variation % 4),
                                                         variation & 4, variation & 8});
}

typedef struct GateShape {
    int64_t batch, tokens, channels, stride;
    bool gated, in_place, backward; /* in_place only with forward */
    bool summed;                    /* only with backward */
} GateShape;

enum { GATE, GATE_Y, GATE_X, GATE_OUT, GATE_DOUT = GATE_X, GATE_DY, GATE_DGATE, GATE_DY_SUM };

static DsvStatus run_gate(const CheckCase *c, const DsviOps *ops, DsviStream *stream)
{
    const GateShape *shape = c->parameters;
    const CheckBuffer *buffer = c->buffer;
    DsviGateResidualArgs args = {
        .batch = shape->batch,
        .tokens = shape->tokens,
        .channels = shape->channels,
        .only = check_tokens(c),
        .gate_stride = shape->stride,
        .act = c->act,
        .acc = c->acc,
        .gate = shape->gated ? buffer[GATE].data : NULL,
        .y = shape->gated || !shape->backward ? buffer[GATE_Y].data : NULL,
    };
    if (!shape->backward) {
        args.x = buffer[GATE_X].data;
        args.out = buffer[GATE_OUT].data;
        return ops->gate_residual_fwd.run(stream, &args);
    }
    args.dout = buffer[GATE_DOUT].data;
    args.dy = buffer[GATE_DY].data;
    args.dgate = shape->gated ? buffer[GATE_DGATE].data : NULL;
    args.dy_sum = shape->summed ? buffer[GATE_DY_SUM].data : NULL;
    return ops->gate_residual_bwd.run(stream, &args);
}

static void check_gate(const DsviBackend *backend, const GateShape *shape, bool listed)
{
    CheckRole out = listed ? CHECK_IN_OUT : CHECK_OUT;
    CheckCase c = {.op = shape->backward ? "gate_residual_bwd" : "gate_residual_fwd",
                   .parameters = shape,
                   .run = run_gate,
                   .ulps = 4};
    int64_t n = shape->batch * shape->tokens * shape->channels;
    int64_t gates = shape->batch > 0 ? (shape->batch - 1) * shape->stride + shape->channels : 0;
    snprintf(c.shape, sizeof c.shape, "batch %lld tokens %lld channels %lld stride %lld%s%s%s",
             (long long)shape->batch, (long long)shape->tokens, (long long)shape->channels,
             (long long)shape->stride, shape->gated ? "" : " no gate",
             shape->backward   ? (shape->summed ? " summed" : "")
             : shape->in_place ? " in place"
                               : "",
             listed ? " some tokens" : "");
    check_buffer(&c, "gate", CHECK_ACC, CHECK_IN, gates);
    check_buffer(&c, "y", CHECK_ACT, CHECK_IN, n);
    check_buffer(&c, shape->backward ? "dout" : "x", CHECK_ACC, CHECK_IN, n);
    if (!shape->backward) {
        check_buffer(&c, "out", CHECK_ACC, out, n)->alias = shape->in_place ? GATE_X + 1 : 0;
    } else {
        check_buffer(&c, "dy", CHECK_ACT, out, n);
        check_buffer(&c, "dgate", CHECK_ACC, CHECK_IN_OUT, gates);
        check_buffer(&c, "dy_sum", CHECK_ACC, CHECK_IN_OUT, shape->channels);
    }
    if (listed)
        check_listed_tokens(&c, shape->tokens);
    assert_case(&c, backend);
}

void check_gate_residual_cases(const DsviBackend *backend)
{
    static const GateShape shapes[] = {
        {1, 1, 1, 1, true, false, false, true},      {2, 3, 17, 17, true, true, false, false},
        {3, 65, 63, 200, true, false, false, true},  {2, 5, 65, 65, false, true, false, true},
        {1, 300, 33, 33, true, false, false, true},  {1, 0, 7, 7, true, false, false, true},
        {0, 3, 7, 7, true, false, false, true},      {2, 70, 264, 300, true, true, false, true},
        {1, 5, 132, 0, false, true, false, false},   {3, 70, 264, 0, false, true, false, true},
        {1, 80, 264, 300, true, true, false, false},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        GateShape shape = shapes[i];
        for (int listed = 0; listed < (shape.tokens > 0 && i % 2 ? 2 : 1); listed++) {
            shape.backward = false;
            check_gate(backend, &shape, listed);
            shape.backward = true;
            check_gate(backend, &shape, listed);
        }
    }
}

typedef struct AddShape {
    int64_t n;
    double a, b;
    CheckKind x, y;
    bool in_place;
} AddShape;

static DsvStatus run_add(const CheckCase *c, const DsviOps *ops, DsviStream *stream)
{
    const AddShape *shape = c->parameters;
    DsviAddArgs args = {.n = shape->n,
                        .a = shape->a,
                        .b = shape->b,
                        .x_dtype = c->buffer[0].dtype,
                        .y_dtype = c->buffer[1].dtype,
                        .x = c->buffer[0].data,
                        .y = c->buffer[1].data};
    return ops->add.run(stream, &args);
}

void check_add_cases(const DsviBackend *backend)
{
    static const double factors[][2] = {{1, 0}, {1, 1}, {-0.3, 0}, {0.25, -1.5}};
    static const CheckKind kinds[][2] = {
        {CHECK_ACC, CHECK_ACT},
        {CHECK_ACT, CHECK_ACC},
        {CHECK_ACT, CHECK_ACT},
    };
    for (int length = 0; length < LENGTH_COUNT; length++) {
        for (int i = 0; i < 4 * 3 * 2; i += length == LENGTH_COUNT - 1 || test_small() ? 5 : 1) {
            AddShape shape = {LENGTHS[length],     factors[i % 4][0],   factors[i % 4][1],
                              kinds[i / 4 % 3][0], kinds[i / 4 % 3][1], i / 12};
            CheckCase c = {.op = "add", .parameters = &shape, .run = run_add, .ulps = 4};
            if (shape.in_place && shape.x != shape.y)
                continue;
            snprintf(c.shape, sizeof c.shape, "n %lld a %g b %g kinds %d to %d%s", (long long)shape.n,
                     shape.a, shape.b, shape.x, shape.y, shape.in_place ? " in place" : "");
            check_buffer(&c, "x", shape.x, CHECK_IN, shape.n);
            /* With b = 0 the operation must not read y, so CHECK_OUT fills y with NaN. */
            CheckBuffer *y = check_buffer(&c, "y", shape.y, shape.b != 0 ? CHECK_IN_OUT : CHECK_OUT, shape.n);
            y->alias = shape.in_place ? 1 : 0;
            assert_case(&c, backend);
        }
    }
}

typedef struct DropoutShape {
    int64_t n;
    uint64_t first;
    double p;
    CheckKind x, y;
    bool add;
} DropoutShape;

static DsvStatus run_dropout(const CheckCase *c, const DsviOps *ops, DsviStream *stream)
{
    const DropoutShape *shape = c->parameters;
    DsviDropoutArgs args = {.n = shape->n,
                            .first = shape->first,
                            .p = shape->p,
                            .add = shape->add,
                            .rng = {0x123456789abcdefu, DSVI_RNG_DROPOUT, 7},
                            .x_dtype = c->buffer[0].dtype,
                            .y_dtype = c->buffer[1].dtype,
                            .x = c->buffer[0].data,
                            .y = c->buffer[1].data};
    return ops->dropout.run(stream, &args);
}

/* The variants must drop the same elements as the reference, wherever in a set of four words a tensor
 * begins and even beyond 2^32 elements: an element dropped or kept wrongly exceeds the tolerance. */
void check_dropout_cases(const DsviBackend *backend)
{
    static const CheckKind kinds[][2] = {
        {CHECK_ACC, CHECK_ACT}, {CHECK_ACT, CHECK_ACC}, {CHECK_ACT, CHECK_ACT}};
    static const uint64_t firsts[] = {0, 3, 255, 0x3fffffffeu, 4096, 1};
    static const double rates[] = {0.1, 0.5, 0.9, 0};
    for (int i = 0; i < 2 * LENGTH_COUNT; i++) {
        DropoutShape shape = {LENGTHS[i / 2],  firsts[i % 6],   rates[i % 4],
                              kinds[i % 3][0], kinds[i % 3][1], i % 2};
        CheckCase c = {.op = "dropout", .parameters = &shape, .run = run_dropout, .ulps = 4};
        snprintf(c.shape, sizeof c.shape, "n %lld first %llu p %g%s", (long long)shape.n,
                 (unsigned long long)shape.first, shape.p, shape.add ? " added" : "");
        check_buffer(&c, "x", shape.x, CHECK_IN, shape.n);
        check_buffer(&c, "y", shape.y, shape.add ? CHECK_IN_OUT : CHECK_OUT, shape.n);
        assert_case(&c, backend);
    }
}

typedef struct AddRowsShape {
    int64_t rows, cols, x_cols;
    bool backward;
} AddRowsShape;

static DsvStatus run_add_rows(const CheckCase *c, const DsviOps *ops, DsviStream *stream)
{
    const AddRowsShape *shape = c->parameters;
    const CheckBuffer *buffer = c->buffer;
    DsviAddRowsArgs args = {.rows = shape->rows, .cols = shape->cols, .x_cols = shape->x_cols, .acc = c->acc};
    if (!shape->backward) {
        args.x = buffer[0].data;
        args.table = buffer[1].data;
        args.out = buffer[2].data;
        return ops->add_rows_fwd.run(stream, &args);
    }
    args.dx = buffer[0].data;
    args.dtable = buffer[1].data;
    args.dout = buffer[2].data;
    return ops->add_rows_bwd.run(stream, &args);
}

void check_add_rows_cases(const DsviBackend *backend)
{
    static const AddRowsShape shapes[] = {
        {1, 1, 1, false}, {3, 34, 17, false}, {2, 390, 65, false}, {7, 63, 63, false}, {0, 4, 2, false}};
    for (size_t i = 0; i < 2 * sizeof shapes / sizeof shapes[0]; i++) {
        AddRowsShape shape = shapes[i / 2];
        shape.backward = i % 2;
        CheckCase c = {.op = shape.backward ? "add_rows_bwd" : "add_rows_fwd",
                       .parameters = &shape,
                       .run = run_add_rows,
                       .ulps = 4,
                       .f32_only = true};
        CheckRole addend = shape.backward ? CHECK_IN_OUT : CHECK_IN;
        snprintf(c.shape, sizeof c.shape, "rows %lld cols %lld x_cols %lld", (long long)shape.rows,
                 (long long)shape.cols, (long long)shape.x_cols);
        check_buffer(&c, "x", CHECK_ACC, addend, shape.rows * shape.x_cols);
        check_buffer(&c, "table", CHECK_ACC, addend, shape.cols);
        check_buffer(&c, "out", CHECK_ACC, shape.backward ? CHECK_IN : CHECK_OUT, shape.rows * shape.cols);
        assert_case(&c, backend);
    }
}
