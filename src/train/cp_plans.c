/* Implements cp_plans.h: makes and updates the parallel plans of attention. */
#include "train/cp_plans.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cp/link_times.h"
#include "sparse/cost.h"

enum { BYTES_MAX = 1 << 26 }; /* largest message of the link measurement */

/* One rank's measurements of one block in a step. */
typedef struct Seen {
    double far_fraction; /* fraction of other ranks' keys that occur in this rank's key lists; NAN: unknown */
    double seconds;      /* seconds of the forward and backward pass of attention; NAN: not timed */
} Seen;

struct DsviCpPlans {
    DsviCpPlansArgs args;
    DsviCpCosts costs;
    DsviCpPlanner *planner;
    DsviCpBlock *block; /* (blocks) */
    double *density;    /* (blocks, heads) */
    double *seconds;    /* (blocks) */
    Seen *seen;         /* (ranks, blocks) measurements of all blocks by all ranks */
    bool planned;       /* plans have been made at least once */
    bool timed;         /* the previous step was timed (dsvi_sparse_time_next) */
};

static void cp_plans_log(const DsviCpPlans *p, const char *line)
{
    if (p->args.log)
        p->args.log(p->args.log_context, line);
}

/* ---- costs ---- */

/* Measures costs. All ranks use the costs of rank 0, so that all make the same plans. */
static DsvStatus cp_plans_measure(DsviCpPlans *p)
{
    const DsviCpPlansArgs *args = &p->args;
    const DsviCpShape *shape = &args->shape;
    const DsviAttentionCost *known = dsvi_sparse_attention_cost(args->sparse);
    int64_t tensor = shape->batch * shape->tokens * shape->heads * shape->head_dim * shape->element;
    int64_t local = tensor / dsvi_cp_group_size(args->group);
    DsviCostFound found;
    snprintf(p->costs.about, sizeof p->costs.about, "%s; %lld ranks", args->backend->device->name,
             (long long)dsvi_cp_group_size(args->group));
    DSVI_TRY(dsvi_link_times(args->group, (size_t)(local < BYTES_MAX ? local : BYTES_MAX), &p->costs));
    if (!known) {
        DSVI_TRY(dsvi_cost_measure(args->backend, args->settings, &args->sparse_shape, &found));
        known = &found.attention;
        cp_plans_log(p, found.line);
    }
    p->costs.attention = *known;
    return dsvi_comm_broadcast(args->all, 0, &p->costs, sizeof p->costs);
}

static void cp_plans_log_links(const DsviCpPlans *p)
{
    char line[256];
    const DsviLinkCost *link = dsvi_costs_link(&p->costs, dsvi_cp_group_size(p->args.group));
    int64_t last = link->head_exchange.count - 1;
    double bytes = link->head_exchange.x[last];
    snprintf(line, sizeof line,
             "links of %lld ranks that share a clip: %.2f MiB are exchanged among all in "
             "%.3f ms, and passed on round a ring in %.3f",
             (long long)link->ranks, bytes / 1048576, 1e3 * link->head_exchange.y[last],
             1e3 * dsvi_price_at(&link->sequence_swap, bytes));
    cp_plans_log(p, line);
}

/* ---- creation ---- */

static DsvStatus cp_plans_allocate(DsviCpPlans *p)
{
    size_t blocks = (size_t)p->args.sparse_shape.blocks, heads = (size_t)p->args.sparse_shape.heads;
    p->block = calloc(blocks, sizeof *p->block);
    p->density = calloc(blocks * heads, sizeof *p->density);
    p->seconds = calloc(blocks, sizeof *p->seconds);
    p->seen = calloc(blocks * (size_t)dsvi_comm_size(p->args.all), sizeof *p->seen);
    return p->block && p->density && p->seconds && p->seen
               ? DSV_OK
               : DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to plan %zu blocks", blocks);
}

DsvStatus dsvi_cp_plans_create(const DsviCpPlansArgs *args, DsviCpPlans **out)
{
    DsvStatus status;
    DsviCpPlans *p = calloc(1, sizeof *p);
    *out = NULL;
    if (!p)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the plans of a run");
    p->args = *args;
    DSVI_TRY_GOTO(status, cp_plans_allocate(p), fail);
    DSVI_TRY_GOTO(status, cp_plans_measure(p), fail);
    DSVI_TRY_GOTO(status,
                  dsvi_cp_planner_create(args->cp, &p->costs, &args->shape, args->log, args->log_context,
                                         &p->planner),
                  fail);
    cp_plans_log_links(p);
    *out = p;
    return DSV_OK;
fail:
    dsvi_cp_plans_free(&p);
    return status;
}

void dsvi_cp_plans_free(DsviCpPlans **plans)
{
    DsviCpPlans *p = *plans;
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

const DsviCpCosts *dsvi_cp_plans_costs(const DsviCpPlans *p)
{
    return &p->costs;
}

/* ---- steps ---- */

/* Gathers every rank's measurements of all blocks (struct Seen) in p->seen, on all ranks. */
static DsvStatus cp_plans_gather(DsviCpPlans *p)
{
    int64_t blocks = p->args.sparse_shape.blocks;
    Seen *local = p->seen + dsvi_comm_rank(p->args.all) * blocks;
    for (int64_t b = 0; b < blocks; b++)
        local[b] = (Seen){dsvi_sparse_far_fraction(p->args.sparse, b),
                          dsvi_sparse_seconds(p->args.sparse, b)};
    return dsvi_comm_all_gather_one(p->args.all, p->seen, (size_t)blocks * sizeof *p->seen);
}

/* Returns the mean over ranks of a block's far_fraction (fraction of other ranks' keys that occur in a rank's
   lists); NAN if it is unknown on a rank. */
static double mean_far_fraction(const DsviCpPlans *p, int64_t block)
{
    int64_t ranks = dsvi_comm_size(p->args.all);
    double sum = 0;
    for (int64_t r = 0; r < ranks; r++)
        sum += p->seen[r * p->args.sparse_shape.blocks + block].far_fraction;
    return sum / (double)ranks;
}

/* Updates a sparse block's spread (cp/cp_plan.h: how much its lists differ) from the measured far_fraction.
 * If the current plan gives no measurement, the previous value is kept. */
static void cp_plans_update_spread(DsviCpPlans *p, int64_t block)
{
    int64_t heads = p->args.sparse_shape.heads;
    double far_fraction = mean_far_fraction(p, block), density = 0;
    double tokens = (double)p->args.shape.tokens / (double)dsvi_cp_plan(p->args.cp, block)->sequence_ranks;
    for (int64_t h = 0; h < heads; h++)
        density += p->density[block * heads + h] / (double)heads;
    if (!isnan(far_fraction))
        p->block[block].spread = dsvi_cp_spread(density, ceil(tokens / (double)p->args.shape.group),
                                                far_fraction);
}

static DsvStatus cp_plans_update(DsviCpPlans *p)
{
    for (int64_t b = 0; b < p->args.sparse_shape.blocks; b++) {
        DsviSparseBlockReport report;
        double *density = p->density + b * p->args.sparse_shape.heads;
        dsvi_sparse_block_report(p->args.sparse, b, &report);
        dsvi_sparse_head_densities(p->args.sparse, b, density);
        if (!p->planned)
            p->block[b].spread = DSVI_CP_SPREAD;
        if (report.sparse)
            cp_plans_update_spread(p, b);
        p->block[b].density = report.sparse ? density : NULL;
    }
    DSVI_TRY(dsvi_cp_planner_update(p->planner, p->block));
    p->planned = true;
    return DSV_OK;
}

/* Writes to p->seconds, for every block, the seconds of attention on the slowest rank. Returns false if
 * attention was not timed on some rank. */
static bool cp_plans_slowest(DsviCpPlans *p)
{
    int64_t blocks = p->args.sparse_shape.blocks;
    for (int64_t b = 0; b < blocks; b++) {
        p->seconds[b] = 0;
        for (int64_t r = 0; r < dsvi_comm_size(p->args.all); r++) {
            double seconds = p->seen[r * blocks + b].seconds;
            if (isnan(seconds))
                return false;
            p->seconds[b] = fmax(p->seconds[b], seconds);
        }
    }
    return blocks > 0;
}

DsvStatus dsvi_cp_plans_step(DsviCpPlans *p)
{
    bool measured = !p->planned || dsvi_sparse_measured(p->args.sparse);
    if (!measured && !p->timed)
        return DSV_OK;
    DSVI_TRY(cp_plans_gather(p));
    if (cp_plans_slowest(p))
        dsvi_cp_planner_compare(p->planner, p->seconds);
    p->timed = measured;
    if (!measured)
        return DSV_OK;
    dsvi_sparse_time_next(p->args.sparse);
    return cp_plans_update(p);
}
