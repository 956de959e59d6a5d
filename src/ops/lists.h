/* Which keys each group of queries attends: one struct for every backend, selector and test.
 *
 * G consecutive queries of one (batch, head) form a group; the last may be short. Every group has a
 * list of runs: run i stands for the `grain` consecutive keys [i*grain, min((i+1)*grain, keys)).
 * Grain 1 is single keys, grain 64 with groups of 64 is block-sparse attention.
 * Lists lie one behind the other:  list n = runs[offsets[n] .. offsets[n+1]),
 *     n = (b * heads + h) * groups + g,
 * ascending inside a list, no run twice. An empty list is legal: its queries attend nothing. */
#ifndef DSVI_LISTS_H
#define DSVI_LISTS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvLists {
    int64_t batch, heads;
    int64_t queries, keys;  /* S_q, S_k */
    int64_t group;          /* G */
    int64_t groups;         /* ceil(queries / group) */
    int64_t grain;
    int64_t capacity;       /* runs that fit in `runs` */
    int64_t *offsets;       /* (batch * heads * groups + 1) device memory; offsets[0] is 0 */
    int32_t *runs;          /* (capacity) device memory */
} DsvLists;

static inline int64_t dsvi_lists_count(const DsvLists *lists)
{
    return lists->batch * lists->heads * lists->groups;
}

/* Runs that cover all keys once: the length of a full list. */
static inline int64_t dsvi_lists_full(const DsvLists *lists)
{
    return (lists->keys + lists->grain - 1) / lists->grain;
}

/* One list, to be read key by key. */
typedef struct DsvList {
    const int32_t *runs; /* (count) */
    int64_t count;
    int64_t grain, keys; /* as in DsvLists */
} DsvList;

/* List n = (b * heads + h) * groups + g. */
static inline DsvList dsvi_list_at(const DsvLists *lists, int64_t n)
{
    DsvList list;
    list.runs = lists->runs + lists->offsets[n];
    list.count = lists->offsets[n + 1] - lists->offsets[n];
    list.grain = lists->grain;
    list.keys = lists->keys;
    return list;
}

/* The list of query `query` of (b, h); without lists (NULL) that of all `keys` keys, as a single run. */
static inline DsvList dsvi_list_of(const DsvLists *lists, int64_t keys, int64_t b, int64_t h, int64_t query)
{
    static const int32_t first[1] = {0};
    DsvList list;
    if (lists)
        return dsvi_list_at(lists, (b * lists->heads + h) * lists->groups + query / lists->group);
    list.runs = first;
    list.count = keys > 0 ? 1 : 0;
    list.grain = keys;
    list.keys = keys;
    return list;
}

/* Keys in the list: only the very last run of all keys may be short. */
static inline int64_t dsvi_list_length(const DsvList *list)
{
    if (list->count == 0)
        return 0;
    int64_t end = ((int64_t)list->runs[list->count - 1] + 1) * list->grain;
    return list->count * list->grain - (end > list->keys ? end - list->keys : 0);
}

/* Key number i of the list, ascending, 0 <= i < dsvi_list_length. */
static inline int64_t dsvi_list_key(const DsvList *list, int64_t i)
{
    return (int64_t)list->runs[i / list->grain] * list->grain + i % list->grain;
}

static inline bool dsvi_list_contains(const DsvList *list, int64_t key)
{
    int64_t low = 0, high = list->count; /* the run, if it is there, is in [low, high) */
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        int64_t first_key = (int64_t)list->runs[middle] * list->grain;
        if (key < first_key)
            high = middle;
        else if (key >= first_key + list->grain)
            low = middle + 1;
        else
            return true;
    }
    return false;
}

#ifdef __cplusplus
}
#endif
#endif
