/* The checker's cases of all operations except the transformer's attention and the other operations of sparse
 * attention. */
#include "ops/case_groups.h"
#include "ops/cases.h"
#include "test.h"

static const DsviBackend *tested;

#define CASES_TEST(name)                  \
    static void test_##name(void **state) \
    {                                     \
        (void)state;                      \
        check_##name##_cases(tested);     \
    }

CASES_TEST(gemm)
CASES_TEST(col_sum)
CASES_TEST(layer_norm)
CASES_TEST(rms_norm_rope)
CASES_TEST(activation)
CASES_TEST(gate_residual)
CASES_TEST(add)
CASES_TEST(dropout)
CASES_TEST(add_rows)
CASES_TEST(heads_move)
CASES_TEST(attention_merge)
CASES_TEST(patch)
CASES_TEST(flow)
CASES_TEST(optim)
CASES_TEST(quant)
CASES_TEST(conv)
CASES_TEST(channel_norm)
CASES_TEST(frames_move)
CASES_TEST(rms_norm)
CASES_TEST(gelu_product)
CASES_TEST(softmax)
CASES_TEST(bias_attention)

int run_dense_cases(const DsviBackend *backend)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gemm),
        cmocka_unit_test(test_col_sum),
        cmocka_unit_test(test_layer_norm),
        cmocka_unit_test(test_rms_norm_rope),
        cmocka_unit_test(test_activation),
        cmocka_unit_test(test_gate_residual),
        cmocka_unit_test(test_add),
        cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_add_rows),
        cmocka_unit_test(test_patch),
        cmocka_unit_test(test_flow),
        cmocka_unit_test(test_optim),
        cmocka_unit_test(test_quant),
        cmocka_unit_test(test_heads_move),
        cmocka_unit_test(test_attention_merge),
        cmocka_unit_test(test_conv),
        cmocka_unit_test(test_channel_norm),
        cmocka_unit_test(test_frames_move),
        cmocka_unit_test(test_rms_norm),
        cmocka_unit_test(test_gelu_product),
        cmocka_unit_test(test_softmax),
        cmocka_unit_test(test_bias_attention),
    };
    tested = backend;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
