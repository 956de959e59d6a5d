/* See cp_planner.h. */
#include "context/cp_planner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES = 1024 };

struct DsvCpPlanner {
    DsvContext *context;
    DsvContextCosts costs;
    DsvCpShape shape;
    DsvCpLog *log;
    void *log_context;
    int64_t blocks;
    bool planned;          /* once at least */
    DsvCpTimes *expected;  /* (blocks) */
    int32_t *placement;    /* (heads) of the choice at hand */
    int64_t *bound;        /* (ranks + 1) likewise */
};

static DsvStatus take_memory(DsvCpPlanner *p)
{
    p->expected = calloc((size_t)p->blocks + 1, sizeof *p->expected);
    p->placement = calloc((size_t)p->shape.heads, sizeof *p->placement);
    p->bound = calloc((size_t)p->shape.ranks + 1, sizeof *p->bound);
    return p->expected && p->placement && p->bound
        ? DSV_OK : DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to plan %lld blocks", (long long)p->blocks);
}

DsvStatus dsvi_cp_planner_create(DsvContext *context, const DsvContextCosts *costs, const DsvCpShape *shape,
                                 DsvCpLog *log, void *log_context, DsvCpPlanner **out)
{
    const DsvContextShape *of = dsvi_context_shape(context);
    DsvCpPlanner *p = calloc(1, sizeof *p);
    *out = NULL;
    if (!p)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a planner");
    p->context = context;
    p->costs = *costs;
    p->shape = *shape;
    p->shape.ranks = dsvi_context_ranks(context);
    p->shape.tokens = of->tokens;
    p->shape.heads = of->heads;
    p->shape.bound = dsvi_context_bound(context);
    p->shape.head_ranks = of->head_ranks;
    p->shape.rows_most = of->rows_most;
    p->log = log;
    p->log_context = log_context;
    p->blocks = of->blocks;
    DsvStatus status = take_memory(p);
    if (status != DSV_OK) {
        dsvi_cp_planner_free(&p);
        return status;
    }
    *out = p;
    return DSV_OK;
}

void dsvi_cp_planner_free(DsvCpPlanner **planner)
{
    DsvCpPlanner *p = *planner;
    *planner = NULL;
    if (!p)
        return;
    free(p->expected);
    free(p->placement);
    free(p->bound);
    free(p);
}

/* Blocks in a row of which one line is true. */
typedef struct Row {
    int64_t first, last; /* none while last < first */
    char text[LINE_BYTES];
} Row;

static void say_row(const DsvCpPlanner *p, Row *row)
{
    char line[LINE_BYTES + 64];
    if (p->log && row->last == row->first)
        snprintf(line, sizeof line, "block %lld: %s", (long long)row->first, row->text);
    else if (p->log)
        snprintf(line, sizeof line, "blocks %lld to %lld: %s", (long long)row->first, (long long)row->last,
                 row->text);
    if (p->log && row->last >= row->first)
        p->log(p->log_context, line);
    row->first = row->last + 1;
}

/* Ends the row where the block has nothing to say, or something else. */
static void add_to_row(const DsvCpPlanner *p, Row *row, int64_t number, const char *text)
{
    if (row->last >= row->first && (row->last != number - 1 || strcmp(row->text, text) != 0))
        say_row(p, row);
    if (row->last < row->first) {
        row->first = number;
        snprintf(row->text, sizeof row->text, "%s", text);
    }
    row->last = number;
}

static DsvStatus update_block(DsvCpPlanner *p, int64_t number, const DsvCpBlock *block, Row *row)
{
    char text[LINE_BYTES];
    const DsvContextPlan *present = p->planned ? dsvi_context_plan(p->context, number) : NULL;
    DsvCpChoice choice = {.placement = p->placement, .bound = p->bound};
    DSVI_TRY(dsvi_cp_choose(&p->costs, &p->shape, block, present, &choice));
    p->expected[number] = choice.times;
    if (!choice.changed)
        return DSV_OK;
    DSVI_TRY(dsvi_context_set_plan(p->context, number, &choice.plan));
    dsvi_cp_explain(&choice, block, text, sizeof text);
    add_to_row(p, row, number, text);
    return DSV_OK;
}

DsvStatus dsvi_cp_planner_update(DsvCpPlanner *p, const DsvCpBlock *block)
{
    Row row = {.first = 0, .last = -1};
    for (int64_t number = 0; number < p->blocks; number++) {
        DsvStatus status = update_block(p, number, &block[number], &row);
        if (status != DSV_OK)
            return dsvi_fail_within(status, "block %lld", (long long)number);
    }
    say_row(p, &row);
    p->planned = true;
    return DSV_OK;
}

const DsvCpTimes *dsvi_cp_planner_expected(const DsvCpPlanner *p, int64_t block)
{
    return &p->expected[block];
}

void dsvi_cp_planner_compare(const DsvCpPlanner *p, const double *seconds)
{
    char line[LINE_BYTES];
    double expected = 0, measured = 0, worst = 0;
    int64_t furthest = 0;
    for (int64_t block = 0; block < p->blocks; block++) {
        double off = fabs(log(seconds[block] / p->expected[block].total));
        expected += p->expected[block].total;
        measured += seconds[block];
        if (!(off <= worst)) {
            worst = off;
            furthest = block;
        }
    }
    snprintf(line, sizeof line, "attention among the ranks of a clip takes %.2f ms a step, %.2f were "
             "expected; furthest off is block %lld, %.2f instead of %.2f", 1e3 * measured, 1e3 * expected,
             (long long)furthest, 1e3 * seconds[furthest], 1e3 * p->expected[furthest].total);
    if (p->log && p->blocks > 0)
        p->log(p->log_context, line);
}
