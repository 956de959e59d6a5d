/* The table of operations that measures time, on a device whose clock is a counter. Operations on the timed
 * stream are summed by kind, except during a pause and for kinds not requested; waits for other ranks are
 * summed too. Operations that another thread issues to another stream are not measured. */
#include "test.h"

#include <pthread.h>
#include <stdatomic.h>

#include "bench/ops_timed.h"
#include "dist/comm_queue.h"

enum { CALLS = 20000, MARKS_MAX = 1 << 17 };

static char own, other;            /* streams, identified by address */
static int64_t mark_of[MARKS_MAX]; /* time of each mark; 0: never */
static atomic_long now;
static atomic_bool others_go_on;

static DsviStream *stream_of(char *address)
{
    return (DsviStream *)address;
}

static DsvStatus put_mark(DsviStream *stream, int64_t mark)
{
    assert_ptr_equal(stream, stream_of(&own));
    mark_of[mark] = atomic_fetch_add(&now, 1) + 1;
    return DSV_OK;
}

static DsvStatus between(DsviStream *stream, int64_t first, int64_t last, double *seconds)
{
    assert_ptr_equal(stream, stream_of(&own));
    assert_true(mark_of[first] > 0 && mark_of[last] > mark_of[first]);
    *seconds = 1;
    return DSV_OK;
}

static DsvStatus add(DsviStream *stream, const DsviAddArgs *args)
{
    (void)stream;
    (void)args;
    return DSV_OK;
}

static DsvStatus gemm(DsviStream *stream, const DsviGemmArgs *args)
{
    (void)stream;
    (void)args;
    return DSV_OK;
}

static void *add_elsewhere(void *argument)
{
    const DsviBackend *backend = argument;
    const DsviAddArgs args = {0};
    while (atomic_load(&others_go_on))
        backend->ops.add.run(stream_of(&other), &args);
    return NULL;
}

static DsviDevice device = {.mark = put_mark, .between = between};

static void open_backend(DsviBackend *backend)
{
    device.stream = stream_of(&own);
    *backend = (DsviBackend){.device = &device};
    backend->ops.add.run = add;
    backend->ops.gemm.run = gemm;
    dsvi_ops_time_enable(backend);
}

static void test_streams(void **state)
{
    DsviBackend backend;
    const DsviAddArgs add_args = {0};
    const DsviGemmArgs gemm_args = {0};
    double spent[DSVI_KIND_COUNT];
    pthread_t thread;
    (void)state;
    open_backend(&backend);
    atomic_store(&others_go_on, true);
    assert_int_equal(pthread_create(&thread, NULL, add_elsewhere, &backend), 0);
    for (int i = 0; i < CALLS; i++) {
        assert_ok(backend.ops.add.run(device.stream, &add_args));
        assert_ok(backend.ops.gemm.run(device.stream, &gemm_args));
    }
    dsvi_ops_time_pause(true);
    assert_ok(backend.ops.gemm.run(device.stream, &gemm_args));
    dsvi_ops_time_pause(false);
    atomic_store(&others_go_on, false);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_ok(dsvi_ops_time_spent(spent));
    for (int kind = 0; kind < DSVI_KIND_COUNT; kind++) {
        bool called = kind == DSVI_KIND_GEMM || kind == DSVI_KIND_ELEMENTWISE;
        assert_true(spent[kind] == (called ? CALLS : 0));
    }
}

static DsvStatus no_work(void *context, int64_t item)
{
    (void)context;
    (void)item;
    return DSV_OK;
}

/* Operations of other kinds set no marks until all kinds are timed again. */
static void test_kinds(void **state)
{
    DsviBackend backend;
    const DsviAddArgs add_args = {0};
    const DsviGemmArgs gemm_args = {0};
    double spent[DSVI_KIND_COUNT];
    (void)state;
    open_backend(&backend);
    long before = atomic_load(&now);
    dsvi_ops_time_kinds(1u << DSVI_KIND_GEMM);
    assert_ok(backend.ops.add.run(device.stream, &add_args));
    assert_int_equal(atomic_load(&now), before);
    assert_ok(backend.ops.gemm.run(device.stream, &gemm_args));
    dsvi_ops_time_kinds(DSVI_KINDS_ALL);
    assert_ok(backend.ops.gemm.run(device.stream, &gemm_args));
    assert_ok(backend.ops.add.run(device.stream, &add_args));
    assert_ok(dsvi_ops_time_spent(spent));
    for (int kind = 0; kind < DSVI_KIND_COUNT; kind++)
        assert_true(spent[kind] == (kind == DSVI_KIND_GEMM ? 2 : kind == DSVI_KIND_ELEMENTWISE ? 1 : 0));
}

/* A thread's waits for other ranks are timed only while it requests this. */
static void test_waits(void **state)
{
    DsviBackend backend;
    DsviCommQueue *queue;
    double spent[DSVI_KIND_COUNT];
    (void)state;
    open_backend(&backend);
    assert_ok(dsvi_comm_queue_create(1, true, &queue));
    for (int i = 0; i < 3; i++) {
        dsvi_ops_time_waits(i < 2);
        assert_ok(dsvi_comm_queue_wait(queue, dsvi_comm_queue_put(queue, no_work, NULL, 0)));
    }
    assert_ok(dsvi_ops_time_spent(spent));
    for (int kind = 0; kind < DSVI_KIND_COUNT; kind++)
        assert_true(spent[kind] == (kind == DSVI_KIND_WAIT ? 2 : 0));
    dsvi_comm_queue_free(&queue);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
