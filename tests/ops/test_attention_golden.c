/* The reference implementation of attention against results of a PyTorch implementation in float64. */
#include "ops/attention_golden.h"

#include "golden/golden_files.h"
#include "test.h"

/* Both implementations compute in double; only the order of sums differs. */
static void f64_matches_pytorch(void **state)
{
    DsviOps ops;
    (void)state;
    dsvi_ops_fill_ref(&ops);
    attention_golden_check(&ops, DSVI_F64, 1e-13);
}

/* Inputs are stored in F32, results are rounded to F32, and the backward pass reads rounded out and lse. The
 * errors are a few times 2^-24; rounding an lse of about 5 to F32 changes every p by up to 2^-22. */
static void f32_matches_pytorch(void **state)
{
    DsviOps ops;
    (void)state;
    dsvi_ops_fill_ref(&ops);
    attention_golden_check(&ops, DSVI_F32, 1e-6);
}

static int run(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f64_matches_pytorch),
        cmocka_unit_test(f32_matches_pytorch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
    return golden_run("attention", run);
}
