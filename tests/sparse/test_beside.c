/* Items done beside the caller's work: each once, all by the time that was waited for. */
#include "sparse/beside.h"
#include "test.h"

enum { THREADS = 3, ROOM = 100 };

typedef struct Count {
    int done[ROOM];
    bool strange; /* a worker's number was none */
} Count;

static void count_item(void *context, int64_t item, int worker)
{
    Count *count = context;
    count->done[item]++;
    if (worker < 0 || worker >= THREADS)
        count->strange = true;
}

static void test_items(void **state)
{
    (void)state;
    Count count = {0};
    DsvBeside *beside;
    assert_ok(dsvi_beside_create(THREADS, ROOM, count_item, &count, &beside));
    dsvi_beside_wait(beside); /* for nothing */
    for (int round = 1; round <= 20; round++) {
        dsvi_beside_add(beside, 0, ROOM / 2);
        dsvi_beside_add(beside, ROOM / 2, ROOM - ROOM / 2);
        dsvi_beside_wait(beside);
        for (int i = 0; i < ROOM; i++)
            assert_int_equal(count.done[i], round);
    }
    dsvi_beside_add(beside, 7, 1);
    dsvi_beside_free(&beside);
    assert_null(beside);
    assert_int_equal(count.done[7], 21);
    assert_false(count.strange);
    dsvi_beside_free(&beside);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_items)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
