/* Compares the elementary functions on vectors with those of the C library in double, over their whole range.
 * The functions are compiled for the base instruction set. The other instruction sets use the same source,
 * which the checker tests as part of the operations. */
#include <stddef.h>

#include "cpu/simd_math.h"
#include "test.h"

enum { STEPS = 200000 };

typedef DsviVec vector_fn(DsviVec x);
typedef double scalar_fn(double x);

static float first_lane(vector_fn *fn, float x)
{
    float lanes[DSVI_LANES];
    dsvi_vec_store(lanes, fn(dsvi_vec_all(x)));
    for (int i = 1; i < DSVI_LANES; i++)
        assert_memory_equal(&lanes[i], &lanes[0], sizeof lanes[0]);
    return lanes[0];
}

/* Returns the largest relative error over [least, most] in units of 2^-24. */
static double relative_error(vector_fn *fn, scalar_fn *reference, double least, double most)
{
    double largest = 0;
    for (int i = 0; i <= STEPS; i++) {
        float x = (float)(least + (most - least) * i / STEPS);
        double expected = reference(x),
               error = fabs((double)first_lane(fn, x) - expected) / fabs(expected) * 0x1p24;
        if (!(error <= largest))
            largest = error;
    }
    return largest;
}

/* The bound is one unit in the last place, which is up to 2 units of 2^-24. */
static void test_exp(void **state)
{
    (void)state;
    assert_error_below(relative_error(dsvi_vec_exp, exp, -87.3, 88.3), 2.5, "exp");
    assert_error_below(relative_error(dsvi_vec_exp, exp, -1, 1), 2.5, "exp near 0");
    assert_error_below(relative_error(dsvi_vec_exp2, exp2, -126, 127.4), 2.5, "exp2");
}

/* The bound is the one that simd_math.h states. */
static void test_exp_weight(void **state)
{
    double largest = 0;
    (void)state;
    for (int i = 0; i <= STEPS; i++) {
        float x = -100.0f * (float)i / STEPS;
        double error = fabs((double)first_lane(dsvi_vec_exp_weight, x) - exp(x));
        if (!(error <= largest))
            largest = error;
    }
    assert_error_below(largest, 0x1p-23, "exp as a weight");
    assert_true(first_lane(dsvi_vec_exp_weight, 0) == 1 && first_lane(dsvi_vec_exp_weight, -INFINITY) == 0);
}

static void test_exp_limits(void **state)
{
    (void)state;
    assert_true(first_lane(dsvi_vec_exp, 0) == 1 && first_lane(dsvi_vec_exp2, 0) == 1);
    assert_true(first_lane(dsvi_vec_exp, -1e30f) == 0 && first_lane(dsvi_vec_exp, -INFINITY) == 0);
    assert_true(first_lane(dsvi_vec_exp2, -1e30f) == 0 && first_lane(dsvi_vec_exp2, -INFINITY) == 0);
    assert_true(isinf(first_lane(dsvi_vec_exp, 1e30f)) && isinf(first_lane(dsvi_vec_exp2, INFINITY)));
    assert_true(isnan(first_lane(dsvi_vec_exp, NAN)) && isnan(first_lane(dsvi_vec_exp2, NAN)));
}

/* Near 1 the logarithm is small, so that its relative error is the error of the polynomial. */
static void test_log2(void **state)
{
    (void)state;
    assert_error_below(relative_error(dsvi_vec_log2, log2, 1.5, 1000), 4, "log2");
    assert_error_below(relative_error(dsvi_vec_log2, log2, 1e-6, 0.6), 4, "log2 below 1");
    assert_error_below(relative_error(dsvi_vec_log2, log2, 0.7, 0.9999), 8, "log2 near 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_exp_weight),
        cmocka_unit_test(test_exp_limits),
        cmocka_unit_test(test_log2),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
