/* Key lists: the keys to which each group of queries attends. All backends, selectors and tests use struct
 * DsviLists.
 *
 * G consecutive queries of one (batch, head) form a group; the last group may be short. Every group has a
 * list of spans. Span i stands for the `grain` consecutive keys [i*grain, min((i+1)*grain, keys)). With grain
 * 1, spans are single keys; grain 64 with groups of 64 is block-sparse attention. The lists are stored one
 * after another:
 *
 *     list n = spans[offsets[n] .. offsets[n + 1]),    n = (b * heads + h) * groups + g.
 *
 * A list is ascending and has no span twice. A list may be empty: then the queries of its group attend to no
 * key. */
#ifndef DSVI_LISTS_H
#define DSVI_LISTS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviLists {
    int64_t batch, heads;
    int64_t queries, keys; /* S_q, S_k */
    int64_t group;         /* G */
    int64_t groups;        /* ceil(queries / group) */
    int64_t grain;
    int64_t capacity; /* number of entries that fit in `spans` */
    int64_t *offsets; /* (batch * heads * groups + 1) device memory; offsets[0] is 0 */
    int32_t *spans;   /* (capacity) device memory */
} DsviLists;

static inline int64_t dsvi_lists_count(const DsviLists *lists)
{
    return lists->batch * lists->heads * lists->groups;
}

/* Number of spans that cover all keys: the length of a full list. */
static inline int64_t dsvi_lists_full(const DsviLists *lists)
{
    return (lists->keys + lists->grain - 1) / lists->grain;
}

/* A read-only view of one key list. dsvi_list_length and dsvi_list_key iterate over its keys. */
typedef struct DsviList {
    const int32_t *spans; /* (count) */
    int64_t count;
    int64_t grain, keys; /* keys of a span, and number of all keys */
} DsviList;

/* Returns list n = (b * heads + h) * groups + g. */
static inline DsviList dsvi_list_at(const DsviLists *lists, int64_t n)
{
    DsviList list;
    list.spans = lists->spans + lists->offsets[n];
    list.count = lists->offsets[n + 1] - lists->offsets[n];
    list.grain = lists->grain;
    list.keys = lists->keys;
    return list;
}

/* Returns the list of query `query` of (b, h). If `lists` is NULL, the list contains all `keys` keys, as a
 * single span. */
static inline DsviList dsvi_list_of(const DsviLists *lists, int64_t keys, int64_t b, int64_t h, int64_t query)
{
    static const int32_t first[1] = {0};
    DsviList list;
    if (lists)
        return dsvi_list_at(lists, (b * lists->heads + h) * lists->groups + query / lists->group);
    list.spans = first;
    list.count = keys > 0 ? 1 : 0;
    list.grain = keys;
    list.keys = keys;
    return list;
}

/* Number of keys in the list. Only the last span of all keys can be short. */
static inline int64_t dsvi_list_length(const DsviList *list)
{
    if (list->count == 0)
        return 0;
    int64_t end = ((int64_t)list->spans[list->count - 1] + 1) * list->grain;
    return list->count * list->grain - (end > list->keys ? end - list->keys : 0);
}

/* Returns key i of the list, 0 <= i < dsvi_list_length. Keys are ascending. */
static inline int64_t dsvi_list_key(const DsviList *list, int64_t i)
{
    return (int64_t)list->spans[i / list->grain] * list->grain + i % list->grain;
}

static inline bool dsvi_list_contains(const DsviList *list, int64_t key)
{
    int64_t low = 0, high = list->count; /* if some span of the list contains `key`, the span's index in the
                                          * list is in [low, high) */
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        int64_t first_key = (int64_t)list->spans[middle] * list->grain;
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
