/* test_attention_tail_golden [FOLDER]: the reference implementation of attention with a tail against results
 * of a PyTorch implementation in float64. With FOLDER, files of the same form in this folder are checked
 * instead of the golden files. */
#include "golden/golden_files.h"
#include "ops/attention_tail_golden.h"
#include "test.h"

static const char *other_folder;

static const char *tail_folder(void)
{
    return other_folder ? other_folder : golden_path("tail_a");
}

/* Both implementations compute in double; only the order of sums differs. */
static void f64_matches_pytorch(void **state)
{
    DsviOps ops;
    (void)state;
    dsvi_ops_fill_ref(&ops);
    attention_tail_golden_check(&ops, DSVI_F64, other_folder ? TAIL_F64_BOUND : 1e-13, tail_folder());
}

/* Inputs are rounded to F32, results are rounded to F32, and the backward pass reads rounded out and lse. The
 * errors are a few times 2^-24; rounding an lse of about 5 to F32 changes every p by up to 2^-22. */
static void f32_matches_pytorch(void **state)
{
    DsviOps ops;
    (void)state;
    dsvi_ops_fill_ref(&ops);
    attention_tail_golden_check(&ops, DSVI_F32, other_folder ? TAIL_F32_BOUND : 1e-6, tail_folder());
}

static int run(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f64_matches_pytorch),
        cmocka_unit_test(f32_matches_pytorch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(int argc, char **argv)
{
    other_folder = argc > 1 ? argv[1] : NULL;
    return other_folder ? run() : golden_run("tail_a", run);
}
