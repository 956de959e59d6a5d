/* Marked runs (DsvRuns of ops/list_exchange.h) as kernels take them. */
#ifndef DSVI_LIST_RUNS_CUH
#define DSVI_LIST_RUNS_CUH

#include "cuda/kernel.cuh"
#include "ops/list_exchange.h"

namespace dsvi {

struct Runs {
    int64_t bound[DSV_RUN_PARTS_MOST + 1];
    int64_t word[DSV_RUN_PARTS_MOST + 1]; /* of a pair, in the parts before */
    int64_t pairs, heads, grain;
    int parts;
    uint32_t *marks;
    int32_t *before;
    int64_t *first;
};

inline Runs runs_of(const DsvRuns *from)
{
    Runs r = {};
    for (int64_t j = 0; j < from->parts; j++) {
        r.bound[j + 1] = from->bound[j + 1];
        r.word[j + 1] = r.word[j] + dsvi_mark_words(from->bound[j + 1] - from->bound[j]);
    }
    r.pairs = dsvi_runs_pairs(from);
    r.heads = from->heads;
    r.grain = from->grain;
    r.parts = (int)from->parts;
    r.marks = from->marks;
    r.before = from->before;
    r.first = from->first;
    return r;
}

__device__ __forceinline__ int part_of(const Runs &r, int64_t run)
{
    int part = 0;
    while (run >= r.bound[part + 1])
        part++;
    return part;
}

/* Where the words of (part, pair) begin. */
__device__ __forceinline__ int64_t first_word(const Runs &r, int part, int64_t pair)
{
    return r.pairs * r.word[part] + pair * (r.word[part + 1] - r.word[part]);
}

/* Marked runs of (part, pair). */
__device__ __forceinline__ int64_t marked_runs(const Runs &r, int part, int64_t pair)
{
    const int64_t *first = r.first + part * (r.pairs + 1) + pair;
    return first[1] - first[0];
}

/* The compact run of number 0 of (part, pair). */
__device__ __forceinline__ int64_t compact_first(const Runs &r, int64_t width, int part, int64_t pair)
{
    for (int j = part; j < r.parts; j++)
        width -= marked_runs(r, j, pair);
    return width;
}

__device__ __forceinline__ uint32_t bits_below(int64_t i)
{
    return (1u << (i & 31)) - 1;
}

} // namespace dsvi

#endif
