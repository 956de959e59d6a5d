/* The truth of attention against results of a PyTorch implementation in float64. */
#include "ops/attention_golden.h"

#include "test.h"

/* Both sides compute in double and only the order of the sums differs. */
static void in_double(void **state)
{
    DsvOps ops;
    (void)state;
    dsvi_ops_fill_ref(&ops);
    attention_golden_check(&ops, DSV_F64, 1e-13);
}

/* Inputs are stored in F32, results are rounded to it, and backward reads rounded out and lse: a few
 * times 2^-24, and lse of about 5 in F32 shifts every p by up to 2^-22. */
static void in_single(void **state)
{
    DsvOps ops;
    (void)state;
    dsvi_ops_fill_ref(&ops);
    attention_golden_check(&ops, DSV_F32, 1e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(in_double), cmocka_unit_test(in_single)};
    skip_without_shared("fixtures/attention/fixture.json");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
