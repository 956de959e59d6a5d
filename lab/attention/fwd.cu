/* Measures the variants of the forward kernel that ../README.md describes: checks each against a plain
 * kernel, then times it.
 *
 *     nvcc -std=c++17 -O3 -gencode arch=compute_90a,code=sm_90a -lineinfo -I../../src -o fwd fwd.cu
 *     ./fwd                  all variants: checks, then 32768 tokens and 16 heads
 *     ./fwd v2               only variants with "v2" in their names
 *     ./fwd v2 0 0           checks only
 *     ./fwd v2 65536 8       these tokens and heads
 *     ./fwd v2 32768 16 1    lists of 0.2 to 1.8 times the usual length
 *
 * D = 128, batch 1. Lists are random keys, ascending. A variant that deadlocks ends with "unspecified launch
 * failure" (cuda/common/hopper.cuh) below its name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <vector>

#include "case.cuh"
#include "fwd_kernel.cuh"

struct Variant {
    const char *name;
    void (*kernel)(Problem);
    int queries, keys, threads, resident, shared;
    Part part;
};

template <typename P, Carrier CARRIER, Order ORDER, Part PART = ALL> static Variant variant(const char *name)
{
    return {name, forward<P, CARRIER, ORDER, PART>, P::QUERIES, P::KEYS, P::THREADS, P::RESIDENT, P::SHARED,
            PART};
}

using Wide = Plan<2, 128, 3>;
using WideFine = Plan<2, 64, 6>;
using Narrow = Plan<1, 64, 3>;

static const Variant WIDE[] = {
    variant<Wide, CHUNKS, IN_TURN>("v1 in turn"),
    variant<Wide, CHUNKS, AHEAD>("v2 ahead"),
    variant<Wide, CHUNKS, BY_TURNS>("v3 by turns"),
    variant<WideFine, CHUNKS, AHEAD>("v2 ahead, 64 keys"),
    variant<WideFine, CHUNKS, BY_TURNS>("v3 by turns, 64 keys"),
    variant<Wide, CHUNKS, BY_TURNS_SKIPPING>("v4 by turns, skipping"),
    variant<Wide, BOXES, AHEAD>("v5 boxes, ahead"),
    variant<Wide, BOXES, BY_TURNS_SKIPPING>("v5 boxes, by turns, sk."),
    variant<Wide, CHUNKS, IN_TURN, GATHER_ONLY>("v1 gather only"),
    variant<WideFine, CHUNKS, IN_TURN, GATHER_ONLY>("v1 gather only, 64 keys"),
    variant<Wide, BOXES, IN_TURN, GATHER_ONLY>("v5 gather only, boxes"),
    variant<Wide, CHUNKS, IN_TURN, MULTIPLY_ONLY>("v1 multiply only"),
    variant<Wide, CHUNKS, AHEAD, MULTIPLY_ONLY>("v2 multiply only"),
    variant<Wide, CHUNKS, BY_TURNS, MULTIPLY_ONLY>("v3 multiply only"),
    variant<Wide, CHUNKS, BY_TURNS_SKIPPING, MULTIPLY_ONLY>("v4 multiply only"),
    variant<Wide, BOXES, BY_TURNS_SKIPPING, MULTIPLY_ONLY>("v5 multiply only"),
};

static const Variant NARROW[] = {
    variant<Narrow, CHUNKS, IN_TURN>("v1 in turn"),
    variant<Narrow, CHUNKS, AHEAD>("v2 ahead"),
    variant<Narrow, BOXES, AHEAD>("v5 boxes, ahead"),
    variant<Narrow, CHUNKS, IN_TURN, GATHER_ONLY>("v1 gather only"),
    variant<Narrow, BOXES, IN_TURN, GATHER_ONLY>("v5 gather only, boxes"),
    variant<Narrow, CHUNKS, AHEAD, MULTIPLY_ONLY>("v2 multiply only"),
};

/* Row number of checked row `sample` of `samples`. The first and the last row are among the checked rows. */
__device__ int sampled_row(const Problem &a, int sample, int samples)
{
    return (int)((int64_t)sample * (a.queries - 1) / (samples - 1));
}

/* Reference output of one sampled query: scores, softmax, sums, in F32 and double. One block of DIM threads
 * per (sample, head). */
__global__ void reference(Problem a, int samples, float *scores, int pitch, float *out, float *lse)
{
    __shared__ float q[DIM];
    __shared__ double sums[DIM];
    int sample = blockIdx.x % samples, head = blockIdx.x / samples, d = threadIdx.x;
    int row = sampled_row(a, sample, samples), list = head * a.groups + row / a.group;
    int n = (int)(a.offsets[list + 1] - a.offsets[list]);
    const int32_t *keys = a.lists + a.offsets[list];
    float *score = scores + (int64_t)blockIdx.x * pitch, largest = -INFINITY;
    double total = 0, sum = 0;
    q[d] = __bfloat162float(a.q.data[(int64_t)row * a.q.token + head * a.q.head + d]);
    __syncthreads();
    for (int i = d; i < n; i += DIM) {
        const __nv_bfloat16 *k = a.k.data + (int64_t)keys[i] * a.k.token + head * a.k.head;
        float dot = 0;
        for (int c = 0; c < DIM; c++)
            dot = fmaf(q[c], __bfloat162float(k[c]), dot);
        score[i] = dot * a.scale;
    }
    __syncthreads();
    for (int i = 0; i < n; i++)
        largest = fmaxf(largest, score[i]);
    for (int i = d; i < n; i += DIM)
        total += exp((double)score[i] - largest);
    sums[d] = total;
    __syncthreads();
    total = 0;
    for (int i = 0; i < DIM; i++)
        total += sums[i];
    for (int i = 0; i < n; i++)
        sum += (double)expf(score[i] - largest) *
               __bfloat162float(a.v.data[(int64_t)keys[i] * a.v.token + head * a.v.head + d]);
    out[(int64_t)blockIdx.x * DIM + d] = n > 0 ? (float)(sum / total) : 0;
    if (d == 0)
        lse[blockIdx.x] = n > 0 ? (float)(largest + log(total)) : -INFINITY;
}

/* Adds |out - ref|^2 to errors[0] and |ref|^2 to errors[1]; errors[2] is the largest error of lse. NaN stays
 * NaN. */
__global__ void compare(Problem a, int samples, const float *out, const float *lse, double *errors)
{
    int sample = blockIdx.x % samples, head = blockIdx.x / samples, d = threadIdx.x;
    int row = sampled_row(a, sample, samples);
    double reference = out[(int64_t)blockIdx.x * DIM + d];
    double error = __bfloat162float(a.out.data[(int64_t)row * a.out.token + head * a.out.head + d]) -
                   reference;
    atomicAdd(errors, error * error);
    atomicAdd(errors + 1, reference * reference);
    if (d > 0)
        return;
    float got = a.lse[(int64_t)head * a.queries + row], want = lse[blockIdx.x];
    double off = got == want ? 0 : fabs((double)got - want);
    /* Non-negative doubles compare like integers of the same bits, and NaN is above all of them. */
    atomicMax(reinterpret_cast<unsigned long long *>(errors + 2),
              (unsigned long long)__double_as_longlong(off) & 0x7fffffffffffffffull);
}

/* A problem with its device memory and the reference output of sampled rows. */
struct Case {
    Problem problem;
    int samples;
    int64_t out_bytes, lse_bytes, pairs; /* number of (query, key) pairs */
    std::vector<int> counts;
    float *reference_out, *reference_lse;
    double *errors;
    Owner owner;
};

static void make_reference(Case *c)
{
    Problem *a = &c->problem;
    int blocks = c->samples * a->heads, pitch = *std::max_element(c->counts.begin(), c->counts.end());
    float *scores = c->owner.allocate<float>((int64_t)blocks * pitch);
    c->reference_out = c->owner.allocate<float>((int64_t)blocks * DIM);
    c->reference_lse = c->owner.allocate<float>(blocks);
    c->errors = c->owner.allocate<double>(3);
    reference<<<blocks, DIM>>>(*a, c->samples, scores, pitch, c->reference_out, c->reference_lse);
    TRY(cudaGetLastError());
    TRY(cudaDeviceSynchronize());
}

using MapMaker = decltype(&cuTensorMapEncodeTiled);

/* Gets the driver's function at run time, so that the program does not link to the driver. */
static MapMaker map_maker()
{
    void *entry = nullptr;
    cudaDriverEntryPointQueryResult result;
    TRY(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault,
                                         &result));
    if (result != cudaDriverEntryPointSuccess) {
        printf("the driver has no cuTensorMapEncodeTiled\n");
        exit(1);
    }
    return (MapMaker)entry;
}

/* Describes boxes of 64 columns of one head and `tokens` tokens to TMA. */
static CUtensorMap map_of(const Rows &rows, int heads, int queries, int tokens)
{
    CUtensorMap map;
    cuuint64_t sizes[3] = {DIM, (cuuint64_t)heads, (cuuint64_t)queries};
    cuuint64_t pitches[2] = {2 * (cuuint64_t)rows.head, 2 * (cuuint64_t)rows.token};
    cuuint32_t box[3] = {HALF_COLUMNS, 1, (cuuint32_t)tokens}, steps[3] = {1, 1, 1};
    CUresult result = map_maker()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, rows.data, sizes, pitches, box,
                                  steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                  CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) {
        printf("cuTensorMapEncodeTiled: error %d\n", (int)result);
        exit(1);
    }
    return map;
}

/* q, k, v in one array (S, 3, N, D), as a joint projection writes them, or in three arrays (S, N, D). `size`
 * is the number of elements of q. */
static void make_case(Case *c, int tokens, int heads, int group, bool fused, float size)
{
    Problem *a = &c->problem;
    int width = heads * DIM, token = fused ? 3 * width : width;
    int64_t all = (int64_t)tokens * width;
    __nv_bfloat16 *qkv = c->owner.allocate<__nv_bfloat16>(3 * all);
    a->heads = heads;
    a->queries = tokens;
    a->group = group;
    a->groups = (tokens + group - 1) / group;
    a->scale = 1 / sqrtf(DIM);
    a->q = {qkv, token, DIM};
    a->k = {qkv + (fused ? width : all), token, DIM};
    a->v = {qkv + (fused ? 2 * width : 2 * all), token, DIM};
    a->out = {c->owner.allocate<__nv_bfloat16>(all), width, DIM};
    a->lse = c->owner.allocate<float>((int64_t)heads * tokens);
    a->q_map = map_of(a->q, heads, tokens, 64);
    a->k_map = map_of(a->k, heads, tokens, 1);
    a->v_map = map_of(a->v, heads, tokens, 1);
    c->out_bytes = all * 2;
    c->lse_bytes = (int64_t)heads * tokens * 4;
    fill_normal<<<4096, 256>>>(qkv, 3 * all, 1, size);
    c->pairs = make_lists(&c->owner, a, c->counts);
    make_reference(c);
}

/* Fills the outputs with NaN, so that unwritten elements fail the check, and runs the kernel. Returns its
 * milliseconds. */
static float run_once(const Case &c, const Variant &v, cudaEvent_t before, cudaEvent_t after)
{
    const Problem &a = c.problem;
    int tiles = a.heads * a.groups * ((a.group + v.queries - 1) / v.queries);
    int blocks = std::min(tiles, multiprocessors() * v.resident);
    float time;
    TRY(cudaMemsetAsync(a.out.data, 0xff, (size_t)c.out_bytes));
    TRY(cudaMemsetAsync(a.lse, 0xff, (size_t)c.lse_bytes));
    TRY(cudaEventRecord(before));
    v.kernel<<<blocks, v.threads, v.shared>>>(a);
    TRY(cudaGetLastError());
    TRY(cudaEventRecord(after));
    TRY(cudaDeviceSynchronize());
    TRY(cudaEventElapsedTime(&time, before, after));
    return time;
}

/* Prints one line of the table. Returns true if the variant's results are right. */
static bool run_variant(const Case &c, const Variant &v, int runs)
{
    cudaEvent_t before, after;
    std::vector<float> times;
    double errors[3] = {0, 0, 0};
    printf("    %-26s", v.name);
    fflush(stdout);
    TRY(cudaFuncSetAttribute(v.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, v.shared));
    TRY(cudaEventCreate(&before));
    TRY(cudaEventCreate(&after));
    for (int i = -3; i < runs; i++) {
        float time = run_once(c, v, before, after);
        if (i >= 0)
            times.push_back(time);
    }
    TRY(cudaEventDestroy(before));
    TRY(cudaEventDestroy(after));
    TRY(cudaMemset(c.errors, 0, sizeof errors));
    compare<<<c.samples * c.problem.heads, DIM>>>(c.problem, c.samples, c.reference_out, c.reference_lse,
                                                  c.errors);
    TRY(cudaMemcpy(errors, c.errors, sizeof errors, cudaMemcpyDeviceToHost));
    std::sort(times.begin(), times.end());
    double ms = times[times.size() / 2], bytes = 0, error = sqrt(errors[0] / errors[1]);
    for (int count : c.counts)
        bytes += 4. * DIM * ((count + v.keys - 1) / v.keys * v.keys);
    bytes *= (c.problem.group + v.queries - 1) / v.queries;
    printf("%9.3f ms %7.0f TFLOP/s %6.2f TB/s", ms, 4 * DIM * c.pairs / ms * 1e-9, bytes / ms * 1e-9);
    if (v.part != ALL) {
        printf("   (not an answer)\n");
        return true;
    }
    bool right = error <= 4e-3 && errors[2] <= 1e-4;
    printf("   out %.2e  lse %.2e  %s\n", error, errors[2], right ? "ok" : "WRONG");
    return right;
}

/* Runs the variants whose names contain `part`; with `pieces` also variants that do only part of the work. */
template <int N>
static bool run_variants(const Case &c, const Variant (&variants)[N], const char *part, int runs, bool pieces)
{
    bool right = true;
    for (const Variant &v : variants)
        if ((pieces || v.part == ALL) && strstr(v.name, part))
            right &= run_variant(c, v, runs);
    return right;
}

/* Checks all rows of small problems: incomplete groups, lists of any length, empty lists. */
static bool check(const char *part, int tokens, int group)
{
    static const int SPECIAL[] = {0, 1, 63, 64, 65, 127, 128, 129, 191, 192, 193, 384, 385, 0, 511};
    int groups = (tokens + group - 1) / group;
    Case c = {};
    srand(3);
    for (int i = 0; i < 2 * groups; i++) {
        bool special = i < (int)(sizeof SPECIAL / sizeof *SPECIAL);
        c.counts.push_back(std::min(tokens, special ? SPECIAL[i] : i % 5 == 0 ? tokens : rand() % 700));
    }
    c.samples = tokens;
    make_case(&c, tokens, 2, group, true, 2);
    printf("check: %d tokens, groups of %d, all rows\n", tokens, group);
    bool right = run_variants(c, WIDE, part, 1, false);
    right &= run_variants(c, NARROW, part, 1, false);
    return right;
}

static bool measure(const char *part, int tokens, int heads, int group, double density, bool uneven)
{
    Case c = {};
    int groups = (tokens + group - 1) / group, count = (int)(tokens * density + 0.5);
    srand(5);
    for (int i = 0; i < heads * groups; i++)
        c.counts.push_back(uneven ? (int)(count * (0.2 + 1.6 * rand() / RAND_MAX)) : count);
    c.samples = 64;
    make_case(&c, tokens, heads, group, false, 1);
    printf("%d tokens, %d heads, groups of %d, %d keys each (%.0f %%)%s\n", tokens, heads, group, count,
           100 * density, uneven ? ", uneven" : "");
    bool right = group > 64 ? run_variants(c, WIDE, part, 20, true) : run_variants(c, NARROW, part, 20, true);
    return right;
}

int main(int argc, char **argv)
{
    const char *part = argc > 1 ? argv[1] : "";
    int tokens = argc > 2 ? atoi(argv[2]) : 32768, heads = argc > 3 ? atoi(argv[3]) : 16;
    bool uneven = argc > 4 && atoi(argv[4]) != 0;
    cudaDeviceProp device;
    TRY(cudaGetDeviceProperties(&device, 0));
    if (device.major != 9) {
        printf("%s is not a Hopper GPU\n", device.name);
        return 1;
    }
    printf("%s, %d multiprocessors\n", device.name, device.multiProcessorCount);
    bool right = check(part, 1950, 128);
    right &= check(part, 1950, 64);
    right &= check(part, 2048, 192);
    if (tokens > 1 && heads > 0)
        for (int group : {128, 64})
            for (double density : {0.1, 0.05})
                right &= measure(part, tokens, heads, group, density, uneven);
    printf(right ? "all right\n" : "SOMETHING IS WRONG\n");
    return right ? 0 : 1;
}
