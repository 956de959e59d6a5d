/* The keys that lists leave out, as an addition to scores of chunks and runs (ops/attention_tail.h): log
 * n_gr, and DSVI_MASKED for n_gr = 0. Shared by the forward and backward passes of the tail, which both store
 * scores as (runs, chunks).
 *
 * A tile of chunks belongs to one or more groups. The runs are visited in ascending order, and each group has
 * a cursor, the first span of its list that ends after the runs visited so far. */
#ifndef DSVI_ATTENTION_TAIL_MASK_H
#define DSVI_ATTENTION_TAIL_MASK_H

#include <math.h>

#include "cpu/attention_tile.h"
#include "ops/attention_tail.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The score of a run with no key left out. It is finite, so that differences of two such scores are not NaN,
 * and is so low that its weight beside any other score is 0. */
#define DSVI_MASKED (-0x1p126f)

typedef struct DsviTailMask {
    const DsviAttentionTailArgs *args;
    const float *logs; /* (run + 1) log n; logs[0] is DSVI_MASKED */
} DsviTailMask;

/* A tile of chunks of (b, h) with the cursors of its groups. */
typedef struct DsviTailTile {
    int64_t b, h, first, chunks;
    int64_t *cursor; /* (groups of the tile, at most `chunks`) */
} DsviTailTile;

static inline int64_t dsvi_tail_group(const DsviTailMask *mask, int64_t chunk)
{
    return chunk * mask->args->chunk / mask->args->attention.lists->group;
}

static inline DsviList dsvi_tail_list(const DsviTailMask *mask, const DsviTailTile *tile, int64_t group)
{
    const DsviLists *lists = mask->args->attention.lists;
    return dsvi_list_at(lists, (tile->b * lists->heads + tile->h) * lists->groups + group);
}

/* Sets the cursors for a walk that begins at run `run`. */
static inline void dsvi_tail_begin(const DsviTailMask *mask, const DsviTailTile *tile, int64_t run)
{
    int64_t key = run * mask->args->run, begin = dsvi_tail_group(mask, tile->first);
    for (int64_t g = begin; g <= dsvi_tail_group(mask, tile->first + tile->chunks - 1); g++) {
        DsviList list = dsvi_tail_list(mask, tile, g);
        int64_t low = 0, high = list.count; /* the cursor is in [low, high] */
        while (low < high) {
            int64_t middle = low + (high - low) / 2;
            if (((int64_t)list.spans[middle] + 1) * list.grain > key)
                high = middle;
            else
                low = middle + 1;
        }
        tile->cursor[g - begin] = low;
    }
}

/* Takes from left[r], for each of `runs` runs from key `first` on, the listed keys of the run. Moves the
 * cursor. */
static inline void dsvi_tail_take_listed(const DsviList *list, int64_t *cursor, int64_t first, int64_t runs,
                                         int64_t run, int64_t *left)
{
    int64_t end = first + runs * run < list->keys ? first + runs * run : list->keys;
    for (; *cursor < list->count; ++*cursor) {
        int64_t begin = (int64_t)list->spans[*cursor] * list->grain, after = begin + list->grain;
        if (begin >= end)
            return;
        int64_t from = begin < first ? first : begin, to = after < end ? after : end;
        for (int64_t key = from, next; key < to; key = next) {
            int64_t r = (key - first) / run, run_end = first + (r + 1) * run;
            next = to < run_end ? to : run_end;
            left[r] -= next - key;
        }
        if (after > end)
            return;
    }
}

/* As dsvi_tail_take_listed for runs of one key: masks the scores of the listed keys at once. */
static inline void dsvi_tail_mask_keys(const DsviList *list, int64_t *cursor, int64_t first, int64_t keys,
                                       float *scores, int64_t stride, int64_t chunks)
{
    int64_t end = first + keys;
    for (; *cursor < list->count; ++*cursor) {
        int64_t begin = (int64_t)list->spans[*cursor] * list->grain, after = begin + list->grain;
        if (begin >= end)
            return;
        int64_t from = begin < first ? first : begin, to = after < end ? after : end;
        for (int64_t key = from; key < to; key++)
            for (int64_t c = 0; c < chunks; c++)
                scores[(key - first) * stride + c] = DSVI_MASKED;
        if (after > end)
            return;
    }
}

/* Adds log n_gr to the scores of one group: `runs` runs from run `first` on, and `chunks` chunks. */
static inline void dsvi_tail_weigh_runs(const DsviTailMask *mask, const DsviList *list, int64_t *cursor,
                                        int64_t first, int64_t runs, float *scores, int64_t stride,
                                        int64_t chunks)
{
    int64_t left[DSVI_TILE_KEYS], run = mask->args->run, keys = mask->args->attention.keys;
    for (int64_t r = 0; r < runs; r++)
        left[r] = (first + r + 1) * run <= keys ? run : keys - (first + r) * run;
    dsvi_tail_take_listed(list, cursor, first * run, runs, run, left);
    for (int64_t r = 0; r < runs; r++) {
        float add = mask->logs[left[r]];
        for (int64_t c = 0; c < chunks; c++)
            scores[r * stride + c] = left[r] > 0 ? scores[r * stride + c] + add : DSVI_MASKED;
    }
}

/* Applies the mask to the scores (runs, chunks) of a tile, which begin at run `first` and are `stride` apart.
 */
static inline void dsvi_tail_mask(const DsviTailMask *mask, const DsviTailTile *tile, int64_t first,
                                  int64_t runs, float *scores, int64_t stride)
{
    int64_t begin = dsvi_tail_group(mask, tile->first), end = tile->first + tile->chunks;
    int64_t per_group = mask->args->attention.lists->group / mask->args->chunk;
    for (int64_t chunk = tile->first, next; chunk < end; chunk = next) {
        int64_t group = dsvi_tail_group(mask, chunk), *cursor = tile->cursor + (group - begin);
        DsviList list = dsvi_tail_list(mask, tile, group);
        next = (group + 1) * per_group < end ? (group + 1) * per_group : end;
        float *column = scores + (chunk - tile->first);
        if (mask->args->run == 1)
            dsvi_tail_mask_keys(&list, cursor, first, runs, column, stride, next - chunk);
        else
            dsvi_tail_weigh_runs(mask, &list, cursor, first, runs, column, stride, next - chunk);
    }
}

#ifdef __cplusplus
}
#endif
#endif
