/* Tests the checker (check.h): it accepts right results, and finds each kind of error that it looks for. */
#include "base/threads.h"
#include "ops/check.h"
#include "test.h"

enum { LENGTH = 65 };

static DsvStatus run_add(const CheckCase *c, const DsviOps *ops, DsviStream *stream)
{
    DsviAddArgs args = {.n = c->buffer[0].n,
                        .a = 1.5,
                        .b = -0.5,
                        .x_dtype = c->act,
                        .y_dtype = c->acc,
                        .x = c->buffer[0].data,
                        .y = c->buffer[1].data};
    return ops->add.run(stream, &args);
}

static CheckCase make_case(void)
{
    CheckCase c = {.op = "add", .shape = "n 65", .run = run_add, .ulps = 4};
    check_buffer(&c, "x", CHECK_ACT, CHECK_IN, LENGTH);
    check_buffer(&c, "y", CHECK_ACC, CHECK_IN_OUT, LENGTH);
    return c;
}

/* Wrong variants of the operation add: each computes the right result and then spoils it. They write y as
 * F32, since y is of kind CHECK_ACC. */

static DsvStatus add_off_by_ulps(DsviStream *stream, const DsviAddArgs *args)
{
    DSVI_TRY(dsvi_add_ref(stream, args));
    ((float *)args->y)[LENGTH / 2] *= 1 + 20 * 0x1p-23f;
    return DSV_OK;
}

static DsvStatus add_nan(DsviStream *stream, const DsviAddArgs *args)
{
    DSVI_TRY(dsvi_add_ref(stream, args));
    ((float *)args->y)[3] = NAN;
    return DSV_OK;
}

static DsvStatus add_one_too_few(DsviStream *stream, const DsviAddArgs *args)
{
    DsviAddArgs fewer = *args;
    fewer.n--;
    return dsvi_add_ref(stream, &fewer);
}

static DsvStatus add_past_end(DsviStream *stream, const DsviAddArgs *args)
{
    DSVI_TRY(dsvi_add_ref(stream, args));
    ((float *)args->y)[args->n] = 0;
    return DSV_OK;
}

static DsvStatus add_before_start(DsviStream *stream, const DsviAddArgs *args)
{
    DSVI_TRY(dsvi_add_ref(stream, args));
    ((unsigned char *)args->y)[-1] = 0;
    return DSV_OK;
}

static DsvStatus add_into_input(DsviStream *stream, const DsviAddArgs *args)
{
    DSVI_TRY(dsvi_add_ref(stream, args));
    dsvi_store(args->x_dtype, (void *)args->x, 0, 123);
    return DSV_OK;
}

/* The error is within the tolerance, but depends on the number of threads. */
static DsvStatus add_by_threads(DsviStream *stream, const DsviAddArgs *args)
{
    DSVI_TRY(dsvi_add_ref(stream, args));
    float *y = args->y;
    y[0] = dsvi_threads_count() > 1 ? nextafterf(y[0], 2 * y[0]) : y[0];
    return DSV_OK;
}

static DsvStatus add_unable(DsviStream *stream, const DsviAddArgs *args)
{
    (void)stream, (void)args;
    return DSVI_FAIL(DSV_E_UNSUPPORTED, "cannot add");
}

static void test_right_passes(void **state)
{
    DsviBackend backend = {0};
    CheckCase c = make_case();
    (void)state;
    dsvi_ops_fill_ref(&backend.ops);
    assert_case(&c, &backend);
}

static void test_faults_are_caught(void **state)
{
    static const struct {
        dsvi_add_fn *run;
        const char *words;
    } faults[] = {
        {add_off_by_ulps, "y[32] is"},
        {add_nan, "y[3] is nan"},
        {add_one_too_few, "y[64] is"},
        {add_past_end, "y: foreign byte 260 of 260 was written"},
        {add_before_start, "y: foreign byte -1 of 260 was written"},
        {add_into_input, "x: input byte"},
        {add_by_threads, "y differs between 1 and 3 threads"},
        {add_unable, "cannot add"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        DsviBackend backend = {0};
        CheckCase c = make_case();
        char why[CHECK_TEXT_BYTES] = "";
        dsvi_ops_fill_ref(&backend.ops);
        backend.ops.add.run = faults[i].run;
        assert_false(check_case(&c, &backend, why));
        if (!strstr(why, faults[i].words) || !strstr(why, "add (n 65), F32, fill normal"))
            fail_msg("fault %d is reported as: %s", (int)i, why);
    }
}

/* y = x - y, and z = x + z, which is the sum of the absolute values of y's terms where all values are equal.
 */
static DsvStatus run_cancelling(const CheckCase *c, const DsviOps *ops, DsviStream *stream)
{
    DsviAddArgs args = {.n = LENGTH,
                        .a = 1,
                        .b = -1,
                        .x_dtype = c->act,
                        .y_dtype = c->acc,
                        .x = c->buffer[0].data,
                        .y = c->buffer[1].data};
    DSVI_TRY(ops->add.run(stream, &args));
    args.b = 1;
    args.y = c->buffer[2].data;
    return ops->add.run(stream, &args);
}

/* Differences of 0 become error x 2^-24, but not where the terms are 0. */
static void spoil_zeros(const DsviAddArgs *args, float error)
{
    const float *x = args->x;
    float *y = args->y;
    for (int64_t i = 0; i < args->n; i++)
        y[i] += y[i] == 0 && x[i] != 0 ? error * 0x1p-24f : 0;
}

static DsvStatus add_with_roundings(DsviStream *stream, const DsviAddArgs *args)
{
    DSVI_TRY(dsvi_add_ref(stream, args));
    spoil_zeros(args, 5);
    return DSV_OK;
}

static DsvStatus add_with_wrong_zeros(DsviStream *stream, const DsviAddArgs *args)
{
    DSVI_TRY(dsvi_add_ref(stream, args));
    spoil_zeros(args, 6);
    return DSV_OK;
}

/* Four roundings of the terms' sum of 1.4 are allowed: 5.6 units of 2^-24. Without terms_scale none is.
 * Builds with sanitizers do not check equal values. */
static void test_cancelling_terms(void **state)
{
    DsviBackend backend = {0};
    char why[CHECK_TEXT_BYTES] = "";
    (void)state;
    if (TEST_SANITIZED)
        skip();
    dsvi_ops_fill_ref(&backend.ops);
    for (int fault = 0; fault < 3; fault++) {
        CheckCase c = {.op = "difference", .shape = "n 65", .run = run_cancelling, .ulps = 4};
        check_buffer(&c, "x", CHECK_ACT, CHECK_IN, LENGTH);
        CheckBuffer *y = check_buffer(&c, "y", CHECK_ACC, CHECK_IN_OUT, LENGTH);
        check_buffer(&c, "z", CHECK_ACC, CHECK_IN_OUT, LENGTH);
        y->terms_of = 2;
        y->terms_scale = fault == 1 ? 0 : 1;
        backend.ops.add.run = fault == 2 ? add_with_wrong_zeros : add_with_roundings;
        c.f32_only = true;
        assert_int_equal(check_case(&c, &backend, why), fault == 0);
        if (fault > 0 && !strstr(why, "fill equal"))
            fail_msg("fault %d is reported as: %s", fault, why);
    }
}

/* y = x - y */
static DsvStatus run_difference(const CheckCase *c, const DsviOps *ops, DsviStream *stream)
{
    DsviAddArgs args = {.n = LENGTH,
                        .a = 1,
                        .b = -1,
                        .x_dtype = c->act,
                        .y_dtype = c->acc,
                        .x = c->buffer[0].data,
                        .y = c->buffer[1].data};
    return ops->add.run(stream, &args);
}

/* Large inputs become differences of 5 x 2^-24 times the third power of the largest input. */
static DsvStatus add_with_large_roundings(DsviStream *stream, const DsviAddArgs *args)
{
    float largest = 0;
    for (int64_t i = 0; i < args->n; i++)
        largest = fmaxf(largest, fabsf(((const float *)args->x)[i]));
    DSVI_TRY(dsvi_add_ref(stream, args));
    for (int64_t i = 0; i < args->n && largest > 100; i++)
        ((float *)args->y)[i] += 5 * 0x1p-24f * largest * largest * largest;
    return DSV_OK;
}

/* Each y is x - x. Four roundings of bounds_scale times that third power are allowed. */
static void test_cancelling_large_terms(void **state)
{
    DsviBackend backend = {0};
    char why[CHECK_TEXT_BYTES] = "";
    (void)state;
    dsvi_ops_fill_ref(&backend.ops);
    backend.ops.add.run = add_with_large_roundings;
    for (int fault = 0; fault < 2; fault++) {
        CheckCase c = {.op = "difference", .shape = "n 65", .run = run_difference, .ulps = 4};
        check_buffer(&c, "x", CHECK_ACT, CHECK_IN_OUT, LENGTH);
        CheckBuffer *y = check_buffer(&c, "y", CHECK_ACT, CHECK_IN_OUT, LENGTH);
        y->alias = 1;
        c.buffer[0].bounds_scale = y->bounds_scale = fault ? 1 : 2;
        c.f32_only = true;
        assert_int_equal(check_case(&c, &backend, why), fault == 0);
        if (fault > 0 && !strstr(why, "fill large"))
            fail_msg("fault %d is reported as: %s", fault, why);
    }
}

/* Returns the sum of the squares of x, whose gradient is 2 x. */
static double sum_of_squares(void *context)
{
    const double *x = context;
    return x[0] * x[0] + x[1] * x[1] + x[2] * x[2];
}

static void test_gradient_error(void **state)
{
    double x[3] = {1, -2, 0.5}, gradient[3] = {2, -4, 1};
    (void)state;
    assert_true(check_gradient_error(sum_of_squares, x, x, 3, gradient) < 1e-9);
    gradient[2] = 1.001;
    assert_true(check_gradient_error(sum_of_squares, x, x, 3, gradient) > 1e-4);
    gradient[2] = NAN;
    assert_false(check_gradient_error(sum_of_squares, x, x, 3, gradient) < 1e300);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_right_passes),     cmocka_unit_test(test_faults_are_caught),
        cmocka_unit_test(test_cancelling_terms), cmocka_unit_test(test_cancelling_large_terms),
        cmocka_unit_test(test_gradient_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
