/* Times attention with a tail beside attention over lists, and the steps of a tail, on random rows and lists.
 *
 *     make study-programs; build/cuda/lab/tail
 *
 * A time is the mean of several calls, after calls that are not timed. TFLOP/s count the products of the tail
 * over the time of its products alone: the whole pass without the steps that are limited by memory. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <vector>

#include "cuda/attention/attention_tail_parts.cuh"
#include "cuda/common/cuda.h"

#define TRY(call) try_dsv(call, #call)

static DsviBackend backend;

static void try_dsv(DsvStatus status, const char *what)
{
    if (status == DSV_OK)
        return;
    printf("\n%s: %s\n", what, dsv_error_message());
    exit(1);
}

struct Shape {
    int64_t tokens, heads, dim, group, chunk, run;
    double density;
};

static const Shape SHAPES[] = {
    {32768, 16, 128, 64, 64, 1, 0.05},   {32768, 16, 128, 64, 16, 1, 0.05},
    {32768, 16, 128, 128, 128, 1, 0.05}, {32768, 16, 128, 128, 32, 1, 0.05},
    {32768, 16, 64, 64, 64, 1, 0.05},    {131072, 8, 128, 64, 64, 1, 0.05},
    {4096, 16, 128, 64, 64, 1, 0.05},    {32768, 16, 128, 64, 64, 16, 0.05},
    {4096, 16, 128, 64, 1, 16, 0.05},
};

/* Memory of one shape. */
struct Case {
    DsviAttentionTailArgs args;
    DsviLists lists;
    std::vector<void *> owned;
};

__global__ void fill_normal(__nv_bfloat16 *x, int64_t n, uint64_t seed)
{
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        uint64_t z = (uint64_t)i * 0x9e3779b97f4a7c15ull + seed * 0xd1342543de82ef95ull;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ z >> 27) * 0x94d049bb133111ebull;
        float u = ((float)(z >> 41) + 0.5f) / 8388608.f, turn = (float)(z & 0xffffff) / 16777216.f;
        x[i] = __float2bfloat16(sqrtf(-2 * logf(u)) * cospif(2 * turn));
    }
}

static void *allocate(Case *c, int64_t bytes)
{
    void *memory;
    TRY(backend.device->mem_alloc(backend.device, (size_t)bytes + 64, &memory));
    c->owned.push_back(memory);
    return memory;
}

static DsviHeads normal_rows(Case *c, const Shape &shape, uint64_t seed)
{
    int64_t n = shape.tokens * shape.heads * shape.dim;
    __nv_bfloat16 *rows = (__nv_bfloat16 *)allocate(c, 2 * n);
    fill_normal<<<1024, 256, 0, backend.device->stream->handle>>>(rows, n, seed);
    return dsvi_heads(rows, shape.tokens, shape.heads, shape.dim);
}

/* Makes lists of equal lengths; key i of n is at random in the i-th of n equal parts of the keys. */
static void make_lists(Case *c, const Shape &shape)
{
    DsviLists &l = c->lists;
    l = {};
    l.batch = l.grain = 1, l.heads = shape.heads, l.queries = l.keys = shape.tokens, l.group = shape.group;
    l.groups = dsvi::ceil_div(shape.tokens, shape.group);
    int64_t count = dsvi_lists_count(&l), n = (int64_t)((double)shape.tokens * shape.density);
    std::vector<int64_t> offsets(1, 0);
    std::vector<int32_t> spans;
    uint64_t state = 5;
    for (int64_t list = 0; list < count; list++) {
        for (int64_t i = 0; i < n; i++) {
            state = state * 6364136223846793005ull + 1442695040888963407ull;
            int64_t begin = i * shape.tokens / n, width = (i + 1) * shape.tokens / n - begin;
            spans.push_back((int32_t)(begin + (int64_t)(state >> 33) % width));
        }
        offsets.push_back((int64_t)spans.size());
    }
    l.capacity = (int64_t)spans.size();
    l.offsets = (int64_t *)allocate(c, (count + 1) * 8);
    l.spans = (int32_t *)allocate(c, l.capacity * 4);
    DsviDevice *device = backend.device;
    TRY(device->upload(device->stream, l.offsets, offsets.data(), offsets.size() * 8));
    TRY(device->upload(device->stream, l.spans, spans.data(), spans.size() * 4));
    TRY(device->sync(device->stream));
}

static void create(Case *c, const Shape &shape)
{
    DsviStream *stream = backend.device->stream;
    DsviAttentionArgs &a = c->args.attention;
    make_lists(c, shape);
    a.batch = 1, a.heads = shape.heads, a.queries = a.keys = shape.tokens, a.head_dim = shape.dim;
    a.scale = 1 / sqrt((double)shape.dim);
    a.act = DSVI_BF16, a.acc = DSVI_F32;
    a.lists = &c->lists;
    DsviHeads *rows[] = {&a.q, &a.k, &a.v, &a.out, &a.dout, &a.dq, &a.dk, &a.dv};
    for (uint64_t i = 0; i < 8; i++)
        *rows[i] = normal_rows(c, shape, i + 1);
    c->args.chunk = shape.chunk, c->args.run = shape.run;
    a.lse = allocate(c, shape.tokens * shape.heads * 4);
    c->args.tail_lse = allocate(c, dsvi_tail_chunks(shape.tokens, shape.chunk) * shape.heads * 4);
    a.workspace_bytes = std::max({backend.ops.attention_list_bwd.workspace(stream, &a),
                                  backend.ops.attention_tail_fwd.workspace(stream, &c->args),
                                  backend.ops.attention_tail_bwd.workspace(stream, &c->args)});
    a.workspace = allocate(c, (int64_t)a.workspace_bytes);
}

/* Returns the milliseconds of a call. */
template <typename Call> static double time_of(Call call)
{
    enum { WARM = 3, TIMED = 10 };
    cudaStream_t stream = backend.device->stream->handle;
    cudaEvent_t begin, end;
    float ms = 0;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    for (int i = 0; i < WARM + TIMED; i++) {
        if (i == WARM)
            cudaEventRecord(begin, stream);
        TRY(call());
    }
    cudaEventRecord(end, stream);
    TRY(backend.device->sync(backend.device->stream));
    cudaEventElapsedTime(&ms, begin, end);
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return ms / TIMED;
}

/* Prints the times of the steps of a tail that are limited by memory; returns their sums in times[0]
 * (forward) and times[1] (backward). */
static void time_steps(Case *c, const Shape &shape, double *times)
{
    using namespace dsvi;
    DsviStream *stream = backend.device->stream;
    TailShape tail = {};
    tail.a = c->args.attention;
    tail.tail_lse = (float *)c->args.tail_lse;
    tail.pairs = shape.heads, tail.chunk = shape.chunk, tail.run = shape.run, tail.pitch = shape.dim;
    tail.chunks = dsvi_tail_chunks(shape.tokens, shape.chunk), tail.runs = ceil_div(shape.tokens, shape.run);
    char *at = (char *)c->args.attention.workspace;
    DsviHeads means = compact_heads(tail, at, tail.chunks);
    at += tail.pairs * tail.chunks * tail.pitch * 4;
    int64_t padded = round_up(shape.tokens, TAIL_KEYS);
    double mean = 0, columns = 0;
    if (shape.chunk > 1)
        mean = time_of(
            [&] { return attention_tail_means(stream, tail, tail.a.q, shape.tokens, shape.chunk, means); });
    double bits = time_of([&] { return attention_tail_weights(stream, tail, (uint32_t *)at); });
    if (shape.run == 1)
        columns = time_of([&] { return attention_tail_columns(stream, tail, padded, (uint64_t *)at); });
    double join = time_of([&] { return attention_tail_join(stream, tail, (const float *)means.data); });
    double gradients = time_of([&] { return attention_tail_gradients(stream, tail, means, (float *)at); });
    double spread = time_of([&] { return attention_tail_spread(stream, tail, (const float *)means.data); });
    printf("    means %.3f, bits %.3f, join %.3f; bits of keys %.3f, gradients %.3f, dq %.3f ms\n", mean,
           bits, join, columns, gradients, spread);
    times[0] = mean + bits + join;
    times[1] = mean + columns + gradients + spread;
}

static void time_shape(const Shape &shape)
{
    DsviStream *stream = backend.device->stream;
    const DsviOps &ops = backend.ops;
    Case c = {};
    create(&c, shape);
    const DsviAttentionArgs *a = &c.args.attention;
    /* The tail's passes run without those over lists in between: out, dq, dk and dv then grow from call to
     * call, which takes the same time. */
    double list_fwd = time_of([&] { return ops.attention_list_fwd.run(stream, a); });
    double tail_fwd = time_of([&] { return ops.attention_tail_fwd.run(stream, &c.args); });
    double list_bwd = time_of([&] { return ops.attention_list_bwd.run(stream, a); });
    double tail_bwd = time_of([&] { return ops.attention_tail_bwd.run(stream, &c.args); });
    double flops = 4. * (double)(shape.heads * shape.dim) * (double)(shape.tokens / shape.run) *
                   (double)dsvi_tail_chunks(shape.tokens, shape.chunk),
           steps[2];
    printf("%lld tokens, %lld heads of %lld, lists of %g %% in groups of %lld, chunk %lld, run %lld\n",
           (long long)shape.tokens, (long long)shape.heads, (long long)shape.dim, 100 * shape.density,
           (long long)shape.group, (long long)shape.chunk, (long long)shape.run);
    printf("    lists %.3f + %.3f ms; tail %.3f + %.3f ms, %.1f %% more (%s; %s)\n", list_fwd, list_bwd,
           tail_fwd, tail_bwd, 100 * (tail_fwd + tail_bwd) / (list_fwd + list_bwd),
           ops.attention_tail_fwd.variant, ops.attention_tail_bwd.variant);
    time_steps(&c, shape, steps);
    printf("    products %.3f ms, %.0f TFLOP/s; backward %.3f ms, %.0f TFLOP/s\n", tail_fwd - steps[0],
           flops / (tail_fwd - steps[0]) / 1e9, tail_bwd - steps[1],
           2.5 * flops / (tail_bwd - steps[1]) / 1e9);
    fflush(stdout);
    for (void *memory : c.owned)
        backend.device->mem_free(backend.device, memory);
}

int main()
{
    TRY(dsvi_cuda_open(0, false, &backend));
    printf("%s\n", backend.device->name);
    for (const Shape &shape : SHAPES)
        time_shape(shape);
    backend.device->close(backend.device);
    return 0;
}
