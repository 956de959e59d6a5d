/* dsvi_link_times: all ranks of a cp group measure, and all get the same numbers. */
#include "test.h"

#include "cp/link_times.h"
#include "cpu/cpu.h"
#include "dist/local_ranks.h"

enum { BYTES_MAX = 3 << 17 };

static DsviBackend backend;
static DsviCpCosts found[RANKS_MAX];

/* `context` points to head_ranks of all plans, or is NULL. */
static DsvStatus measure(DsviComm *comm, void *context)
{
    DsviCpGroup *group;
    DSVI_TRY(dsvi_cp_group_create(&backend, comm, context ? *(int64_t *)context : 0, &group));
    DsvStatus status = dsvi_link_times(group, BYTES_MAX, &found[dsvi_comm_rank(comm)]);
    dsvi_cp_group_close(&group);
    return dsvi_comm_fail(comm, status);
}

static void check_curve(const DsviPriceCurve *curve)
{
    assert_int_equal(curve->count, 2);
    assert_true(curve->x[0] == 1 << 16 && curve->x[1] == BYTES_MAX);
    assert_true(curve->y[0] > 0 && curve->y[1] >= curve->y[0] && curve->y[1] < 60);
}

static void test_measured(int64_t ranks, int64_t degrees, const int64_t *degree)
{
    memset(found, 0, sizeof found);
    run_ranks_well(ranks, measure, NULL);
    assert_int_equal(found[0].link_count, degrees);
    assert_false(found[0].beside); /* on the CPU the calling thread copies the bytes */
    assert_true(ranks == 1 || (found[0].touch > 0 && found[0].touch < 1e-3));
    for (int64_t i = 0; i < degrees; i++) {
        const DsviLinkCost *link = dsvi_costs_link(&found[0], degree[i]);
        assert_non_null(link);
        check_curve(&link->head_exchange);
        check_curve(&link->sequence_exchange);
        check_curve(&link->sequence_swap);
    }
    for (int64_t r = 1; r < ranks; r++)
        assert_memory_equal(&found[r], &found[0], sizeof found[0]);
}

static void test_ranks(void **state)
{
    (void)state;
    test_measured(4, 2, (const int64_t[]){2, 4});
    test_measured(3, 1, (const int64_t[]){3});
    test_measured(6, 3, (const int64_t[]){2, 3, 6});
}

/* 4 x 2 of 8 ranks: head groups of 2, sequence groups of 4, and the cp group of 8. */
static void test_one_degree(void **state)
{
    int64_t head_ranks = 2;
    (void)state;
    memset(found, 0, sizeof found);
    run_ranks_well(8, measure, &head_ranks);
    assert_int_equal(found[0].link_count, 3);
    const DsviLinkCost *rows = dsvi_costs_link(&found[0], 2), *columns = dsvi_costs_link(&found[0], 4);
    const DsviLinkCost *all = dsvi_costs_link(&found[0], 8);
    assert_true(rows && columns && all);
    check_curve(&rows->head_exchange);
    check_curve(&columns->sequence_exchange);
    check_curve(&columns->sequence_swap);
    check_curve(&all->head_exchange);
    assert_true(rows->sequence_exchange.count == 0 && columns->head_exchange.count == 0);
}

static DsvStatus little(DsviDevice *device, size_t bytes, void **out)
{
    static _Atomic int calls;
    *out = NULL;
    if (bytes > 4 << 16 && calls++ % 2)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no %zu bytes", bytes);
    *out = malloc(bytes);
    (void)device;
    return DSV_OK;
}

/* Every other rank can allocate only part of the memory: all ranks use the smaller size. */
static void test_little_memory(void **state)
{
    DsvStatus (*alloc)(DsviDevice *, size_t, void **) = backend.device->mem_alloc;
    (void)state;
    backend.device->mem_alloc = little;
    memset(found, 0, sizeof found);
    run_ranks_well(2, measure, NULL);
    backend.device->mem_alloc = alloc;
    for (int r = 0; r < 2; r++) {
        const DsviPriceCurve *curve = &dsvi_costs_link(&found[r], 2)->head_exchange;
        assert_int_equal(curve->count, 2);
        assert_true(curve->x[1] == 3 << 16);
    }
}

static void test_alone(void **state)
{
    (void)state;
    test_measured(1, 0, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_one_degree),
        cmocka_unit_test(test_little_memory),
    };
    assert_ok(dsvi_cpu_open("auto", 1, &backend));
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    dsvi_cpu_close(&backend);
    return failures;
}
