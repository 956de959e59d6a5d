/* Every CPU variant of attention and of what sparse attention is made of, against the checker. */
#include "cpu/levels.h"
#include "ops/sparse_cases.h"
#include "test.h"

static void attention(void **state)
{
    (void)state;
    check_attention_cases(&level_backend);
}

static void select_features(void **state)
{
    (void)state;
    check_select_features_cases(&level_backend);
}

static void select_lists(void **state)
{
    (void)state;
    check_select_cases(&level_backend);
}

static void profile(void **state)
{
    (void)state;
    check_profile_cases(&level_backend);
}

static void predictor_loss(void **state)
{
    (void)state;
    check_predictor_loss_cases(&level_backend);
}

static int run(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention),
        cmocka_unit_test(select_features),
        cmocka_unit_test(select_lists),
        cmocka_unit_test(profile),
        cmocka_unit_test(predictor_loss),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
    return run_levels(DSV_ISA_BASE, run);
}
