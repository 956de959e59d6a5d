/* Times dsv's kernels over lists, the Hopper and the portable ones, on random lists: of single keys and of
 * spans, groups of 128 and 64, lists of equal and unequal lengths.
 *
 *     cd lab/attention; S=../../src/cuda/attention
 *     nvcc -std=c++17 -O3 -gencode arch=compute_90a,code=sm_90a --expt-relaxed-constexpr -D_GNU_SOURCE \
 *         -I../../include -I../../src -o product product.cu $S/attention_list_fwd_sm90.cu \
 *         $S/attention_list_fwd.cu $S/attention_list_bwd_sm90.cu $S/attention_list_bwd.cu \
 *         $S/attention_inverted_sm90.cu $S/attention_inverted.cu
 *     ./product                 forward, 32768 tokens, 16 heads; `./product 65536 8` sets both
 *     ./product 32768 16 back   backward, without clearing and rounding the sums
 *     ./product 32768 16 back uneven   only shapes with lists of unequal length
 *     ./product 32768 16 turned   backward over inverted lists, the whole pass, compared with the kernel
 *                                 that gathers, without clearing and rounding its sums
 *
 * The exit status is 1 if the two kernels disagree, or if two forward runs of one kernel differ. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <vector>

#include "cuda/attention/attention_inverted.cuh"

using dsvi::AttentionProblem;

#define TRY(call) try_cuda(call, #call)

static void try_cuda(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return;
    printf("\n%s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}

/* Stand-ins for functions of libdsv that the kernels' sources call. */
DsvStatus dsvi_cuda_fail_at(const char *, int, cudaError_t error, const char *what)
{
    try_cuda(error, what);
    return DSV_E_DEVICE;
}

void dsvi_trail_add(const char *, int) {}

enum Lists {
    EVEN,   /* equal lengths; span i of n is in the i-th of n parts of the keys */
    SKEWED, /* as EVEN, heads of density 2 % to 18 % */
    UNEVEN, /* as EVEN, each list with 0.5 to 1.5 times the density */
    LOOSE,  /* as UNEVEN, but each span is listed independently of others */
    NEAR,   /* as LOOSE, but half of a list is within a 16th of all spans from its queries */
};

static const char *const LISTS[] = {"", "skewed", "uneven", "loose", "near"};

struct Shape {
    int dim, group, grain;
    double density;
    Lists lists;
};

static const Shape SHAPES[] = {
    {128, 128, 1, 0.1, EVEN},   {128, 128, 1, 0.05, EVEN}, {128, 64, 1, 0.1, EVEN},
    {128, 64, 1, 0.05, EVEN},   {128, 128, 16, 0.1, EVEN}, {128, 128, 64, 0.1, EVEN},
    {128, 128, 128, 0.1, EVEN}, {128, 64, 64, 0.1, EVEN},  {128, 256, 1, 0.1, EVEN},
    {128, 100, 1, 0.1, EVEN},   {128, 128, 1, 1, EVEN},    {64, 128, 1, 0.1, EVEN},
    {64, 64, 1, 0.1, EVEN},     {96, 128, 1, 0.1, EVEN},   {128, 128, 1, 0.1, SKEWED},
    {128, 128, 1, 0.1, UNEVEN}, {128, 128, 1, 0.1, LOOSE}, {128, 128, 1, 0.1, NEAR},
    {128, 128, 1, 0.05, NEAR},  {128, 64, 1, 0.1, NEAR},   {128, 128, 64, 0.1, NEAR},
    {64, 128, 1, 0.1, NEAR},
};

/* Shapes that the kernel over inverted lists supports. */
static const Shape TURNED_SHAPES[] = {
    {128, 128, 128, 0.1, EVEN},  {128, 128, 128, 0.05, EVEN}, {128, 64, 128, 0.1, EVEN},
    {128, 128, 128, 0.1, LOOSE}, {128, 128, 128, 0.1, NEAR},  {128, 128, 128, 0.1, SKEWED},
    {128, 128, 128, 1, EVEN},
};

static DsvStatus forward_sm90(DsviStream *stream, const dsvi::AttentionProblem &a)
{
    bool refused;
    return dsvi::attention_forward_sm90(stream, a, &refused);
}

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

template <typename T> static T *allocate(int64_t n)
{
    void *p = nullptr;
    TRY(cudaMalloc(&p, (size_t)std::max<int64_t>(n, 1) * sizeof(T)));
    return (T *)p;
}

static uint64_t state;

/* A uniform random number in [0, 1). */
static double chance()
{
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (double)(state >> 32) / 4294967296.;
}

/* Appends a list with `density` times `full` spans. Its queries are at the position `middle`. */
static void add_list(std::vector<int32_t> *runs, Lists lists, int64_t full, double density, double middle)
{
    int64_t n = lists < LOOSE ? (int64_t)((double)full * density + 0.5) : 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t begin = i * full / n, end = (i + 1) * full / n;
        runs->push_back((int32_t)(begin + (int64_t)(chance() * (double)(end - begin))));
    }
    for (int64_t i = 0; lists >= LOOSE && i < full; i++) {
        bool near = fabs((double)i / (double)full - middle) < 1. / 16;
        double share = lists == NEAR ? (near ? 4 : 4. / 7) : 1;
        if (chance() < density * share)
            runs->push_back((int32_t)i);
    }
}

/* Returns the number of (query, key) pairs. */
static double make_lists(AttentionProblem *a, const Shape &shape)
{
    int64_t full = (a->keys + shape.grain - 1) / shape.grain;
    std::vector<int64_t> offsets(1, 0);
    std::vector<int32_t> runs;
    double pairs = 0;
    state = 5;
    for (int head = 0; head < a->pairs; head++)
        for (int g = 0; g < a->groups; g++) {
            double density = shape.density, middle = (g + 0.5) / a->groups;
            if (shape.lists == SKEWED)
                density = 0.02 + 0.16 * (head * 7 % a->pairs) / (a->pairs - 1);
            else if (shape.lists != EVEN)
                density *= 0.5 + chance();
            add_list(&runs, shape.lists, full, density, middle);
            int64_t n = (int64_t)runs.size() - offsets.back();
            offsets.push_back((int64_t)runs.size());
            pairs += (double)n * shape.grain * std::min(a->group, a->queries - g * a->group);
        }
    int64_t *there = allocate<int64_t>((int64_t)offsets.size());
    int32_t *runs_there = allocate<int32_t>((int64_t)runs.size());
    TRY(cudaMemcpy(there, offsets.data(), offsets.size() * sizeof(int64_t), cudaMemcpyHostToDevice));
    TRY(cudaMemcpy(runs_there, runs.data(), runs.size() * sizeof(int32_t), cudaMemcpyHostToDevice));
    a->offsets = there;
    a->spans = runs_there;
    return pairs;
}

using Kernels = DsvStatus(DsviStream *, const AttentionProblem &);

/* Memory that a pass writes. It is filled with the byte `before` before each run: NaN, or zeros for sums. */
struct Written {
    void *memory;
    size_t bytes;
    int before;
};

/* Median milliseconds of `runs` runs. */
static float time_of(DsviStream *stream, const AttentionProblem &a, Kernels *kernels,
                     const std::vector<Written> &written, int runs)
{
    cudaEvent_t before, after;
    std::vector<float> times;
    TRY(cudaEventCreate(&before));
    TRY(cudaEventCreate(&after));
    for (int i = -2; i < runs; i++) {
        float time;
        for (const Written &w : written)
            TRY(cudaMemsetAsync(w.memory, w.before, w.bytes));
        TRY(cudaEventRecord(before));
        kernels(stream, a);
        TRY(cudaEventRecord(after));
        TRY(cudaDeviceSynchronize());
        TRY(cudaEventElapsedTime(&time, before, after));
        if (i >= 0)
            times.push_back(time);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

struct Result {
    std::vector<uint16_t> out;
    std::vector<float> lse;
};

static Result result_of(const AttentionProblem &a, size_t out_bytes)
{
    Result r = {std::vector<uint16_t>(out_bytes / 2), std::vector<float>((size_t)a.pairs * a.queries)};
    TRY(cudaMemcpy(r.out.data(), a.out.data, out_bytes, cudaMemcpyDeviceToHost));
    TRY(cudaMemcpy(r.lse.data(), a.lse, r.lse.size() * 4, cudaMemcpyDeviceToHost));
    return r;
}

static double number(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &wide, 4);
    return x;
}

static bool compare(const Result &x, const Result &y)
{
    double error = 0, norm = 0, lse = 0;
    for (size_t i = 0; i < x.out.size(); i++) {
        double a = number(x.out[i]), b = number(y.out[i]);
        error += (a - b) * (a - b), norm += b * b;
    }
    for (size_t i = 0; i < x.lse.size(); i++)
        if (!(fabs(x.lse[i] - y.lse[i]) <= lse))
            lse = fabs(x.lse[i] - y.lse[i]);
    bool good = sqrt(error / norm) < 5e-3 && lse < 1e-4;
    printf("   apart: out %.1e lse %.1e%s\n", sqrt(error / norm), lse, good ? "" : "  WRONG");
    return good;
}

static void print_shape(const Shape &shape)
{
    printf("D %3d group %3d grain %3d density %4.0f %% %-6s", shape.dim, shape.group, shape.grain,
           100 * shape.density, LISTS[shape.lists]);
    fflush(stdout);
}

static void print_times(float hopper, float portable, double flops)
{
    printf("  Hopper %7.3f ms %4.0f TFLOP/s, portable %7.3f ms %4.0f", hopper, flops / hopper * 1e-9,
           portable, flops / portable * 1e-9);
}

static bool run_forward(DsviStream *stream, const AttentionProblem &a, double pairs)
{
    size_t out_bytes = (size_t)a.queries * a.pairs * a.dim * 2;
    std::vector<Written> written = {{a.out.data, out_bytes, 0xff},
                                    {a.lse, (size_t)a.pairs * a.queries * 4, 0xff}};
    float hopper = time_of(stream, a, forward_sm90, written, 11);
    Result first = result_of(a, out_bytes);
    time_of(stream, a, forward_sm90, written, 1);
    Result again = result_of(a, out_bytes);
    float portable = time_of(stream, a, dsvi::attention_forward_bf16, written, 3);
    print_times(hopper, portable, 4 * a.dim * pairs);
    bool good = compare(first, result_of(a, out_bytes));
    if (first.out != again.out || first.lse != again.lse)
        printf("    two runs differ\n"), good = false;
    return good;
}

__device__ double wide(float x)
{
    return x;
}

__device__ double wide(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

/* Adds (x - y)^2 to sums[0] and y^2 to sums[1]. */
template <typename T> __global__ void find_distance(const T *x, const T *y, int64_t n, double *sums)
{
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
    double error = 0, norm = 0;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        error += (wide(x[i]) - wide(y[i])) * (wide(x[i]) - wide(y[i]));
        norm += wide(y[i]) * wide(y[i]);
    }
    atomicAdd(sums, error);
    atomicAdd(sums + 1, norm);
}

template <typename T> static bool close(const char *name, const T *x, const T *y, int64_t n)
{
    double *there = allocate<double>(2), sums[2];
    TRY(cudaMemset(there, 0, sizeof sums));
    find_distance<<<1024, 256>>>(x, y, n, there);
    TRY(cudaMemcpy(sums, there, sizeof sums, cudaMemcpyDeviceToHost));
    TRY(cudaFree(there));
    bool good = sqrt(sums[0] / sums[1]) < 5e-3;
    printf(" %s %.1e%s", name, sqrt(sums[0] / sums[1]), good ? "" : " WRONG");
    return good;
}

static bool run_backward(DsviStream *stream, AttentionProblem a, double pairs)
{
    int64_t all = (int64_t)a.queries * a.pairs * a.dim, sums = (int64_t)a.pairs * a.keys * a.pitch;
    __nv_bfloat16 *dout = allocate<__nv_bfloat16>(all), *dq = allocate<__nv_bfloat16>(2 * all);
    float *both = allocate<float>(4 * sums);
    fill_normal<<<4096, 256>>>(dout, all, 2);
    forward_sm90(stream, a);
    float times[2];
    a.dout = dsvi_heads(dout, a.queries, a.heads, a.dim);
    for (int portable = 0; portable < 2; portable++) {
        a.dq = dsvi_heads(dq + portable * all, a.queries, a.heads, a.dim);
        a.sums = both + portable * 2 * sums;
        times[portable] = time_of(stream, a,
                                  portable ? dsvi::attention_backward_bf16 : dsvi::attention_backward_sm90,
                                  {{a.dq.data, (size_t)all * 2, 0xff}, {a.sums, (size_t)sums * 8, 0}},
                                  portable ? 1 : 7);
    }
    print_times(times[0], times[1], 10 * a.dim * pairs);
    printf("   apart:");
    bool good = close("dq", dq, dq + all, all);
    good &= close("dk", both, both + 2 * sums, sums);
    good &= close("dv", both + sums, both + 3 * sums, sums);
    printf("\n");
    for (const void *p : {(const void *)dout, (const void *)dq, (const void *)both})
        TRY(cudaFree((void *)p));
    return good;
}

/* Converts sums, whose columns are ordered as in attention_list.cuh, to dk or dv. One thread per element. */
__global__ void round_sums(const float *sums, __nv_bfloat16 *to, int heads, int keys, int dim, float factor)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, row = i / dim;
    int column = (int)(i % dim), inside = column % 16;
    if (row >= (int64_t)heads * keys)
        return;
    int place = column - inside + inside % 8 / 2 * 4 + inside / 8 * 2 + inside % 2;
    to[(row % keys * heads + row / keys) * dim + column] = __float2bfloat16(factor * sums[row * dim + place]);
}

static DsvStatus backward_turned(DsviStream *stream, const AttentionProblem &a)
{
    bool served = false;
    DsvStatus status = dsvi::attention_backward_inverted(stream, a, &served);
    return served ? status : DSV_E_UNSUPPORTED;
}

static bool run_turned(DsviStream *stream, AttentionProblem a, double pairs)
{
    int64_t all = (int64_t)a.queries * a.pairs * a.dim, sums = (int64_t)a.pairs * a.keys * a.pitch;
    size_t bytes = dsvi::attention_inverted_bytes(a);
    bytes = std::max(bytes, (size_t)sums * 8);
    __nv_bfloat16 *dout = allocate<__nv_bfloat16>(all), *gradients = allocate<__nv_bfloat16>(6 * all);
    a.sums = reinterpret_cast<float *>(allocate<char>((int64_t)bytes));
    fill_normal<<<4096, 256>>>(dout, all, 2);
    forward_sm90(stream, a);
    a.dout = dsvi_heads(dout, a.queries, a.heads, a.dim);
    a.dq = dsvi_heads(gradients, a.queries, a.heads, a.dim);
    a.dk = dsvi_heads(gradients + all, a.keys, a.heads, a.dim);
    a.dv = dsvi_heads(gradients + 2 * all, a.keys, a.heads, a.dim);
    float turned = time_of(stream, a, backward_turned,
                           {{gradients, (size_t)all * 6, 0xff}, {a.sums, bytes, 0xff}}, 7);
    a.dq = dsvi_heads(gradients + 3 * all, a.queries, a.heads, a.dim);
    float gathered = time_of(stream, a, dsvi::attention_backward_sm90, {{a.sums, (size_t)sums * 8, 0}}, 3);
    unsigned blocks = (unsigned)(sums / 256 + 1);
    round_sums<<<blocks, 256>>>(a.sums, gradients + 4 * all, a.heads, a.keys, a.dim, a.scale);
    round_sums<<<blocks, 256>>>(a.sums + sums, gradients + 5 * all, a.heads, a.keys, a.dim, 1);
    double flops = 10 * a.dim * pairs;
    printf("  by blocks %7.3f ms %4.0f TFLOP/s, gathered %7.3f ms %4.0f   apart:", turned,
           flops / turned * 1e-9, gathered, flops / gathered * 1e-9);
    bool good = true;
    for (int i = 0; i < 3; i++)
        good &= close(i == 0   ? "dq"
                      : i == 1 ? "dk"
                               : "dv",
                      gradients + i * all, gradients + (3 + i) * all, all);
    printf("\n");
    for (const void *p : {(const void *)dout, (const void *)gradients, (const void *)a.sums})
        TRY(cudaFree((void *)p));
    return good;
}

enum Pass { FORWARD, BACKWARD, TURNED };

static bool run_shape(DsviStream *stream, const Shape &shape, int tokens, int heads, Pass pass)
{
    int64_t all = (int64_t)tokens * heads * shape.dim;
    __nv_bfloat16 *qkv = allocate<__nv_bfloat16>(3 * all), *out = allocate<__nv_bfloat16>(all);
    AttentionProblem a = {};
    a.pairs = a.heads = heads;
    a.queries = a.keys = tokens;
    a.dim = shape.dim;
    a.pitch = (shape.dim + 15) / 16 * 16;
    a.slices = 1;
    a.scale = 1 / sqrtf((float)shape.dim);
    a.group = shape.group;
    a.groups = (tokens + shape.group - 1) / shape.group;
    a.grain = shape.grain;
    a.q = dsvi_heads(qkv, tokens, heads, shape.dim);
    a.k = dsvi_heads(qkv + all, tokens, heads, shape.dim);
    a.v = dsvi_heads(qkv + 2 * all, tokens, heads, shape.dim);
    a.out = dsvi_heads(out, tokens, heads, shape.dim);
    a.lse = allocate<float>((int64_t)heads * tokens);
    a.chunks = a.couples = true;
    fill_normal<<<4096, 256>>>(qkv, 3 * all, 1);
    double pairs = make_lists(&a, shape);
    print_shape(shape);
    bool good = pass == FORWARD    ? run_forward(stream, a, pairs)
                : pass == BACKWARD ? run_backward(stream, a, pairs)
                                   : run_turned(stream, a, pairs);
    for (const void *p : {(const void *)qkv, (const void *)out, (const void *)a.lse, (const void *)a.offsets,
                          (const void *)a.spans})
        TRY(cudaFree((void *)p));
    return good;
}

int main(int argc, char **argv)
{
    int tokens = argc > 1 ? atoi(argv[1]) : 32768, heads = argc > 2 ? atoi(argv[2]) : 16;
    cudaDeviceProp device;
    DsviStream stream = {};
    bool good = true;
    TRY(cudaGetDeviceProperties(&device, 0));
    stream.capability = 90;
    stream.multiprocessors = device.multiProcessorCount;
    stream.shared_bytes = device.sharedMemPerBlockOptin;
    TRY(cudaMalloc(&stream.partials, DSVI_CUDA_PARTIALS));
    printf("%s, %d tokens, %d heads\n", device.name, tokens, heads);
    Pass pass = argc < 4 ? FORWARD : strcmp(argv[3], "turned") ? BACKWARD : TURNED;
    for (const Shape &shape : TURNED_SHAPES)
        if (pass == TURNED)
            good &= run_shape(&stream, shape, tokens, heads, pass);
    for (const Shape &shape : SHAPES)
        if (pass != TURNED && (argc < 5 || shape.lists != EVEN))
            good &= run_shape(&stream, shape, tokens, heads, pass);
    printf(good ? "all right\n" : "SOMETHING IS WRONG\n");
    return good ? 0 : 1;
}
