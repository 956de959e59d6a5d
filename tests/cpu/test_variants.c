/* Every variant of every op, from the scalar truth to the best this machine has, against the checker. */
#include "cpu/levels.h"
#include "ops/cases.h"
#include "test.h"

#define VARIANT_TEST(name)                       \
    static void test_##name(void **state)        \
    {                                            \
        (void)state;                             \
        check_##name##_cases(&level_backend);    \
    }

VARIANT_TEST(gemm)
VARIANT_TEST(col_sum)
VARIANT_TEST(layer_norm)
VARIANT_TEST(rms_norm_rope)
VARIANT_TEST(activation)
VARIANT_TEST(gate_residual)
VARIANT_TEST(add)
VARIANT_TEST(add_rows)
VARIANT_TEST(patch)
VARIANT_TEST(flow)
VARIANT_TEST(optim)

static int run(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gemm),          cmocka_unit_test(test_col_sum),
        cmocka_unit_test(test_layer_norm),    cmocka_unit_test(test_rms_norm_rope),
        cmocka_unit_test(test_activation),    cmocka_unit_test(test_gate_residual),
        cmocka_unit_test(test_add),           cmocka_unit_test(test_add_rows),
        cmocka_unit_test(test_patch),         cmocka_unit_test(test_flow),
        cmocka_unit_test(test_optim),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
    return run_levels(DSV_ISA_REF, run);
}
