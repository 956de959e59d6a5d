/* CPU attention of each instruction set against results of a PyTorch implementation in float64. */
#include "cpu/levels.h"
#include "golden/golden_files.h"
#include "ops/attention_golden.h"
#include "test.h"

/* Rows of up to 236 keys and sums of 128 products in F32: about ten roundings of 2^-24 are typical. */
static void f32_matches_pytorch(void **state)
{
    (void)state;
    attention_golden_check(&level_backend.ops, DSVI_F32, 2e-6);
}

static int run(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(f32_matches_pytorch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

static int run_all_levels(void)
{
    return run_levels(DSVI_ISA_BASE, run);
}

int main(void)
{
    return golden_run("attention", run_all_levels);
}
