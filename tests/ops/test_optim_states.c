/* The values of 8-bit optimizer states (ops/optim.h), compared with their definition. */
#include "test.h"

#include "ops/optim.h"

static void values_follow_their_definition(void **state)
{
    float with_sign[DSVI_STATE_VALUES], positive[DSVI_STATE_VALUES];
    (void)state;
    dsvi_state_values(true, with_sign);
    dsvi_state_values(false, positive);
    for (int i = 1; i < DSVI_STATE_VALUES; i++) {
        assert_true(with_sign[i] > with_sign[i - 1]);
        assert_true(positive[i] > positive[i - 1]);
    }
    /* 127 negative values, 0, 127 positive values and 1: the largest power of ten has 64 values of each
     * sign, the smallest one */
    assert_true(with_sign[127] == 0 && with_sign[255] == 1);
    assert_true(positive[0] == 0 && positive[255] == 1);
    assert_error_below(fabs(with_sign[254] - (1 - 0.9 / 128)), 1e-7, "largest value below 1");
    assert_error_below(fabs(with_sign[191] - (0.1 + 0.9 / 128)), 1e-7, "smallest of the first power");
    assert_error_below(fabs(with_sign[190] - 0.1 * (1 - 0.9 / 64)), 1e-7, "largest of the second power");
    assert_error_below(fabs(with_sign[128] / 0.55e-6 - 1), 1e-6, "smallest positive value");
    for (int i = 0; i < 127; i++)
        assert_true(with_sign[i] == -with_sign[254 - i]);
    assert_error_below(fabs(positive[1] / 0.325e-6 - 1), 1e-6, "smallest value without a sign");
    assert_error_below(fabs(positive[254] - (1 - 0.9 / 256)), 1e-7, "largest value without a sign");
}

/* The nearest value by comparing all. */
static int nearest(const float *values, float x)
{
    int best = 0;
    for (int i = 1; i < DSVI_STATE_VALUES; i++)
        best = fabsf(values[i] - x) < fabsf(values[best] - x) ? i : best;
    return best;
}

static void codes_are_nearest(void **state)
{
    float values[DSVI_STATE_VALUES];
    (void)state;
    for (int with_sign = 0; with_sign < 2; with_sign++) {
        dsvi_state_values(with_sign, values);
        for (int i = 0; i < DSVI_STATE_VALUES; i++)
            assert_int_equal(dsvi_state_code(values, values[i]), i);
        for (uint64_t i = 0; i < 20000; i++) {
            double u = dsvi_rng_uniform((DsviRng){1, DSVI_RNG_TEST, 0}, i);
            float x = (float)(pow(10, -8 * u) * (with_sign && i % 2 ? -1 : 1));
            assert_int_equal(dsvi_state_code(values, x), nearest(values, x));
        }
    }
    assert_int_equal(dsvi_state_code(values, 2), 255);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_follow_their_definition),
        cmocka_unit_test(codes_are_nearest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
