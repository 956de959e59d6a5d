/* Stretches of tokens and the plans of blocks: see context.h. */
#include <stdlib.h>
#include <string.h>

#include "context/context_internal.h"

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* ---- plans ---- */

int64_t dsvi_context_longest(const DsvContext *c, int64_t head_ranks)
{
    int64_t most = 0;
    for (int64_t r = 0; r < c->group->size; r += head_ranks) {
        int64_t tokens = c->bound[r + head_ranks] - c->bound[r];
        most = tokens > most ? tokens : most;
    }
    return most;
}

/* Rows (tokens x heads) of the rank that an even plan gives most. */
static int64_t even_rows(const DsvContext *c, int64_t head_ranks)
{
    return dsvi_context_longest(c, head_ranks) * ceil_div(c->shape.heads, head_ranks);
}

static DsvStatus check_head_ranks(const DsvContext *c, int64_t head_ranks)
{
    if (head_ranks < 1 || c->group->size % head_ranks != 0)
        return DSVI_FAIL(DSV_E_USAGE, "%lld head-parallel ranks do not divide the %lld ranks that share a "
                         "clip", (long long)head_ranks, (long long)c->group->size);
    if (!dsvi_context_factor(c->group, head_ranks))
        return DSVI_FAIL(DSV_E_USAGE, "a plan has %lld head-parallel ranks, and the ranks have met for %lld",
                         (long long)head_ranks, (long long)c->group->factor[0].head_ranks);
    if (head_ranks > c->shape.heads)
        return DSVI_FAIL(DSV_E_USAGE, "%lld heads are too few for %lld head-parallel ranks",
                         (long long)c->shape.heads, (long long)head_ranks);
    if (c->shape.head_ranks != 0 && head_ranks != c->shape.head_ranks)
        return DSVI_FAIL(DSV_E_USAGE, "a plan has %lld head-parallel ranks, and %lld are wanted",
                         (long long)head_ranks, (long long)c->shape.head_ranks);
    return DSV_OK;
}

bool dsvi_context_allows(const DsvContext *c, const Factor *factor)
{
    return factor->head_ranks <= c->shape.heads &&
           (c->shape.head_ranks == 0 || factor->head_ranks == c->shape.head_ranks);
}

static DsvStatus check_placement(const DsvContext *c, const DsvContextPlan *plan)
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

static DsvStatus check_bound(const DsvContext *c, const DsvContextPlan *plan)
{
    int64_t tokens = dsvi_context_longest(c, plan->head_ranks);
    if (plan->bound[0] != 0 || plan->bound[plan->head_ranks] != c->shape.heads)
        return DSVI_FAIL(DSV_E_USAGE, "a plan shares out heads %lld to %lld of %lld",
                         (long long)plan->bound[0], (long long)plan->bound[plan->head_ranks],
                         (long long)c->shape.heads);
    for (int64_t i = 0; i < plan->head_ranks; i++) {
        int64_t heads = plan->bound[i + 1] - plan->bound[i];
        if (heads < 1)
            return DSVI_FAIL(DSV_E_USAGE, "a plan gives head-parallel rank %lld no head", (long long)i);
        if (heads * tokens > c->shape.rows_most)
            return DSVI_FAIL(DSV_E_USAGE, "a plan gives head-parallel rank %lld %lld heads of %lld tokens, "
                             "and there is memory for %lld", (long long)i, (long long)heads,
                             (long long)tokens, (long long)(c->shape.rows_most / tokens));
    }
    return DSV_OK;
}

static DsvStatus check_plan(const DsvContext *c, const DsvContextPlan *plan)
{
    DSVI_TRY(check_head_ranks(c, plan->head_ranks));
    if (plan->head_ranks * plan->sequence_ranks != c->group->size)
        return DSVI_FAIL(DSV_E_USAGE, "a plan has %lld x %lld ranks, and %lld share a clip",
                         (long long)plan->sequence_ranks, (long long)plan->head_ranks,
                         (long long)c->group->size);
    DSVI_TRY(check_placement(c, plan));
    return check_bound(c, plan);
}

DsvStatus dsvi_context_set_plan(DsvContext *c, int64_t block, const DsvContextPlan *plan)
{
    Block *to = &c->block[block];
    DSVI_TRY(check_plan(c, plan));
    memmove(to->placement, plan->placement, (size_t)c->shape.heads * sizeof *to->placement);
    memmove(to->bound, plan->bound, (size_t)(plan->head_ranks + 1) * sizeof *to->bound);
    to->plan = (DsvContextPlan){plan->head_ranks, plan->sequence_ranks, to->placement, to->bound};
    for (int64_t i = 0; i <= plan->sequence_ranks; i++)
        to->sequence_bound[i] = c->bound[i * plan->head_ranks];
    return DSV_OK;
}

/* The block's own arrays serve to write the plan down. */
DsvStatus dsvi_context_set_even_plan(DsvContext *c, int64_t block, int64_t head_ranks)
{
    Block *to = &c->block[block];
    DSVI_TRY(check_head_ranks(c, head_ranks));
    for (int64_t i = 0; i < c->shape.heads; i++)
        to->placement[i] = (int32_t)i;
    dsvi_comm_bounds(c->shape.heads, 1, head_ranks, to->bound);
    const DsvContextPlan plan = {head_ranks, c->group->size / head_ranks, to->placement, to->bound};
    return dsvi_context_set_plan(c, block, &plan);
}

const DsvContextPlan *dsvi_context_plan(const DsvContext *c, int64_t block)
{
    return &c->block[block].plan;
}

DsvContextPart dsvi_context_part(const DsvContext *c, int64_t block)
{
    const Block *of = &c->block[block];
    const DsvContextPlan *plan = &of->plan;
    const Factor *factor = dsvi_context_factor(c->group, plan->head_ranks);
    int64_t column = c->group->rank % plan->head_ranks, row = c->group->rank / plan->head_ranks;
    return (DsvContextPart){
        .head_ranks = plan->head_ranks, .sequence_ranks = plan->sequence_ranks,
        .head_index = column, .sequence_index = row,
        .first = of->sequence_bound[row],
        .tokens = of->sequence_bound[row + 1] - of->sequence_bound[row],
        .heads = plan->bound[column + 1] - plan->bound[column],
        .head = plan->placement + plan->bound[column], .bound = of->sequence_bound,
        .head_device = factor->head_device,
        .sequence_device = factor->sequence_device, .sequence_host = factor->sequence_host,
    };
}

/* ---- creation ---- */

static DsvStatus take_memory(DsvContext *c)
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
        Block *block = &c->block[i];
        block->placement = calloc((size_t)c->shape.heads, sizeof *block->placement);
        block->bound = calloc(ranks + 1, sizeof *block->bound);
        block->sequence_bound = calloc(ranks + 1, sizeof *block->sequence_bound);
        complete = block->placement && block->bound && block->sequence_bound;
    }
    return complete ? DSV_OK : DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the plans of %zu blocks", blocks);
}

DsvStatus dsvi_context_stretches(int64_t tokens, int64_t unit, int64_t ranks, int64_t *bound)
{
    if (ceil_div(tokens, unit) < ranks)
        return DSVI_FAIL(DSV_E_USAGE, "%lld tokens in stretches of %lld are too few for %lld ranks to share",
                         (long long)tokens, (long long)unit, (long long)ranks);
    dsvi_comm_bounds(tokens, unit, ranks, bound);
    return DSV_OK;
}

/* Every factor that plans may have; the one with most head ranks is what blocks begin with. */
static DsvStatus begin_plans(DsvContext *c)
{
    int64_t most = c->shape.head_ranks, rows = 0;
    if (most != 0)
        DSVI_TRY(check_head_ranks(c, most));
    for (int64_t i = 0; i < c->group->factors; i++) {
        const Factor *factor = &c->group->factor[i];
        if (!dsvi_context_allows(c, factor))
            continue;
        int64_t even = even_rows(c, factor->head_ranks);
        rows = even > rows ? even : rows;
        most = factor->head_ranks;
    }
    c->shape.rows_most = rows > c->shape.rows_most ? rows : c->shape.rows_most;
    for (int64_t block = 0; block < c->shape.blocks; block++)
        DSVI_TRY(dsvi_context_set_even_plan(c, block, most));
    return DSV_OK;
}

DsvStatus dsvi_context_create(DsvContextGroup *group, const DsvContextShape *shape, DsvContext **out)
{
    DsvContext *c = calloc(1, sizeof *c);
    DsvStatus status;
    *out = NULL;
    if (!c)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a context");
    c->group = group;
    c->shape = *shape;
    DSVI_TRY_GOTO(status, take_memory(c), failed);
    DSVI_TRY_GOTO(status, dsvi_context_stretches(c->shape.tokens, c->shape.unit, group->size, c->bound),
                  failed);
    DSVI_TRY_GOTO(status, begin_plans(c), failed);
    *out = c;
    return DSV_OK;
failed:
    dsvi_context_free(&c);
    return status;
}

void dsvi_context_free(DsvContext **context)
{
    DsvContext *c = *context;
    *context = NULL;
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

/* ---- questions ---- */

const DsvContextShape *dsvi_context_shape(const DsvContext *c)
{
    return &c->shape;
}

const DsvContextGroup *dsvi_context_group(const DsvContext *c)
{
    return c->group;
}

int64_t dsvi_context_ranks(const DsvContext *c)
{
    return c->group->size;
}

int64_t dsvi_context_rank(const DsvContext *c)
{
    return c->group->rank;
}

int64_t dsvi_context_tokens(const DsvContext *c)
{
    return c->bound[c->group->rank + 1] - c->bound[c->group->rank];
}

int64_t dsvi_context_first(const DsvContext *c)
{
    return c->bound[c->group->rank];
}

const int64_t *dsvi_context_bound(const DsvContext *c)
{
    return c->bound;
}
