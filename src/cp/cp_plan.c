/* Chooses the plan of a block (cp_plan.h). For every degree (number of head ranks), cp_prices.h computes the
 * times of each head and of the transfers, head_placement.h places the heads, and the fastest of all degrees
 * is compared with the present plan. */
#include "cp/cp_plan.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cp/cp_prices.h"

/* The search for a placement of heads ends when its time is within the fraction PLACEMENT_SLACK of a lower
 * bound, or after PLACEMENT_NODES nodes of the search tree. The measured costs are less accurate than this
 * fraction. */
#define PLACEMENT_SLACK 1e-4
#define PLACEMENT_NODES 20000

typedef struct Trial {
    int32_t placement[DSVI_PLACED_HEADS_MAX];
    int64_t bound[DSVI_PLACED_HEADS_MAX + 1];
    DsviCpPlan plan; /* points to the arrays of this struct */
} Trial;

/* Converts rank[h], the head_index of the ranks that compute head h, to a plan. */
static void write_plan(const int32_t *rank, const DsviCpShards *at, int64_t heads, Trial *trial)
{
    int64_t filled = 0;
    for (int64_t r = 0; r < at->head_ranks; r++) {
        trial->bound[r] = filled;
        for (int64_t h = 0; h < heads; h++)
            if (rank[h] == r)
                trial->placement[filled++] = (int32_t)h;
    }
    trial->bound[at->head_ranks] = filled;
    trial->plan = (DsviCpPlan){at->head_ranks, at->sequence_ranks, trial->placement, trial->bound};
}

/* Finds the fastest placement of heads with this number of head ranks. Sets times->total to INFINITY if no
 * plan can have this number of head ranks. */
static void try_degree(const DsviCpCosts *costs, const DsviCpShape *shape, const DsviCpBlock *block,
                       int64_t head_ranks, Trial *trial, DsviCpTimes *times)
{
    DsviCpPrices prices;
    int32_t rank[DSVI_PLACED_HEADS_MAX];
    DsviCpShards at = dsvi_cp_shards(shape, head_ranks);
    *times = (DsviCpTimes){.total = INFINITY};
    if (!dsvi_cp_prices(costs, shape, block, &at, &prices))
        return;
    const DsviPlacementTask task = {
        .heads = shape->heads,
        .ranks = head_ranks,
        .burden = prices.burden,
        .cost = &prices.cost,
        .slack = PLACEMENT_SLACK,
        .nodes_max = PLACEMENT_NODES,
    };
    dsvi_place_heads(&task, rank);
    write_plan(rank, &at, shape->heads, trial);
    dsvi_cp_times_at(shape, block, &at, &prices, &trial->plan, times);
}

static void adopt(const DsviCpShape *shape, const DsviCpPlan *plan, const DsviCpTimes *times,
                  DsviCpChoice *choice)
{
    memcpy(choice->placement, plan->placement, (size_t)shape->heads * sizeof *choice->placement);
    memcpy(choice->bound, plan->bound, (size_t)(plan->head_ranks + 1) * sizeof *choice->bound);
    choice->plan = (DsviCpPlan){plan->head_ranks, plan->sequence_ranks, choice->placement, choice->bound};
    choice->times = *times;
}

static bool same_plan(const DsviCpShape *shape, const DsviCpPlan *a, const DsviCpPlan *b)
{
    return a->head_ranks == b->head_ranks &&
           memcmp(a->placement, b->placement, (size_t)shape->heads * sizeof *a->placement) == 0 &&
           memcmp(a->bound, b->bound, (size_t)(a->head_ranks + 1) * sizeof *a->bound) == 0;
}

DsvStatus dsvi_cp_choose(const DsviCpCosts *costs, const DsviCpShape *shape, const DsviCpBlock *block,
                         const DsviCpPlan *present, DsviCpChoice *choice)
{
    Trial trial;
    choice->times = (DsviCpTimes){.total = INFINITY};
    choice->present = (DsviCpTimes){.total = NAN};
    choice->changed = true;
    choice->candidates = 0;
    for (int64_t h = 1; h <= shape->ranks && h <= shape->heads; h++) {
        if (shape->ranks % h || (shape->head_ranks > 0 && h != shape->head_ranks) ||
            choice->candidates == DSVI_CP_CHOICES_MAX)
            continue;
        DsviCpCandidate *candidate = &choice->candidate[choice->candidates++];
        *candidate = (DsviCpCandidate){.head_ranks = h, .sequence_ranks = shape->ranks / h};
        try_degree(costs, shape, block, h, &trial, &candidate->times);
        if (candidate->times.total < choice->times.total)
            adopt(shape, &trial.plan, &candidate->times, choice);
    }
    if (choice->candidates == 0)
        return DSVI_FAIL(DSV_E_USAGE,
                         "cp_heads is %lld, expected a divisor of %lld ranks, at most %lld heads",
                         (long long)shape->head_ranks, (long long)shape->ranks, (long long)shape->heads);
    if (!isfinite(choice->times.total))
        return DSVI_FAIL(DSV_E_USAGE,
                         "%lld heads of %lld tokens cannot be shared out to %lld ranks: of %lld "
                         "ways none has a known price and fits into memory",
                         (long long)shape->heads, (long long)shape->tokens, (long long)shape->ranks,
                         (long long)choice->candidates);
    if (!present)
        return DSV_OK;
    dsvi_cp_times(costs, shape, block, present, &choice->present);
    if (shape->head_ranks > 0 && present->head_ranks != shape->head_ranks)
        choice->present.total = INFINITY;
    if (choice->times.total > (1 - DSVI_CP_GAIN_MIN) * choice->present.total)
        adopt(shape, present, &choice->present, choice);
    choice->changed = !same_plan(shape, present, &choice->plan);
    return DSV_OK;
}

/* Appends formatted text to the string `text` in a buffer of `room` bytes. Cuts what does not fit. */
DSVI_PRINTF(3, 4)
static void cp_plan_append(char *text, size_t room, const char *format, ...)
{
    size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, room - used, format, args);
    va_end(args);
}

void dsvi_cp_heads_text(const DsviCpPlan *plan, char *text, size_t text_bytes)
{
    text[0] = 0;
    for (int64_t r = 0; r < plan->head_ranks; r++) {
        cp_plan_append(text, text_bytes, "%s", r ? " |" : "");
        for (int64_t i = plan->bound[r], last; i < plan->bound[r + 1]; i = last + 1) {
            for (last = i;
                 last + 1 < plan->bound[r + 1] && plan->placement[last + 1] == plan->placement[last] + 1;)
                last++;
            cp_plan_append(text, text_bytes, "%s%d", i || r ? " " : "", plan->placement[i]);
            if (last > i)
                cp_plan_append(text, text_bytes, "-%d", plan->placement[last]);
        }
    }
}

static void append_others(const DsviCpChoice *choice, char *line, size_t room)
{
    for (int64_t i = 0; i < choice->candidates; i++) {
        const DsviCpCandidate *other = &choice->candidate[i];
        if (other->head_ranks == choice->plan.head_ranks)
            continue;
        cp_plan_append(line, room, "; %lld x %lld ", (long long)other->head_ranks,
                       (long long)other->sequence_ranks);
        if (isfinite(other->times.total))
            cp_plan_append(line, room, "%.2f", 1e3 * other->times.total);
        else
            cp_plan_append(line, room, "does not fit");
    }
}

void dsvi_cp_explain(const DsviCpChoice *choice, const DsviCpBlock *block, char *line, size_t line_bytes)
{
    char heads[256];
    double density = 0;
    dsvi_cp_heads_text(&choice->plan, heads, sizeof heads);
    line[0] = 0;
    cp_plan_append(line, line_bytes, "%lld x %lld ranks (heads x tokens), heads %s, ",
                   (long long)choice->plan.head_ranks, (long long)choice->plan.sequence_ranks, heads);
    for (int64_t h = 0; block->density && h < choice->plan.bound[choice->plan.head_ranks]; h++)
        density += block->density[h] / (double)choice->plan.bound[choice->plan.head_ranks];
    if (block->density)
        cp_plan_append(line, line_bytes, "for lists of density %.3f: ", density);
    else
        cp_plan_append(line, line_bytes, "for dense attention: ");
    cp_plan_append(line, line_bytes,
                   "%.2f ms a step expected (attention %.2f, heads for tokens %.2f, between "
                   "shards %.2f)",
                   1e3 * choice->times.total, 1e3 * choice->times.attend, 1e3 * choice->times.heads,
                   1e3 * choice->times.sequence);
    if (isfinite(choice->present.total))
        cp_plan_append(line, line_bytes, "; as it was %.2f", 1e3 * choice->present.total);
    append_others(choice, line, line_bytes);
}
