/* Times the operations of a text-to-video pipeline at the sizes of Wan 2.1: the convolutions of the VAE, each
 * way that dsv has, attention of the text encoder, and the operations that memory bounds.
 *
 *     make study-programs; build/cuda/lab/pipeline [NAME]     only the lines that begin with NAME
 *
 * A time is the mean of several calls, after calls that are not timed. Rates in GB/s count the bytes that an
 * operation must read and write. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/common/cuda.h"
#include "cuda/conv/conv_ways.h"

#define TRY(call) try_dsv(call, #call)

static DsviBackend backend;
static const char *chosen = "";

static void try_dsv(DsvStatus status, const char *what)
{
    if (status == DSV_OK)
        return;
    printf("\n%s: %s\n", what, dsv_error_message());
    exit(1);
}

/* Fills words with two BF16 numbers between -1 and 1 each, which are also an F32 number of this size. */
__global__ void fill(uint32_t *words, int64_t n)
{
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        uint32_t x = (uint32_t)i * 2654435761u;
        x = (x ^ x >> 15) * 2246822519u;
        x ^= x >> 13;
        /* sign and fraction are random; the exponents of both halves are those of [0.5, 1) */
        words[i] = (x & 0x807f807fu) | 0x3f003f00u;
    }
}

static void *random_memory(int64_t bytes)
{
    void *memory;
    TRY(backend.device->mem_alloc(backend.device, (size_t)bytes + 16, &memory));
    fill<<<1024, 256, 0, backend.device->stream->handle>>>((uint32_t *)memory, bytes / 4 + 1);
    return memory;
}

static void release(std::initializer_list<void *> all)
{
    TRY(backend.device->sync(backend.device->stream));
    for (void *memory : all)
        backend.device->mem_free(backend.device, memory);
}

/* Returns the milliseconds of a call. */
template <typename Call> static double time_of(Call call)
{
    enum { WARM = 2, TIMED = 5 };
    DsviDevice *device = backend.device;
    double seconds = 0;
    for (int i = 0; i < WARM + TIMED; i++) {
        if (i == WARM)
            TRY(device->mark(device->stream, 0));
        TRY(call());
    }
    TRY(device->mark(device->stream, 1));
    TRY(device->between(device->stream, 0, 1, &seconds));
    return 1e3 * seconds / TIMED;
}

static bool begins(const char *line)
{
    return strncmp(line, chosen, strlen(chosen)) == 0;
}

struct Layer {
    int64_t frames, height, width, channels, out_channels, kernel[3], stride;
    bool add;
};

/* The stride is that of rows and columns. Frames before the first one are part of x, as when the VAE
 * processes a clip in chunks. */
static const Layer LAYERS[] = {
    {4, 480, 832, 96, 96, {3, 3, 3}, 1, true},    {4, 240, 416, 192, 192, {3, 3, 3}, 1, true},
    {4, 120, 208, 384, 384, {3, 3, 3}, 1, true},  {2, 60, 104, 384, 384, {3, 3, 3}, 1, true},
    {1, 60, 104, 384, 384, {3, 3, 3}, 1, true},   {4, 480, 832, 192, 96, {1, 3, 3}, 1, false},
    {2, 120, 208, 384, 768, {3, 1, 1}, 1, false}, {4, 480, 832, 96, 3, {3, 3, 3}, 1, false},
    {4, 480, 832, 3, 96, {3, 3, 3}, 1, false},    {4, 480, 832, 96, 96, {1, 3, 3}, 2, false},
    {4, 480, 832, 192, 96, {1, 1, 1}, 1, false},
};

static void time_way(DsviConvArgs args, DsviConvWay way, double flops)
{
    static const char *const names[] = {"Hopper", "portable"};
    DsviStream *stream = backend.device->stream;
    bool served = false;
    double ms = time_of([&] { return dsvi_conv_by(stream, &args, way, &served); });
    if (served)
        printf(", %s %.3f ms %.0f TFLOP/s", names[way], ms, flops / ms * 1e-9);
    else
        printf(", %s -", names[way]);
    fflush(stdout);
}

static void time_conv(const Layer &l, DsviDtype act)
{
    int64_t size = (int64_t)dsvi_dtype_size(act), before = l.kernel[0] - 1;
    DsviConvArgs a = {};
    a.frames = l.frames + before;
    a.height = l.height;
    a.width = l.width;
    a.out_frames = l.frames;
    a.out_height = l.height / l.stride;
    a.out_width = l.width / l.stride;
    a.channels = l.channels;
    a.out_channels = l.out_channels;
    int64_t taps = 1;
    for (int i = 0; i < 3; i++) {
        a.kernel[i] = l.kernel[i];
        a.stride[i] = i == 0 ? 1 : l.stride;
        a.pad[i] = i == 0 || l.stride > 1 ? 0 : l.kernel[i] / 2;
        taps *= l.kernel[i];
    }
    a.x_row = l.width * l.channels;
    a.x_frame = l.height * a.x_row;
    a.y_row = a.out_width * l.out_channels;
    a.y_frame = a.out_height * a.y_row;
    a.act = act;
    a.acc = DSVI_F32;
    a.x = random_memory(a.frames * a.x_frame * size);
    a.weight = random_memory(l.out_channels * taps * l.channels * size);
    a.bias = random_memory(l.out_channels * 4);
    a.y = random_memory(a.out_frames * a.y_frame * size);
    a.add = l.add ? a.y : nullptr;
    double flops = 2. * (double)(a.out_frames * a.y_frame) * (double)(taps * l.channels);
    printf("conv %s %lldx%lldx%lld, %lld to %lld channels, kernel %lldx%lldx%lld, stride %lld: %.2f TFLOP",
           dsvi_dtype_name(act), (long long)l.frames, (long long)l.height, (long long)l.width,
           (long long)l.channels, (long long)l.out_channels, (long long)l.kernel[0], (long long)l.kernel[1],
           (long long)l.kernel[2], (long long)l.stride, flops * 1e-12);
    for (int way = DSVI_CONV_HOPPER; way <= DSVI_CONV_PORTABLE; way++)
        time_way(a, (DsviConvWay)way, flops);
    printf("\n");
    release({(void *)a.x, (void *)a.weight, (void *)a.bias, a.y});
}

static void time_bias_attention(int64_t segments, int64_t rows, int64_t heads, int64_t dim, DsviDtype act)
{
    int64_t size = (int64_t)dsvi_dtype_size(act), all = segments * rows, width = heads * dim;
    DsviDevice *device = backend.device;
    DsviBiasAttentionArgs a = {};
    int32_t starts[64];
    for (int64_t i = 0; i <= segments; i++)
        starts[i] = (int32_t)(i * rows);
    char *qkv = (char *)random_memory(3 * all * width * size);
    a.segments = segments;
    a.rows = all;
    a.longest = rows;
    a.heads = heads;
    a.head_dim = dim;
    a.reach = 127;
    a.scale = 1;
    a.act = act;
    a.acc = DSVI_F32;
    a.starts = (const int32_t *)random_memory(sizeof starts);
    a.bias = random_memory(heads * (2 * a.reach + 1) * 4);
    a.q = qkv;
    a.k = qkv + width * size;
    a.v = qkv + 2 * width * size;
    a.stride = 3 * width;
    a.out = random_memory(all * width * size);
    TRY(device->upload(device->stream, (void *)a.starts, starts, sizeof starts));
    double ms = time_of([&] { return backend.ops.bias_attention.run(device->stream, &a); });
    double flops = 4. * (double)(segments * rows * rows * heads * dim);
    printf("bias_attention %s, %lld segments of %lld, %lld heads of %lld: %.3f ms %.0f TFLOP/s\n",
           dsvi_dtype_name(act), (long long)segments, (long long)rows, (long long)heads, (long long)dim, ms,
           flops / ms * 1e-9);
    release({qkv, (void *)a.starts, (void *)a.bias, a.out});
}

static void print_rate(const char *name, double ms, int64_t bytes)
{
    printf("%s: %.3f ms %.0f GB/s\n", name, ms, (double)bytes / ms * 1e-6);
}

static void time_channel_norm(const char *name, int64_t frames, int64_t height, int64_t width,
                              int64_t channels)
{
    DsviChannelNormArgs a = {};
    int64_t bytes = frames * height * width * channels * 2;
    a.frames = frames;
    a.height = height;
    a.width = width;
    a.channels = channels;
    a.silu = true;
    a.act = DSVI_BF16;
    a.acc = DSVI_F32;
    a.gamma = random_memory(channels * 4);
    a.x = random_memory(bytes);
    a.y = random_memory(bytes);
    a.x_row = a.y_row = width * channels;
    a.x_frame = a.y_frame = height * a.x_row;
    print_rate(name, time_of([&] { return backend.ops.channel_norm.run(backend.device->stream, &a); }),
               2 * bytes);
    release({(void *)a.gamma, (void *)a.x, a.y});
}

/* From channels last in BF16 to channels last in BF16 or, if `planes`, to planes of channels in F32. */
static void time_frames_move(const char *name, int64_t frames, int64_t height, int64_t width,
                             int64_t channels, int64_t upscale, bool planes)
{
    DsviFramesMoveArgs a = {};
    int64_t n = frames * height * width * channels, w = width * upscale, h = height * upscale;
    int64_t out_bytes = n * upscale * upscale * (planes ? 4 : 2);
    a.frames = frames;
    a.height = height;
    a.width = width;
    a.channels = channels;
    a.upscale = upscale;
    a.acc = DSVI_F32;
    a.limit = 1;
    a.x = {random_memory(n * 2), DSVI_BF16, height * width * channels, width * channels, channels, 1};
    void *y = random_memory(out_bytes);
    if (planes)
        a.y = {y, DSVI_F32, h * w, w, 1, frames * h * w};
    else
        a.y = {y, DSVI_BF16, h * w * channels, w * channels, channels, 1};
    print_rate(name, time_of([&] { return backend.ops.frames_move.run(backend.device->stream, &a); }),
               2 * n + out_bytes);
    release({a.x.data, y});
}

static void time_rows()
{
    DsviStream *stream = backend.device->stream;
    int64_t rows = 4096, channels = 4096, hidden = 10240, pixels = 60 * 104;
    void *x = random_memory(pixels * pixels * 4), *weight = random_memory(channels * 4);
    void *gate = random_memory(rows * hidden * 2), *y = random_memory(rows * hidden * 2);
    DsviRmsNormArgs norm = {rows, channels, 1e-6, DSVI_BF16, DSVI_F32, x, weight, y};
    print_rate("rms_norm 4096 rows of 4096", time_of([&] { return backend.ops.rms_norm.run(stream, &norm); }),
               rows * channels * 6);
    DsviGeluProductArgs product = {rows * hidden, DSVI_BF16, gate, x, y};
    print_rate("gelu_product 4096 rows of 10240",
               time_of([&] { return backend.ops.gelu_product.run(stream, &product); }), rows * hidden * 6);
    DsviSoftmaxArgs softmax = {pixels, pixels, 0.05, DSVI_BF16, DSVI_F32, x, y};
    print_rate("softmax 6240 rows of 6240",
               time_of([&] { return backend.ops.softmax.run(stream, &softmax); }), pixels * pixels * 6);
    release({x, weight, gate, y});
}

int main(int argc, char **argv)
{
    chosen = argc > 1 ? argv[1] : "";
    TRY(dsvi_cuda_open(0, false, &backend));
    printf("%s\n", backend.device->name);
    for (const Layer &layer : LAYERS)
        if (begins("conv BF16"))
            time_conv(layer, DSVI_BF16);
    if (begins("conv F32"))
        time_conv(LAYERS[2], DSVI_F32);
    if (begins("bias_attention")) {
        time_bias_attention(8, 512, 64, 64, DSVI_BF16);
        time_bias_attention(1, 512, 64, 64, DSVI_BF16);
        time_bias_attention(8, 512, 64, 64, DSVI_F32);
    }
    if (begins("rows"))
        time_rows();
    if (begins("frames")) {
        time_channel_norm("channel_norm and SiLU 4x480x832x96", 4, 480, 832, 96);
        time_channel_norm("channel_norm and SiLU 4x240x416x192", 4, 240, 416, 192);
        time_channel_norm("channel_norm and SiLU 4x120x208x384", 4, 120, 208, 384);
        time_frames_move("frames_move 4x240x416x192 enlarged", 4, 240, 416, 192, 2, false);
        time_frames_move("frames_move 4x480x832x96 copied", 4, 480, 832, 96, 1, false);
        time_frames_move("frames_move 16x480x832x3 to planes", 16, 480, 832, 3, 1, true);
    }
    TRY(backend.device->sync(backend.device->stream));
    backend.device->close(backend.device);
    return 0;
}
