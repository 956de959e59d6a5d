/* Implements block_plan.h.
 *
 * The programme goes from the last block to the first. A label is a choice for all blocks from some block on,
 * reduced to what earlier blocks must know of it. The memory that it needs from its first block on is
 *
 *     bytes(b) = bytes of block b + max(gradients after block b, bytes(b + 1))
 *
 * A label is dropped if another one is at least as good in every respect: bytes, time, time for copies of an
 * earlier block, and whether an earlier block that shares would be the last one. Labels that remain for the
 * first block, without those that are only better for earlier blocks, are the answer. */
#include "train/block_plan.h"

#include <stdlib.h>
#include <string.h>

typedef struct Label {
    size_t bytes;
    int64_t time;
    int64_t cover[2]; /* forward, backward: time in which a copy of an earlier block is hidden; at most the
                       * longest copy, and as much if no later block is copied over it */
    int64_t next;     /* index of the label of the next block */
    bool shared;      /* a block of this choice shares buffers */
    uint8_t way;      /* of the first block */
} Label;

typedef struct Labels {
    Label *at;
    int64_t count, room;
} Labels;

static const char NO_ROOM[] = "no memory to plan the activations of blocks";

static DsvStatus push(Labels *labels, const Label *label)
{
    if (labels->count == labels->room) {
        int64_t room = labels->room ? 2 * labels->room : 256;
        Label *grown = realloc(labels->at, (size_t)room * sizeof *grown);
        if (!grown)
            return DSVI_FAIL(DSV_E_NO_MEMORY, NO_ROOM);
        labels->at = grown;
        labels->room = room;
    }
    labels->at[labels->count++] = *label;
    return DSV_OK;
}

static int by_bytes(const void *a, const void *b)
{
    const Label *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    if (x->time != y->time)
        return x->time < y->time ? -1 : 1;
    for (int pass = 0; pass < 2; pass++)
        if (x->cover[pass] != y->cover[pass])
            return x->cover[pass] > y->cover[pass] ? -1 : 1;
    if (x->shared != y->shared)
        return x->shared ? 1 : -1;
    if (x->way != y->way)
        return x->way < y->way ? -1 : 1;
    return (x->next > y->next) - (x->next < y->next);
}

/* Returns whether x is at least as good as y, apart from bytes. */
static bool beats(const Label *x, const Label *y, bool whole)
{
    if (x->time > y->time)
        return false;
    return whole || (x->cover[0] >= y->cover[0] && x->cover[1] >= y->cover[1] && x->shared <= y->shared);
}

/* Drops labels that others beat, and those of more than `limit` bytes except the smallest: blocks that are
 * put before a label only add bytes. `whole`: the labels are of the whole chain, and no block comes before.
 * The labels are visited by rising bytes, so that each of them can be beaten by earlier ones only. `best`
 * holds the earlier ones that no other of them beats in all respects but bytes; they are few, because `cover`
 * has few values. */
static DsvStatus drop_beaten(Labels *labels, size_t limit, bool whole)
{
    int64_t kept = 0, best_count = 0;
    Label *best = malloc((size_t)labels->count * sizeof *best + 1);
    if (!best)
        return DSVI_FAIL(DSV_E_NO_MEMORY, NO_ROOM);
    qsort(labels->at, (size_t)labels->count, sizeof *labels->at, by_bytes);
    for (int64_t i = 0; i < labels->count; i++) {
        const Label label = labels->at[i];
        if (i > 0 && label.bytes > limit)
            break;
        int64_t j = 0, left = 0;
        while (j < best_count && !beats(&best[j], &label, whole))
            j++;
        if (j < best_count)
            continue;
        for (j = 0; j < best_count; j++)
            if (!beats(&label, &best[j], whole))
                best[left++] = best[j];
        best[left++] = label;
        best_count = left;
        labels->at[kept++] = label;
    }
    labels->count = kept;
    free(best);
    return DSV_OK;
}

static int64_t chain_longest_copy(const DsviChain *chain)
{
    int64_t longest = 0;
    for (int64_t b = 0; b < chain->blocks; b++)
        for (int w = 0; w < DSVI_BLOCK_WAYS; w++) {
            const DsviBlockWay *way = &chain->block[b].way[w];
            if (way->allowed && way->waits && way->copy > longest)
                longest = way->copy;
        }
    return longest;
}

/* Puts a block before the choice `next`, which has index `index`. */
static Label put_before(const DsviChainBlock *block, int w, const Label *next, int64_t index, int64_t longest)
{
    const DsviBlockWay *way = &block->way[w];
    int64_t again = way->shares && !next->shared ? way->again_last : way->again;
    const int64_t pass[2] = {block->forward, block->backward + again};
    Label label = {
        .bytes = way->bytes + (block->after > next->bytes ? block->after : next->bytes),
        .time = next->time + pass[0] + pass[1],
        .next = index,
        .shared = next->shared || way->shares,
        .way = (uint8_t)w,
    };
    for (int i = 0; i < 2; i++) {
        if (way->waits && way->copy > next->cover[i])
            label.time += way->copy - next->cover[i];
        int64_t cover = pass[i] + (way->waits ? 0 : next->cover[i]);
        label.cover[i] = cover < longest ? cover : longest;
    }
    return label;
}

/* Puts a block before each choice of `next` in each allowed way. */
static DsvStatus put_block(const DsviChainBlock *block, const Labels *next, int64_t longest, Labels *out)
{
    out->count = 0;
    for (int64_t i = 0; i < next->count; i++)
        for (int w = 0; w < DSVI_BLOCK_WAYS; w++) {
            if (!block->way[w].allowed)
                continue;
            Label label = put_before(block, w, &next->at[i], i, longest);
            DSVI_TRY(push(out, &label));
        }
    return DSV_OK;
}

static DsvStatus copy_labels(const Labels *from, Labels *to)
{
    to->at = malloc((size_t)from->count * sizeof *to->at + 1);
    if (!to->at)
        return DSVI_FAIL(DSV_E_NO_MEMORY, NO_ROOM);
    memcpy(to->at, from->at, (size_t)from->count * sizeof *to->at);
    to->count = to->room = from->count;
    return DSV_OK;
}

/* Makes the labels of all blocks: labels[b] begin with block b, labels[blocks] is the empty choice. `all`
 * holds the labels of one block before some of them are dropped. */
static DsvStatus make_labels(const DsviChain *chain, Labels *labels, Labels *all, int64_t *tried)
{
    int64_t longest = chain_longest_copy(chain);
    const Label empty = {.bytes = chain->end + chain->after_end, .cover = {longest, longest}};
    DSVI_TRY(push(&labels[chain->blocks], &empty));
    for (int64_t b = chain->blocks - 1; b >= 0; b--) {
        DSVI_TRY(put_block(&chain->block[b], &labels[b + 1], longest, all));
        *tried += all->count;
        DSVI_TRY(drop_beaten(all, chain->limit, b == 0));
        DSVI_TRY(copy_labels(all, &labels[b]));
    }
    return DSV_OK;
}

static DsvStatus list_plans(const DsviChain *chain, const Labels *labels, DsviBlockPlans *out)
{
    int64_t count = labels[0].count;
    out->plan = calloc((size_t)count + 1, sizeof *out->plan);
    out->ways = calloc((size_t)(count * chain->blocks) + 1, 1);
    if (!out->plan || !out->ways)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %lld plans", (long long)count);
    for (int64_t i = 0; i < count; i++) {
        uint8_t *way = out->ways + i * chain->blocks;
        const Label *label = &labels[0].at[i];
        out->plan[i] = (DsviBlockPlan){label->bytes, label->time, way};
        for (int64_t b = 0; b < chain->blocks; b++) {
            way[b] = label->way;
            label = &labels[b + 1].at[label->next];
        }
    }
    out->count = count;
    return DSV_OK;
}

DsvStatus dsvi_block_plans_find(const DsviChain *chain, DsviBlockPlans *out)
{
    *out = (DsviBlockPlans){.count = 0};
    Labels *labels = calloc((size_t)chain->blocks + 1, sizeof *labels), all = {.count = 0};
    if (!labels)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to plan %lld blocks", (long long)chain->blocks);
    DsvStatus status = make_labels(chain, labels, &all, &out->tried);
    if (status == DSV_OK)
        status = list_plans(chain, labels, out);
    for (int64_t b = 0; b <= chain->blocks; b++)
        free(labels[b].at);
    free(labels);
    free(all.at);
    return status;
}

void dsvi_block_plans_free(DsviBlockPlans *plans)
{
    free(plans->plan);
    free(plans->ways);
    *plans = (DsviBlockPlans){.count = 0};
}

const DsviBlockPlan *dsvi_block_plans_within(const DsviBlockPlans *plans, size_t bytes)
{
    const DsviBlockPlan *best = NULL;
    for (int64_t i = 0; i < plans->count && plans->plan[i].bytes <= bytes; i++)
        best = &plans->plan[i];
    return best;
}
