/* Division of tokens among ranks, and the plans of blocks: see cp.h. */
#include <stdlib.h>
#include <string.h>

#include "cp/cp_internal.h"

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* ---- plans ---- */

int64_t dsvi_cp_longest(const DsviCp *c, int64_t head_ranks)
{
    int64_t longest = 0;
    for (int64_t r = 0; r < c->group->size; r += head_ranks) {
        int64_t tokens = c->bound[r + head_ranks] - c->bound[r];
        longest = tokens > longest ? tokens : longest;
    }
    return longest;
}

/* Returns the largest product of tokens and heads (T x N_own) of a rank under the even plan with this
 * head_ranks. */
static int64_t even_rows(const DsviCp *c, int64_t head_ranks)
{
    return dsvi_cp_longest(c, head_ranks) * ceil_div(c->shape.heads, head_ranks);
}

static DsvStatus check_head_ranks(const DsviCp *c, int64_t head_ranks)
{
    if (head_ranks < 1 || c->group->size % head_ranks != 0)
        return DSVI_FAIL(DSV_E_USAGE,
                         "%lld head-parallel ranks do not divide the %lld ranks that share a "
                         "clip",
                         (long long)head_ranks, (long long)c->group->size);
    if (!dsvi_cp_factor(c->group, head_ranks))
        return DSVI_FAIL(DSV_E_USAGE,
                         "a plan has %lld head-parallel ranks, but the groups were made for %lld",
                         (long long)head_ranks, (long long)c->group->factor[0].head_ranks);
    if (head_ranks > c->shape.heads)
        return DSVI_FAIL(DSV_E_USAGE, "%lld heads are too few for %lld head-parallel ranks",
                         (long long)c->shape.heads, (long long)head_ranks);
    if (c->shape.head_ranks != 0 && head_ranks != c->shape.head_ranks)
        return DSVI_FAIL(DSV_E_USAGE, "a plan has %lld head-parallel ranks, and %lld are expected",
                         (long long)head_ranks, (long long)c->shape.head_ranks);
    return DSV_OK;
}

bool dsvi_cp_allows(const DsviCp *c, const DsviCpFactor *factor)
{
    return factor->head_ranks <= c->shape.heads &&
           (c->shape.head_ranks == 0 || factor->head_ranks == c->shape.head_ranks);
}

static DsvStatus check_placement(const DsviCp *c, const DsviCpPlan *plan)
{
    bool in_order = plan->head_ranks == 1;
    for (int64_t i = 0; i < c->shape.heads; i++) {
        int32_t head = plan->placement[i];
        if (head < 0 || head >= c->shape.heads || (in_order && head != i))
            return DSVI_FAIL(DSV_E_USAGE, "a plan's place %lld has head %d of %lld%s", (long long)i,
                             (int)head, (long long)c->shape.heads,
                             in_order ? ", and all heads stay on one rank" : "");
        for (int64_t earlier = 0; earlier < i; earlier++)
            if (plan->placement[earlier] == head)
                return DSVI_FAIL(DSV_E_USAGE, "a plan has head %d twice", (int)head);
    }
    return DSV_OK;
}

static DsvStatus check_bound(const DsviCp *c, const DsviCpPlan *plan)
{
    int64_t tokens = dsvi_cp_longest(c, plan->head_ranks);
    if (plan->bound[0] != 0 || plan->bound[plan->head_ranks] != c->shape.heads)
        return DSVI_FAIL(DSV_E_USAGE, "a plan assigns heads %lld to %lld of %lld", (long long)plan->bound[0],
                         (long long)plan->bound[plan->head_ranks], (long long)c->shape.heads);
    for (int64_t i = 0; i < plan->head_ranks; i++) {
        int64_t heads = plan->bound[i + 1] - plan->bound[i];
        if (heads < 1)
            return DSVI_FAIL(DSV_E_USAGE, "a plan gives head-parallel rank %lld no head", (long long)i);
        if (heads * tokens > c->shape.rows_max)
            return DSVI_FAIL(DSV_E_USAGE,
                             "a plan gives head-parallel rank %lld %lld heads of %lld tokens, "
                             "and there is memory for %lld",
                             (long long)i, (long long)heads, (long long)tokens,
                             (long long)(c->shape.rows_max / tokens));
    }
    return DSV_OK;
}

static DsvStatus check_plan(const DsviCp *c, const DsviCpPlan *plan)
{
    DSVI_TRY(check_head_ranks(c, plan->head_ranks));
    if (plan->head_ranks * plan->sequence_ranks != c->group->size)
        return DSVI_FAIL(DSV_E_USAGE, "a plan has %lld x %lld ranks, and %lld share a clip",
                         (long long)plan->sequence_ranks, (long long)plan->head_ranks,
                         (long long)c->group->size);
    DSVI_TRY(check_placement(c, plan));
    return check_bound(c, plan);
}

DsvStatus dsvi_cp_set_plan(DsviCp *c, int64_t block, const DsviCpPlan *plan)
{
    DsviCpBlockPlan *state = &c->block[block];
    DSVI_TRY(check_plan(c, plan));
    memmove(state->placement, plan->placement, (size_t)c->shape.heads * sizeof *state->placement);
    memmove(state->bound, plan->bound, (size_t)(plan->head_ranks + 1) * sizeof *state->bound);
    state->plan = (DsviCpPlan){plan->head_ranks, plan->sequence_ranks, state->placement, state->bound};
    for (int64_t i = 0; i <= plan->sequence_ranks; i++)
        state->sequence_bound[i] = c->bound[i * plan->head_ranks];
    return DSV_OK;
}

/* Writes the even plan directly into the block's arrays and passes these to dsvi_cp_set_plan, which may copy
 * a plan onto itself. */
DsvStatus dsvi_cp_set_even_plan(DsviCp *c, int64_t block, int64_t head_ranks)
{
    DsviCpBlockPlan *state = &c->block[block];
    DSVI_TRY(check_head_ranks(c, head_ranks));
    for (int64_t i = 0; i < c->shape.heads; i++)
        state->placement[i] = (int32_t)i;
    dsvi_comm_even_bounds(c->shape.heads, 1, head_ranks, state->bound);
    const DsviCpPlan plan = {head_ranks, c->group->size / head_ranks, state->placement, state->bound};
    return dsvi_cp_set_plan(c, block, &plan);
}

const DsviCpPlan *dsvi_cp_plan(const DsviCp *c, int64_t block)
{
    return &c->block[block].plan;
}

DsviCpPart dsvi_cp_part(const DsviCp *c, int64_t block)
{
    const DsviCpBlockPlan *state = &c->block[block];
    const DsviCpPlan *plan = &state->plan;
    const DsviCpFactor *factor = dsvi_cp_factor(c->group, plan->head_ranks);
    int64_t column = c->group->rank % plan->head_ranks, row = c->group->rank / plan->head_ranks;
    return (DsviCpPart){
        .head_ranks = plan->head_ranks,
        .sequence_ranks = plan->sequence_ranks,
        .head_index = column,
        .sequence_index = row,
        .first = state->sequence_bound[row],
        .tokens = state->sequence_bound[row + 1] - state->sequence_bound[row],
        .heads = plan->bound[column + 1] - plan->bound[column],
        .head = plan->placement + plan->bound[column],
        .bound = state->sequence_bound,
        .head_device = factor->head_device,
        .sequence_device = factor->sequence_device,
        .sequence_host = factor->sequence_host,
    };
}

/* ---- creation ---- */

static DsvStatus cp_allocate(DsviCp *c)
{
    size_t ranks = (size_t)c->group->size, blocks = (size_t)c->shape.blocks;
    bool complete;
    c->bound = calloc(ranks + 1, sizeof *c->bound);
    c->send = calloc(ranks, sizeof *c->send);
    c->receive = calloc(ranks, sizeof *c->receive);
    c->elements = calloc(ranks + 1, sizeof *c->elements);
    c->block = calloc(blocks + 1, sizeof *c->block);
    complete = c->bound && c->send && c->receive && c->elements && c->block;
    for (size_t i = 0; i < blocks && complete; i++) {
        DsviCpBlockPlan *block = &c->block[i];
        block->placement = calloc((size_t)c->shape.heads, sizeof *block->placement);
        block->bound = calloc(ranks + 1, sizeof *block->bound);
        block->sequence_bound = calloc(ranks + 1, sizeof *block->sequence_bound);
        complete = block->placement && block->bound && block->sequence_bound;
    }
    return complete ? DSV_OK : DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the plans of %zu blocks", blocks);
}

DsvStatus dsvi_cp_shard_bounds(int64_t tokens, int64_t unit, int64_t ranks, int64_t *bound)
{
    if (ceil_div(tokens, unit) < ranks)
        return DSVI_FAIL(
            DSV_E_USAGE,
            "%lld tokens in shards of a multiple of %lld are too few for %lld ranks: a shard is a "
            "whole number of groups, spans and runs of the tail (sparse.group, sparse.grain, "
            "sparse.tail_run)",
            (long long)tokens, (long long)unit, (long long)ranks);
    dsvi_comm_even_bounds(tokens, unit, ranks, bound);
    return DSV_OK;
}

/* Raises rows_max, the limit of T x N_own, to what the even plans need, and gives every block the even plan
 * with the largest head_ranks that plans may have. */
static DsvStatus set_initial_plans(DsviCp *c)
{
    int64_t initial = c->shape.head_ranks, rows = 0;
    if (initial != 0)
        DSVI_TRY(check_head_ranks(c, initial));
    for (int64_t i = 0; i < c->group->factors; i++) {
        const DsviCpFactor *factor = &c->group->factor[i];
        if (!dsvi_cp_allows(c, factor))
            continue;
        int64_t even = even_rows(c, factor->head_ranks);
        rows = even > rows ? even : rows;
        initial = factor->head_ranks;
    }
    c->shape.rows_max = rows > c->shape.rows_max ? rows : c->shape.rows_max;
    for (int64_t block = 0; block < c->shape.blocks; block++)
        DSVI_TRY(dsvi_cp_set_even_plan(c, block, initial));
    return DSV_OK;
}

DsvStatus dsvi_cp_create(DsviCpGroup *group, const DsviCpClip *shape, DsviCp **out)
{
    DsviCp *c = calloc(1, sizeof *c);
    DsvStatus status;
    *out = NULL;
    if (!c)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for context parallelism");
    c->group = group;
    c->shape = *shape;
    DSVI_TRY_GOTO(status, cp_allocate(c), failed);
    DSVI_TRY_GOTO(status, dsvi_cp_shard_bounds(c->shape.tokens, c->shape.unit, group->size, c->bound),
                  failed);
    DSVI_TRY_GOTO(status, set_initial_plans(c), failed);
    *out = c;
    return DSV_OK;
failed:
    dsvi_cp_free(&c);
    return status;
}

void dsvi_cp_free(DsviCp **cp)
{
    DsviCp *c = *cp;
    *cp = NULL;
    if (!c)
        return;
    for (int64_t i = 0; c->block && i < c->shape.blocks; i++) {
        free(c->block[i].placement);
        free(c->block[i].bound);
        free(c->block[i].sequence_bound);
    }
    free(c->block);
    free(c->bound);
    free(c->send);
    free(c->receive);
    free(c->elements);
    free(c);
}

/* ---- read access ---- */

const DsviCpClip *dsvi_cp_clip(const DsviCp *c)
{
    return &c->shape;
}

const DsviCpGroup *dsvi_cp_group(const DsviCp *c)
{
    return c->group;
}

int64_t dsvi_cp_ranks(const DsviCp *c)
{
    return c->group->size;
}

int64_t dsvi_cp_rank(const DsviCp *c)
{
    return c->group->rank;
}

int64_t dsvi_cp_tokens(const DsviCp *c)
{
    return c->bound[c->group->rank + 1] - c->bound[c->group->rank];
}

int64_t dsvi_cp_first(const DsviCp *c)
{
    return c->bound[c->group->rank];
}

const int64_t *dsvi_cp_bound(const DsviCp *c)
{
    return c->bound;
}
