/* Predicts the seconds and bytes that one plan takes (cp_prices.h). The model that these functions compute
 * is at the top of cp_plan.h. */
#include "cp/cp_prices.h"

#include <math.h>
#include <string.h>

/* Numbers of tensors that a forward or backward pass exchanges between tokens form and heads form. */
enum { TO_HEADS_FORWARD = 3, TO_TOKENS_FORWARD = 1, TO_HEADS_BACKWARD = 5, TO_TOKENS_BACKWARD = 3 };
/* Number of tensors (q, k, v, out) that a backward pass over lists does not exchange again after
 * recomputation. */
enum { TO_HEADS_KEPT = 4 };
enum { F32_BYTES = 4 };

double dsvi_cp_union(double density, double lists, double spread)
{
    double rest = 1 - fmin(fmax(density, 0), 1);
    return 1 - pow(rest, pow(fmax(lists, 1), spread));
}

double dsvi_cp_spread(double density, double lists, double share)
{
    double alone = log1p(-fmin(fmax(density, 1e-6), 1 - 1e-6)), all = log1p(-fmin(share, 1 - 1e-6));
    /* there is one list, or all lists together name no more keys than one list names */
    if (!(lists > 1) || !(all < alone))
        return 0;
    return fmin(log(all / alone) / log(lists), 1);
}

DsviCpShards dsvi_cp_shards(const DsviCpShape *shape, int64_t head_ranks)
{
    DsviCpShards at = {head_ranks, shape->ranks / head_ranks, 0, INT64_MAX, 0, INT64_MAX};
    for (int64_t r = 0; r < shape->ranks; r++) {
        int64_t own = shape->bound[r + 1] - shape->bound[r];
        at.own_max = own > at.own_max ? own : at.own_max;
        at.own_min = own < at.own_min ? own : at.own_min;
    }
    for (int64_t r = 0; r < shape->ranks; r += head_ranks) {
        int64_t tokens = shape->bound[r + head_ranks] - shape->bound[r];
        at.group_max = tokens > at.group_max ? tokens : at.group_max;
        at.group_min = tokens < at.group_min ? tokens : at.group_min;
    }
    return at;
}

/* Sets count[0] and count[1]: how often a step computes forward and backward attention. */
static void pass_counts(const DsviCpShape *shape, double count[DSVI_PASSES])
{
    count[0] = shape->recompute ? 2 : 1;
    count[1] = shape->backward ? 1 : 0;
}

/* Returns whether keys and values travel around a ring of ranks: in dense attention, and over lists with a
 * tail. */
static bool uses_ring(const DsviCpShape *shape, const DsviCpShards *at, bool lists)
{
    return at->sequence_ranks > 1 && (!lists || shape->tail);
}

/* Returns whether the backward pass can use the tensors that the recomputation directly before it
 * received. */
static bool keeps_inputs(const DsviCpShape *shape, const DsviCpShards *at, const DsviCpBlock *block)
{
    return block->density && shape->recompute && !uses_ring(shape, at, true);
}

/* Seconds to exchange one tensor with `row` bytes per token and head between tokens form and heads form, on a
 * rank with c heads. */
static double price_tensor(const DsviCpCosts *costs, const DsviLinkCost *link, const DsviCpShape *shape,
                           const DsviCpShards *at, double row, int64_t c)
{
    double batch = (double)shape->batch;
    double sent = (double)(at->own_max * (shape->heads - c));
    double received = (double)((at->group_max - at->own_min) * c);
    double packed = 2 * batch * (double)(at->own_max * shape->heads) * row;
    return batch * dsvi_price_at(&link->head_exchange, row * fmax(sent, received)) + packed * costs->touch;
}

static void price_exchange(const DsviCpCosts *costs, const DsviLinkCost *link, const DsviCpShape *shape,
                           const DsviCpBlock *block, const DsviCpShards *at, DsviCpPrices *p)
{
    double passes[DSVI_PASSES], row = (double)(shape->head_dim * shape->element);
    if (at->head_ranks == 1)
        return;
    pass_counts(shape, passes);
    double backward = TO_HEADS_BACKWARD - (keeps_inputs(shape, at, block) ? TO_HEADS_KEPT : 0);
    double tensors = passes[0] * (TO_HEADS_FORWARD + TO_TOKENS_FORWARD) +
                     passes[1] * (backward + TO_TOKENS_BACKWARD);
    for (int64_t c = 0; c <= shape->heads; c++)
        p->heads[c] = tensors * price_tensor(costs, link, shape, at, row, c);
}

static void price_attention(const DsviAttentionCost *cost, const DsviCpShape *shape, const DsviCpBlock *block,
                            const DsviCpShards *at, DsviCpPrices *p)
{
    double passes[DSVI_PASSES], all[DSVI_PASSES] = {0, 0};
    double pairs = (double)shape->batch * (double)at->group_max * (double)shape->tokens;
    bool divided = at->sequence_ranks > 1; /* in a ring: one attention call per row of the grid of ranks; else
                                            * one for this rank's keys, one for fetched keys */
    bool ring = uses_ring(shape, at, block->density != NULL);
    double calls = ring ? (double)at->sequence_ranks : divided ? 2 : 1;
    pass_counts(shape, passes);
    for (int pass = 0; pass < DSVI_PASSES; pass++)
        p->calls += passes[pass] * cost->call[pass] * calls;
    for (int64_t h = 0; h < shape->heads; h++) {
        p->burden[h] = block->density ? pairs * cost->select : 0;
        for (int pass = 0; pass < DSVI_PASSES; pass++) {
            double pair = block->density ? dsvi_price_at(&cost->lists[pass], block->density[h])
                                         : cost->dense[pass];
            p->attend[pass][h] = pairs * pair;
            p->burden[h] += passes[pass] * p->attend[pass][h];
            all[pass] += passes[pass] * p->attend[pass][h];
        }
    }
    for (int pass = 0; pass < DSVI_PASSES; pass++)
        p->cost.share[pass] = all[0] + all[1] > 0 ? all[pass] / (all[0] + all[1]) : 0;
}

/* Seconds to merge attention over the keys of one more row of the rank grid into the result: the output,
 * and in the backward pass the gradients of q, k and v. The sums are read and written in F32; the summands
 * are read in the activation dtype. */
static double price_merge(const DsviCpCosts *costs, const DsviCpShape *shape, const DsviCpShards *at,
                          int64_t heads)
{
    double passes[DSVI_PASSES];
    double numbers = (double)(shape->batch * at->group_max * heads * shape->head_dim);
    pass_counts(shape, passes);
    return (passes[0] + 3 * passes[1]) * numbers * (double)(shape->element + 2 * F32_BYTES) * costs->touch;
}

static void price_ring(const DsviCpCosts *costs, const DsviLinkCost *link, const DsviCpShape *shape,
                       const DsviCpShards *at, DsviCpPrices *p)
{
    double passes[DSVI_PASSES], others = (double)(at->sequence_ranks - 1);
    double row = (double)(shape->batch * at->group_max * shape->head_dim);
    pass_counts(shape, passes);
    for (int64_t c = 0; c <= shape->heads; c++) {
        double numbers = (double)c * row;
        double keys = 2 * dsvi_price_at(&link->sequence_swap, numbers * (double)shape->element);
        double sums = 2 * dsvi_price_at(&link->sequence_swap, numbers * F32_BYTES);
        p->moved[0][c] = passes[0] * others * keys;
        p->moved[1][c] = passes[1] * ((others - 1) * keys + others * sums);
        p->sequence[c] = passes[1] * keys + others * price_merge(costs, shape, at, c);
    }
}

/* Returns the seconds per byte that a transfer of `bytes` bytes takes. */
static double price_of_byte(const DsviPriceCurve *curve, double bytes)
{
    return bytes > 0 ? dsvi_price_at(curve, bytes) / bytes : 0;
}

/* Adds the time to send features of keys to all other ranks of the cp group, which each rank does under
 * every plan. */
static void price_features(const DsviLinkCost *all, const DsviCpShape *shape, const DsviCpShards *at,
                           DsviCpPrices *p)
{
    double each = (double)shape->batch * shape->feature;
    for (int64_t c = 0; c <= shape->heads; c++) {
        double received = (double)((shape->tokens - at->own_min) * c);
        double sent = (double)(at->own_max * (at->sequence_ranks * shape->heads - c));
        p->sequence[c] += dsvi_price_at(&all->head_exchange, each * fmax(received, sent));
    }
}

/* Adds the time to transfer marks, the other ranks' keys and values that lists name, and the gradients of
 * these keys and values. Attention over the head group's own keys can hide the transfer of keys and
 * values. */
static void price_rows(const DsviCpCosts *costs, const DsviLinkCost *link, const DsviCpShape *shape,
                       const DsviCpBlock *block, const DsviCpShards *at, DsviCpPrices *p)
{
    double passes[DSVI_PASSES], rows = 0, kv = 2 * (double)(shape->head_dim * shape->element);
    double lists = ceil((double)at->group_max / (double)shape->group);
    double others = (double)shape->batch * (double)(shape->tokens - at->group_min);
    double hidden_part = costs->beside ? 1 / (double)at->sequence_ranks : 0;
    pass_counts(shape, passes);
    for (int64_t h = 0; h < shape->heads; h++) {
        p->gathered[h] = others * dsvi_cp_union(block->density[h], lists, block->spread);
        rows += p->gathered[h] / (double)at->head_ranks;
    }
    double row = kv * price_of_byte(&link->sequence_exchange, rows * kv);
    for (int64_t h = 0; h < shape->heads; h++) {
        double transfer = row * p->gathered[h];
        p->rows[h] = passes[1] * transfer; /* gradients */
        for (int pass = 0; pass < (keeps_inputs(shape, at, block) ? 1 : DSVI_PASSES); pass++)
            p->rows[h] += passes[pass] * fmax(0, transfer - hidden_part * p->attend[pass][h]);
        p->burden[h] += p->rows[h];
    }
    for (int64_t c = 0; c <= shape->heads; c++)
        p->sequence[c] += dsvi_price_at(&link->sequence_exchange,
                                        others * (double)c / (double)(8 * shape->grain)) +
                          price_merge(costs, shape, at, c);
}

/* Adds the time of transfers that training of the predictor selector needs in the forward pass. In a head
 * group: features to heads, their gradients back, and in dense blocks q and k (attention over lists
 * exchanges q and k anyway). In a sequence group: keys and features of all ranks, and the reduce-scatter of
 * the gradients of features. */
static void price_predictor(const DsviCpCosts *costs, const DsviLinkCost *heads, const DsviLinkCost *sequence,
                            const DsviCpShape *shape, const DsviCpBlock *block, const DsviCpShards *at,
                            DsviCpPrices *p)
{
    double batch = (double)shape->batch, row = (double)(shape->head_dim * shape->element);
    double others = (double)(shape->tokens - at->group_min);
    double copies = (double)((at->sequence_ranks - 1) * at->group_max);
    for (int64_t c = 0; c <= shape->heads; c++) {
        const double bytes[] = {copies * row, copies * shape->taught, others * shape->taught};
        if (at->head_ranks > 1)
            p->heads[c] += 2 * price_tensor(costs, heads, shape, at, shape->taught, c) +
                           (block->density ? 0 : 2 * price_tensor(costs, heads, shape, at, row, c));
        for (int i = 0; i < 3 && at->sequence_ranks > 1; i++)
            p->sequence[c] += batch * dsvi_price_at(&sequence->sequence_exchange, (double)c * bytes[i]);
    }
}

/* Bytes of buffers of ring attention in addition to the heads forms, where one tensor in heads form has
 * `own` elements. */
static double ring_memory(const DsviCpShape *shape, const DsviCpShards *at, double own)
{
    double e = (double)shape->element, keys = at->sequence_ranks > 2 ? 4 : 2;
    if (!shape->backward) /* one partial result, and the merged result of several */
        return own * ((keys + 1) * e + (at->sequence_ranks > 2 ? F32_BYTES : 0));
    return own * (keys * e + 5 * F32_BYTES + (at->head_ranks == 1 ? 2 * e : 0)); /* 5: dk and dv twice, dq */
}

/* Returns the bytes of workspace of a rank with `heads` heads, whose lists name `gathered` keys of other
 * ranks. */
static double memory_of(const DsviCpShape *shape, const DsviCpShards *at, int64_t heads, double gathered,
                        bool lists)
{
    double row = (double)shape->head_dim, e = (double)shape->element, batch = (double)shape->batch;
    double own = batch * (double)(at->group_max * heads) * row, bytes = 0;
    if (at->head_ranks > 1) /* q k v out, dout dq dk dv, and the packed tensors of one exchange */
        bytes += ((shape->backward ? 8 : 4) * own +
                  DSVI_CP_TENSORS_MAX * batch * (double)(at->own_max * shape->heads) * row) *
                 e;
    if (uses_ring(shape, at, lists))
        bytes += ring_memory(shape, at, own);
    else if (at->sequence_ranks > 1) /* k and v: sent, received, rows; backward: gradients too */
        bytes += gathered * row * 2 * e * (shape->backward ? 5 : 3);
    if (lists)
        bytes += batch * (double)(shape->tokens * heads) * shape->feature;
    return bytes;
}

/* Sets p->fixed[c] to INFINITY for each number c of heads with which a rank would exceed a memory limit. The
 * number of other ranks' keys that lists name differs by head; this function uses the mean. */
static void forbid_large_counts(const DsviCpShape *shape, const DsviCpShards *at, bool lists, DsviCpPrices *p)
{
    double gathered = 0;
    for (int64_t h = 0; h < shape->heads; h++)
        gathered += p->gathered[h] / (double)shape->heads;
    for (int64_t c = 1; c <= shape->heads; c++) {
        double memory = memory_of(shape, at, c, gathered * (double)c, lists);
        if ((shape->rows_max > 0 && c * at->group_max > shape->rows_max) ||
            (shape->memory_max > 0 && memory > (double)shape->memory_max))
            p->fixed[c] = INFINITY;
    }
}

/* Returns whether the costs of an all-to-all are known, in sequence groups (`apart` true) or in head groups.
 * A run measures only the groups that its plans may use. */
static bool is_known(const DsviLinkCost *link, bool apart)
{
    return link && (apart ? link->sequence_exchange : link->head_exchange).count > 0;
}

bool dsvi_cp_prices(const DsviCpCosts *costs, const DsviCpShape *shape, const DsviCpBlock *block,
                    const DsviCpShards *at, DsviCpPrices *p)
{
    const DsviLinkCost *heads = dsvi_costs_link(costs, at->head_ranks);
    const DsviLinkCost *sequence = dsvi_costs_link(costs, at->sequence_ranks);
    const DsviLinkCost *all = dsvi_costs_link(costs, shape->ranks);
    if ((at->head_ranks > 1 && !is_known(heads, false)) ||
        (at->sequence_ranks > 1 && !is_known(sequence, true)))
        return false;
    bool ring = uses_ring(shape, at, block->density != NULL);
    if (!ring && at->sequence_ranks > DSVI_SPAN_PARTS_MAX)
        return false;
    if (block->density &&
        (costs->attention.lists[0].count == 0 || (shape->ranks > 1 && !is_known(all, false))))
        return false;
    memset(p, 0, sizeof *p);
    price_exchange(costs, heads, shape, block, at, p);
    price_attention(&costs->attention, shape, block, at, p);
    if (ring) {
        price_ring(costs, sequence, shape, at, p);
        for (int pass = 0; pass < DSVI_PASSES; pass++)
            p->cost.moved[pass] = p->moved[pass];
        p->cost.hides = costs->beside ? 1 - 1 / (double)at->sequence_ranks : 0;
    }
    if (at->sequence_ranks > 1 && !ring)
        price_rows(costs, sequence, shape, block, at, p);
    if (block->density && shape->ranks > 1)
        price_features(all, shape, at, p);
    if (shape->taught > 0)
        price_predictor(costs, heads, sequence, shape, block, at, p);
    for (int64_t c = 0; c <= shape->heads; c++)
        p->fixed[c] = p->heads[c] + p->sequence[c] + p->calls;
    forbid_large_counts(shape, at, block->density != NULL, p);
    p->cost.fixed = p->fixed;
    return true;
}

/* Computes the times of the ranks with one head_index, which have the heads `head`. Copies these times to
 * `slowest` if their total is larger than slowest->total. slowest->memory becomes the larger of the two
 * memory sizes. */
static void time_rank(const DsviCpShape *shape, const DsviCpShards *at, const DsviCpPrices *p, bool lists,
                      const int32_t *head, int64_t heads, DsviCpTimes *slowest)
{
    double burden = 0, rows = 0, gathered = 0;
    for (int64_t i = 0; i < heads; i++) {
        burden += p->burden[head[i]];
        rows += p->rows[head[i]];
        gathered += p->gathered[head[i]];
    }
    double total = dsvi_rank_cost(&p->cost, burden, heads);
    double memory = memory_of(shape, at, heads, gathered, lists);
    if (memory > (double)slowest->memory)
        slowest->memory = (size_t)memory;
    if (!(total > slowest->total))
        return;
    slowest->total = total;
    slowest->heads = p->heads[heads];
    slowest->attend = burden - rows + p->calls;
    slowest->sequence = fmax(0, total - slowest->heads - slowest->attend); /* without fmax, rounding could
                                                                            * make it slightly negative */
}

void dsvi_cp_times_at(const DsviCpShape *shape, const DsviCpBlock *block, const DsviCpShards *at,
                      const DsviCpPrices *p, const DsviCpPlan *plan, DsviCpTimes *times)
{
    *times = (DsviCpTimes){.total = -INFINITY};
    for (int64_t i = 0; i < plan->head_ranks; i++)
        time_rank(shape, at, p, block->density != NULL, plan->placement + plan->bound[i],
                  plan->bound[i + 1] - plan->bound[i], times);
    if (shape->memory_max > 0 && times->memory > shape->memory_max)
        times->total = INFINITY;
}

void dsvi_cp_times(const DsviCpCosts *costs, const DsviCpShape *shape, const DsviCpBlock *block,
                   const DsviCpPlan *plan, DsviCpTimes *times)
{
    DsviCpPrices prices;
    DsviCpShards at = dsvi_cp_shards(shape, plan->head_ranks);
    *times = (DsviCpTimes){.total = INFINITY};
    if (dsvi_cp_prices(costs, shape, block, &at, &prices))
        dsvi_cp_times_at(shape, block, &at, &prices, plan, times);
}
