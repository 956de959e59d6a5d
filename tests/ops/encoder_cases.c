/* Cases of the text encoder's operations for the checker (check.h): rms_norm, gelu_product, softmax and
 * bias_attention. */
#include "ops/cases.h"
#include "test.h"

typedef struct RowsShape {
    int64_t rows, cols;
    bool in_place; /* only where act equals acc */
} RowsShape;

/* Rows of few and of many elements; numbers of rows that threads divide. */
static const RowsShape ROWS[] = {
    {1, 1, false},   {3, 7, false},   {2, 16, true},   {5, 33, true},    {70, 129, false}, {3, 512, false},
    {2, 4096, true}, {9, 1031, true}, {2, 9001, true}, {600, 64, false}, {0, 8, false},
};

enum { RMS_NORM_WEIGHT, RMS_NORM_X, RMS_NORM_Y };

static DsvStatus run_rms_norm(const CheckCase *c, const DsviOps *ops, DsviStream *stream)
{
    const RowsShape *shape = c->parameters;
    DsviRmsNormArgs args = {
        .rows = shape->rows,
        .channels = shape->cols,
        .eps = 1e-6,
        .act = c->act,
        .acc = c->acc,
        .weight = c->buffer[RMS_NORM_WEIGHT].data,
        .x = c->buffer[RMS_NORM_X].data,
        .y = c->buffer[RMS_NORM_Y].data,
    };
    return ops->rms_norm.run(stream, &args);
}

void check_rms_norm_cases(const DsviBackend *backend)
{
    for (size_t i = 0; i < sizeof ROWS / sizeof ROWS[0]; i++) {
        RowsShape shape = ROWS[i];
        CheckCase c = {.op = "rms_norm", .parameters = &shape, .run = run_rms_norm, .ulps = 4};
        snprintf(c.shape, sizeof c.shape, "%lld rows of %lld%s", (long long)shape.rows, (long long)shape.cols,
                 shape.in_place ? " in place" : "");
        check_buffer(&c, "weight", CHECK_ACC, CHECK_IN, shape.cols)->steady = true;
        check_buffer(&c, "x", CHECK_ACC, CHECK_IN, shape.rows * shape.cols);
        check_buffer(&c, "y", CHECK_ACT, CHECK_OUT, shape.rows * shape.cols)->alias = shape.in_place
                                                                                          ? RMS_NORM_X + 1
                                                                                          : 0;
        c.f32_only = shape.in_place;
        assert_case(&c, backend);
    }
}

static DsvStatus run_softmax(const CheckCase *c, const DsviOps *ops, DsviStream *stream)
{
    const RowsShape *shape = c->parameters;
    DsviSoftmaxArgs args = {
        .rows = shape->rows,
        .cols = shape->cols,
        .scale = 0.3,
        .act = c->act,
        .acc = c->acc,
        .x = c->buffer[0].data,
        .y = c->buffer[1].data,
    };
    return ops->softmax.run(stream, &args);
}

void check_softmax_cases(const DsviBackend *backend)
{
    for (size_t i = 0; i < sizeof ROWS / sizeof ROWS[0]; i++) {
        RowsShape shape = ROWS[i];
        CheckCase c = {.op = "softmax", .parameters = &shape, .run = run_softmax, .ulps = 8};
        snprintf(c.shape, sizeof c.shape, "%lld rows of %lld%s", (long long)shape.rows, (long long)shape.cols,
                 shape.in_place ? " in place" : "");
        check_buffer(&c, "x", CHECK_ACC, CHECK_IN, shape.rows * shape.cols)->scale = 4;
        check_buffer(&c, "y", CHECK_ACT, CHECK_OUT, shape.rows * shape.cols)->alias = shape.in_place ? 1 : 0;
        c.f32_only = shape.in_place;
        assert_case(&c, backend);
    }
}

typedef struct GeluShape {
    int64_t n;
    int target; /* y is 0: an array of its own, 1: gate, 2: x */
} GeluShape;

static DsvStatus run_gelu_product(const CheckCase *c, const DsviOps *ops, DsviStream *stream)
{
    const GeluShape *shape = c->parameters;
    DsviGeluProductArgs args = {
        .n = shape->n,
        .dtype = c->act,
        .gate = c->buffer[0].data,
        .x = c->buffer[1].data,
        .y = c->buffer[2].data,
    };
    return ops->gelu_product.run(stream, &args);
}

void check_gelu_product_cases(const DsviBackend *backend)
{
    static const int64_t lengths[] = {0, 1, 3, 15, 17, 65, 300, 17000};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        for (int target = 0; target < 3; target++) {
            GeluShape shape = {lengths[i], target};
            CheckCase c = {.op = "gelu_product", .parameters = &shape, .run = run_gelu_product, .ulps = 8};
            snprintf(c.shape, sizeof c.shape, "n %lld into %s", (long long)shape.n,
                     target == 0   ? "y"
                     : target == 1 ? "gate"
                                   : "x");
            check_buffer(&c, "gate", CHECK_ACT, CHECK_IN, shape.n)->scale = 3;
            check_buffer(&c, "x", CHECK_ACT, CHECK_IN, shape.n);
            check_buffer(&c, "y", CHECK_ACT, CHECK_OUT, shape.n)->alias = target;
            assert_case(&c, backend);
        }
    }
}

enum { SEGMENTS_MAX = 6 };

typedef struct BiasShape {
    int64_t segments;
    int64_t rows[SEGMENTS_MAX]; /* of each segment */
    int64_t heads, dim, reach;
    bool together;   /* q, k and v are one array (S, 3, N, D) */
    int64_t surplus; /* by which `longest` exceeds the longest segment */
} BiasShape;

typedef struct BiasProblem {
    BiasShape shape;
    int32_t starts[SEGMENTS_MAX + 1];
    int64_t longest;
} BiasProblem;

enum { BIAS_STARTS, BIAS_TABLE, BIAS_QKV, BIAS_OUT };

static DsvStatus run_bias_attention(const CheckCase *c, const DsviOps *ops, DsviStream *stream)
{
    const BiasProblem *p = c->parameters;
    const BiasShape *shape = &p->shape;
    int64_t rows = p->starts[shape->segments], row = shape->heads * shape->dim;
    size_t part = (size_t)(shape->together ? row : rows * row) * dsvi_dtype_size(c->act);
    const unsigned char *qkv = c->buffer[BIAS_QKV].data;
    DsviBiasAttentionArgs args = {
        .segments = shape->segments,
        .rows = rows,
        .longest = p->longest,
        .heads = shape->heads,
        .head_dim = shape->dim,
        .reach = shape->reach,
        .scale = 0.7,
        .act = c->act,
        .acc = c->acc,
        .starts = c->buffer[BIAS_STARTS].data,
        .bias = c->buffer[BIAS_TABLE].data,
        .q = qkv,
        .k = qkv + part,
        .v = qkv + 2 * part,
        .stride = shape->together ? 3 * row : row,
        .out = c->buffer[BIAS_OUT].data,
    };
    return ops->bias_attention.run(stream, &args);
}

static void check_bias_attention(const DsviBackend *backend, const BiasShape *shape)
{
    BiasProblem p = {.shape = *shape};
    CheckCase c = {.op = "bias_attention", .parameters = &p, .run = run_bias_attention, .ulps = 8};
    for (int64_t g = 0; g < shape->segments; g++) {
        p.starts[g + 1] = p.starts[g] + (int32_t)shape->rows[g];
        p.longest = shape->rows[g] > p.longest ? shape->rows[g] : p.longest;
    }
    p.longest += shape->surplus;
    int64_t rows = p.starts[shape->segments], n = rows * shape->heads * shape->dim;
    snprintf(c.shape, sizeof c.shape, "%lld segments, %lld rows, heads %lld dim %lld reach %lld%s",
             (long long)shape->segments, (long long)rows, (long long)shape->heads, (long long)shape->dim,
             (long long)shape->reach, shape->together ? " together" : "");
    check_buffer(&c, "starts", CHECK_I32, CHECK_IN, shape->segments + 1)->indices = p.starts;
    check_buffer(&c, "bias", CHECK_ACC, CHECK_IN, shape->heads * (2 * shape->reach + 1));
    check_buffer(&c, "qkv", CHECK_ACT, CHECK_IN, 3 * n);
    check_buffer(&c, "out", CHECK_ACT, CHECK_OUT, n);
    assert_case(&c, backend);
}

void check_bias_attention_cases(const DsviBackend *backend)
{
    /* Segments below and above the tiles of implementations, empty ones, and distances beyond the reach on
     * both sides. */
    static const BiasShape shapes[] = {
        {1, {1}, 1, 8, 0, false, 0},
        {1, {5}, 2, 16, 3, true, 0},
        {3, {7, 0, 19}, 3, 40, 128, true, 3},
        {2, {65, 33}, 2, 32, 20, true, 0},
        {2, {66, 3}, 1, 128, 16, false, 40},
        {1, {150}, 1, 64, 128, true, 0},
        {6, {0, 1, 17, 2, 64, 0}, 2, 24, 5, true, 0},
        {1, {280}, 1, 8, 127, true, 232},
        {2, {0, 0}, 2, 16, 4, true, 8},
        {0, {0}, 2, 16, 4, true, 0},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        check_bias_attention(backend, &shapes[i]);
}
