/* The guard's rule, case by case. */
#include "test.h"

#include "sparse/dispatch.h"

static const DsvGuard guard = {.min_mass = 0.85,
                               .min_head_mass = 0.1,
                               .max_density = 0.5,
                               .hysteresis = 0.02};

static bool decide_by(const DsvGuard *by, DsvGuardView view, const char *words)
{
    char line[256];
    bool sparse = dsvi_guard_decide(by, &view, 3, line, sizeof line);
    assert_int_equal(line[0] != 0, sparse != view.sparse); /* a line for every change and none else */
    if (!strstr(line, words))
        fail_msg("'%s' lacks '%s'", line, words);
    return sparse;
}

/* Heads hold no less than the block. */
static bool decide(DsvGuardView view, const char *words)
{
    view.head_captured = view.captured;
    return decide_by(&guard, view, words);
}

static void test_turns_sparse(void **state)
{
    (void)state;
    DsvGuardView view = {.measured = true, .fit = true, .captured = 0.91, .density = 0.22};
    assert_true(
        decide(view,
               "block 3 turns sparse: its lists hold 0.91 of the attention mass (at least 0.85 "
               "wanted) at density 0.22 (at most 0.50); head 0, the worst, holds 0.91 (at least "
               "0.10 wanted)"));
    view.captured = 0.85, view.density = 0.5; /* bounds are included */
    assert_true(decide(view, "sparse"));
    view.captured = 0.8499;
    assert_false(decide(view, ""));
    view.captured = 0.95, view.density = 0.5001;
    assert_false(decide(view, ""));
    view.density = 0.2, view.fit = false;
    assert_false(decide(view, ""));
    view.fit = true, view.measured = false;
    assert_false(decide(view, ""));
    view.measured = true, view.captured = NAN;
    assert_false(decide(view, ""));
    view.captured = 0.95, view.density = NAN;
    assert_false(decide(view, ""));
}

static void test_turns_dense_beyond_the_hysteresis(void **state)
{
    (void)state;
    DsvGuardView view = {.sparse = true, .measured = true, .fit = true, .captured = 0.84, .density = 0.2};
    assert_true(decide(view, ""));
    view.captured = 0.8299;
    assert_false(decide(view, "block 3 turns dense: its lists hold 0.83"));
    view.captured = 0.9, view.density = 0.5199;
    assert_true(decide(view, ""));
    view.density = 0.5201;
    assert_false(decide(view, "turns dense"));
    view.measured = false; /* no news, no change */
    assert_true(decide(view, ""));
    view.measured = true, view.density = 0.1, view.captured = NAN;
    assert_false(decide(view, "turns dense"));
}

/* Between the bounds and the slack a block stays where it is, whichever side that is. */
static void test_does_not_flap(void **state)
{
    (void)state;
    DsvGuardView view = {.measured = true, .fit = true, .captured = 0.84, .density = 0.51};
    assert_false(decide(view, ""));
    view.sparse = true;
    assert_true(decide(view, ""));
}

static void test_overflow(void **state)
{
    (void)state;
    DsvGuardView view = {.sparse = true, .overflowed = true, .captured = 0.95, .density = 0.3, .needed = 0.71,
                         .capacity = 0.65};
    assert_false(decide(view, "block 3 turns dense: its lists needed density 0.71 in this step, above the "
                        "0.65"));
    view.measured = view.fit = true;
    assert_false(decide(view, "turns dense"));
}

/* The worst head has a bound of its own, with the same slack. */
static void test_worst_head(void **state)
{
    (void)state;
    DsvGuardView view = {.measured = true,
                         .fit = true,
                         .captured = 0.9,
                         .density = 0.2,
                         .worst_head = 7,
                         .head_captured = 0.1};
    assert_true(decide_by(&guard, view, "head 7, the worst, holds 0.10 (at least 0.10 wanted)"));
    view.head_captured = 0.0999;
    assert_false(decide_by(&guard, view, ""));
    view.head_captured = NAN;
    assert_false(decide_by(&guard, view, ""));
    view.sparse = true;
    assert_false(decide_by(&guard, view, "turns dense"));
    view.head_captured = 0.0801;
    assert_true(decide_by(&guard, view, ""));
    view.head_captured = 0.0799;
    assert_false(
        decide_by(&guard, view,
                  "block 3 turns dense: its lists hold 0.90 of the attention mass (at least "
                  "0.85 wanted) at density 0.20 (at most 0.50); head 7, the worst, holds 0.08 (at least"));
}

/* No head must hold more than the mean over heads must: without a bound on the mean there is none. */
static void test_bound_of_heads_is_at_most_that_of_the_block(void **state)
{
    (void)state;
    DsvGuard low = {.min_mass = 0.05, .min_head_mass = 0.1, .max_density = 0.5};
    DsvGuardView view = {.measured = true,
                         .fit = true,
                         .captured = 0.9,
                         .density = 0.2,
                         .head_captured = 0.05};
    assert_true(decide_by(&low, view, "the worst, holds 0.05 (at least 0.05 wanted)"));
    view.head_captured = 0.0499;
    assert_false(decide_by(&low, view, ""));
    low.min_mass = 0;
    view.head_captured = 0;
    assert_true(decide_by(&low, view, "the worst, holds 0.00 (at least 0.00 wanted)"));
}

/* A dense block cannot have overflowed: what is left of an earlier step changes nothing. */
static void test_overflow_of_a_dense_block(void **state)
{
    (void)state;
    DsvGuardView view = {.overflowed = true, .needed = 0.71, .capacity = 0.65};
    assert_false(decide(view, ""));
    view.measured = view.fit = true, view.captured = 0.9, view.density = 0.2;
    assert_true(decide(view, "turns sparse"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_turns_sparse),
        cmocka_unit_test(test_turns_dense_beyond_the_hysteresis),
        cmocka_unit_test(test_does_not_flap),
        cmocka_unit_test(test_overflow),
        cmocka_unit_test(test_worst_head),
        cmocka_unit_test(test_bound_of_heads_is_at_most_that_of_the_block),
        cmocka_unit_test(test_overflow_of_a_dense_block),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
