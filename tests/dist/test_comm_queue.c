/* The queue of calls (dist/comm_queue.h), with and without a worker thread: work is done in order, can be
 * awaited, and is dropped after a failure. */
#include "test.h"

#include <pthread.h>
#include <unistd.h>

#include "dist/comm_queue.h"

enum { ITEMS = 200, ROOM = 200 };

typedef struct Log {
    pthread_t caller;
    int64_t item[ITEMS];
    _Atomic int64_t count; /* read while the worker writes items */
    int64_t failing;       /* the item that fails; -1: none */
    bool by_caller;
} Log;

static DsvStatus note(void *context, int64_t item)
{
    Log *log = context;
    if (item % 50 == 0)
        usleep(2000);
    if (item == log->failing)
        return DSVI_FAIL(DSV_E_IO, "item %d does not want", (int)item);
    log->by_caller = pthread_equal(log->caller, pthread_self());
    log->item[log->count++] = item;
    return DSV_OK;
}

static void in_order(bool with_thread)
{
    DsviCommQueue *queue;
    Log log = {.caller = pthread_self(), .failing = -1};
    int64_t middle = 0;
    assert_ok(dsvi_comm_queue_create(ROOM, with_thread, &queue));
    for (int64_t i = 0; i < ITEMS; i++) {
        int64_t number = dsvi_comm_queue_put(queue, note, &log, i);
        middle = i == 60 ? number : middle;
    }
    assert_ok(dsvi_comm_queue_wait(queue, 0));
    assert_ok(dsvi_comm_queue_wait(queue, middle));
    assert_true(log.count > 60);
    assert_ok(dsvi_comm_queue_finish(queue));
    assert_int_equal(log.count, ITEMS);
    for (int64_t i = 0; i < ITEMS; i++)
        assert_int_equal(log.item[i], i);
    assert_int_equal(log.by_caller, !with_thread);
    dsvi_comm_queue_free(&queue);
    assert_null(queue);
}

static void work_is_done_in_order(void **state)
{
    (void)state;
    in_order(true);
    in_order(false);
}

/* Work before a failure is done. Work after it is dropped, until the failure has been returned to the
 * caller. */
static void a_failure_drops_later_work(void **state)
{
    (void)state;
    for (int with_thread = 0; with_thread < 2; with_thread++) {
        DsviCommQueue *queue;
        Log log = {.failing = 5};
        int64_t number[10];
        assert_ok(dsvi_comm_queue_create(ROOM, with_thread, &queue));
        for (int64_t i = 0; i < 10; i++)
            number[i] = dsvi_comm_queue_put(queue, note, &log, i);
        assert_fails(DSV_E_IO, "item 5 does not want", dsvi_comm_queue_wait(queue, number[8]));
        assert_fails(DSV_E_IO, "item 5 does not want", dsvi_comm_queue_finish(queue));
        assert_int_equal(log.count, 5);
        dsvi_comm_queue_put(queue, note, &log, 11);
        assert_ok(dsvi_comm_queue_finish(queue));
        assert_int_equal(log.item[5], 11);
        dsvi_comm_queue_free(&queue);
    }
    dsvi_comm_queue_free(&(DsviCommQueue *){NULL});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(work_is_done_in_order),
        cmocka_unit_test(a_failure_drops_later_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
