/* test_attention_tail_golden_cpu [FOLDER]: CPU attention with a tail of each instruction set against results
 * of a PyTorch implementation in float64. With FOLDER, files of the same form in this folder are checked
 * instead of the golden files. */
#include "cpu/levels.h"
#include "golden/golden_files.h"
#include "ops/attention_tail_golden.h"
#include "test.h"

static const char *other_folder;

/* Sums of up to 83 products in F32 over rounded inputs: about ten roundings of 2^-24 are typical. */
static void f32_matches_pytorch(void **state)
{
    (void)state;
    attention_tail_golden_check(&level_backend.ops, DSVI_F32, other_folder ? TAIL_F32_BOUND : 2e-6,
                                other_folder ? other_folder : golden_path("tail_a"));
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

int main(int argc, char **argv)
{
    other_folder = argc > 1 ? argv[1] : NULL;
    return other_folder ? run_all_levels() : golden_run("tail_a", run_all_levels);
}
