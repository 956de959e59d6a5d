/* Groups of ranks that are threads: every call against plain loops (comm_cases.c), equal bits in every
 * repetition, failures that reach all ranks, and ranks that miss a call. */
#include "test.h"

#include <unistd.h>

#include "comm_cases.h"
#include "local_ranks.h"

static void calls(void **state)
{
    (void)state;
    for (int64_t size = 1; size <= 5; size++)
        for (const CommCase *c = comm_cases; c->name; c++)
            run_ranks_well(size, c->run, NULL);
}

/* A group of one rank. */
static void alone(void **state)
{
    (void)state;
    for (const CommCase *c = comm_cases; c->name; c++)
        assert_ok(c->run(NULL, NULL));
}

static void bounds_cover_everything(void **state)
{
    int64_t bound[RANKS_MAX + 1];
    (void)state;
    for (int64_t size = 1; size <= RANKS_MAX; size++)
        for (int64_t n = 0; n < 200; n++) {
            dsvi_comm_even_bounds(n, 16, size, bound);
            assert_int_equal(bound[0], 0);
            assert_int_equal(bound[size], n);
            for (int64_t r = 0; r < size; r++) {
                assert_true(bound[r] <= bound[r + 1]);
                assert_true(bound[r + 1] == n || bound[r + 1] % 16 == 0);
                assert_true(bound[r + 1] - bound[r] <= (n / size / 16 + 1) * 16);
            }
        }
}

static DsvStatus one_fails(DsviComm *comm, void *context)
{
    double number = 1;
    DSVI_TRY(dsvi_comm_all_reduce(comm, DSVI_F64, &number, 1));
    if (dsvi_comm_rank(comm) == *(int64_t *)context)
        return dsvi_comm_fail(comm, DSVI_FAIL(DSV_E_IO, "the disk is full"));
    for (;;)
        DSVI_TRY(dsvi_comm_all_reduce(comm, DSVI_F64, &number, 1));
}

static void a_failure_reaches_all(void **state)
{
    RankOutcome outcome[RANKS_MAX];
    (void)state;
    for (int64_t failing = 0; failing < 3; failing++) {
        run_ranks(3, 60, one_fails, &failing, outcome);
        for (int64_t r = 0; r < 3; r++) {
            char expected[64];
            snprintf(expected, sizeof expected, "rank %d: the disk is full", (int)failing);
            assert_int_equal(outcome[r].status, r == failing ? DSV_E_IO : DSV_E_RANK);
            assert_string_equal(outcome[r].sentence, expected);
        }
    }
}

static DsvStatus fails_in_a_group(DsviComm *comm, void *context)
{
    DsviComm *pair;
    double number = 1;
    (void)context;
    DSVI_TRY(dsvi_comm_split(comm, dsvi_comm_rank(comm) / 2, &pair));
    if (dsvi_comm_rank(comm) == 3) {
        dsvi_comm_close(&pair);
        return dsvi_comm_fail(comm, DSVI_FAIL(DSV_E_NO_MEMORY, "no memory"));
    }
    DsvStatus status = DSV_OK;
    while (status == DSV_OK)
        status = dsvi_comm_all_reduce(pair, DSVI_F64, &number, 1);
    dsvi_comm_close(&pair);
    return status;
}

/* Rank 3 fails. Ranks 0 and 1 communicate in a group without rank 3, and learn of the failure too. */
static void a_failure_leaves_its_group(void **state)
{
    RankOutcome outcome[RANKS_MAX];
    (void)state;
    run_ranks(4, 60, fails_in_a_group, NULL, outcome);
    for (int r = 0; r < 4; r++)
        assert_string_equal(outcome[r].sentence, "rank 3: no memory");
}

static DsvStatus one_is_late(DsviComm *comm, void *context)
{
    (void)context;
    if (dsvi_comm_rank(comm) == 1) {
        usleep(400000);
        return DSV_OK;
    }
    return dsvi_comm_barrier(comm);
}

static void a_rank_that_does_not_come_is_named(void **state)
{
    RankOutcome outcome[RANKS_MAX];
    (void)state;
    run_ranks(3, 0.1, one_is_late, NULL, outcome);
    for (int r = 0; r < 3; r += 2) {
        assert_int_equal(outcome[r].status, DSV_E_RANK);
        assert_string_equal(outcome[r].sentence, "rank 1 has not come to barrier for 0.1 s");
    }
}

static void different_lengths_are_reported(void **state)
{
    RankOutcome outcome[RANKS_MAX];
    (void)state;
    run_ranks(2, 60, comm_lengths_differ, NULL, outcome);
    assert_int_equal(outcome[0].status, DSV_E_INTERNAL);
    assert_non_null(strstr(outcome[0].sentence, "rank 1 sends 3 bytes, rank 0 expects 4"));
    assert_int_equal(outcome[1].status, DSV_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls),
        cmocka_unit_test(alone),
        cmocka_unit_test(bounds_cover_everything),
        cmocka_unit_test(a_failure_reaches_all),
        cmocka_unit_test(a_failure_leaves_its_group),
        cmocka_unit_test(a_rank_that_does_not_come_is_named),
        cmocka_unit_test(different_lengths_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
