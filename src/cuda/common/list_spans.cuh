/* Marked spans of keys as an argument of kernels. If ranks share the keys, each rank is a part, and a span
 * of another part that some key list contains is marked, so that its rows are fetched into an array of
 * compact keys. ops/list_exchange.h explains parts, pairs, marks and compact keys. */
#ifndef DSVI_LIST_SPANS_CUH
#define DSVI_LIST_SPANS_CUH

#include "cuda/common/kernel.cuh"
#include "ops/list_exchange.h"

namespace dsvi {

/* The fields of DsviSpans (ops/list_exchange.h), with the array `bound` by value. */
struct Spans {
    int64_t bound[DSVI_SPAN_PARTS_MAX + 1];
    int64_t word[DSVI_SPAN_PARTS_MAX + 1]; /* number of words of mark bits (one bit for each span) that one
                                              pair has in all earlier parts */
    int64_t pairs, heads, grain;
    int parts;
    uint32_t *marks;
    int32_t *before;
    int64_t *first;
};

inline Spans spans_of(const DsviSpans *from)
{
    Spans r = {};
    for (int64_t j = 0; j < from->parts; j++) {
        r.bound[j + 1] = from->bound[j + 1];
        r.word[j + 1] = r.word[j] + dsvi_mark_words(from->bound[j + 1] - from->bound[j]);
    }
    r.pairs = dsvi_spans_pairs(from);
    r.heads = from->heads;
    r.grain = from->grain;
    r.parts = (int)from->parts;
    r.marks = from->marks;
    r.before = from->before;
    r.first = from->first;
    return r;
}

/* Returns the part (rank) that owns the keys of a span. */
__device__ __forceinline__ int part_of(const Spans &r, int64_t span)
{
    int part = 0;
    while (span >= r.bound[part + 1])
        part++;
    return part;
}

/* Returns the index in r.marks of the first word of mark bits of (part, pair); a part is the keys of one
 * rank. */
__device__ __forceinline__ int64_t first_word(const Spans &r, int part, int64_t pair)
{
    return r.pairs * r.word[part] + pair * (r.word[part + 1] - r.word[part]);
}

/* Returns the number of marked spans (spans that some key list contains) of (part, pair); a part is the keys
 * of one rank. */
__device__ __forceinline__ int64_t marked_spans(const Spans &r, int part, int64_t pair)
{
    const int64_t *first = r.first + part * (r.pairs + 1) + pair;
    return first[1] - first[0];
}

/* Returns the index, in spans, of the first marked span of (part, pair) in the compact keys, which are the
 * rows fetched from other ranks. The compact keys have room for `width` spans per pair, and the marked spans
 * fill the end of this room. */
__device__ __forceinline__ int64_t compact_first(const Spans &r, int64_t width, int part, int64_t pair)
{
    for (int j = part; j < r.parts; j++)
        width -= marked_spans(r, j, pair);
    return width;
}

/* A mask of the bits below bit i % 32. */
__device__ __forceinline__ uint32_t bits_below(int64_t i)
{
    return (1u << (i & 31)) - 1;
}

} // namespace dsvi

#endif
