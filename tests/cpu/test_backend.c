/* The CPU backend: which instruction set it chooses, which variants run then, its memory, refused
 * requests. */
#include "base/threads.h"
#include "cpu/cpu.h"
#include "device/device_limit.h"
#include "test.h"

static void test_names(void **state)
{
    DsviBackend backend;
    (void)state;
    assert_fails(DSV_E_USAGE, "'sse9'", dsvi_cpu_open("sse9", 0, &backend));
    assert_null(backend.device);
    for (int isa = DSVI_ISA_REF; isa <= DSVI_ISA_AMX; isa++) {
        if (isa > (int)dsvi_isa_best()) {
            assert_fails(DSV_E_UNSUPPORTED, dsvi_isa_name((DsviIsa)isa),
                         dsvi_cpu_open(dsvi_isa_name((DsviIsa)isa), 0, &backend));
            continue;
        }
        assert_ok(dsvi_cpu_open(dsvi_isa_name((DsviIsa)isa), 2, &backend));
        assert_int_equal(backend.device->kind, DSVI_DEVICE_CPU);
        assert_non_null(strstr(backend.device->name, dsvi_isa_name((DsviIsa)isa)));
        assert_non_null(strstr(backend.device->name, "2 threads"));
        dsvi_cpu_close(&backend);
        dsvi_cpu_close(&backend);
    }
}

/* For most operations AVX-512 is the highest instruction set with a variant; only attention has variants with
 * BF16 products and AMX. */
static void test_chosen_variants(void **state)
{
    (void)state;
    for (int isa = DSVI_ISA_REF; isa <= (int)dsvi_isa_best(); isa++) {
        DsviBackend backend;
        const char *level = dsvi_isa_name((DsviIsa)(isa < DSVI_ISA_AVX512 ? isa : DSVI_ISA_AVX512));
        assert_ok(dsvi_cpu_open(dsvi_isa_name((DsviIsa)isa), 1, &backend));
        assert_string_equal(backend.ops.gemm.variant, isa == DSVI_ISA_REF ? "ref" : "onednn");
        assert_string_equal(backend.ops.attention_fwd.variant, dsvi_isa_name((DsviIsa)isa));
        assert_string_equal(backend.ops.attention_list_bwd.variant, dsvi_isa_name((DsviIsa)isa));
        assert_string_equal(backend.ops.col_sum.variant, level);
        assert_string_equal(backend.ops.layer_norm_bwd.variant, level);
        assert_string_equal(backend.ops.rms_norm_rope_bwd.variant, level);
        assert_string_equal(backend.ops.activation_fwd.variant, level);
        assert_string_equal(backend.ops.gate_residual_bwd.variant, level);
        assert_string_equal(backend.ops.patch_gather.variant, level);
        assert_string_equal(backend.ops.mse.variant, level);
        assert_string_equal(backend.ops.adamw.variant, level);
        assert_string_equal(backend.ops.time_embed.variant, "ref");
        dsvi_cpu_close(&backend);
    }
}

static void test_memory(void **state)
{
    DsviBackend backend;
    char from[100], back[100];
    void *memory, *none;
    double before, after;
    (void)state;
    assert_ok(dsvi_cpu_open("auto", 0, &backend));
    DsviDevice *device = backend.device;
    for (int i = 0; i < 100; i++)
        from[i] = (char)i;
    assert_ok(device->mem_alloc(device, sizeof from, &memory));
    assert_int_equal((uintptr_t)memory % 64, 0);
    assert_ok(device->clock(device->stream, &before));
    assert_ok(device->upload(device->stream, memory, from, sizeof from));
    assert_ok(device->clear(device->stream, (char *)memory + 10, 5));
    assert_ok(device->copy(device->stream, (char *)memory + 50, memory, 20));
    assert_ok(device->download(device->stream, back, memory, sizeof back));
    assert_ok(device->sync(device->stream));
    assert_ok(device->clock(device->stream, &after));
    assert_true(after >= before);
    assert_int_equal(back[9], 9);
    assert_int_equal(back[10], 0);
    assert_int_equal(back[15], 15);
    assert_int_equal(back[59], 9);
    assert_int_equal(back[60], 0);
    assert_int_equal(back[70], 70);
    assert_ok(device->mem_alloc(device, 0, &none));
    device->mem_free(device, none);
    device->mem_free(device, memory);
    device->mem_free(device, NULL);
    assert_fails(DSV_E_NO_MEMORY, "no 9223372036854775807 bytes",
                 device->mem_alloc(device, SIZE_MAX / 2, &none));
    assert_null(none);
    dsvi_cpu_close(&backend);
}

/* Variants return DSV_E_UNSUPPORTED for what they do not support; the reference implementation supports
 * it. */
/* Device memory beyond the limit is refused, host memory is not. */
static void test_limit(void **state)
{
    DsviBackend backend;
    void *first, *second, *host, *none;
    (void)state;
    assert_ok(dsvi_cpu_open("auto", 0, &backend));
    DsviDevice *device = backend.device;
    assert_ok(device->mem_alloc(device, 600, &first));
    device->limit = 1000;
    assert_fails(DSV_E_NO_MEMORY,
                 "no 401 bytes of device memory: memory_gib allows 1000, of which 400 are left",
                 device->mem_alloc(device, 401, &second));
    assert_null(second);
    assert_ok(device->mem_alloc(device, 400, &second));
    assert_ok(device->host_alloc(device, 5000, &host));
    device->mem_free(device, first);
    assert_ok(device->mem_alloc(device, 600, &first));
    device->limit = 500; /* less than is held */
    assert_fails(DSV_E_NO_MEMORY, "of which 0 are left", device->mem_alloc(device, 1, &none));
    device->mem_free(device, second);
    device->limit = 0;
    assert_ok(device->mem_alloc(device, 1 << 20, &second));
    assert_int_equal(device->held_bytes, 600 + (1 << 20));
    device->mem_free(device, second);
    device->mem_free(device, first);
    device->host_free(device, host);
    dsvi_cpu_close(&backend);
}

static void test_refusals(void **state)
{
    DsviBackend backend;
    double x[4] = {1, 2, 3, 4}, y[4] = {0};
    DsviAddArgs add = {.n = 4, .a = 1, .x_dtype = DSVI_F64, .y_dtype = DSVI_F64, .x = x, .y = y};
    DsviGemmArgs gemm = {.m = 2,
                         .n = 2,
                         .k = 2,
                         .ab_dtype = DSVI_F64,
                         .c_dtype = DSVI_F64,
                         .a = x,
                         .lda = 2,
                         .b = x,
                         .ldb = 2,
                         .c = y,
                         .ldc = 2};
    (void)state;
    assert_ok(dsvi_cpu_open("base", 1, &backend));
    assert_fails(DSV_E_UNSUPPORTED, "add: variant base", backend.ops.add.run(backend.device->stream, &add));
    assert_fails(DSV_E_UNSUPPORTED, "gemm: variant onednn",
                 backend.ops.gemm.run(backend.device->stream, &gemm));
    dsvi_cpu_close(&backend);
    assert_ok(dsvi_cpu_open("ref", 1, &backend));
    assert_ok(backend.ops.add.run(backend.device->stream, &add));
    assert_memory_equal(x, y, sizeof x);
    dsvi_cpu_close(&backend);
}

enum { SIDE = 96, SHAPES = 500 };

static void multiply(DsviBackend *backend, int64_t side, float *a, float *c)
{
    DsviGemmArgs args = {.m = side,
                         .n = side,
                         .k = side,
                         .ab_dtype = DSVI_F32,
                         .c_dtype = DSVI_F32,
                         .a = a,
                         .lda = SIDE,
                         .b = a,
                         .ldb = SIDE,
                         .c = c,
                         .ldc = SIDE};
    assert_ok(backend->ops.gemm.run(backend->device->stream, &args));
}

/* A product gives the same bits after products of more other shapes than the backend caches, and with more
 * threads. */
static void test_products_do_not_depend_on_cache(void **state)
{
    static float a[SIDE * SIDE], first[SIDE * SIDE], again[SIDE * SIDE];
    DsviBackend backend;
    (void)state;
    for (int i = 0; i < SIDE * SIDE; i++)
        a[i] = (float)(i % 17) - 8.25f;
    assert_ok(dsvi_cpu_open("auto", 1, &backend));
    multiply(&backend, SIDE, a, first);
    for (int i = 0; i < SHAPES; i++) {
        DsviGemmArgs args = {.m = 1,
                             .n = 1 + i,
                             .k = 1,
                             .ab_dtype = DSVI_F32,
                             .c_dtype = DSVI_F32,
                             .a = a,
                             .lda = 1,
                             .b = a,
                             .ldb = 1 + i,
                             .c = again,
                             .ldc = 1 + i};
        assert_ok(backend.ops.gemm.run(backend.device->stream, &args));
    }
    dsvi_threads_set(3);
    multiply(&backend, SIDE, a, again);
    assert_memory_equal(first, again, sizeof first);
    dsvi_cpu_close(&backend);
}

static size_t used, available; /* bytes, of the device and of the host of test_free_bytes */

static size_t used_bytes(DsviDevice *device)
{
    (void)device;
    return used;
}

static size_t available_bytes(DsviDevice *device)
{
    (void)device;
    return available;
}

/* On a CPU what other programs use is not free; 0 available: unknown. */
static void test_free_bytes(void **state)
{
    static const struct {
        DsviDeviceKind kind;
        size_t used, available, free;
    } CASES[] = {
        {DSVI_DEVICE_CPU, 10, 50, 50}, {DSVI_DEVICE_CPU, 10, 95, 90},  {DSVI_DEVICE_CPU, 10, 0, 90},
        {DSVI_DEVICE_CPU, 120, 50, 0}, {DSVI_DEVICE_CUDA, 10, 50, 90}, {DSVI_DEVICE_CUDA, 120, 50, 0},
    };
    DsviDevice device = {.memory_bytes = 100, .memory_used = used_bytes, .host_available = available_bytes};
    DsviBackend backend;
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        device.kind = CASES[i].kind;
        used = CASES[i].used;
        available = CASES[i].available;
        assert_int_equal(dsvi_device_free_bytes(&device), CASES[i].free);
    }
    assert_ok(dsvi_cpu_open("base", 1, &backend));
    size_t room = dsvi_device_free_bytes(backend.device);
    assert_true(room > 0 && room < backend.device->memory_bytes);
    dsvi_cpu_close(&backend);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),      cmocka_unit_test(test_chosen_variants),
        cmocka_unit_test(test_memory),     cmocka_unit_test(test_limit),
        cmocka_unit_test(test_refusals),   cmocka_unit_test(test_products_do_not_depend_on_cache),
        cmocka_unit_test(test_free_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
