/* Matrix products with an epilogue at sizes at which cuBLASLt may fuse the epilogue, and for which the
 * reference implementation is too slow. Results must agree with a product without epilogue followed by
 * separate operations. */
#include "base/rng.h"
#include "cuda/gemm/gemm_cublaslt.h"
#include "cuda/gpu.h"
#include "ops/gemm_epilogue.h"
#include "test.h"

enum { TOKENS = 4096, OUT = 512, IN = 256, OUTPUTS_MAX = 2 };

typedef struct Output {
    const char *name;
    DsviDtype dtype;
    int64_t n;
    double relative, absolute; /* tolerance */
    void *data;
} Output;

static void *allocate(int64_t n, DsviDtype dtype)
{
    void *memory;
    assert_ok(gpu_backend.device->mem_alloc(gpu_backend.device, (size_t)n * dsvi_dtype_size(dtype), &memory));
    return memory;
}

/* Returns device memory with n normal numbers times `scale`. */
static void *draw(uint32_t number, int64_t n, float scale, DsviDtype dtype)
{
    DsviDevice *device = gpu_backend.device;
    DsviRng rng = {5, DSVI_RNG_TEST, number};
    void *memory = allocate(n, dtype);
    float *numbers = malloc((size_t)n * sizeof *numbers);
    void *stored = malloc((size_t)n * sizeof *numbers);
    assert_true(numbers && stored);
    dsvi_rng_fill_normal(rng, 0, numbers, n);
    for (int64_t i = 0; i < n; i++)
        numbers[i] *= scale;
    dsvi_convert(dtype, stored, DSVI_F32, numbers, n);
    assert_ok(device->upload(device->stream, memory, stored, (size_t)n * dsvi_dtype_size(dtype)));
    assert_ok(device->sync(device->stream));
    free(stored);
    free(numbers);
    return memory;
}

static DsvStatus run_composed(const DsviGemmArgs *args)
{
    DsviGemmEpilogueOps ops = dsvi_gemm_epilogue_ops(&gpu_backend.ops);
    DsviGemmArgs bare = dsvi_gemm_bare(args);
    DSVI_TRY(gpu_backend.ops.gemm.run(gpu_backend.device->stream, &bare));
    return dsvi_gemm_epilogue(&ops, gpu_backend.device->stream, args);
}

/* Clears the outputs, runs the product and copies output i to result[i]. With `composed` the epilogue is
 * computed by separate operations. */
static void call(const DsviGemmArgs *args, bool composed, const Output *output, int outputs, void **result)
{
    DsviDevice *device = gpu_backend.device;
    for (int i = 0; i < outputs; i++)
        assert_ok(device->clear(device->stream, output[i].data,
                                (size_t)output[i].n * dsvi_dtype_size(output[i].dtype)));
    assert_ok(composed ? run_composed(args) : gpu_backend.ops.gemm.run(device->stream, args));
    for (int i = 0; i < outputs; i++) {
        size_t bytes = (size_t)output[i].n * dsvi_dtype_size(output[i].dtype);
        result[i] = malloc(bytes);
        assert_non_null(result[i]);
        assert_ok(device->download(device->stream, result[i], output[i].data, bytes));
    }
    assert_ok(device->sync(device->stream));
}

static void assert_near(const Output *output, const void *got, const void *expected)
{
    for (int64_t i = 0; i < output->n; i++) {
        double want = dsvi_load(output->dtype, expected, i);
        double difference = dsvi_load(output->dtype, got, i) - want;
        if (!(fabs(difference) <= output->absolute + output->relative * fabs(want)))
            fail_msg("%s[%lld] is %g off %g", output->name, (long long)i, difference, want);
    }
}

/* Fails unless the product with epilogue agrees with the composed one, and gives the same bits when
 * repeated. */
static void assert_as_composed(const DsviGemmArgs *args, const Output *output, int outputs)
{
    void *first[OUTPUTS_MAX], *again[OUTPUTS_MAX], *composed[OUTPUTS_MAX];
    call(args, false, output, outputs, first);
    call(args, false, output, outputs, again);
    call(args, true, output, outputs, composed);
    for (int i = 0; i < outputs; i++) {
        assert_near(&output[i], first[i], composed[i]);
        assert_memory_equal(first[i], again[i], (size_t)output[i].n * dsvi_dtype_size(output[i].dtype));
        free(first[i]);
        free(again[i]);
        free(composed[i]);
        gpu_backend.device->mem_free(gpu_backend.device, output[i].data);
    }
}

/* Returns an output in BF16. Its tolerance has an absolute part, because the hardware's approximate tanh has
 * an error of about 2^-11, however small the GELU or its derivative is. */
static Output bf16_output(const char *name)
{
    return (Output){name, DSVI_BF16, TOKENS * OUT, 0x1p-6, 0x1p-6, allocate(TOKENS * OUT, DSVI_BF16)};
}

static void test_gelu(void **state)
{
    (void)state;
    void *x = draw(1, TOKENS * IN, 1, DSVI_BF16), *w = draw(2, OUT * IN, 0.0625f, DSVI_BF16);
    void *bias = draw(3, OUT, 1, DSVI_F32);
    for (int biased = 0; biased < 2; biased++) {
        Output output[] = {bf16_output("gelu_input"), bf16_output("c")};
        DsviGemmArgs args = {.m = TOKENS,
                             .n = OUT,
                             .k = IN,
                             .ab_dtype = DSVI_BF16,
                             .c_dtype = DSVI_BF16,
                             .a = x,
                             .lda = IN,
                             .b = w,
                             .ldb = IN,
                             .trans_b = true,
                             .c = output[1].data,
                             .ldc = OUT,
                             .bias_dtype = DSVI_F32,
                             .bias = biased ? bias : NULL,
                             .gelu_input = output[0].data};
        assert_as_composed(&args, output, 2);
    }
    void *const inputs[] = {x, w, bias};
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++)
        gpu_backend.device->mem_free(gpu_backend.device, inputs[i]);
}

static void test_gelu_backward(void **state)
{
    (void)state;
    void *dy = draw(1, TOKENS * IN, 1, DSVI_BF16), *w = draw(2, IN * OUT, 0.0625f, DSVI_BF16);
    void *z = draw(3, TOKENS * OUT, 2, DSVI_BF16);
    Output output = bf16_output("c");
    DsviGemmArgs args = {.m = TOKENS,
                         .n = OUT,
                         .k = IN,
                         .ab_dtype = DSVI_BF16,
                         .c_dtype = DSVI_BF16,
                         .a = dy,
                         .lda = IN,
                         .b = w,
                         .ldb = OUT,
                         .c = output.data,
                         .ldc = OUT,
                         .gelu_backward = z};
    assert_as_composed(&args, &output, 1);
    void *const inputs[] = {dy, w, z};
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++)
        gpu_backend.device->mem_free(gpu_backend.device, inputs[i]);
}

/* Sums of 4096 elements: an error of 2^-8 of an element would mean that elements were rounded to BF16
 * first. */
static void test_a_sum(void **state)
{
    (void)state;
    void *dy = draw(1, TOKENS * OUT, 1, DSVI_BF16), *x = draw(2, TOKENS * IN, 1, DSVI_BF16);
    Output output[] = {{"c", DSVI_F32, OUT * IN, 1e-5, 0x1p-8, allocate(OUT * IN, DSVI_F32)},
                       {"a_sum", DSVI_F32, OUT, 1e-5, 0x1p-8, allocate(OUT, DSVI_F32)}};
    DsviGemmArgs args = {.m = OUT,
                         .n = IN,
                         .k = TOKENS,
                         .ab_dtype = DSVI_BF16,
                         .c_dtype = DSVI_F32,
                         .a = dy,
                         .lda = OUT,
                         .trans_a = true,
                         .b = x,
                         .ldb = IN,
                         .c = output[0].data,
                         .ldc = IN,
                         .accumulate = true,
                         .bias_dtype = DSVI_F32,
                         .a_sum = output[1].data};
    assert_as_composed(&args, output, 2);
    gpu_backend.device->mem_free(gpu_backend.device, x);
    gpu_backend.device->mem_free(gpu_backend.device, dy);
}

static void *fetch(const void *memory, int64_t n, DsviDtype dtype)
{
    DsviDevice *device = gpu_backend.device;
    void *host = malloc((size_t)n * dsvi_dtype_size(dtype));
    assert_non_null(host);
    assert_ok(device->download(device->stream, host, memory, (size_t)n * dsvi_dtype_size(dtype)));
    assert_ok(device->sync(device->stream));
    return host;
}

/* Compares the product with the reference implementation in F32 on the host; both start from zeros. */
static void assert_plain(const DsviGemmArgs *args, const Output *output)
{
    DsviDevice *device = gpu_backend.device;
    DsviOps ref;
    DsviGemmArgs host = *args;
    int64_t a_rows = args->trans_a ? args->k : args->m, b_rows = args->trans_b ? args->n : args->k;
    dsvi_ops_fill_ref(&ref);
    host.a = fetch(args->a, a_rows * args->lda, args->ab_dtype);
    host.b = fetch(args->b, b_rows * args->ldb, args->ab_dtype);
    host.c = calloc((size_t)output->n, sizeof(float));
    assert_non_null(host.c);
    assert_ok(ref.gemm.run(NULL, &host));
    assert_ok(device->clear(device->stream, output->data, (size_t)output->n * sizeof(float)));
    assert_ok(dsvi_gemm_plain(device->stream, args));
    void *got = fetch(output->data, output->n, output->dtype);
    assert_near(output, got, host.c);
    free((void *)host.a);
    free((void *)host.b);
    free(host.c);
    free(got);
}

/* The kernel for products that cuBLASLt does not support: incomplete tiles on all sides, either factor
 * transposed. */
static void plain_product(void **state)
{
    enum { M = 37, N = 50, K = 41, PITCH = 53 };
    (void)state;
    void *a = draw(1, M * PITCH, 1, DSVI_BF16), *b = draw(2, N * PITCH, 1, DSVI_BF16);
    void *turned_a = draw(1, K * PITCH, 1, DSVI_BF16), *turned_b = draw(2, K * PITCH, 1, DSVI_BF16);
    for (int layout = 0; layout < 4; layout++) {
        Output output = {"c", DSVI_F32, M * PITCH, 1e-5, 1e-5, allocate(M * PITCH, DSVI_F32)};
        DsviGemmArgs args = {.m = M,
                             .n = N,
                             .k = K,
                             .ab_dtype = DSVI_BF16,
                             .c_dtype = DSVI_F32,
                             .a = layout & 1 ? turned_a : a,
                             .lda = PITCH,
                             .trans_a = layout & 1,
                             .b = layout & 2 ? b : turned_b,
                             .ldb = PITCH,
                             .trans_b = layout & 2,
                             .c = output.data,
                             .ldc = PITCH};
        assert_plain(&args, &output);
        gpu_backend.device->mem_free(gpu_backend.device, output.data);
    }
    void *const inputs[] = {a, b, turned_a, turned_b};
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++)
        gpu_backend.device->mem_free(gpu_backend.device, inputs[i]);
}

static int run(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_product),
        cmocka_unit_test(test_gelu),
        cmocka_unit_test(test_gelu_backward),
        cmocka_unit_test(test_a_sum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(int argc, char **argv)
{
    return run_on_gpu(run, argc, argv);
}
