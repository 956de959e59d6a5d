/* The CUDA device: memory, copies, order of streams, refused requests. */
#include "cuda/gpu.h"
#include "test.h"

static void copies(void **state)
{
    DsviDevice *device = gpu_backend.device;
    enum { N = 1000 };
    void *memory, *other;
    float *host;
    double before, after;
    (void)state;
    assert_int_equal(device->kind, DSVI_DEVICE_CUDA);
    assert_ok(device->host_alloc(device, N * sizeof *host, (void **)&host));
    assert_ok(device->mem_alloc(device, N * sizeof *host, &memory));
    assert_ok(device->mem_alloc(device, N * sizeof *host, &other));
    assert_int_equal((uintptr_t)memory % 64, 0);
    for (int i = 0; i < N; i++)
        host[i] = (float)i;
    assert_ok(device->clock(device->stream, &before));
    assert_ok(device->upload(device->stream, memory, host, N * sizeof *host));
    assert_ok(device->copy(device->stream, other, memory, N * sizeof *host));
    assert_ok(device->clear(device->stream, other, 4 * sizeof *host));
    assert_ok(device->sync(device->stream));
    memset(host, 0xff, N * sizeof *host);
    assert_ok(device->download(device->stream, host, other, N * sizeof *host));
    assert_ok(device->flag(device->stream));
    assert_ok(device->clear(device->stream, other, N * sizeof *host));
    assert_ok(device->await(device->stream));
    for (int i = 0; i < N; i++)
        assert_true(host[i] == (i < 4 ? 0 : (float)i));
    assert_ok(device->clock(device->stream, &after));
    assert_true(after >= before);
    assert_true(device->memory_used(device) >= 2 * N * sizeof *host);
    device->mem_free(device, memory);
    device->mem_free(device, other);
    device->mem_free(device, NULL);
    device->host_free(device, host);
    device->host_free(device, NULL);
}

/* device->follow makes a stream wait for the work of another. A long copy must be complete before its result
 * is used, and its source must not be overwritten before the copy ends. */
static void streams_that_follow(void **state)
{
    DsviDevice *device = gpu_backend.device;
    enum { N = 1 << 24, TURNS = 8 };
    unsigned char *host, *memory, *other;
    (void)state;
    assert_ok(device->host_alloc(device, 2 * N, (void **)&host));
    assert_ok(device->mem_alloc(device, N, (void **)&memory));
    assert_ok(device->mem_alloc(device, N, (void **)&other));
    for (int turn = 1; turn <= TURNS; turn++) {
        memset(host, turn, N);
        assert_ok(device->upload(device->copies, memory, host, N));
        assert_ok(device->follow(device->stream, device->copies));
        assert_ok(device->copy(device->stream, other, memory, N));
        assert_ok(device->follow(device->copies, device->stream));
        assert_ok(device->download(device->copies, host + N, other, N));
        assert_ok(device->follow(device->stream, device->copies));
        assert_ok(device->clear(device->stream, memory, N));
        assert_ok(device->clear(device->stream, other, N));
        assert_ok(device->sync(device->stream));
        for (int i = 0; i < N; i++)
            assert_true(host[N + i] == turn);
    }
    device->mem_free(device, memory);
    device->mem_free(device, other);
    device->host_free(device, host);
}

/* A too large allocation returns an error, and later calls work as before. */
static void too_much_memory(void **state)
{
    DsviDevice *device = gpu_backend.device;
    void *memory;
    (void)state;
    assert_fails(DSV_E_NO_MEMORY, "no 1099511627776 bytes of device memory",
                 device->mem_alloc(device, (size_t)1 << 40, &memory));
    assert_null(memory);
    assert_ok(device->mem_alloc(device, 64, &memory));
    assert_ok(device->clear(device->stream, memory, 64));
    assert_ok(device->sync(device->stream));
    device->mem_free(device, memory);
}

static void f64_is_refused(void **state)
{
    DsviAddArgs args = {.n = 1, .a = 1, .x_dtype = DSVI_F32, .y_dtype = DSVI_F64};
    (void)state;
    assert_fails(DSV_E_UNSUPPORTED, "F64", gpu_backend.ops.add.run(gpu_backend.device->stream, &args));
}

/* The operation add supports F64, in which ranks add up their histograms. */
static void doubles_are_added(void **state)
{
    enum { COUNT = 1000 };
    DsviDevice *device = gpu_backend.device;
    double x[COUNT], y[COUNT], sum[COUNT];
    void *memory;
    (void)state;
    for (int i = 0; i < COUNT; i++) {
        x[i] = 1e9 + i;
        y[i] = 1e-3 * i;
    }
    assert_ok(device->mem_alloc(device, 2 * sizeof x, &memory));
    DsviAddArgs args = {.n = COUNT,
                        .a = 1,
                        .b = 1,
                        .x_dtype = DSVI_F64,
                        .y_dtype = DSVI_F64,
                        .x = memory,
                        .y = (double *)memory + COUNT};
    assert_ok(device->upload(device->stream, memory, x, sizeof x));
    assert_ok(device->upload(device->stream, args.y, y, sizeof y));
    assert_ok(gpu_backend.ops.add.run(device->stream, &args));
    assert_ok(device->download(device->stream, sum, args.y, sizeof sum));
    assert_ok(device->sync(device->stream));
    for (int i = 0; i < COUNT; i++)
        assert_true(sum[i] == x[i] + y[i]);
    device->mem_free(device, memory);
}

static int run(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies),
        cmocka_unit_test(streams_that_follow),
        cmocka_unit_test(too_much_memory),
        cmocka_unit_test(f64_is_refused),
        cmocka_unit_test(doubles_are_added),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(int argc, char **argv)
{
    return run_on_gpu(run, argc, argv);
}
