/* See context_plans.h. */
#include "train/context_plans.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "context/link_times.h"
#include "sparse/cost.h"

enum { BYTES_MOST = 1 << 26 };

/* What a rank has seen of a block. */
typedef struct Seen {
    double far_share, seconds; /* NAN: nothing */
} Seen;

struct DsvContextPlans {
    DsvContextPlansMade of;
    DsvContextCosts costs;
    DsvCpPlanner *planner;
    DsvCpBlock *block;  /* (blocks) */
    double *density;    /* (blocks, heads) */
    double *seconds;    /* (blocks) */
    Seen *seen;         /* (ranks, blocks) */
    bool planned;
    bool timed;         /* the step before this one was to be timed */
};

static void say(const DsvContextPlans *p, const char *line)
{
    if (p->of.log)
        p->of.log(p->of.log_context, line);
}

/* ---- costs ---- */

/* Rank 0's figures are everybody's. */
static DsvStatus measure(DsvContextPlans *p)
{
    const DsvContextPlansMade *of = &p->of;
    const DsvCpShape *shape = &of->shape;
    const DsvAttentionCost *known = dsvi_sparse_attention_cost(of->sparse);
    int64_t tensor = shape->batch * shape->tokens * shape->heads * shape->head_dim * shape->element;
    int64_t own = tensor / dsvi_context_group_size(of->group);
    DsvCostFound found;
    snprintf(p->costs.about, sizeof p->costs.about, "%s; %lld ranks", of->backend->device->name,
             (long long)dsvi_context_group_size(of->group));
    DSVI_TRY(dsvi_link_times(of->group, (size_t)(own < BYTES_MOST ? own : BYTES_MOST), &p->costs));
    if (!known) {
        DSVI_TRY(dsvi_cost_measure(of->backend, of->settings, &of->sparse_shape, &found));
        known = &found.attention;
        say(p, found.line);
    }
    p->costs.attention = *known;
    return dsvi_comm_broadcast(of->all, 0, &p->costs, sizeof p->costs);
}

static void say_links(const DsvContextPlans *p)
{
    char line[256];
    const DsvLinkCost *link = dsvi_costs_link(&p->costs, dsvi_context_group_size(p->of.group));
    int64_t last = link->head_exchange.count - 1;
    double bytes = link->head_exchange.x[last];
    snprintf(line, sizeof line, "links of %lld ranks that share a clip: %.2f MiB are exchanged among all in "
             "%.3f ms, and passed on round a ring in %.3f", (long long)link->ranks, bytes / 1048576,
             1e3 * link->head_exchange.y[last], 1e3 * dsvi_price_at(&link->sequence_swap, bytes));
    say(p, line);
}

/* ---- creation ---- */

static DsvStatus take_memory(DsvContextPlans *p)
{
    size_t blocks = (size_t)p->of.sparse_shape.blocks, heads = (size_t)p->of.sparse_shape.heads;
    p->block = calloc(blocks, sizeof *p->block);
    p->density = calloc(blocks * heads, sizeof *p->density);
    p->seconds = calloc(blocks, sizeof *p->seconds);
    p->seen = calloc(blocks * (size_t)dsvi_comm_size(p->of.all), sizeof *p->seen);
    return p->block && p->density && p->seconds && p->seen
        ? DSV_OK : DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to plan %zu blocks", blocks);
}

DsvStatus dsvi_context_plans_create(const DsvContextPlansMade *of, DsvContextPlans **out)
{
    DsvStatus status;
    DsvContextPlans *p = calloc(1, sizeof *p);
    *out = NULL;
    if (!p)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the plans of a run");
    p->of = *of;
    DSVI_TRY_GOTO(status, take_memory(p), fail);
    DSVI_TRY_GOTO(status, measure(p), fail);
    DSVI_TRY_GOTO(status, dsvi_cp_planner_create(of->context, &p->costs, &of->shape, of->log, of->log_context,
                                                 &p->planner), fail);
    say_links(p);
    *out = p;
    return DSV_OK;
fail:
    dsvi_context_plans_free(&p);
    return status;
}

void dsvi_context_plans_free(DsvContextPlans **plans)
{
    DsvContextPlans *p = *plans;
    *plans = NULL;
    if (!p)
        return;
    dsvi_cp_planner_free(&p->planner);
    free(p->block);
    free(p->density);
    free(p->seconds);
    free(p->seen);
    free(p);
}

const DsvContextCosts *dsvi_context_plans_costs(const DsvContextPlans *p)
{
    return &p->costs;
}

/* ---- steps ---- */

/* What all ranks have seen. */
static DsvStatus gather(DsvContextPlans *p)
{
    int64_t blocks = p->of.sparse_shape.blocks;
    Seen *own = p->seen + dsvi_comm_rank(p->of.all) * blocks;
    for (int64_t b = 0; b < blocks; b++)
        own[b] = (Seen){dsvi_sparse_far_share(p->of.sparse, b), dsvi_sparse_seconds(p->of.sparse, b)};
    return dsvi_comm_share(p->of.all, p->seen, (size_t)blocks * sizeof *p->seen);
}

/* The mean over ranks; NAN where one has none. */
static double mean_share(const DsvContextPlans *p, int64_t block)
{
    int64_t ranks = dsvi_comm_size(p->of.all);
    double sum = 0;
    for (int64_t r = 0; r < ranks; r++)
        sum += p->seen[r * p->of.sparse_shape.blocks + block].far_share;
    return sum / (double)ranks;
}

/* How alike a sparse block's lists are, where the present plan shows it. Otherwise what was known stays. */
static void take_spread(DsvContextPlans *p, int64_t block)
{
    int64_t heads = p->of.sparse_shape.heads;
    double share = mean_share(p, block), density = 0;
    double tokens = (double)p->of.shape.tokens /
                    (double)dsvi_context_plan(p->of.context, block)->sequence_ranks;
    for (int64_t h = 0; h < heads; h++)
        density += p->density[block * heads + h] / (double)heads;
    if (!isnan(share))
        p->block[block].spread = dsvi_cp_spread(density, ceil(tokens / (double)p->of.shape.group), share);
}

static DsvStatus update(DsvContextPlans *p)
{
    for (int64_t b = 0; b < p->of.sparse_shape.blocks; b++) {
        DsvSparseBlockReport report;
        double *density = p->density + b * p->of.sparse_shape.heads;
        dsvi_sparse_block_report(p->of.sparse, b, &report);
        dsvi_sparse_burden(p->of.sparse, b, density);
        if (!p->planned)
            p->block[b].spread = DSV_CP_SPREAD;
        if (report.sparse)
            take_spread(p, b);
        p->block[b].density = report.sparse ? density : NULL;
    }
    DSVI_TRY(dsvi_cp_planner_update(p->planner, p->block));
    p->planned = true;
    return DSV_OK;
}

/* The slowest rank's seconds of every block, where all were timed. */
static bool slowest(DsvContextPlans *p)
{
    int64_t blocks = p->of.sparse_shape.blocks;
    for (int64_t b = 0; b < blocks; b++) {
        p->seconds[b] = 0;
        for (int64_t r = 0; r < dsvi_comm_size(p->of.all); r++) {
            double seconds = p->seen[r * blocks + b].seconds;
            if (isnan(seconds))
                return false;
            p->seconds[b] = fmax(p->seconds[b], seconds);
        }
    }
    return blocks > 0;
}

DsvStatus dsvi_context_plans_step(DsvContextPlans *p)
{
    bool measured = !p->planned || dsvi_sparse_measured(p->of.sparse);
    if (!measured && !p->timed)
        return DSV_OK;
    DSVI_TRY(gather(p));
    if (slowest(p))
        dsvi_cp_planner_compare(p->planner, p->seconds);
    p->timed = measured;
    if (!measured)
        return DSV_OK;
    dsvi_sparse_time_next(p->of.sparse);
    return update(p);
}
