/* The checker's cases of attention and of the other operations of sparse attention. */
#include "ops/case_groups.h"
#include "ops/sparse_cases.h"
#include "test.h"

static const DsviBackend *tested;

static void attention_dense(void **state)
{
    (void)state;
    check_attention_cases(tested, false);
}

static void attention_lists(void **state)
{
    (void)state;
    check_attention_cases(tested, true);
}

static void attention_tail(void **state)
{
    (void)state;
    check_attention_tail_cases(tested);
}

static void select_features(void **state)
{
    (void)state;
    check_select_features_cases(tested);
}

static void select_lists(void **state)
{
    (void)state;
    check_select_cases(tested, false);
}

static void select_coarse(void **state)
{
    (void)state;
    check_select_cases(tested, true);
}

static void select_part(void **state)
{
    (void)state;
    check_select_part_cases(tested);
}

static void select_threshold(void **state)
{
    (void)state;
    check_select_threshold_cases(tested);
}

static void list_exchange(void **state)
{
    (void)state;
    check_list_exchange_cases(tested);
}

static void profile(void **state)
{
    (void)state;
    check_profile_cases(tested);
}

static void attention_error(void **state)
{
    (void)state;
    check_attention_error_cases(tested);
}

static void predictor_loss(void **state)
{
    (void)state;
    check_predictor_loss_cases(tested);
}

int run_sparse_cases(const DsviBackend *backend)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_dense),  cmocka_unit_test(attention_lists),
        cmocka_unit_test(attention_tail),   cmocka_unit_test(select_features),
        cmocka_unit_test(select_threshold), cmocka_unit_test(select_lists),
        cmocka_unit_test(select_coarse),    cmocka_unit_test(select_part),
        cmocka_unit_test(list_exchange),    cmocka_unit_test(profile),
        cmocka_unit_test(attention_error),  cmocka_unit_test(predictor_loss),
    };
    tested = backend;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
