/* Cases of layer_norm and rms_norm_rope for the checker (check.h). */
#include "ops/cases.h"
#include "test.h"

typedef struct LayerNormShape {
    int64_t batch, tokens, channels;
    int64_t sample_stride;
    bool backward;
} LayerNormShape;

enum { LN_X, LN_SCALE, LN_SHIFT, LN_MEAN, LN_RSTD, LN_Y, LN_DX = LN_Y, LN_DY, LN_DSCALE, LN_DSHIFT };

static DsvStatus run_layer_norm(const CheckCase *c, const DsviOps *ops, DsviStream *stream)
{
    const LayerNormShape *shape = c->parameters;
    const CheckBuffer *buffer = c->buffer;
    DsviLayerNormArgs args = {
        .batch = shape->batch,
        .tokens = shape->tokens,
        .channels = shape->channels,
        .only = check_tokens(c),
        .eps = 1e-6,
        .one_plus = shape->sample_stride ? 1 : 0,
        .sample_stride = shape->sample_stride,
        .act = c->act,
        .acc = c->acc,
        .x = buffer[LN_X].data,
        .scale = buffer[LN_SCALE].data,
        .shift = buffer[LN_SHIFT].data,
        .mean = buffer[LN_MEAN].data,
        .rstd = buffer[LN_RSTD].data,
    };
    if (!shape->backward) {
        args.y = buffer[LN_Y].data;
        return ops->layer_norm_fwd.run(stream, &args);
    }
    args.dx = buffer[LN_DX].data;
    args.dy = buffer[LN_DY].data;
    args.dscale = buffer[LN_DSCALE].data;
    args.dshift = buffer[LN_DSHIFT].data;
    return ops->layer_norm_bwd.run(stream, &args);
}

/* Writes "some" to the end of the description of a case whose run processes some of the tokens. */
static void describe_listed(CheckCase *c, bool listed)
{
    size_t length = strlen(c->shape);
    snprintf(c->shape + length, sizeof c->shape - length, "%s", listed ? " some tokens" : "");
}

static void check_layer_norm(const DsviBackend *backend, const LayerNormShape *shape, bool listed)
{
    CheckCase c = {.op = shape->backward ? "layer_norm_bwd" : "layer_norm_fwd",
                   .parameters = shape,
                   .run = run_layer_norm,
                   .ulps = 4};
    CheckRole out = listed ? CHECK_IN_OUT : CHECK_OUT, statistics = shape->backward ? CHECK_IN : out;
    int64_t rows = shape->batch * shape->tokens, n = rows * shape->channels;
    int64_t modulation = shape->sample_stride && shape->batch > 0
                             ? (shape->batch - 1) * shape->sample_stride + shape->channels
                             : shape->channels;
    snprintf(c.shape, sizeof c.shape, "batch %lld tokens %lld channels %lld stride %lld",
             (long long)shape->batch, (long long)shape->tokens, (long long)shape->channels,
             (long long)shape->sample_stride);
    describe_listed(&c, listed);
    check_buffer(&c, "x", CHECK_ACC, CHECK_IN, n);
    check_buffer(&c, "scale", CHECK_ACC, CHECK_IN, modulation)->steady = true;
    check_buffer(&c, "shift", CHECK_ACC, CHECK_IN, modulation)->steady = true;
    check_buffer(&c, "mean", CHECK_ACC, statistics, rows)->steady = true;
    CheckBuffer *rstd = check_buffer(&c, "rstd", CHECK_ACC, statistics, rows);
    rstd->steady = rstd->positive = true;
    if (!shape->backward) {
        check_buffer(&c, "y", CHECK_ACT, out, n);
    } else {
        check_buffer(&c, "dx", CHECK_ACC, CHECK_IN_OUT, n);
        check_buffer(&c, "dy", CHECK_ACT, CHECK_IN, n);
        check_buffer(&c, "dscale", CHECK_ACC, CHECK_IN_OUT, modulation);
        check_buffer(&c, "dshift", CHECK_ACC, CHECK_IN_OUT, modulation);
    }
    if (listed)
        check_listed_tokens(&c, shape->tokens);
    assert_case(&c, backend);
}

/* Returns the stride between the gates of two samples: that of the norm's scale, or without gaps where all
 * samples share one scale. */
static int64_t gate_stride(int64_t channels, int64_t sample_stride)
{
    return sample_stride ? sample_stride : channels;
}

/* Returns the elements from the first to the last of `batch` rows with `channels` elements, `stride`
 * apart. */
static int64_t spread(int64_t batch, int64_t channels, int64_t stride)
{
    return batch > 0 ? (batch - 1) * stride + channels : 0;
}

typedef struct SumNormShape {
    int64_t batch, tokens, channels;
    int64_t sample_stride; /* stride of scale and shift, and of the gate unless it is 0 */
    bool gated, in_place;  /* in place: x overwrites its first summand, y the second */
} SumNormShape;

enum { SN_GATE, SN_FIRST, SN_SECOND, SN_SCALE, SN_SHIFT, SN_X, SN_MEAN, SN_RSTD, SN_Y };

static DsvStatus run_sum_norm(const CheckCase *c, const DsviOps *ops, DsviStream *stream)
{
    const SumNormShape *shape = c->parameters;
    const CheckBuffer *buffer = c->buffer;
    DsviGateResidualArgs sum = {
        .batch = shape->batch,
        .tokens = shape->tokens,
        .channels = shape->channels,
        .only = check_tokens(c),
        .gate_stride = gate_stride(shape->channels, shape->sample_stride),
        .act = c->act,
        .acc = c->acc,
        .x = buffer[SN_FIRST].data,
        .y = buffer[SN_SECOND].data,
        .gate = shape->gated ? buffer[SN_GATE].data : NULL,
        .out = buffer[SN_X].data,
    };
    DsviLayerNormArgs args = {
        .batch = shape->batch,
        .tokens = shape->tokens,
        .channels = shape->channels,
        .only = check_tokens(c),
        .eps = 1e-6,
        .one_plus = shape->sample_stride ? 1 : 0,
        .sample_stride = shape->sample_stride,
        .act = c->act,
        .acc = c->acc,
        .x = buffer[SN_X].data,
        .scale = buffer[SN_SCALE].data,
        .shift = buffer[SN_SHIFT].data,
        .y = buffer[SN_Y].data,
        .mean = buffer[SN_MEAN].data,
        .rstd = buffer[SN_RSTD].data,
        .sum = &sum,
    };
    return ops->layer_norm_fwd.run(stream, &args);
}

static void check_sum_norm(const DsviBackend *backend, const SumNormShape *shape, bool listed)
{
    CheckRole out = listed ? CHECK_IN_OUT : CHECK_OUT;
    CheckCase c = {.op = "layer_norm_fwd", .parameters = shape, .run = run_sum_norm, .ulps = 4};
    int64_t rows = shape->batch * shape->tokens, n = rows * shape->channels;
    int64_t gates = spread(shape->batch, shape->channels, gate_stride(shape->channels, shape->sample_stride));
    int64_t modulation = shape->sample_stride ? gates : shape->channels;
    snprintf(c.shape, sizeof c.shape, "of a sum, batch %lld tokens %lld channels %lld stride %lld%s%s",
             (long long)shape->batch, (long long)shape->tokens, (long long)shape->channels,
             (long long)shape->sample_stride, shape->gated ? "" : " no gate",
             shape->in_place ? " in place" : "");
    describe_listed(&c, listed);
    check_buffer(&c, "gate", CHECK_ACC, CHECK_IN, gates);
    check_buffer(&c, "first", CHECK_ACC, CHECK_IN, n);
    check_buffer(&c, "second", CHECK_ACT, CHECK_IN, n);
    check_buffer(&c, "scale", CHECK_ACC, CHECK_IN, modulation)->steady = true;
    check_buffer(&c, "shift", CHECK_ACC, CHECK_IN, modulation)->steady = true;
    check_buffer(&c, "x", CHECK_ACC, out, n)->alias = shape->in_place ? SN_FIRST + 1 : 0;
    check_buffer(&c, "mean", CHECK_ACC, out, rows);
    check_buffer(&c, "rstd", CHECK_ACC, out, rows);
    check_buffer(&c, "y", CHECK_ACT, out, n)->alias = shape->in_place ? SN_SECOND + 1 : 0;
    if (listed)
        check_listed_tokens(&c, shape->tokens);
    assert_case(&c, backend);
}

static void check_sum_norm_cases(const DsviBackend *backend)
{
    static const SumNormShape shapes[] = {
        {1, 1, 1, 1, true, false},      {2, 3, 17, 40, true, true},    {2, 5, 65, 0, false, true},
        {3, 7, 132, 0, true, false},    {2, 33, 16, 96, false, false}, {0, 4, 8, 0, true, false},
        {2, 9, 1540, 3080, true, true}, {2, 3, 1536, 0, true, false},  {1, 3, 10300, 0, true, true},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        check_sum_norm(backend, &shapes[i], false);
    for (size_t i = 1; i < sizeof shapes / sizeof shapes[0]; i += 2)
        check_sum_norm(backend, &shapes[i], true);
}

typedef struct NormThenShape {
    int64_t batch, tokens, channels;
    int64_t sample_stride;        /* as in SumNormShape */
    bool gated, summed, in_place; /* in place: dy of the gate overwrites dy of the norm */
} NormThenShape;

enum {
    NT_X,
    NT_SCALE,
    NT_MEAN,
    NT_RSTD,
    NT_GATE,
    NT_Y,
    NT_DY,
    NT_DX,
    NT_DSCALE,
    NT_DSHIFT,
    NT_NEXT,
    NT_DGATE,
    NT_DY_SUM
};

static DsvStatus run_norm_then(const CheckCase *c, const DsviOps *ops, DsviStream *stream)
{
    const NormThenShape *shape = c->parameters;
    const CheckBuffer *buffer = c->buffer;
    DsviGateResidualArgs then = {
        .batch = shape->batch,
        .tokens = shape->tokens,
        .channels = shape->channels,
        .only = check_tokens(c),
        .gate_stride = gate_stride(shape->channels, shape->sample_stride),
        .act = c->act,
        .acc = c->acc,
        .y = shape->gated ? buffer[NT_Y].data : NULL,
        .gate = shape->gated ? buffer[NT_GATE].data : NULL,
        .dout = buffer[NT_DX].data,
        .dy = buffer[NT_NEXT].data,
        .dgate = shape->gated ? buffer[NT_DGATE].data : NULL,
        .dy_sum = shape->summed ? buffer[NT_DY_SUM].data : NULL,
    };
    DsviLayerNormArgs args = {
        .batch = shape->batch,
        .tokens = shape->tokens,
        .channels = shape->channels,
        .only = check_tokens(c),
        .eps = 1e-6,
        .one_plus = shape->sample_stride ? 1 : 0,
        .sample_stride = shape->sample_stride,
        .act = c->act,
        .acc = c->acc,
        .x = buffer[NT_X].data,
        .scale = buffer[NT_SCALE].data,
        .mean = buffer[NT_MEAN].data,
        .rstd = buffer[NT_RSTD].data,
        .dy = buffer[NT_DY].data,
        .dx = buffer[NT_DX].data,
        .dscale = buffer[NT_DSCALE].data,
        .dshift = buffer[NT_DSHIFT].data,
        .then = &then,
    };
    return ops->layer_norm_bwd.run(stream, &args);
}

static void check_norm_then(const DsviBackend *backend, const NormThenShape *shape, bool listed)
{
    CheckRole out = listed ? CHECK_IN_OUT : CHECK_OUT;
    CheckCase c = {.op = "layer_norm_bwd", .parameters = shape, .run = run_norm_then, .ulps = 4};
    int64_t rows = shape->batch * shape->tokens, n = rows * shape->channels;
    int64_t gates = spread(shape->batch, shape->channels, gate_stride(shape->channels, shape->sample_stride));
    int64_t modulation = shape->sample_stride ? gates : shape->channels;
    snprintf(c.shape, sizeof c.shape, "and a gate, batch %lld tokens %lld channels %lld stride %lld%s%s%s",
             (long long)shape->batch, (long long)shape->tokens, (long long)shape->channels,
             (long long)shape->sample_stride, shape->gated ? "" : " no gate", shape->summed ? " summed" : "",
             shape->in_place ? " in place" : "");
    describe_listed(&c, listed);
    check_buffer(&c, "x", CHECK_ACC, CHECK_IN, n);
    check_buffer(&c, "scale", CHECK_ACC, CHECK_IN, modulation)->steady = true;
    check_buffer(&c, "mean", CHECK_ACC, CHECK_IN, rows)->steady = true;
    CheckBuffer *rstd = check_buffer(&c, "rstd", CHECK_ACC, CHECK_IN, rows);
    rstd->steady = rstd->positive = true;
    check_buffer(&c, "gate", CHECK_ACC, CHECK_IN, gates)->steady = true;
    check_buffer(&c, "y", CHECK_ACT, CHECK_IN, n);
    check_buffer(&c, "dy", CHECK_ACT, CHECK_IN, n);
    check_buffer(&c, "dx", CHECK_ACC, CHECK_IN_OUT, n);
    check_buffer(&c, "dscale", CHECK_ACC, CHECK_IN_OUT, modulation);
    check_buffer(&c, "dshift", CHECK_ACC, CHECK_IN_OUT, modulation);
    check_buffer(&c, "next dy", CHECK_ACT, out, n)->alias = shape->in_place ? NT_DY + 1 : 0;
    check_buffer(&c, "dgate", CHECK_ACC, CHECK_IN_OUT, gates);
    check_buffer(&c, "dy_sum", CHECK_ACC, CHECK_IN_OUT, shape->channels);
    if (listed)
        check_listed_tokens(&c, shape->tokens);
    assert_case(&c, backend);
}

static void check_norm_then_cases(const DsviBackend *backend)
{
    static const NormThenShape shapes[] = {
        {1, 1, 1, 1, true, true, false},      {2, 3, 17, 40, true, false, true},
        {2, 5, 65, 0, false, true, true},     {3, 7, 132, 0, true, true, false},
        {2, 33, 16, 96, false, false, false}, {0, 4, 8, 0, true, true, false},
        {2, 9, 1540, 3080, true, true, true}, {2, 60, 1536, 0, true, true, true},
        {1, 3, 10300, 0, true, true, true},   {2, 3, 8192, 8192, false, true, false},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        check_norm_then(backend, &shapes[i], false);
    for (size_t i = 1; i < sizeof shapes / sizeof shapes[0]; i += 2)
        check_norm_then(backend, &shapes[i], true);
}

void check_layer_norm_cases(const DsviBackend *backend)
{
    /* scale and shift of each sample with and without gaps, and shared by all samples (stride 0). The last
     * two shapes are for variants that hold a row in registers, and for rows that are too long for
     * registers. */
    static const LayerNormShape shapes[] = {
        {1, 1, 1, 1, false},       {2, 3, 17, 40, false},   {3, 1, 63, 63, false}, {2, 5, 65, 0, false},
        {1, 70, 130, 0, false},    {2, 33, 16, 96, false},  {1, 0, 8, 8, false},   {0, 4, 8, 0, false},
        {2, 9, 1540, 3080, false}, {1, 3, 10300, 0, false},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        LayerNormShape shape = shapes[i];
        for (int listed = 0; listed < (i % 2 ? 1 : 2); listed++) { /* some tokens, of every other shape */
            shape.backward = false;
            check_layer_norm(backend, &shape, listed);
            shape.backward = true;
            check_layer_norm(backend, &shape, listed);
        }
    }
    check_sum_norm_cases(backend);
    check_norm_then_cases(backend);
}

typedef struct RmsShape {
    int64_t batch, tokens, heads, head_dim;
    bool rotated, in_place, backward; /* in_place only with backward */
    bool summed;                      /* only with backward */
} RmsShape;

enum {
    RMS_X,
    RMS_WEIGHT,
    RMS_COS,
    RMS_SIN,
    RMS_RSTD,
    RMS_Y,
    RMS_DY = RMS_Y,
    RMS_DX,
    RMS_DWEIGHT,
    RMS_DX_SUM
};

static DsvStatus run_rms(const CheckCase *c, const DsviOps *ops, DsviStream *stream)
{
    const RmsShape *shape = c->parameters;
    const CheckBuffer *buffer = c->buffer;
    DsviRmsNormRopeArgs args = {
        .batch = shape->batch,
        .tokens = shape->tokens,
        .heads = shape->heads,
        .head_dim = shape->head_dim,
        .eps = 1e-6,
        .act = c->act,
        .acc = c->acc,
        .x = buffer[RMS_X].data,
        .weight = buffer[RMS_WEIGHT].data,
        .cos = shape->rotated ? buffer[RMS_COS].data : NULL,
        .sin = shape->rotated ? buffer[RMS_SIN].data : NULL,
        .rstd = buffer[RMS_RSTD].data,
    };
    if (!shape->backward) {
        args.y = buffer[RMS_Y].data;
        return ops->rms_norm_rope_fwd.run(stream, &args);
    }
    args.dy = buffer[RMS_DY].data;
    args.dx = buffer[RMS_DX].data;
    args.dweight = buffer[RMS_DWEIGHT].data;
    args.dx_sum = shape->summed ? buffer[RMS_DX_SUM].data : NULL;
    return ops->rms_norm_rope_bwd.run(stream, &args);
}

static void check_rms(const DsviBackend *backend, const RmsShape *shape)
{
    CheckCase c = {.op = shape->backward ? "rms_norm_rope_bwd" : "rms_norm_rope_fwd",
                   .parameters = shape,
                   .run = run_rms,
                   .ulps = 4};
    int64_t rows = shape->batch * shape->tokens, channels = shape->heads * shape->head_dim;
    int64_t angles = shape->tokens * (shape->head_dim / 2);
    snprintf(c.shape, sizeof c.shape, "batch %lld tokens %lld heads %lld dim %lld%s%s%s",
             (long long)shape->batch, (long long)shape->tokens, (long long)shape->heads,
             (long long)shape->head_dim, shape->rotated ? " rotated" : "", shape->in_place ? " in place" : "",
             shape->summed ? " summed" : "");
    check_buffer(&c, "x", CHECK_ACT, CHECK_IN, rows * channels);
    check_buffer(&c, "weight", CHECK_ACC, CHECK_IN, channels)->steady = true;
    /* any numbers will do, since the operation does not assume that cos^2 + sin^2 is 1 */
    check_buffer(&c, "cos", CHECK_ACC, CHECK_IN, angles)->steady = true;
    check_buffer(&c, "sin", CHECK_ACC, CHECK_IN, angles)->steady = true;
    CheckBuffer *rstd = check_buffer(&c, "rstd", CHECK_ACC, shape->backward ? CHECK_IN : CHECK_OUT, rows);
    rstd->steady = rstd->positive = true;
    if (!shape->backward) {
        check_buffer(&c, "y", CHECK_ACT, CHECK_OUT, rows * channels);
    } else {
        check_buffer(&c, "dy", CHECK_ACT, CHECK_IN, rows * channels);
        CheckBuffer *dx = check_buffer(&c, "dx", CHECK_ACT, CHECK_OUT, rows * channels);
        dx->alias = shape->in_place ? RMS_DY + 1 : 0;
        check_buffer(&c, "dweight", CHECK_ACC, CHECK_IN_OUT, channels);
        check_buffer(&c, "dx_sum", CHECK_ACC, CHECK_IN_OUT, channels);
    }
    assert_case(&c, backend);
}

void check_rms_norm_rope_cases(const DsviBackend *backend)
{
    static const RmsShape shapes[] = {
        {1, 1, 1, 1, false, false, false, true},   {1, 3, 1, 2, true, false, false, true},
        {2, 5, 3, 5, false, true, false, false},   {2, 7, 3, 6, true, true, false, true},
        {1, 33, 2, 64, true, false, false, true},  {2, 3, 1, 130, true, true, false, false},
        {1, 70, 3, 32, true, true, false, true},   {1, 0, 2, 8, true, false, false, true},
        {2, 9, 12, 128, true, true, false, false}, {1, 3, 161, 64, true, false, false, true},
        {2, 5, 3, 264, false, true, false, true},  {2, 60, 12, 128, true, false, false, true},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        RmsShape shape = shapes[i];
        check_rms(backend, &shape);
        shape.backward = true;
        check_rms(backend, &shape);
    }
}
