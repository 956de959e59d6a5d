/* See cp_prices.h and the model in cp_plan.h. */
#include "context/cp_prices.h"

#include <math.h>
#include <string.h>

enum { TO_HEADS_FORWARD = 3, TO_TOKENS_FORWARD = 1, TO_HEADS_BACKWARD = 5, TO_TOKENS_BACKWARD = 3 };
enum { TO_HEADS_LEFT = 4 }; /* of those that go there backward, what recomputation over lists has left */
enum { F32_BYTES = 4 };

double dsvi_cp_union(double density, double lists, double spread)
{
    double rest = 1 - fmin(fmax(density, 0), 1);
    return 1 - pow(rest, pow(fmax(lists, 1), spread));
}

double dsvi_cp_spread(double density, double lists, double share)
{
    double alone = log1p(-fmin(fmax(density, 1e-6), 1 - 1e-6)), all = log1p(-fmin(share, 1 - 1e-6));
    if (!(lists > 1) || !(all < alone)) /* one list, or not more than one names */
        return 0;
    return fmin(log(all / alone) / log(lists), 1);
}

DsvCpStretches dsvi_cp_stretches(const DsvCpShape *shape, int64_t head_ranks)
{
    DsvCpStretches at = {head_ranks, shape->ranks / head_ranks, 0, INT64_MAX, 0, INT64_MAX};
    for (int64_t r = 0; r < shape->ranks; r++) {
        int64_t own = shape->bound[r + 1] - shape->bound[r];
        at.own_most = own > at.own_most ? own : at.own_most;
        at.own_least = own < at.own_least ? own : at.own_least;
    }
    for (int64_t r = 0; r < shape->ranks; r += head_ranks) {
        int64_t tokens = shape->bound[r + head_ranks] - shape->bound[r];
        at.group_most = tokens > at.group_most ? tokens : at.group_most;
        at.group_least = tokens < at.group_least ? tokens : at.group_least;
    }
    return at;
}

/* How often the forward pass attends, and the backward pass. */
static void pass_counts(const DsvCpShape *shape, double count[DSV_PASSES])
{
    count[0] = shape->recompute ? 2 : 1;
    count[1] = shape->backward ? 1 : 0;
}

/* Whether the backward pass finds in its place what the recomputation just before it was sent. */
static bool finds_it_there(const DsvCpShape *shape, const DsvCpBlock *block)
{
    return block->density && shape->recompute;
}

/* A tensor of `row` bytes a token and head, from tokens to heads or back, where a rank has c heads. */
static double price_tensor(const DsvContextCosts *costs, const DsvLinkCost *link, const DsvCpShape *shape,
                           const DsvCpStretches *at, double row, int64_t c)
{
    double batch = (double)shape->batch;
    double given = (double)(at->own_most * (shape->heads - c));
    double taken = (double)((at->group_most - at->own_least) * c);
    double packed = 2 * batch * (double)(at->own_most * shape->heads) * row;
    return batch * dsvi_price_at(&link->head_exchange, row * fmax(given, taken)) + packed * costs->touch;
}

static void price_exchange(const DsvContextCosts *costs, const DsvLinkCost *link, const DsvCpShape *shape,
                           const DsvCpBlock *block, const DsvCpStretches *at, DsvCpPrices *p)
{
    double passes[DSV_PASSES], row = (double)(shape->head_dim * shape->element);
    if (at->head_ranks == 1)
        return;
    pass_counts(shape, passes);
    double backward = TO_HEADS_BACKWARD - (finds_it_there(shape, block) ? TO_HEADS_LEFT : 0);
    double tensors = passes[0] * (TO_HEADS_FORWARD + TO_TOKENS_FORWARD) +
                     passes[1] * (backward + TO_TOKENS_BACKWARD);
    for (int64_t c = 0; c <= shape->heads; c++)
        p->heads[c] = tensors * price_tensor(costs, link, shape, at, row, c);
}

static void price_attention(const DsvAttentionCost *cost, const DsvCpShape *shape, const DsvCpBlock *block,
                            const DsvCpStretches *at, DsvCpPrices *p)
{
    double passes[DSV_PASSES], all[DSV_PASSES] = {0, 0};
    double pairs = (double)shape->batch * (double)at->group_most * (double)shape->tokens;
    bool divided = at->sequence_ranks > 1; /* keys: a call for each stretch; over lists one for the others */
    double calls = !divided ? 1 : block->density ? 2 : (double)at->sequence_ranks;
    pass_counts(shape, passes);
    for (int pass = 0; pass < DSV_PASSES; pass++)
        p->calls += passes[pass] * cost->call[pass] * calls;
    for (int64_t h = 0; h < shape->heads; h++) {
        p->burden[h] = block->density ? pairs * cost->select : 0;
        for (int pass = 0; pass < DSV_PASSES; pass++) {
            double pair = block->density ? dsvi_price_at(&cost->lists[pass], block->density[h])
                                         : cost->dense[pass];
            p->attend[pass][h] = pairs * pair;
            p->burden[h] += passes[pass] * p->attend[pass][h];
            all[pass] += passes[pass] * p->attend[pass][h];
        }
    }
    for (int pass = 0; pass < DSV_PASSES; pass++)
        p->cost.share[pass] = all[0] + all[1] > 0 ? all[pass] / (all[0] + all[1]) : 0;
}

/* Joining the results of one more stretch of keys: the output; backward the gradients of q, k, v. Sums are
 * read and written in F32, what is added to them is read in act. */
static double price_merge(const DsvContextCosts *costs, const DsvCpShape *shape, const DsvCpStretches *at,
                          int64_t heads)
{
    double passes[DSV_PASSES];
    double numbers = (double)(shape->batch * at->group_most * heads * shape->head_dim);
    pass_counts(shape, passes);
    return (passes[0] + 3 * passes[1]) * numbers * (double)(shape->element + 2 * F32_BYTES) * costs->touch;
}

static void price_ring(const DsvContextCosts *costs, const DsvLinkCost *link, const DsvCpShape *shape,
                       const DsvCpStretches *at, DsvCpPrices *p)
{
    double passes[DSV_PASSES], others = (double)(at->sequence_ranks - 1);
    double row = (double)(shape->batch * at->group_most * shape->head_dim);
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

/* The curve's price of a byte where `bytes` travel at once. */
static double price_of_byte(const DsvPriceCurve *curve, double bytes)
{
    return bytes > 0 ? dsvi_price_at(curve, bytes) / bytes : 0;
}

/* Features go from every rank to every other, whatever the degree. */
static void price_features(const DsvLinkCost *all, const DsvCpShape *shape, const DsvCpStretches *at,
                           DsvCpPrices *p)
{
    double each = (double)shape->batch * shape->feature;
    for (int64_t c = 0; c <= shape->heads; c++) {
        double taken = (double)((shape->tokens - at->own_least) * c);
        double given = (double)(at->own_most * (at->sequence_ranks * shape->heads - c));
        p->sequence[c] += dsvi_price_at(&all->head_exchange, each * fmax(taken, given));
    }
}

/* Rows of k and v, beside the head's attention on its own stretch; and their gradients. */
static void price_rows(const DsvContextCosts *costs, const DsvLinkCost *link, const DsvCpShape *shape,
                       const DsvCpBlock *block, const DsvCpStretches *at, DsvCpPrices *p)
{
    double passes[DSV_PASSES], rows = 0, kv = 2 * (double)(shape->head_dim * shape->element);
    double lists = ceil((double)at->group_most / (double)shape->group);
    double others = (double)shape->batch * (double)(shape->tokens - at->group_least);
    double near = costs->beside ? 1 / (double)at->sequence_ranks : 0;
    pass_counts(shape, passes);
    for (int64_t h = 0; h < shape->heads; h++) {
        p->gathered[h] = others * dsvi_cp_union(block->density[h], lists, block->spread);
        rows += p->gathered[h] / (double)at->head_ranks;
    }
    double row = kv * price_of_byte(&link->sequence_exchange, rows * kv);
    for (int64_t h = 0; h < shape->heads; h++) {
        double there = row * p->gathered[h];
        p->rows[h] = passes[1] * there; /* back */
        for (int pass = 0; pass < (finds_it_there(shape, block) ? 1 : DSV_PASSES); pass++)
            p->rows[h] += passes[pass] * fmax(0, there - near * p->attend[pass][h]);
        p->burden[h] += p->rows[h];
    }
    for (int64_t c = 0; c <= shape->heads; c++)
        p->sequence[c] += dsvi_price_at(&link->sequence_exchange,
                                        others * (double)c / (double)(8 * shape->grain)) +
                          price_merge(costs, shape, at, c);
}

/* What a selector is taught by, in the forward pass: features to heads and their gradients back, and queries
 * and keys, which attention over lists then finds there; in a column features and keys of all, and sums of
 * gradients. */
static void price_teaching(const DsvContextCosts *costs, const DsvLinkCost *heads,
                           const DsvLinkCost *sequence, const DsvCpShape *shape, const DsvCpBlock *block,
                           const DsvCpStretches *at, DsvCpPrices *p)
{
    double batch = (double)shape->batch, row = (double)(shape->head_dim * shape->element);
    double others = (double)(shape->tokens - at->group_least);
    double copies = (double)((at->sequence_ranks - 1) * at->group_most);
    for (int64_t c = 0; c <= shape->heads; c++) {
        const double bytes[] = {copies * row, copies * shape->taught, others * shape->taught};
        if (at->head_ranks > 1)
            p->heads[c] += 2 * price_tensor(costs, heads, shape, at, shape->taught, c) +
                           (block->density ? 0 : 2 * price_tensor(costs, heads, shape, at, row, c));
        for (int i = 0; i < 3 && at->sequence_ranks > 1; i++)
            p->sequence[c] += batch * dsvi_price_at(&sequence->sequence_exchange, (double)c * bytes[i]);
    }
}

/* A ring's room beside the heads forms, of `own` numbers a tensor. */
static double ring_memory(const DsvCpShape *shape, const DsvCpStretches *at, double own)
{
    double e = (double)shape->element, keys = at->sequence_ranks > 2 ? 4 : 2;
    if (!shape->backward) /* and one partial result, and the sum of several */
        return own * ((keys + 1) * e + (at->sequence_ranks > 2 ? F32_BYTES : 0));
    return own * (keys * e + 5 * F32_BYTES + (at->head_ranks == 1 ? 2 * e : 0)); /* dk, dv twice, dq */
}

/* Bytes of workspace that a rank of so many heads needs. */
static double memory_of(const DsvCpShape *shape, const DsvCpStretches *at, int64_t heads, double gathered,
                        bool lists)
{
    double row = (double)shape->head_dim, e = (double)shape->element, batch = (double)shape->batch;
    double own = batch * (double)(at->group_most * heads) * row, bytes = 0;
    if (at->head_ranks > 1) /* q k v out, dout dq dk dv, and what is packed of those that move together */
        bytes += ((shape->backward ? 8 : 4) * own +
                  DSV_CONTEXT_TOGETHER * batch * (double)(at->own_most * shape->heads) * row) * e;
    if (at->sequence_ranks > 1 && !lists)
        bytes += ring_memory(shape, at, own);
    if (at->sequence_ranks > 1 && lists) /* of k and v: messages in and out, rows; backward gradients too */
        bytes += gathered * row * 2 * e * (shape->backward ? 5 : 3);
    if (lists)
        bytes += batch * (double)(shape->tokens * heads) * shape->feature;
    return bytes;
}

/* Counts of heads for which there is no room cannot be chosen. What lists name elsewhere differs by head: the
 * mean stands for it here. */
static void forbid(const DsvCpShape *shape, const DsvCpStretches *at, bool lists, DsvCpPrices *p)
{
    double gathered = 0;
    for (int64_t h = 0; h < shape->heads; h++)
        gathered += p->gathered[h] / (double)shape->heads;
    for (int64_t c = 1; c <= shape->heads; c++) {
        double memory = memory_of(shape, at, c, gathered * (double)c, lists);
        if ((shape->rows_most > 0 && c * at->group_most > shape->rows_most) ||
            (shape->memory_most > 0 && memory > (double)shape->memory_most))
            p->fixed[c] = INFINITY;
    }
}

/* Whether links are known, of ranks that are far apart or of neighbours: a run times those it may use. */
static bool is_known(const DsvLinkCost *link, bool apart)
{
    return link && (apart ? link->sequence_exchange : link->head_exchange).count > 0;
}

bool dsvi_cp_prices(const DsvContextCosts *costs, const DsvCpShape *shape, const DsvCpBlock *block,
                        const DsvCpStretches *at, DsvCpPrices *p)
{
    const DsvLinkCost *heads = dsvi_costs_link(costs, at->head_ranks);
    const DsvLinkCost *sequence = dsvi_costs_link(costs, at->sequence_ranks);
    const DsvLinkCost *all = dsvi_costs_link(costs, shape->ranks);
    if ((at->head_ranks > 1 && !is_known(heads, false)) ||
        (at->sequence_ranks > 1 && !is_known(sequence, true)))
        return false;
    if (block->density && at->sequence_ranks > DSV_RUN_PARTS_MOST)
        return false;
    if (block->density &&
        (costs->attention.lists[0].count == 0 || (shape->ranks > 1 && !is_known(all, false))))
        return false;
    memset(p, 0, sizeof *p);
    price_exchange(costs, heads, shape, block, at, p);
    price_attention(&costs->attention, shape, block, at, p);
    if (at->sequence_ranks > 1 && !block->density) {
        price_ring(costs, sequence, shape, at, p);
        for (int pass = 0; pass < DSV_PASSES; pass++)
            p->cost.moved[pass] = p->moved[pass];
        p->cost.hides = costs->beside ? 1 - 1 / (double)at->sequence_ranks : 0;
    }
    if (at->sequence_ranks > 1 && block->density)
        price_rows(costs, sequence, shape, block, at, p);
    if (block->density && shape->ranks > 1)
        price_features(all, shape, at, p);
    if (shape->taught > 0)
        price_teaching(costs, heads, sequence, shape, block, at, p);
    for (int64_t c = 0; c <= shape->heads; c++)
        p->fixed[c] = p->heads[c] + p->sequence[c] + p->calls;
    forbid(shape, at, block->density != NULL, p);
    p->cost.fixed = p->fixed;
    return true;
}

/* One head index's part of the plan's times; kept where it is the slowest. */
static void time_rank(const DsvCpShape *shape, const DsvCpStretches *at, const DsvCpPrices *p, bool lists,
                      const int32_t *head, int64_t heads, DsvCpTimes *slowest)
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
    slowest->sequence = fmax(0, total - slowest->heads - slowest->attend); /* no less, but for rounding */
}

void dsvi_cp_times_at(const DsvCpShape *shape, const DsvCpBlock *block, const DsvCpStretches *at,
                        const DsvCpPrices *p, const DsvContextPlan *plan, DsvCpTimes *times)
{
    *times = (DsvCpTimes){.total = -INFINITY};
    for (int64_t i = 0; i < plan->head_ranks; i++)
        time_rank(shape, at, p, block->density != NULL, plan->placement + plan->bound[i],
                  plan->bound[i + 1] - plan->bound[i], times);
    if (shape->memory_most > 0 && times->memory > shape->memory_most)
        times->total = INFINITY;
}

void dsvi_cp_times(const DsvContextCosts *costs, const DsvCpShape *shape, const DsvCpBlock *block,
                   const DsvContextPlan *plan, DsvCpTimes *times)
{
    DsvCpPrices prices;
    DsvCpStretches at = dsvi_cp_stretches(shape, plan->head_ranks);
    *times = (DsvCpTimes){.total = INFINITY};
    if (dsvi_cp_prices(costs, shape, block, &at, &prices))
        dsvi_cp_times_at(shape, block, &at, &prices, plan, times);
}
