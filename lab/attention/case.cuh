/* Device memory, random rows and random lists, with which the programs of this folder build their problems.
 */
#ifndef LAB_CASE_CUH
#define LAB_CASE_CUH

#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <vector>

#include "fwd_gather.cuh"

#define TRY(call) try_cuda(call, #call)

static void try_cuda(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return;
    printf("\n%s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}

/* Device memory that its destructor frees. */
struct Owner {
    std::vector<void *> owned;

    template <typename T> T *allocate(int64_t n)
    {
        void *p = nullptr;
        TRY(cudaMalloc(&p, (size_t)std::max<int64_t>(n, 1) * sizeof(T)));
        owned.push_back(p);
        return (T *)p;
    }
    ~Owner()
    {
        for (void *p : owned)
            TRY(cudaFree(p));
    }
};

static int multiprocessors()
{
    int count;
    TRY(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0));
    return count;
}

/* A uniform random number in (0, 1), determined by (seed, i). */
static __device__ float uniform(uint64_t seed, uint64_t i)
{
    uint64_t x = i * 0x9e3779b97f4a7c15ull + seed * 0xd1342543de82ef95ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    x ^= x >> 31;
    return ((float)(x >> 41) + 0.5f) / 8388608.f;
}

static __global__ void fill_normal(__nv_bfloat16 *x, int64_t n, uint64_t seed, float size)
{
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        float radius = sqrtf(-2 * logf(uniform(seed, 2 * i)));
        x[i] = __float2bfloat16(size * radius * cospif(2 * uniform(seed, 2 * i + 1)));
    }
}

/* Draws key i of n at random from the i-th of n equal parts of the tokens, so that keys ascend without
 * repeats. */
static __global__ void fill_lists(int32_t *lists, const int64_t *offsets, int tokens)
{
    int64_t first = offsets[blockIdx.x], n = offsets[blockIdx.x + 1] - first;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
        int64_t begin = i * tokens / n, end = (i + 1) * tokens / n;
        int64_t key = begin + (int64_t)(uniform(7, first + i) * (float)(end - begin));
        lists[first + i] = (int32_t)min(key, end - 1);
    }
}

/* Makes random lists; `counts` has the number of keys for each head and group. Returns the number of (query,
 * key) pairs. */
static int64_t make_lists(Owner *owner, Problem *a, const std::vector<int> &counts)
{
    int lists = (int)counts.size();
    std::vector<int64_t> offsets(lists + 1, 0);
    int64_t pairs = 0;
    for (int i = 0; i < lists; i++) {
        int first = i % a->groups * a->group;
        offsets[i + 1] = offsets[i] + counts[i];
        pairs += (int64_t)counts[i] * std::min(a->group, a->queries - first);
    }
    int64_t *offsets_there = owner->allocate<int64_t>(lists + 1);
    int32_t *lists_there = owner->allocate<int32_t>(offsets[lists]);
    TRY(cudaMemcpy(offsets_there, offsets.data(), (lists + 1) * sizeof(int64_t), cudaMemcpyHostToDevice));
    fill_lists<<<lists, 256>>>(lists_there, offsets_there, a->queries);
    a->offsets = offsets_there;
    a->lists = lists_there;
    return pairs;
}

#endif
