/* CPU attention at every instruction-set level against results of a PyTorch implementation in float64. */
#include "cpu/levels.h"
#include "ops/attention_golden.h"
#include "test.h"

/* Rows of up to 236 keys and sums of 128 products in F32: some ten roundings of 2^-24 are typical. */
static void in_single(void **state)
{
    (void)state;
    attention_golden_check(&level_backend.ops, DSV_F32, 2e-6);
}

static int run(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(in_single)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
    skip_without_shared("fixtures/attention/fixture.json");
    return run_levels(DSV_ISA_BASE, run);
}
