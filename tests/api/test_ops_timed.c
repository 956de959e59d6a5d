/* The op table that keeps time, on a device whose clock is a counter: ops of its own stream are summed by
 * kind, but for those of a pause or of kinds not wanted, and waits for other ranks; ops that another thread
 * gives to another stream meanwhile leave no trace. */
#include "test.h"

#include <pthread.h>
#include <stdatomic.h>

#include "api/ops_timed.h"
#include "dist/comm_queue.h"

enum { CALLS = 20000, MARKS_MOST = 1 << 17 };

static char own, other; /* streams are their addresses */
static int64_t mark_of[MARKS_MOST]; /* when each mark was put; 0: never */
static atomic_long now;
static atomic_bool others_go_on;

static DsvStream *stream_of(char *address)
{
    return (DsvStream *)address;
}

static DsvStatus put_mark(DsvStream *stream, int64_t mark)
{
    assert_ptr_equal(stream, stream_of(&own));
    mark_of[mark] = atomic_fetch_add(&now, 1) + 1;
    return DSV_OK;
}

static DsvStatus between(DsvStream *stream, int64_t first, int64_t last, double *seconds)
{
    assert_ptr_equal(stream, stream_of(&own));
    assert_true(mark_of[first] > 0 && mark_of[last] > mark_of[first]);
    *seconds = 1;
    return DSV_OK;
}

static DsvStatus add(DsvStream *stream, const DsvAddArgs *args)
{
    (void)stream;
    (void)args;
    return DSV_OK;
}

static DsvStatus gemm(DsvStream *stream, const DsvGemmArgs *args)
{
    (void)stream;
    (void)args;
    return DSV_OK;
}

static void *add_elsewhere(void *argument)
{
    const DsvBackend *backend = argument;
    const DsvAddArgs args = {0};
    while (atomic_load(&others_go_on))
        backend->ops.add.run(stream_of(&other), &args);
    return NULL;
}

static DsvDevice device = {.mark = put_mark, .between = between};

static void open_backend(DsvBackend *backend)
{
    device.stream = stream_of(&own);
    *backend = (DsvBackend){.device = &device};
    backend->ops.add.run = add;
    backend->ops.gemm.run = gemm;
    dsvi_ops_time(backend);
}

static void test_streams(void **state)
{
    DsvBackend backend;
    const DsvAddArgs add_args = {0};
    const DsvGemmArgs gemm_args = {0};
    double spent[DSV_KIND_COUNT];
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
    for (int kind = 0; kind < DSV_KIND_COUNT; kind++) {
        bool called = kind == DSV_KIND_GEMM || kind == DSV_KIND_ELEMENTWISE;
        assert_true(spent[kind] == (called ? CALLS : 0));
    }
}

static DsvStatus no_work(void *context, int64_t item)
{
    (void)context;
    (void)item;
    return DSV_OK;
}

/* Ops of other kinds leave no marks, until all are timed again. */
static void test_kinds(void **state)
{
    DsvBackend backend;
    const DsvAddArgs add_args = {0};
    const DsvGemmArgs gemm_args = {0};
    double spent[DSV_KIND_COUNT];
    (void)state;
    open_backend(&backend);
    long before = atomic_load(&now);
    dsvi_ops_time_kinds(1u << DSV_KIND_GEMM);
    assert_ok(backend.ops.add.run(device.stream, &add_args));
    assert_int_equal(atomic_load(&now), before);
    assert_ok(backend.ops.gemm.run(device.stream, &gemm_args));
    dsvi_ops_time_kinds(DSVI_KINDS_ALL);
    assert_ok(backend.ops.gemm.run(device.stream, &gemm_args));
    assert_ok(backend.ops.add.run(device.stream, &add_args));
    assert_ok(dsvi_ops_time_spent(spent));
    for (int kind = 0; kind < DSV_KIND_COUNT; kind++)
        assert_true(spent[kind] == (kind == DSV_KIND_GEMM ? 2 : kind == DSV_KIND_ELEMENTWISE ? 1 : 0));
}

/* A thread that waits for others is timed while it wants that. */
static void test_waits(void **state)
{
    DsvBackend backend;
    DsvCommQueue *queue;
    double spent[DSV_KIND_COUNT];
    (void)state;
    open_backend(&backend);
    assert_ok(dsvi_comm_queue_create(1, true, &queue));
    for (int i = 0; i < 3; i++) {
        dsvi_ops_time_waits(i < 2);
        assert_ok(dsvi_comm_queue_wait(queue, dsvi_comm_queue_put(queue, no_work, NULL, 0)));
    }
    assert_ok(dsvi_ops_time_spent(spent));
    for (int kind = 0; kind < DSV_KIND_COUNT; kind++)
        assert_true(spent[kind] == (kind == DSV_KIND_WAIT ? 2 : 0));
    dsvi_comm_queue_free(&queue);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_streams), cmocka_unit_test(test_kinds), cmocka_unit_test(test_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
