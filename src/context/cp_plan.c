/* See cp_plan.h. Every degree is tried: what a rank takes is written as prices (cp_prices.h), heads are
 * placed by them (head_placement.h), and the fastest is compared with what there is. */
#include "context/cp_plan.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "context/cp_prices.h"

/* Placements within this share of the bound are good enough, and so is the best of so many tries: what times
 * are predicted from is not known better. */
#define PLACEMENT_SLACK 1e-4
#define PLACEMENT_NODES 20000

typedef struct Trial {
    int32_t placement[DSV_PLACED_HEADS_MOST];
    int64_t bound[DSV_PLACED_HEADS_MOST + 1];
    DsvContextPlan plan; /* its arrays are these two */
} Trial;

/* From the rank of every head to the plan's own form. */
static void write_plan(const int32_t *rank, const DsvCpStretches *at, int64_t heads, Trial *trial)
{
    int64_t filled = 0;
    for (int64_t r = 0; r < at->head_ranks; r++) {
        trial->bound[r] = filled;
        for (int64_t h = 0; h < heads; h++)
            if (rank[h] == r)
                trial->placement[filled++] = (int32_t)h;
    }
    trial->bound[at->head_ranks] = filled;
    trial->plan = (DsvContextPlan){at->head_ranks, at->sequence_ranks, trial->placement, trial->bound};
}

/* The best placement of this degree; times INFINITY where there is none. */
static void try_degree(const DsvContextCosts *costs, const DsvCpShape *shape, const DsvCpBlock *block,
                       int64_t head_ranks, Trial *trial, DsvCpTimes *times)
{
    DsvCpPrices prices;
    int32_t rank[DSV_PLACED_HEADS_MOST];
    DsvCpStretches at = dsvi_cp_stretches(shape, head_ranks);
    *times = (DsvCpTimes){.total = INFINITY};
    if (!dsvi_cp_prices(costs, shape, block, &at, &prices))
        return;
    const DsvPlacementTask task = {
        .heads = shape->heads, .ranks = head_ranks, .burden = prices.burden, .cost = &prices.cost,
        .slack = PLACEMENT_SLACK, .nodes_most = PLACEMENT_NODES,
    };
    dsvi_place_heads(&task, rank);
    write_plan(rank, &at, shape->heads, trial);
    dsvi_cp_times_at(shape, block, &at, &prices, &trial->plan, times);
}

static void adopt(const DsvCpShape *shape, const DsvContextPlan *plan, const DsvCpTimes *times,
                  DsvCpChoice *choice)
{
    memcpy(choice->placement, plan->placement, (size_t)shape->heads * sizeof *choice->placement);
    memcpy(choice->bound, plan->bound, (size_t)(plan->head_ranks + 1) * sizeof *choice->bound);
    choice->plan = (DsvContextPlan){plan->head_ranks, plan->sequence_ranks, choice->placement, choice->bound};
    choice->times = *times;
}

static bool same_plan(const DsvCpShape *shape, const DsvContextPlan *a, const DsvContextPlan *b)
{
    return a->head_ranks == b->head_ranks &&
           memcmp(a->placement, b->placement, (size_t)shape->heads * sizeof *a->placement) == 0 &&
           memcmp(a->bound, b->bound, (size_t)(a->head_ranks + 1) * sizeof *a->bound) == 0;
}

DsvStatus dsvi_cp_choose(const DsvContextCosts *costs, const DsvCpShape *shape, const DsvCpBlock *block,
                         const DsvContextPlan *present, DsvCpChoice *choice)
{
    Trial trial;
    choice->times = (DsvCpTimes){.total = INFINITY};
    choice->present = (DsvCpTimes){.total = NAN};
    choice->changed = true;
    choice->candidates = 0;
    for (int64_t h = 1; h <= shape->ranks && h <= shape->heads; h++) {
        if (shape->ranks % h || (shape->head_ranks > 0 && h != shape->head_ranks) ||
            choice->candidates == DSV_CP_CHOICES_MOST)
            continue;
        DsvCpCandidate *candidate = &choice->candidate[choice->candidates++];
        *candidate = (DsvCpCandidate){.head_ranks = h, .sequence_ranks = shape->ranks / h};
        try_degree(costs, shape, block, h, &trial, &candidate->times);
        if (candidate->times.total < choice->times.total)
            adopt(shape, &trial.plan, &candidate->times, choice);
    }
    if (!isfinite(choice->times.total))
        return DSVI_FAIL(DSV_E_USAGE, "%lld heads of %lld tokens cannot be shared out to %lld ranks: of %lld "
                         "ways none has a known price and fits into memory", (long long)shape->heads,
                         (long long)shape->tokens, (long long)shape->ranks, (long long)choice->candidates);
    if (!present)
        return DSV_OK;
    dsvi_cp_times(costs, shape, block, present, &choice->present);
    if (shape->head_ranks > 0 && present->head_ranks != shape->head_ranks)
        choice->present.total = INFINITY;
    if (choice->times.total > (1 - DSV_CP_LEAST_GAIN) * choice->present.total)
        adopt(shape, present, &choice->present, choice);
    choice->changed = !same_plan(shape, present, &choice->plan);
    return DSV_OK;
}

/* Appends to text that has a `room`; what does not fit is left out. */
DSVI_PRINTF(3, 4)
static void append(char *text, size_t room, const char *format, ...)
{
    size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, room - used, format, args);
    va_end(args);
}

void dsvi_cp_heads_text(const DsvContextPlan *plan, char *text, size_t text_bytes)
{
    text[0] = 0;
    for (int64_t r = 0; r < plan->head_ranks; r++) {
        append(text, text_bytes, "%s", r ? " |" : "");
        for (int64_t i = plan->bound[r], last; i < plan->bound[r + 1]; i = last + 1) {
            for (last = i; last + 1 < plan->bound[r + 1] &&
                           plan->placement[last + 1] == plan->placement[last] + 1;)
                last++;
            append(text, text_bytes, "%s%d", i || r ? " " : "", plan->placement[i]);
            if (last > i)
                append(text, text_bytes, "-%d", plan->placement[last]);
        }
    }
}

static void append_others(const DsvCpChoice *choice, char *line, size_t room)
{
    for (int64_t i = 0; i < choice->candidates; i++) {
        const DsvCpCandidate *other = &choice->candidate[i];
        if (other->head_ranks == choice->plan.head_ranks)
            continue;
        append(line, room, "; %lld x %lld ", (long long)other->head_ranks,
               (long long)other->sequence_ranks);
        if (isfinite(other->times.total))
            append(line, room, "%.2f", 1e3 * other->times.total);
        else
            append(line, room, "does not fit");
    }
}

void dsvi_cp_explain(const DsvCpChoice *choice, const DsvCpBlock *block, char *line, size_t line_bytes)
{
    char heads[256];
    double density = 0;
    dsvi_cp_heads_text(&choice->plan, heads, sizeof heads);
    line[0] = 0;
    append(line, line_bytes, "%lld x %lld ranks (heads x tokens), heads %s, ",
           (long long)choice->plan.head_ranks, (long long)choice->plan.sequence_ranks, heads);
    for (int64_t h = 0; block->density && h < choice->plan.bound[choice->plan.head_ranks]; h++)
        density += block->density[h] / (double)choice->plan.bound[choice->plan.head_ranks];
    if (block->density)
        append(line, line_bytes, "for lists of density %.3f: ", density);
    else
        append(line, line_bytes, "for dense attention: ");
    append(line, line_bytes, "%.2f ms a step expected (attention %.2f, heads for tokens %.2f, between "
           "stretches %.2f)", 1e3 * choice->times.total, 1e3 * choice->times.attend,
           1e3 * choice->times.heads, 1e3 * choice->times.sequence);
    if (isfinite(choice->present.total))
        append(line, line_bytes, "; as it was %.2f", 1e3 * choice->present.total);
    append_others(choice, line, line_bytes);
}
