/* Cases of the flow-matching objective, the time embedding and patches for the checker (check.h). */
#include "ops/cases.h"
#include "test.h"

typedef struct FlowShape {
    int64_t batch, n;
    bool in_place, with_gradient;
    int64_t period; /* after how many elements the weights of the squared error repeat; 0: no weights */
} FlowShape;

static const FlowShape SHAPES[] = {
    {1, 1, false, true, 0},     {2, 17, true, true, 0},    {3, 65, false, false, 0},
    {2, 5000, true, true, 0},   {0, 4, false, true, 0},    {1, 5, false, true, 1},
    {3, 65, true, true, 13},    {2, 17, false, false, 17}, {2, 9600, true, true, 96},
    {1, 70000, false, true, 7},
};

static DsvStatus run_mix(const CheckCase *c, const DsviOps *ops, DsviStream *stream)
{
    const FlowShape *shape = c->parameters;
    DsviFlowMixArgs args = {.batch = shape->batch,
                            .n = shape->n,
                            .acc = c->acc,
                            .x0 = c->buffer[0].data,
                            .noise = c->buffer[1].data,
                            .sigma = c->buffer[2].data,
                            .x_t = c->buffer[3].data,
                            .target = c->buffer[4].data};
    return ops->flow_mix.run(stream, &args);
}

static DsvStatus run_mse(const CheckCase *c, const DsviOps *ops, DsviStream *stream)
{
    const FlowShape *shape = c->parameters;
    DsviMseArgs args = {.batch = shape->batch,
                        .n = shape->n,
                        .grad_scale = 0.37,
                        .acc = c->acc,
                        .output = c->buffer[0].data,
                        .target = c->buffer[1].data,
                        .loss = c->buffer[2].data,
                        .period = shape->period,
                        .weight = shape->period > 0 ? c->buffer[3].data : NULL,
                        .doutput = shape->with_gradient ? c->buffer[shape->period > 0 ? 4 : 3].data : NULL};
    return ops->mse.run(stream, &args);
}

static DsvStatus run_time_embed(const CheckCase *c, const DsviOps *ops, DsviStream *stream)
{
    const FlowShape *shape = c->parameters;
    DsviTimeEmbedArgs args = {.batch = shape->batch,
                              .dim = shape->n,
                              .acc = c->acc,
                              .t = c->buffer[0].data,
                              .row = c->buffer[1].data};
    return ops->time_embed.run(stream, &args);
}

static CheckCase flow_case(const char *op, const FlowShape *shape, check_run_fn *run)
{
    CheckCase c = {.op = op, .parameters = shape, .run = run, .ulps = 4, .f32_only = true};
    snprintf(c.shape, sizeof c.shape, "batch %lld n %lld period %lld%s", (long long)shape->batch,
             (long long)shape->n, (long long)shape->period, shape->in_place ? " in place" : "");
    return c;
}

typedef struct NoiseShape {
    int64_t n;
    uint64_t first;
} NoiseShape;

static DsvStatus run_noise(const CheckCase *c, const DsviOps *ops, DsviStream *stream)
{
    const NoiseShape *shape = c->parameters;
    DsviNoiseArgs args = {.n = shape->n,
                          .rng = {5, DSVI_RNG_TEST, 9},
                          .first = shape->first,
                          .acc = c->acc,
                          .out = c->buffer[0].data};
    return ops->noise.run(stream, &args);
}

/* Noise that starts at even and at odd positions of the random stream, and noise that crosses position 2^32,
 * where the high word of the counter changes. */
static void check_noise(const DsviBackend *backend)
{
    static const NoiseShape shapes[] = {
        {0, 3}, {1, 0}, {1, 1}, {17, 7}, {10001, 0}, {2000, 4095}, {64, ((uint64_t)1 << 33) - 31},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        CheckCase c = {
            .op = "noise", .parameters = &shapes[i], .run = run_noise, .ulps = 2, .f32_only = true};
        snprintf(c.shape, sizeof c.shape, "n %lld first %llu", (long long)shapes[i].n,
                 (unsigned long long)shapes[i].first);
        check_buffer(&c, "out", CHECK_ACC, CHECK_OUT, shapes[i].n);
        assert_case(&c, backend);
    }
}

void check_flow_cases(const DsviBackend *backend)
{
    check_noise(backend);
    for (size_t i = 0; i < sizeof SHAPES / sizeof SHAPES[0]; i++) {
        const FlowShape *shape = &SHAPES[i];
        int64_t n = shape->batch * shape->n;
        CheckCase mix = flow_case("flow_mix", shape, run_mix);
        check_buffer(&mix, "x0", CHECK_ACC, CHECK_IN, n);
        check_buffer(&mix, "noise", CHECK_ACC, CHECK_IN, n);
        CheckBuffer *sigma = check_buffer(&mix, "sigma", CHECK_ACC, CHECK_IN, shape->batch);
        sigma->steady = true;
        sigma->scale = 0.2;
        sigma->offset = 0.5;
        check_buffer(&mix, "x_t", CHECK_ACC, CHECK_OUT, n)->alias = shape->in_place ? 1 : 0;
        check_buffer(&mix, "target", CHECK_ACC, CHECK_OUT, n)->alias = shape->in_place ? 2 : 0;
        assert_case(&mix, backend);

        CheckCase mse = flow_case("mse", shape, run_mse);
        check_buffer(&mse, "output", CHECK_ACC, CHECK_IN, n);
        check_buffer(&mse, "target", CHECK_ACC, CHECK_IN, n);
        check_buffer(&mse, "loss", CHECK_ACC, CHECK_OUT, shape->batch);
        if (shape->period > 0)
            check_buffer(&mse, "weight", CHECK_ACC, CHECK_IN, shape->period);
        if (shape->with_gradient)
            check_buffer(&mse, "doutput", CHECK_ACC, CHECK_OUT, n)->alias = shape->in_place ? 1 : 0;
        assert_case(&mse, backend);

        FlowShape even = {.batch = shape->batch, .n = (shape->n + 1) / 2 * 2};
        CheckCase embed = flow_case("time_embed", &even, run_time_embed);
        CheckBuffer *t = check_buffer(&embed, "t", CHECK_ACC, CHECK_IN, shape->batch);
        t->steady = true;
        t->scale = 200;
        t->offset = 500;
        check_buffer(&embed, "row", CHECK_ACC, CHECK_OUT, shape->batch * even.n);
        assert_case(&embed, backend);
    }
}

typedef struct PatchShape {
    int64_t batch, channels, frames, height, width, patch[3];
    CheckKind latent, rows;
    bool channel_last, scatter;
    int64_t first, left_out; /* tokens before those of the case, and after them */
} PatchShape;

static int64_t patch_tokens(const PatchShape *shape)
{
    int64_t volume = shape->frames * shape->height * shape->width;
    return volume / (shape->patch[0] * shape->patch[1] * shape->patch[2]) - shape->first - shape->left_out;
}

static DsvStatus run_patch(const CheckCase *c, const DsviOps *ops, DsviStream *stream)
{
    const PatchShape *shape = c->parameters;
    DsviPatchArgs args = {
        .batch = shape->batch,
        .channels = shape->channels,
        .frames = shape->frames,
        .height = shape->height,
        .width = shape->width,
        .patch = {shape->patch[0], shape->patch[1], shape->patch[2]},
        .channel_last = shape->channel_last,
        .tokens = patch_tokens(shape),
        .order = c->buffer[0].data,
        .latent_dtype = c->buffer[1].dtype,
        .row_dtype = c->buffer[2].dtype,
        .latent = c->buffer[1].data,
        .rows = c->buffer[2].data,
    };
    return shape->scatter ? ops->patch_scatter.run(stream, &args) : ops->patch_gather.run(stream, &args);
}

static void check_patch(const DsviBackend *backend, const PatchShape *shape)
{
    CheckCase c = {.op = shape->scatter ? "patch_scatter" : "patch_gather",
                   .parameters = shape,
                   .run = run_patch,
                   .ulps = 0};
    int32_t order[1024];
    int64_t n = shape->batch * shape->channels * shape->frames * shape->height * shape->width;
    int64_t inside = shape->patch[0] * shape->patch[1] * shape->patch[2], tokens = patch_tokens(shape);
    bool all = shape->first == 0 && shape->left_out == 0;
    snprintf(c.shape, sizeof c.shape,
             "batch %lld channels %lld video %lldx%lldx%lld patch %lldx%lldx%lld%s tokens %lld from %lld on",
             (long long)shape->batch, (long long)shape->channels, (long long)shape->frames,
             (long long)shape->height, (long long)shape->width, (long long)shape->patch[0],
             (long long)shape->patch[1], (long long)shape->patch[2],
             shape->channel_last ? " channel last" : "", (long long)tokens, (long long)shape->first);
    assert_true(tokens < 1024);
    for (int64_t i = 0; i < tokens; i++) /* reversed, so that the permutation is not the identity */
        order[i] = (int32_t)(shape->left_out + tokens - 1 - i);
    check_buffer(&c, "order", CHECK_I32, CHECK_IN, tokens)->indices = order;
    CheckRole written = all ? CHECK_OUT : CHECK_IN_OUT; /* patches of other tokens must not change */
    check_buffer(&c, "latent", shape->latent, shape->scatter ? written : CHECK_IN, n);
    check_buffer(&c, "rows", shape->rows, shape->scatter ? CHECK_IN : CHECK_OUT,
                 shape->batch * tokens * shape->channels * inside);
    assert_case(&c, backend);
}

void check_patch_cases(const DsviBackend *backend)
{
    static const PatchShape shapes[] = {
        {1, 1, 1, 1, 1, {1, 1, 1}, CHECK_ACC, CHECK_ACT, false, false, 0, 0},
        {2, 3, 3, 6, 10, {1, 2, 2}, CHECK_ACC, CHECK_ACT, false, false, 0, 0},
        {2, 3, 3, 6, 10, {1, 2, 2}, CHECK_ACC, CHECK_ACT, false, false, 7, 11},
        {1, 5, 4, 6, 9, {2, 2, 3}, CHECK_ACT, CHECK_ACC, true, false, 0, 0},
        {2, 16, 3, 4, 6, {1, 2, 2}, CHECK_ACC, CHECK_ACC, true, false, 0, 0},
        {2, 16, 3, 4, 6, {1, 2, 2}, CHECK_ACC, CHECK_ACC, true, false, 0, 17},
        {1, 2, 3, 4, 4, {1, 2, 2}, CHECK_ACC, CHECK_ACT, false, false, 12, 0},
        {2, 70, 2, 12, 20, {1, 2, 2}, CHECK_ACC, CHECK_ACT, false, false, 5, 3},
        {1, 70, 2, 12, 20, {1, 2, 2}, CHECK_ACC, CHECK_ACC, true, false, 0, 0},
        {1, 3, 2, 64, 40, {2, 32, 20}, CHECK_ACC, CHECK_ACT, true, false, 0, 0},
        {1, 2, 0, 4, 4, {1, 2, 2}, CHECK_ACC, CHECK_ACT, false, false, 0, 0},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        PatchShape shape = shapes[i];
        check_patch(backend, &shape);
        shape.scatter = true;
        check_patch(backend, &shape);
    }
}
