/* Cases of matrix products and column sums for the checker (check.h). */
#include "ops/cases.h"
#include "test.h"

typedef struct GemmShape {
    int64_t m, n, k;
    int64_t gap; /* elements between the rows of every matrix */
    bool trans_a, trans_b, bias, accumulate, c_is_acc;
    bool gelu_input, gelu_backward, a_sum;
} GemmShape;

enum { A, B, C, BIAS, GELU, A_SUM };

static DsvStatus run_gemm(const CheckCase *c, const DsviOps *ops, DsviStream *stream)
{
    const GemmShape *shape = c->parameters;
    DsviGemmArgs args = {
        .m = shape->m,
        .n = shape->n,
        .k = shape->k,
        .ab_dtype = c->act,
        .c_dtype = c->buffer[C].dtype,
        .a = c->buffer[A].data,
        .lda = (shape->trans_a ? shape->m : shape->k) + shape->gap,
        .trans_a = shape->trans_a,
        .b = c->buffer[B].data,
        .ldb = (shape->trans_b ? shape->k : shape->n) + shape->gap,
        .trans_b = shape->trans_b,
        .c = c->buffer[C].data,
        .ldc = shape->n + shape->gap,
        .bias_dtype = c->acc,
        .bias = shape->bias ? c->buffer[BIAS].data : NULL,
        .accumulate = shape->accumulate,
        .gelu_input = shape->gelu_input ? c->buffer[GELU].data : NULL,
        .gelu_backward = shape->gelu_backward ? c->buffer[GELU].data : NULL,
        .a_sum = shape->a_sum ? c->buffer[A_SUM].data : NULL,
    };
    return ops->gemm.run(stream, &args);
}

/* Returns the elements that a matrix of `rows` x `cols` (transposed: `cols` x `rows`) occupies, with a gap
 * after each row but the last. */
static int64_t extent(bool transposed, int64_t rows, int64_t cols, int64_t gap)
{
    if (transposed)
        return extent(false, cols, rows, gap);
    return rows > 0 ? rows * (cols + gap) - gap : 0;
}

static void check_gemm(const DsviBackend *backend, const GemmShape *shape)
{
    CheckCase c = {.op = "gemm", .parameters = shape, .run = run_gemm, .ulps = 4};
    CheckKind c_kind = shape->c_is_acc ? CHECK_ACC : CHECK_ACT;
    CheckRole gelu_role = shape->gelu_input ? CHECK_IN_OUT : CHECK_IN;
    snprintf(c.shape, sizeof c.shape, "m %lld n %lld k %lld%s%s%s%s%s%s%s gap %lld", (long long)shape->m,
             (long long)shape->n, (long long)shape->k, shape->trans_a ? " trans_a" : "",
             shape->trans_b ? " trans_b" : "", shape->bias ? " bias" : "",
             shape->accumulate ? " accumulate" : "", shape->gelu_input ? " gelu_input" : "",
             shape->gelu_backward ? " gelu_backward" : "", shape->a_sum ? " a_sum" : "",
             (long long)shape->gap);
    check_buffer(&c, "a", CHECK_ACT, CHECK_IN, extent(shape->trans_a, shape->m, shape->k, shape->gap));
    check_buffer(&c, "b", CHECK_ACT, CHECK_IN, extent(shape->trans_b, shape->k, shape->n, shape->gap));
    /* CHECK_IN_OUT because elements between the rows must not change */
    check_buffer(&c, "c", c_kind, CHECK_IN_OUT, extent(false, shape->m, shape->n, shape->gap));
    check_buffer(&c, "bias", CHECK_ACC, CHECK_IN, shape->n);
    if (shape->gelu_input || shape->gelu_backward || shape->a_sum) {
        check_buffer(&c, "gelu", c_kind, gelu_role, extent(false, shape->m, shape->n, shape->gap));
        check_buffer(&c, "a_sum", CHECK_ACC, CHECK_IN_OUT, shape->m);
    }
    assert_case(&c, backend);
}

/* M, N and K below, at and above the sizes at which implementations divide the work: vectors, tiles of 8 to
 * 128 rows, slabs of 512 along K. Sizes of zero come last. */
static const int64_t SIZES[][3] = {
    {1, 1, 1},     {3, 17, 5},   {17, 1, 63}, {1, 65, 17}, {33, 17, 65}, {65, 64, 1},
    {130, 9, 129}, {70, 5, 515}, {0, 3, 3},   {3, 0, 3},   {5, 7, 0},
};

/* Matrices with and without gaps between rows; products that are added to C, that get a bias, or neither;
 * results in acc and in act. */
static const GemmShape VARIATIONS[] = {
    {.gap = 0},
    {.gap = 3, .c_is_acc = true, .accumulate = true},
    {.gap = 3, .c_is_acc = true, .bias = true},
    {.bias = true},
    {.accumulate = true},
};
enum { VARIATION_COUNT = sizeof VARIATIONS / sizeof VARIATIONS[0] };

/* The products of a linear layer: forward, gradient of the input, gradients of weight and bias. */
static const GemmShape EPILOGUES[] = {
    {.trans_b = true, .bias = true, .gelu_input = true},
    {.trans_b = true, .bias = true, .gelu_input = true, .gap = 3, .c_is_acc = true},
    {.trans_b = true, .gelu_input = true, .gap = 3},
    {.gelu_backward = true},
    {.gelu_backward = true, .gap = 3},
    {.trans_a = true, .accumulate = true, .c_is_acc = true, .a_sum = true},
    {.trans_a = true, .accumulate = true, .c_is_acc = true, .a_sum = true, .gap = 3},
};

static void check_epilogues(const DsviBackend *backend)
{
    static const int64_t sizes[][3] = {
        {3, 17, 5}, {33, 17, 65}, {130, 9, 129}, {40, 5, 515}, {16, 32, 24}, {0, 3, 3}, {3, 0, 3}, {5, 7, 0},
    };
    for (size_t size = 0; size < sizeof sizes / sizeof sizes[0]; size++) {
        for (size_t i = 0; i < sizeof EPILOGUES / sizeof EPILOGUES[0]; i++) {
            GemmShape shape = EPILOGUES[i];
            shape.m = sizes[size][0];
            shape.n = sizes[size][1];
            shape.k = sizes[size][2];
            check_gemm(backend, &shape);
        }
    }
}

/* Tries all variations of the small sizes, but only two of each large size, since the reference takes long.
 * Which two depends on the layout. */
void check_gemm_cases(const DsviBackend *backend)
{
    for (int size = 0; size < (int)(sizeof SIZES / sizeof SIZES[0]); size++) {
        bool large = SIZES[size][0] * SIZES[size][1] * SIZES[size][2] > 10000;
        for (int layout = 0; layout < 4; layout++) {
            for (int i = 0; i < (large ? 2 : VARIATION_COUNT); i++) {
                GemmShape shape = VARIATIONS[(i + (large ? size + layout : 0)) % VARIATION_COUNT];
                shape.m = SIZES[size][0];
                shape.n = SIZES[size][1];
                shape.k = SIZES[size][2];
                shape.trans_a = layout & 1;
                shape.trans_b = layout & 2;
                check_gemm(backend, &shape);
            }
        }
    }
    check_epilogues(backend);
}

typedef struct ColSumShape {
    int64_t m, n, gap;
} ColSumShape;

static DsvStatus run_col_sum(const CheckCase *c, const DsviOps *ops, DsviStream *stream)
{
    const ColSumShape *shape = c->parameters;
    DsviColSumArgs args = {
        .m = shape->m,
        .n = shape->n,
        .x_dtype = c->act,
        .x = c->buffer[0].data,
        .ldx = shape->n + shape->gap,
        .y_dtype = c->acc,
        .y = c->buffer[1].data,
    };
    return ops->col_sum.run(stream, &args);
}

void check_col_sum_cases(const DsviBackend *backend)
{
    static const ColSumShape shapes[] = {
        {1, 1, 0}, {3, 17, 2}, {65, 63, 0}, {1000, 5, 1}, {2, 1030, 0}, {0, 9, 0}, {9, 0, 3},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        CheckCase c = {.op = "col_sum", .parameters = &shapes[i], .run = run_col_sum, .ulps = 4};
        snprintf(c.shape, sizeof c.shape, "m %lld n %lld gap %lld", (long long)shapes[i].m,
                 (long long)shapes[i].n, (long long)shapes[i].gap);
        check_buffer(&c, "x", CHECK_ACT, CHECK_IN, extent(false, shapes[i].m, shapes[i].n, shapes[i].gap));
        check_buffer(&c, "y", CHECK_ACC, CHECK_IN_OUT, shapes[i].n);
        assert_case(&c, backend);
    }
}
