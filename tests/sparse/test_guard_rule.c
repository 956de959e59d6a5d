/* The guard's rule, case by case. */
#include "test.h"

#include "sparse/guard.h"

static const DsviGuard guard = {
    .min_mass = 0.85, .min_head_mass = 0.1, .max_density = 0.5, .hysteresis = 0.02};

static bool decide_by(const DsviGuard *by, DsviGuardView view, const char *words)
{
    char line[320], again[320];
    int32_t reason = 0;
    bool sparse = dsvi_guard_decide(by, &view, 3, &reason, line, sizeof line);
    bool stays_dense = !view.sparse && view.measured && !sparse;
    assert_int_equal(line[0] != 0, sparse != view.sparse || stays_dense);
    assert_int_equal(reason != 0, !sparse && line[0]);
    if (!strstr(line, words))
        fail_msg("'%s' lacks '%s'", line, words);
    if (stays_dense) { /* the reason is given once */
        assert_non_null(strstr(line, "block 3 stays dense: its "));
        assert_false(dsvi_guard_decide(by, &view, 3, &reason, again, sizeof again));
        assert_string_equal(again, "");
    }
    return sparse;
}

/* Decides for a block whose worst head captures as much mass as the block. */
static bool decide(DsviGuardView view, const char *words)
{
    view.head_captured = view.captured;
    return decide_by(&guard, view, words);
}

static void test_turns_sparse(void **state)
{
    (void)state;
    DsviGuardView view = {.measured = true, .fit = true, .captured = 0.91, .density = 0.22};
    assert_true(decide(view,
                       "block 3 turns sparse: its lists hold 0.91 of the attention mass (at least 0.85 "
                       "required) at density 0.22 (at most 0.50); head 0, the worst, holds 0.91 (at least "
                       "0.10 required)"));
    view.captured = 0.85, view.density = 0.5; /* exactly at the bounds */
    assert_true(decide(view, "sparse"));
    view.captured = 0.8499;
    assert_false(decide(view, ""));
    view.captured = 0.95, view.density = 0.5001;
    assert_false(decide(view, ""));
    DsviGuard slow = guard; /* on a machine where lists are faster up to a density of 0.3 */
    slow.max_density = 0.3, slow.slower_above = true;
    view.head_captured = view.captured;
    assert_false(decide_by(&slow, view, "at density 0.50 (at most 0.30, above which lists are slower);"));
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
    DsviGuardView view = {.sparse = true, .measured = true, .fit = true, .captured = 0.84, .density = 0.2};
    assert_true(decide(view, ""));
    view.captured = 0.8299;
    assert_false(decide(view, "block 3 turns dense: its lists hold 0.83"));
    view.captured = 0.9, view.density = 0.5199;
    assert_true(decide(view, ""));
    view.density = 0.5201;
    assert_false(decide(view, "turns dense"));
    view.measured = false; /* without a new measurement nothing changes */
    assert_true(decide(view, ""));
    view.measured = true, view.density = 0.1, view.captured = NAN;
    assert_false(decide(view, "turns dense"));
}

/* Between the bounds and the hysteresis a sparse block stays sparse and a dense block stays dense. */
static void test_does_not_flap(void **state)
{
    (void)state;
    DsviGuardView view = {.measured = true, .fit = true, .captured = 0.84, .density = 0.51};
    assert_false(decide(view, ""));
    view.sparse = true;
    assert_true(decide(view, ""));
}

static void test_overflow(void **state)
{
    (void)state;
    DsviGuardView view = {.sparse = true,
                          .overflowed = true,
                          .captured = 0.95,
                          .density = 0.3,
                          .needed = 0.71,
                          .capacity = 0.65};
    assert_false(decide(view, "block 3 turns dense: its lists needed density 0.71 in this step (at most "
                              "0.50)"));
    view.needed = 0.45, view.capacity = 0.4;
    assert_false(decide(view, "block 3 turns dense: its lists needed density 0.45 in this step, above the "
                              "0.40 that sparse.list_memory has room for"));
    view.measured = view.fit = true;
    assert_false(decide(view, "turns dense"));
}

/* The worst head has a separate bound, with the same hysteresis. */
static void test_worst_head(void **state)
{
    (void)state;
    DsviGuardView view = {.measured = true,
                          .fit = true,
                          .captured = 0.9,
                          .density = 0.2,
                          .worst_head = 7,
                          .head_captured = 0.1};
    assert_true(decide_by(&guard, view, "head 7, the worst, holds 0.10 (at least 0.10 required)"));
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
                  "0.85 required) at density 0.20 (at most 0.50); head 7, the worst, holds 0.08 (at least"));
}

/* The bound for the worst head is at most the bound for the mean over heads; if the bound for the mean is 0,
 * there is no bound for heads. */
static void test_head_bound_is_at_most_block_bound(void **state)
{
    (void)state;
    DsviGuard low = {.min_mass = 0.05, .min_head_mass = 0.1, .max_density = 0.5};
    DsviGuardView view = {
        .measured = true, .fit = true, .captured = 0.9, .density = 0.2, .head_captured = 0.05};
    assert_true(decide_by(&low, view, "the worst, holds 0.05 (at least 0.05 required)"));
    view.head_captured = 0.0499;
    assert_false(decide_by(&low, view, ""));
    low.min_mass = 0;
    view.head_captured = 0;
    assert_true(decide_by(&low, view, "the worst, holds 0.00 (at least 0.00 required)"));
}

/* The overflow flag of a dense block comes from an earlier step and changes nothing. */
static void test_overflow_of_a_dense_block(void **state)
{
    (void)state;
    DsviGuardView view = {.overflowed = true, .needed = 0.71, .capacity = 0.65};
    assert_false(decide(view, ""));
    view.measured = view.fit = true, view.captured = 0.9, view.density = 0.2;
    assert_true(decide(view, "turns sparse"));
}

/* Decides for a dense block after *reason was given, and fails unless the line is `expected`. */
static void stays_dense(const DsviGuard *by, DsviGuardView view, int32_t *reason, const char *expected)
{
    char line[320];
    assert_false(dsvi_guard_decide(by, &view, 5, reason, line, sizeof line));
    assert_string_equal(line, expected);
}

/* A dense block that stays dense gets a sentence at its first measurement, and another one only when the
 * reason that was given no longer holds. */
static void test_reason_for_staying_dense(void **state)
{
    (void)state;
    int32_t reason = 0;
    DsviGuardView view = {.fit = true, .captured = 0.7, .head_captured = 0.05, .density = 0.2};
    stays_dense(&guard, view, &reason, ""); /* nothing was measured */
    view.measured = true;
    stays_dense(&guard, view, &reason,
                "block 5 stays dense: its lists hold 0.70 of the attention mass (at least 0.85 required) at "
                "density 0.20 (at most 0.50); head 0, the worst, holds 0.05 (at least 0.10 required)");
    view.captured = 0.8;
    stays_dense(&guard, view, &reason, ""); /* the mass of the block is still too small */
    view.density = 0.6;
    stays_dense(&guard, view, &reason, "");
    view.captured = 0.9, view.density = 0.2;
    stays_dense(&guard, view, &reason,
                "block 5 stays dense: its lists hold 0.90 of the attention mass (at least 0.85 required) at "
                "density 0.20 (at most 0.50); head 0, the worst, holds 0.05 (at least 0.10 required)");
    view.captured = 0.7;
    stays_dense(&guard, view, &reason, ""); /* the mass of the worst head is still too small */
    view.fit = false, view.needed = 0.45, view.capacity = 0.4;
    stays_dense(&guard, view, &reason,
                "block 5 stays dense: its lists needed density 0.45 in this step, above the 0.40 that "
                "sparse.list_memory has room for");
    stays_dense(&guard, view, &reason, "");
    view.fit = true, view.captured = view.head_captured = 0.9, view.density = 0.6;
    stays_dense(&guard, view, &reason,
                "block 5 stays dense: its lists hold 0.90 of the attention mass (at least 0.85 required) at "
                "density 0.60 (at most 0.50); head 0, the worst, holds 0.90 (at least 0.10 required)");
}

/* The sentence about a change gives a reason too, which is not repeated while the block stays dense. */
static void test_reason_after_a_change(void **state)
{
    (void)state;
    char line[320];
    int32_t reason = 0;
    DsviGuardView view = {.sparse = true, .overflowed = true, .needed = 0.71, .capacity = 0.65};
    assert_false(dsvi_guard_decide(&guard, &view, 5, &reason, line, sizeof line));
    assert_non_null(strstr(line, "block 5 turns dense: its lists needed density 0.71"));
    view.sparse = view.overflowed = false;
    view.measured = true;
    stays_dense(&guard, view, &reason, "");
    view.fit = true, view.captured = view.head_captured = 0.9, view.density = 0.2;
    assert_true(dsvi_guard_decide(&guard, &view, 5, &reason, line, sizeof line));
    assert_int_equal(reason, 0);
    view.sparse = true, view.captured = 0.5;
    assert_false(dsvi_guard_decide(&guard, &view, 5, &reason, line, sizeof line));
    assert_non_null(strstr(line, "block 5 turns dense: its lists hold 0.50"));
    view.sparse = false;
    stays_dense(&guard, view, &reason, "");
}

static const DsviGuard by_error = {.by_error = true,
                                   .min_mass = 1,
                                   .min_head_mass = 1,
                                   .max_error = 0.35,
                                   .max_head_error = 0.9,
                                   .max_density = 0.5,
                                   .hysteresis = 0.02};

/* With a tail the output error decides, not captured mass, which is 0 here. */
static void test_error_decides(void **state)
{
    (void)state;
    DsviGuardView view = {.measured = true, .fit = true, .density = 0.05, .worst_head = 2};
    view.error = 0.35, view.head_error = 0.9; /* exactly at the bounds */
    assert_true(
        decide_by(&by_error, view,
                  "block 3 turns sparse: its output over lists and tail has a relative error of 0.35 "
                  "(at most 0.35 allowed) at density 0.05 (at most 0.50); head 2, the worst, has 0.90 "
                  "(at most 0.90 allowed)"));
    view.error = 0.3501;
    assert_false(decide_by(&by_error, view, "stays dense: its output over lists and tail has"));
    view.error = NAN;
    assert_false(decide_by(&by_error, view, ""));
    view.error = 0.2, view.head_error = 0.9001;
    assert_false(decide_by(&by_error, view, ""));
    view.head_error = NAN;
    assert_false(decide_by(&by_error, view, ""));
    view.head_error = 0.5, view.density = 0.51;
    assert_false(decide_by(&by_error, view, ""));
}

static void test_error_beyond_the_hysteresis(void **state)
{
    (void)state;
    DsviGuardView view = {.sparse = true, .measured = true, .fit = true, .density = 0.05};
    view.error = 0.3699, view.head_error = 0.9199;
    assert_true(decide_by(&by_error, view, ""));
    view.error = 0.3701;
    assert_false(decide_by(&by_error, view, "block 3 turns dense: its output over lists and tail has"));
    view.error = 0.1, view.head_error = 0.9201;
    assert_false(decide_by(&by_error, view, "the worst, has 0.92"));
    view.error = NAN, view.head_error = 0.1;
    assert_false(decide_by(&by_error, view, "turns dense"));
}

/* A bound for the mean above the bound for the worst head replaces the latter. */
static void test_large_error_bound_holds_for_heads(void **state)
{
    (void)state;
    DsviGuard wide = by_error;
    wide.max_error = 2;
    DsviGuardView view = {.measured = true, .fit = true, .density = 0.05, .error = 1, .head_error = 2};
    assert_true(decide_by(&wide, view, "head 0, the worst, has 2.00 (at most 2.00 allowed)"));
    view.head_error = 2.001;
    assert_false(decide_by(&wide, view, ""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_turns_sparse),
        cmocka_unit_test(test_turns_dense_beyond_the_hysteresis),
        cmocka_unit_test(test_does_not_flap),
        cmocka_unit_test(test_overflow),
        cmocka_unit_test(test_worst_head),
        cmocka_unit_test(test_head_bound_is_at_most_block_bound),
        cmocka_unit_test(test_overflow_of_a_dense_block),
        cmocka_unit_test(test_reason_for_staying_dense),
        cmocka_unit_test(test_reason_after_a_change),
        cmocka_unit_test(test_error_decides),
        cmocka_unit_test(test_error_beyond_the_hysteresis),
        cmocka_unit_test(test_large_error_bound_holds_for_heads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
