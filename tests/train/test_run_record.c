/* When a run reports that it waits for samples. */
#include "test.h"

#include "run/run_record.h"

static void a_long_wait_is_told_once(void **state)
{
    DsviWaitWatch watch = {0};
    (void)state;
    for (int step = 0; step < 2 * DSVI_WAIT_STEPS; step++) /* exactly a tenth is allowed */
        assert_false(dsvi_wait_watch_step(&watch, 0.125 * (step % 2), 1.25));
    for (int step = 1; step < DSVI_WAIT_STEPS; step++)
        assert_false(dsvi_wait_watch_step(&watch, 0.25, 1));
    assert_true(dsvi_wait_watch_step(&watch, 0.25, 1));
    for (int step = 0; step < 5 * DSVI_WAIT_STEPS; step++)
        assert_false(dsvi_wait_watch_step(&watch, 0.5, 1));
}

/* One long wait is compensated by steps without waits. */
static void what_counts_is_the_sum(void **state)
{
    DsviWaitWatch watch = {0};
    (void)state;
    assert_false(dsvi_wait_watch_step(&watch, 2, 3));
    for (int step = 1; step < 3 * DSVI_WAIT_STEPS; step++)
        assert_false(dsvi_wait_watch_step(&watch, 0, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_wait_is_told_once),
        cmocka_unit_test(what_counts_is_the_sum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
