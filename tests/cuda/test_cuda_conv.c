/* Convolutions at the numbers of channels of the Wan VAE, for which the reference implementation is too slow:
 * every way to convolve (conv_ways.h) must agree with the F32 kernel, which the checker compares with the
 * reference at small sizes. */
#include "base/rng.h"
#include "cuda/conv/conv_ways.h"
#include "cuda/gpu.h"
#include "test.h"

typedef struct ConvSize {
    int64_t size[3], out[3]; /* frames, rows, columns of x and y */
    int64_t channels, out_channels, kernel[3], stride[3], pad[3];
    bool added;
} ConvSize;

static const ConvSize SIZES[] = {
    {{3, 40, 50}, {3, 40, 50}, 96, 96, {3, 3, 3}, {1, 1, 1}, {2, 1, 1}, true},
    {{4, 23, 33}, {2, 23, 33}, 192, 192, {3, 3, 3}, {1, 1, 1}, {0, 1, 1}, true},
    {{2, 17, 31}, {2, 17, 31}, 384, 384, {3, 3, 3}, {1, 1, 1}, {2, 1, 1}, false},
    {{3, 16, 16}, {3, 16, 16}, 384, 768, {3, 1, 1}, {1, 1, 1}, {2, 0, 0}, false},
    {{5, 20, 20}, {2, 20, 20}, 192, 192, {3, 1, 1}, {2, 1, 1}, {0, 0, 0}, false},
    {{2, 40, 52}, {2, 20, 26}, 192, 192, {1, 3, 3}, {1, 2, 2}, {0, 0, 0}, false},
    {{2, 40, 52}, {2, 40, 52}, 96, 3, {3, 3, 3}, {1, 1, 1}, {2, 1, 1}, false},
    {{2, 40, 52}, {2, 40, 52}, 3, 96, {3, 3, 3}, {1, 1, 1}, {2, 1, 1}, false},
    {{3, 15, 26}, {3, 15, 26}, 16, 384, {3, 3, 3}, {1, 1, 1}, {2, 1, 1}, false},
    {{3, 15, 26}, {3, 15, 26}, 384, 32, {3, 3, 3}, {1, 1, 1}, {2, 1, 1}, false},
    {{3, 15, 26}, {3, 15, 26}, 32, 32, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, true},
    {{2, 18, 20}, {2, 18, 20}, 256, 256, {3, 3, 3}, {1, 1, 1}, {2, 1, 1}, true},
    {{2, 17, 19}, {2, 17, 19}, 160, 160, {3, 3, 3}, {1, 1, 1}, {2, 1, 1}, false},
    {{2, 17, 19}, {2, 17, 19}, 1024, 512, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, false},
    {{2, 17, 19}, {2, 17, 19}, 256, 12, {3, 3, 3}, {1, 1, 1}, {2, 1, 1}, false},
};
/* Used instead with test_small(). */
static const ConvSize SMALL_SIZES[] = {
    {{1, 17, 18}, {1, 17, 18}, 96, 96, {3, 3, 3}, {1, 1, 1}, {2, 1, 1}, true},
    {{1, 5, 20}, {1, 5, 20}, 40, 192, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}, false},
    {{1, 5, 20}, {1, 5, 20}, 72, 3, {1, 1, 3}, {1, 1, 1}, {0, 0, 1}, true},
    {{1, 8, 20}, {1, 4, 10}, 16, 192, {1, 3, 3}, {1, 2, 2}, {0, 0, 0}, false},
};

enum { WEIGHT, BIAS, X, ADD, INPUTS };

/* Device memory of one convolution, in F32 and rounded to BF16. */
typedef struct Memory {
    int64_t count[INPUTS], y_count;
    void *f32[INPUTS], *bf16[INPUTS], *y;
} Memory;

static void *conv_allocate(size_t bytes)
{
    void *memory;
    assert_ok(gpu_backend.device->mem_alloc(gpu_backend.device, bytes, &memory));
    return memory;
}

static void *conv_upload(const void *from, size_t bytes)
{
    DsviDevice *device = gpu_backend.device;
    void *memory = conv_allocate(bytes);
    assert_ok(device->upload(device->stream, memory, from, bytes));
    assert_ok(device->sync(device->stream));
    return memory;
}

/* Draws normal numbers that BF16 represents, times `scale`. */
static void conv_draw(Memory *m, int input, int64_t count, double scale)
{
    DsviRng rng = {9, DSVI_RNG_TEST, (uint32_t)input};
    float *numbers = malloc((size_t)count * sizeof *numbers);
    void *rounded = malloc((size_t)count * sizeof *numbers);
    assert_true(numbers && rounded);
    dsvi_rng_fill_normal(rng, 0, numbers, count);
    for (int64_t i = 0; i < count; i++)
        numbers[i] *= (float)scale;
    dsvi_convert(DSVI_BF16, rounded, DSVI_F32, numbers, count);
    dsvi_convert(DSVI_F32, numbers, DSVI_BF16, rounded, count);
    m->count[input] = count;
    m->f32[input] = conv_upload(numbers, (size_t)count * sizeof(float));
    m->bf16[input] = conv_upload(rounded, (size_t)count * 2);
    free(numbers);
    free(rounded);
}

static Memory conv_memory(const ConvSize *s)
{
    Memory m = {0};
    int64_t depth = s->kernel[0] * s->kernel[1] * s->kernel[2] * s->channels;
    m.y_count = s->out[0] * s->out[1] * s->out[2] * s->out_channels;
    conv_draw(&m, X, s->size[0] * s->size[1] * s->size[2] * s->channels, 1);
    conv_draw(&m, WEIGHT, s->out_channels * depth, 1 / sqrt((double)depth));
    conv_draw(&m, BIAS, s->out_channels, 1);
    conv_draw(&m, ADD, m.y_count, 1);
    m.y = conv_allocate((size_t)m.y_count * sizeof(float));
    return m;
}

static void conv_release(Memory *m)
{
    DsviDevice *device = gpu_backend.device;
    for (int i = 0; i < INPUTS; i++) {
        device->mem_free(device, m->f32[i]);
        device->mem_free(device, m->bf16[i]);
    }
    device->mem_free(device, m->y);
}

/* Convolves in one way. Returns the result in host memory, or NULL if the way does not serve the sizes. */
static void *convolve(const ConvSize *s, const Memory *m, DsviDtype act, DsviConvWay way)
{
    DsviDevice *device = gpu_backend.device;
    void *const *in = act == DSVI_F32 ? m->f32 : m->bf16;
    DsviConvArgs args = {
        .frames = s->size[0],
        .height = s->size[1],
        .width = s->size[2],
        .out_frames = s->out[0],
        .out_height = s->out[1],
        .out_width = s->out[2],
        .channels = s->channels,
        .out_channels = s->out_channels,
        .act = act,
        .acc = DSVI_F32,
        .x = in[X],
        .x_row = s->size[2] * s->channels,
        .x_frame = s->size[1] * s->size[2] * s->channels,
        .weight = in[WEIGHT],
        .bias = m->f32[BIAS],
        .add = s->added ? in[ADD] : NULL,
        .y = m->y,
        .y_row = s->out[2] * s->out_channels,
        .y_frame = s->out[1] * s->out[2] * s->out_channels,
    };
    memcpy(args.kernel, s->kernel, sizeof args.kernel);
    memcpy(args.stride, s->stride, sizeof args.stride);
    memcpy(args.pad, s->pad, sizeof args.pad);
    size_t bytes = (size_t)m->y_count * dsvi_dtype_size(act);
    bool served = false;
    assert_ok(device->clear(device->stream, m->y, bytes));
    assert_ok(dsvi_conv_by(device->stream, &args, way, &served));
    void *y = malloc(bytes);
    assert_non_null(y);
    assert_ok(device->download(device->stream, y, m->y, bytes));
    assert_ok(device->sync(device->stream));
    if (served)
        return y;
    free(y);
    return NULL;
}

/* Compares with the results of the F32 kernel. The results have the size of 1. In F32, sums of several
 * thousand products differ by about 1e-6 when they are added in another order. A result in BF16 is rounded
 * once (half of 2^-8), and tensor cores cut off the bits of up to 650 sums below 2^-23. */
static void assert_near_f32(const ConvSize *s, DsviConvWay way, DsviDtype act, int64_t count, const void *y,
                            const float *expected)
{
    double relative = act == DSVI_F32 ? 0 : 0x1p-8, absolute = act == DSVI_F32 ? 2e-5 : 2e-4;
    for (int64_t i = 0; i < count; i++) {
        double difference = dsvi_load(act, y, i) - expected[i];
        if (!(fabs(difference) <= absolute + relative * fabs(expected[i])))
            fail_msg("conv of %lld to %lld channels, way %d, %s: y[%lld] is %g off %g",
                     (long long)s->channels, (long long)s->out_channels, (int)way, dsvi_dtype_name(act),
                     (long long)i, difference, expected[i]);
    }
}

static void check_way(const ConvSize *s, const Memory *m, DsviDtype act, DsviConvWay way,
                      const float *expected)
{
    void *y = convolve(s, m, act, way);
    if (!y) {
        printf("conv of %lld to %lld channels, %s: not served by way %d\n", (long long)s->channels,
               (long long)s->out_channels, dsvi_dtype_name(act), (int)way);
        assert_true(way != DSVI_CONV_PORTABLE);
        return;
    }
    assert_near_f32(s, way, act, m->y_count, y, expected);
    void *again = convolve(s, m, act, way);
    assert_memory_equal(y, again, (size_t)m->y_count * dsvi_dtype_size(act));
    free(again);
    free(y);
}

static void ways_agree(void **state)
{
    (void)state;
    const ConvSize *sizes = test_small() ? SMALL_SIZES : SIZES;
    size_t count = test_small() ? sizeof SMALL_SIZES / sizeof *SMALL_SIZES : sizeof SIZES / sizeof *SIZES;
    for (size_t i = 0; i < count; i++) {
        Memory m = conv_memory(&sizes[i]);
        float *expected = convolve(&sizes[i], &m, DSVI_F32, DSVI_CONV_PORTABLE);
        assert_non_null(expected);
        for (int way = DSVI_CONV_HOPPER; way <= DSVI_CONV_PORTABLE; way++)
            check_way(&sizes[i], &m, DSVI_BF16, (DsviConvWay)way, expected);
        free(expected);
        conv_release(&m);
    }
}

static int run(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ways_agree)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(int argc, char **argv)
{
    return run_on_gpu(run, argc, argv);
}
