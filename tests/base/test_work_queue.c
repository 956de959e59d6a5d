/* A work queue: each item is processed once, and before a wait for the item returns. */
#include "base/work_queue.h"
#include "test.h"

enum { THREADS = 3, ROOM = 100 };

typedef struct Count {
    int done[ROOM];
    bool strange; /* a worker had an invalid number */
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
    DsviWorkQueue *beside;
    assert_ok(dsvi_work_queue_create(THREADS, ROOM, count_item, &count, &beside));
    dsvi_work_queue_wait(beside); /* without any item */
    for (int round = 1; round <= 20; round++) {
        dsvi_work_queue_add(beside, 0, ROOM / 2);
        dsvi_work_queue_add(beside, ROOM / 2, ROOM - ROOM / 2);
        dsvi_work_queue_wait(beside);
        for (int i = 0; i < ROOM; i++)
            assert_int_equal(count.done[i], round);
    }
    dsvi_work_queue_add(beside, 7, 1);
    dsvi_work_queue_free(&beside);
    assert_null(beside);
    assert_int_equal(count.done[7], 21);
    assert_false(count.strange);
    dsvi_work_queue_free(&beside);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_items)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
