/* Keeps the plans of all blocks up to date, and logs changes (cp_planner.h). */
#include "cp/cp_planner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES = 1024 };

struct DsviCpPlanner {
    DsviCp *cp;
    DsviCpCosts costs;
    DsviCpShape shape;
    DsviCpLog *log;
    void *log_context;
    int64_t blocks;
    bool planned;          /* dsvi_cp_planner_update has been called */
    DsviCpTimes *expected; /* (blocks) predicted times of the present plans */
    int32_t *placement;    /* (heads) placement of heads in the plan being chosen */
    int64_t *bound;        /* (ranks + 1) bounds of heads in the plan being chosen */
};

static DsvStatus cp_planner_allocate(DsviCpPlanner *p)
{
    p->expected = calloc((size_t)p->blocks + 1, sizeof *p->expected);
    p->placement = calloc((size_t)p->shape.heads, sizeof *p->placement);
    p->bound = calloc((size_t)p->shape.ranks + 1, sizeof *p->bound);
    return p->expected && p->placement && p->bound
               ? DSV_OK
               : DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to plan %lld blocks", (long long)p->blocks);
}

DsvStatus dsvi_cp_planner_create(DsviCp *cp, const DsviCpCosts *costs, const DsviCpShape *shape,
                                 DsviCpLog *log, void *log_context, DsviCpPlanner **out)
{
    const DsviCpClip *clip = dsvi_cp_clip(cp);
    DsviCpPlanner *p = calloc(1, sizeof *p);
    *out = NULL;
    if (!p)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a planner");
    p->cp = cp;
    p->costs = *costs;
    p->shape = *shape;
    p->shape.ranks = dsvi_cp_ranks(cp);
    p->shape.tokens = clip->tokens;
    p->shape.heads = clip->heads;
    p->shape.bound = dsvi_cp_bound(cp);
    p->shape.head_ranks = clip->head_ranks;
    p->shape.rows_max = clip->rows_max;
    p->log = log;
    p->log_context = log_context;
    p->blocks = clip->blocks;
    DsvStatus status = cp_planner_allocate(p);
    if (status != DSV_OK) {
        dsvi_cp_planner_free(&p);
        return status;
    }
    *out = p;
    return DSV_OK;
}

void dsvi_cp_planner_free(DsviCpPlanner **planner)
{
    DsviCpPlanner *p = *planner;
    *planner = NULL;
    if (!p)
        return;
    free(p->expected);
    free(p->placement);
    free(p->bound);
    free(p);
}

/* A range of consecutive blocks whose plans have the same text and are logged as one line. */
typedef struct BlockRange {
    int64_t first, last; /* empty if last < first */
    char text[LINE_BYTES];
} BlockRange;

static void log_range(const DsviCpPlanner *p, BlockRange *range)
{
    char line[LINE_BYTES + 64];
    if (p->log && range->last == range->first)
        snprintf(line, sizeof line, "block %lld: %s", (long long)range->first, range->text);
    else if (p->log)
        snprintf(line, sizeof line, "blocks %lld to %lld: %s", (long long)range->first,
                 (long long)range->last, range->text);
    if (p->log && range->last >= range->first)
        p->log(p->log_context, line);
    range->first = range->last + 1;
}

/* Adds a block to the range. Logs the range first and begins a new one, if the block does not follow the last
 * block or has another text. */
static void extend_range(const DsviCpPlanner *p, BlockRange *range, int64_t number, const char *text)
{
    if (range->last >= range->first && (range->last != number - 1 || strcmp(range->text, text) != 0))
        log_range(p, range);
    if (range->last < range->first) {
        range->first = number;
        snprintf(range->text, sizeof range->text, "%s", text);
    }
    range->last = number;
}

static DsvStatus update_block(DsviCpPlanner *p, int64_t number, const DsviCpBlock *block, BlockRange *range)
{
    char text[LINE_BYTES];
    const DsviCpPlan *present = p->planned ? dsvi_cp_plan(p->cp, number) : NULL;
    DsviCpChoice choice = {.placement = p->placement, .bound = p->bound};
    DSVI_TRY(dsvi_cp_choose(&p->costs, &p->shape, block, present, &choice));
    p->expected[number] = choice.times;
    if (!choice.changed)
        return DSV_OK;
    DSVI_TRY(dsvi_cp_set_plan(p->cp, number, &choice.plan));
    dsvi_cp_explain(&choice, block, text, sizeof text);
    extend_range(p, range, number, text);
    return DSV_OK;
}

DsvStatus dsvi_cp_planner_update(DsviCpPlanner *p, const DsviCpBlock *block)
{
    BlockRange range = {.first = 0, .last = -1};
    for (int64_t number = 0; number < p->blocks; number++) {
        DsvStatus status = update_block(p, number, &block[number], &range);
        if (status != DSV_OK)
            return dsvi_fail_prefix(status, "block %lld", (long long)number);
    }
    log_range(p, &range);
    p->planned = true;
    return DSV_OK;
}

const DsviCpTimes *dsvi_cp_planner_expected(const DsviCpPlanner *p, int64_t block)
{
    return &p->expected[block];
}

void dsvi_cp_planner_compare(const DsviCpPlanner *p, const double *seconds)
{
    char line[LINE_BYTES];
    double expected = 0, measured = 0, worst = 0;
    int64_t worst_block = 0;
    for (int64_t block = 0; block < p->blocks; block++) {
        double off = fabs(log(seconds[block] / p->expected[block].total));
        expected += p->expected[block].total;
        measured += seconds[block];
        if (!(off <= worst)) {
            worst = off;
            worst_block = block;
        }
    }
    snprintf(line, sizeof line,
             "attention among the ranks of a clip takes %.2f ms a step, %.2f were "
             "expected; furthest off is block %lld, %.2f instead of %.2f",
             1e3 * measured, 1e3 * expected, (long long)worst_block, 1e3 * seconds[worst_block],
             1e3 * p->expected[worst_block].total);
    if (p->log && p->blocks > 0)
        p->log(p->log_context, line);
}
