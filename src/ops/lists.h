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

#ifdef __cplusplus
}
#endif
#endif
