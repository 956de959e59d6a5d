/* Measures the variants of the backward kernel that ../README.md describes: checks each against a plain
 * kernel, then times it.
 *
 *     nvcc -std=c++17 -O3 -gencode arch=compute_90a,code=sm_90a -lineinfo -I../../src -o bwd bwd.cu
 *     ./bwd                  all variants: checks, then 32768 tokens and 16 heads
 *     ./bwd bulk             only variants with "bulk" in their names
 *     ./bwd bulk 0 0         checks only
 *     ./bwd bulk 65536 8     these tokens and heads
 *
 * D = 128, batch 1. Lists are random keys, ascending. fwd_kernel.cuh computes the forward pass. A variant
 * that deadlocks ends with "unspecified launch failure" (cuda/common/hopper.cuh) below its name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <vector>

#include "bwd_kernel.cuh"
#include "case.cuh"
#include "fwd_kernel.cuh"

struct Variant {
    const char *name;
    void (*kernel)(BackwardProblem);
    int queries, threads, shared;
    Work work;
    bool turned;
};

template <typename P, Work WORK = EVERYTHING> static Variant variant(const char *name, bool turned = false)
{
    return {name, backward<P, WORK>, P::QUERIES, P::THREADS, P::SHARED, WORK, turned};
}

using Lanes = BackwardPlan<128, 4, BY_LANES, 64, 0>;
using Bulk = BackwardPlan<128, 2, IN_BULK, 64, 2>;
using BulkDeep = BackwardPlan<128, 3, IN_BULK, 64, 1>;
using BulkWhole = BackwardPlan<128, 2, IN_BULK, 128, 1>;
using NarrowLanes = BackwardPlan<64, 4, BY_LANES, 64, 0>;
using NarrowBulk = BackwardPlan<64, 3, IN_BULK, 64, 2>;
using NarrowBulkWhole = BackwardPlan<64, 3, IN_BULK, 128, 1>;

static const Variant WIDE[] = {
    variant<Lanes>("lanes, 4 stages"),
    variant<Bulk>("bulk 256 x 2, 2 stages"),
    variant<BulkDeep>("bulk 256 x 1, 3 stages"),
    variant<BulkWhole>("bulk 512 x 1, 2 stages"),
    variant<Lanes>("lanes, turned", true),
    variant<Bulk>("bulk 256 x 2, turned", true),
    variant<BulkWhole>("bulk 512 x 1, turned", true),
    variant<Lanes, PRODUCTS_ONLY>("lanes, products only"),
    variant<Bulk, PRODUCTS_ONLY>("bulk 256 x 2, products only"),
    variant<Lanes, SUMS_ONLY>("lanes, sums only"),
    variant<Bulk, SUMS_ONLY>("bulk 256 x 2, sums only"),
    variant<Bulk, SUMS_ONLY>("bulk 256 x 2, sums, turned", true),
    variant<BulkWhole, SUMS_ONLY>("bulk 512 x 1, sums only"),
};

static const Variant NARROW[] = {
    variant<NarrowLanes>("lanes, 4 stages"),
    variant<NarrowBulk>("bulk 256 x 2, 3 stages"),
    variant<NarrowBulkWhole>("bulk 512 x 1, 3 stages"),
    variant<NarrowLanes, PRODUCTS_ONLY>("lanes, products only"),
    variant<NarrowBulk, SUMS_ONLY>("bulk 256 x 2, sums only"),
    variant<NarrowBulkWhole, SUMS_ONLY>("bulk 512 x 1, sums only"),
};

/* Converts the F32 sums of dk or dv to gradients. Each thread converts 16 columns of one row. */
__global__ void finish(const float *sums, Rows rows, int tokens, float factor, int64_t units)
{
    int64_t unit = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, row = unit / (DIM / 16);
    int column = (int)(unit % (DIM / 16)) * 16;
    if (unit >= units)
        return;
    const float4 *from = reinterpret_cast<const float4 *>(sums + row * DIM + column);
    uint32_t x[8];
#pragma unroll
    for (int t = 0; t < 4; t++) {
        float4 sum = from[t];
        x[t] = pair_bits(factor * sum.x, factor * sum.y);
        x[4 + t] = pair_bits(factor * sum.z, factor * sum.w);
    }
    uint4 *to = reinterpret_cast<uint4 *>(rows.data + row % tokens * rows.token + row / tokens * rows.head +
                                          column);
    to[0] = make_uint4(x[0], x[1], x[2], x[3]);
    to[1] = make_uint4(x[4], x[5], x[6], x[7]);
}

/* Row number of checked row `sample` of `samples`. The first and the last row are among the checked rows. */
__device__ static int sampled_row(int rows, int sample, int samples)
{
    return (int)((int64_t)sample * (rows - 1) / (samples - 1));
}

__device__ static float dot(const __nv_bfloat16 *x, const __nv_bfloat16 *y)
{
    float sum = 0;
    for (int d = 0; d < DIM; d++)
        sum = fmaf(__bfloat162float(x[d]), __bfloat162float(y[d]), sum);
    return sum;
}

__device__ static const __nv_bfloat16 *row_of(const Rows &rows, int head, int row)
{
    return rows.data + (int64_t)row * rows.token + head * rows.head;
}

/* p and ds of one pair of query and key. */
__device__ static float2 pair_of(const BackwardProblem &a, int head, int query, int key)
{
    const Problem &f = a.forward;
    const __nv_bfloat16 *dout = row_of(a.dout, head, query);
    float score = dot(row_of(f.q, head, query), row_of(f.k, head, key)) * f.scale;
    float p = expf(score - f.lse[(int64_t)head * f.queries + query]);
    return make_float2(p, p * (dot(dout, row_of(f.v, head, key)) - dot(dout, row_of(f.out, head, query))));
}

/* Reference dq of one sampled query. One block of DIM threads per (sample, head). */
__global__ void find_dq(BackwardProblem a, int samples, float *reference)
{
    __shared__ float ds[DIM];
    const Problem &f = a.forward;
    int sample = blockIdx.x % samples, head = blockIdx.x / samples, d = threadIdx.x;
    int query = sampled_row(f.queries, sample, samples), list = head * f.groups + query / f.group;
    int n = (int)(f.offsets[list + 1] - f.offsets[list]);
    const int32_t *keys = f.lists + f.offsets[list];
    double sum = 0;
    for (int first = 0; first < n; first += DIM) {
        __syncthreads();
        ds[d] = first + d < n ? pair_of(a, head, query, keys[first + d]).y : 0;
        __syncthreads();
        for (int i = 0; i < min(DIM, n - first); i++)
            sum += (double)ds[i] * __bfloat162float(row_of(f.k, head, keys[first + i])[d]);
    }
    reference[(int64_t)blockIdx.x * DIM + d] = (float)(sum * f.scale);
}

__device__ static bool listed(const Problem &f, int list, int key)
{
    int64_t low = f.offsets[list], high = f.offsets[list + 1];
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (f.lists[middle] < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low < f.offsets[list + 1] && f.lists[low] == key;
}

/* Reference dk and dv of one sampled key, from the groups that list the key. Launched like the kernel above.
 */
__global__ void find_dk_dv(BackwardProblem a, int samples, float *dk, float *dv)
{
    __shared__ float2 pairs[DIM];
    const Problem &f = a.forward;
    int sample = blockIdx.x % samples, head = blockIdx.x / samples, d = threadIdx.x;
    int key = sampled_row(a.keys, sample, samples);
    double sums[2] = {0, 0};
    for (int group = 0; group < f.groups; group++) {
        if (!listed(f, head * f.groups + group, key))
            continue;
        int end = min((group + 1) * f.group, f.queries);
        for (int first = group * f.group; first < end; first += DIM) {
            __syncthreads();
            pairs[d] = first + d < end ? pair_of(a, head, first + d, key) : make_float2(0, 0);
            __syncthreads();
            for (int i = 0; i < min(DIM, end - first); i++) {
                sums[0] += (double)pairs[i].y * __bfloat162float(row_of(f.q, head, first + i)[d]);
                sums[1] += (double)pairs[i].x * __bfloat162float(row_of(a.dout, head, first + i)[d]);
            }
        }
    }
    dk[(int64_t)blockIdx.x * DIM + d] = (float)(sums[0] * f.scale);
    dv[(int64_t)blockIdx.x * DIM + d] = (float)sums[1];
}

/* A problem with its device memory and the reference gradients of sampled rows. */
struct Case {
    BackwardProblem problem;
    Rows dk, dv;
    int samples;
    int64_t bytes, sum_bytes, pairs; /* of one gradient, of all sums; number of (query, key) pairs */
    std::vector<int> counts;
    float *reference[3], *sampled; /* (heads, samples, DIM): dq, dk, dv; device memory */
    Owner owner;
};

static void run_forward(const Problem &a)
{
    using P = Plan<2, 128, 3>;
    void (*kernel)(Problem) = forward<P, CHUNKS, IN_TURN, ALL>;
    TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, P::SHARED));
    kernel<<<multiprocessors(), P::THREADS, P::SHARED>>>(a);
    TRY(cudaGetLastError());
    TRY(cudaDeviceSynchronize());
}

static void make_reference(Case *c)
{
    const Problem &f = c->problem.forward;
    int blocks = c->samples * f.heads;
    for (float *&reference : c->reference)
        reference = c->owner.allocate<float>((int64_t)blocks * DIM);
    c->sampled = c->owner.allocate<float>((int64_t)blocks * DIM);
    find_dq<<<blocks, DIM>>>(c->problem, c->samples, c->reference[0]);
    find_dk_dv<<<blocks, DIM>>>(c->problem, c->samples, c->reference[1], c->reference[2]);
    TRY(cudaGetLastError());
    TRY(cudaDeviceSynchronize());
}

/* q, k, v in one array (S, 3, N, D), as a joint projection writes them, or in three arrays (S, N, D). `size`
 * is the number of elements of q. */
static void make_case(Case *c, int tokens, int heads, int group, bool fused, float size)
{
    BackwardProblem *a = &c->problem;
    Problem *f = &a->forward;
    int width = heads * DIM, token = fused ? 3 * width : width;
    int64_t all = (int64_t)tokens * width;
    __nv_bfloat16 *qkv = c->owner.allocate<__nv_bfloat16>(3 * all);
    auto rows = [&] { return Rows{c->owner.allocate<__nv_bfloat16>(all), width, DIM}; };
    f->heads = heads;
    f->queries = tokens;
    f->group = group;
    f->groups = (tokens + group - 1) / group;
    f->scale = 1 / sqrtf(DIM);
    f->q = {qkv, token, DIM};
    f->k = {qkv + (fused ? width : all), token, DIM};
    f->v = {qkv + (fused ? 2 * width : 2 * all), token, DIM};
    f->out = rows(), a->dout = rows(), a->dq = rows(), c->dk = rows(), c->dv = rows();
    f->lse = c->owner.allocate<float>((int64_t)heads * tokens);
    a->keys = tokens;
    c->bytes = all * 2;
    c->sum_bytes = 2 * all * (int64_t)sizeof(float);
    a->sums = c->owner.allocate<float>(2 * all);
    c->pairs = make_lists(&c->owner, f, c->counts);
    fill_normal<<<4096, 256>>>(qkv, 3 * all, 1, size);
    fill_normal<<<4096, 256>>>(a->dout.data, all, 2, 1);
    run_forward(*f);
    make_reference(c);
}

/* Milliseconds of the kernel alone, and of everything: clearing the sums, kernel, conversion of the sums. */
struct Times {
    float kernel, all;
};

/* Outputs are filled with NaN first, so that an element that is not written fails the check. */
static Times run_once(const Case &c, const Variant &v, const cudaEvent_t (&events)[4])
{
    BackwardProblem a = c.problem;
    const Problem &f = a.forward;
    int tiles = f.heads * f.groups * ((f.group + v.queries - 1) / v.queries);
    int64_t sums = (int64_t)f.heads * a.keys * DIM;
    unsigned finishers = (unsigned)(sums / 16 / 256 + 1);
    Times times;
    a.turned = v.turned;
    for (const Rows &rows : {a.dq, c.dk, c.dv})
        TRY(cudaMemsetAsync(rows.data, 0xff, (size_t)c.bytes));
    TRY(cudaEventRecord(events[0]));
    TRY(cudaMemsetAsync(a.sums, 0, (size_t)c.sum_bytes));
    TRY(cudaEventRecord(events[1]));
    v.kernel<<<std::min(tiles, multiprocessors()), v.threads, v.shared>>>(a);
    TRY(cudaGetLastError());
    TRY(cudaEventRecord(events[2]));
    finish<<<finishers, 256>>>(a.sums, c.dk, a.keys, f.scale, sums / 16);
    finish<<<finishers, 256>>>(a.sums + sums, c.dv, a.keys, 1, sums / 16);
    TRY(cudaGetLastError());
    TRY(cudaEventRecord(events[3]));
    TRY(cudaDeviceSynchronize());
    TRY(cudaEventElapsedTime(&times.kernel, events[1], events[2]));
    TRY(cudaEventElapsedTime(&times.all, events[0], events[3]));
    return times;
}

/* Copies the sampled rows of a gradient as floats. */
__global__ void take_samples(Rows rows, int tokens, int samples, float *to)
{
    int sample = blockIdx.x % samples, head = blockIdx.x / samples;
    to[(int64_t)blockIdx.x * DIM + threadIdx.x] = __bfloat162float(
        row_of(rows, head, sampled_row(tokens, sample, samples))[threadIdx.x]);
}

struct Error {
    double whole, worst; /* |x - ref| / |ref| over all; largest |x - ref| / (|ref| + RMS of ref) */
};

/* Both errors are NaN if any element is NaN. */
static Error error_of(const Case &c, const Rows &rows, const float *reference)
{
    int blocks = c.samples * c.problem.forward.heads;
    std::vector<float> x((size_t)blocks * DIM), y(x.size());
    take_samples<<<blocks, DIM>>>(rows, c.problem.keys, c.samples, c.sampled);
    TRY(cudaMemcpy(x.data(), c.sampled, x.size() * sizeof(float), cudaMemcpyDeviceToHost));
    TRY(cudaMemcpy(y.data(), reference, y.size() * sizeof(float), cudaMemcpyDeviceToHost));
    double off = 0, size = 0, worst = 0;
    for (size_t i = 0; i < x.size(); i++) {
        off += (double)(x[i] - y[i]) * (x[i] - y[i]);
        size += (double)y[i] * y[i];
    }
    double mean = sqrt(size / (double)x.size());
    for (size_t i = 0; i < x.size(); i++)
        worst = std::max(worst, fabs((double)x[i] - y[i]) / (fabs(y[i]) + mean));
    return {sqrt(off / size), off == off ? worst : off};
}

static bool compare(const Case &c)
{
    const Rows *rows[3] = {&c.problem.dq, &c.dk, &c.dv};
    bool right = true;
    for (int i = 0; i < 3; i++) {
        Error error = error_of(c, *rows[i], c.reference[i]);
        bool near = error.whole <= 6e-3 && error.worst <= 0.25;
        printf("  %s %.1e %.1e%s",
               i == 0   ? "dq"
               : i == 1 ? "dk"
                        : "dv",
               error.whole, error.worst, near ? "" : " WRONG");
        right &= near;
    }
    printf(right ? "  ok\n" : "\n");
    return right;
}

/* Prints one line of the table. Returns true if the variant's results are right. */
static bool run_variant(const Case &c, const Variant &v, int runs)
{
    cudaEvent_t events[4];
    std::vector<float> kernel, all;
    printf("    %-28s", v.name);
    fflush(stdout);
    TRY(cudaFuncSetAttribute(v.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, v.shared));
    for (cudaEvent_t &event : events)
        TRY(cudaEventCreate(&event));
    for (int i = -2; i < runs; i++) {
        Times times = run_once(c, v, events);
        if (i < 0)
            continue;
        kernel.push_back(times.kernel);
        all.push_back(times.all);
    }
    for (cudaEvent_t &event : events)
        TRY(cudaEventDestroy(event));
    std::sort(kernel.begin(), kernel.end());
    std::sort(all.begin(), all.end());
    double ms = kernel[kernel.size() / 2], whole = all[all.size() / 2], keys = 0;
    for (int count : c.counts)
        keys += count;
    keys *= (c.problem.forward.group + v.queries - 1) / v.queries;
    printf("%8.3f ms %5.0f TFLOP/s %5.2f TB/s of sums, all %8.3f ms %5.0f", ms,
           10 * DIM * c.pairs / ms * 1e-9, 8 * DIM * keys / ms * 1e-9, whole,
           10 * DIM * c.pairs / whole * 1e-9);
    if (v.work != EVERYTHING) {
        printf("  (not an answer)\n");
        return true;
    }
    return compare(c);
}

/* Runs the variants whose names contain `part`; with `pieces` also variants that do only part of the work. */
template <int N>
static bool run_variants(const Case &c, const Variant (&variants)[N], const char *part, int runs, bool pieces)
{
    bool right = true;
    for (const Variant &v : variants)
        if ((pieces || v.work == EVERYTHING) && strstr(v.name, part))
            right &= run_variant(c, v, runs);
    return right;
}

/* Checks all rows of small problems: incomplete groups, lists of any length, empty lists. */
static bool check(const char *part, int tokens, int group)
{
    static const int SPECIAL[] = {0, 1, 63, 64, 65, 1000, 127, 128, 129, 191, 192, 193, 384, 385, 0, 511};
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
    bool right = true;
    if (group > 64)
        right = run_variants(c, WIDE, part, 1, false);
    right &= run_variants(c, NARROW, part, 1, false);
    return right;
}

static bool measure(const char *part, int tokens, int heads, int group, double density)
{
    Case c = {};
    int groups = (tokens + group - 1) / group, count = (int)(tokens * density + 0.5);
    c.counts.assign((size_t)heads * groups, count);
    c.samples = 64;
    make_case(&c, tokens, heads, group, false, 1);
    printf("%d tokens, %d heads, groups of %d, %d keys each (%.0f %%)\n", tokens, heads, group, count,
           100 * density);
    return group > 64 ? run_variants(c, WIDE, part, 8, true) : run_variants(c, NARROW, part, 8, true);
}

int main(int argc, char **argv)
{
    const char *part = argc > 1 ? argv[1] : "";
    int tokens = argc > 2 ? atoi(argv[2]) : 32768, heads = argc > 3 ? atoi(argv[3]) : 16;
    cudaDeviceProp device;
    TRY(cudaGetDeviceProperties(&device, 0));
    if (device.major != 9) {
        printf("%s is not a Hopper GPU\n", device.name);
        return 1;
    }
    printf("%s, %d multiprocessors; errors: of the whole, of the worst element\n", device.name,
           device.multiProcessorCount);
    bool right = check(part, 1950, 128);
    right &= check(part, 1950, 64);
    right &= check(part, 2048, 192);
    if (tokens > 1 && heads > 0)
        for (int group : {128, 64})
            for (double density : {0.1, 0.05})
                right &= measure(part, tokens, heads, group, density);
    printf(right ? "all right\n" : "SOMETHING IS WRONG\n");
    return right ? 0 : 1;
}
