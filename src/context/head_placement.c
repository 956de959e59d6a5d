/* See head_placement.h. The search assigns heads from the longest to the shortest. It leaves a branch when
 * one rank, as it stands, cannot get below the best known: its burden only grows, and of all numbers of
 * heads it may still reach the cheapest is assumed. It ends when no placement can be better: the slowest rank
 * takes at least the mean.
 *
 * Both use that a rank's cost is at least fixed + burden, with all transfers hidden, and at least
 * fixed + moved + (1 - hides) burden, with none of them hidden whole. */
#include "context/head_placement.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/status.h"

enum { MOST = DSV_PLACED_HEADS_MOST, EXACT_HEADS_MOST = 64, EXACT_RANKS_MOST = 8 };
#define LEAST_GAIN 1e-12 /* of a cost: less is rounding */

typedef struct Load {
    double burden;
    int64_t heads;
} Load;

double dsvi_rank_cost(const DsvRankCost *cost, double burden, int64_t heads)
{
    double seconds = cost->fixed[heads] + burden;
    for (int pass = 0; pass < DSV_PASSES; pass++)
        if (cost->moved[pass])
            seconds += fmax(0, cost->moved[pass][heads] - cost->hides * cost->share[pass] * burden);
    return seconds;
}

static double cost_of(const DsvPlacementTask *task, Load load)
{
    return dsvi_rank_cost(task->cost, load.burden, load.heads);
}

/* The loads of the ranks (zeroed by the caller) under a placement. */
static void add_loads(const DsvPlacementTask *task, const int32_t *rank, Load *load)
{
    for (int64_t h = 0; h < task->heads; h++) {
        load[rank[h]].burden += task->burden[h];
        load[rank[h]].heads++;
    }
}

static int64_t slowest(const DsvPlacementTask *task, const Load *load, double *seconds)
{
    int64_t at = 0;
    *seconds = -INFINITY;
    for (int64_t r = 0; r < task->ranks; r++) {
        double cost = cost_of(task, load[r]);
        if (cost > *seconds) {
            *seconds = cost;
            at = r;
        }
    }
    return at;
}

double dsvi_placement_cost(const DsvPlacementTask *task, const int32_t *rank)
{
    Load load[MOST] = {{0, 0}};
    double seconds;
    add_loads(task, rank, load);
    slowest(task, load, &seconds);
    return seconds;
}

/* Heads by falling burden, equal ones by number. */
static void sort_heads(const DsvPlacementTask *task, int32_t *order)
{
    for (int64_t i = 0; i < task->heads; i++) {
        int64_t at = i;
        for (; at > 0 && task->burden[order[at - 1]] < task->burden[i]; at--)
            order[at] = order[at - 1];
        order[at] = (int32_t)i;
    }
}

/* Each head to the rank with the least burden; with `even`, among those with the fewest heads. */
static void longest_first(const DsvPlacementTask *task, const int32_t *order, bool even, int32_t *rank)
{
    Load load[MOST] = {{0, 0}};
    for (int64_t i = 0; i < task->heads; i++) {
        int64_t least = 0;
        for (int64_t r = 1; r < task->ranks; r++) {
            bool fewer = load[r].heads < load[least].heads, same = load[r].heads == load[least].heads;
            bool empty = fewer && load[r].heads == 0;
            bool lighter = load[r].burden < load[least].burden;
            if (empty || (even ? fewer || (same && lighter) : load[least].heads > 0 && lighter))
                least = r;
        }
        rank[order[i]] = (int32_t)least;
        load[least].burden += task->burden[order[i]];
        load[least].heads++;
    }
}

/* A head of the slowest rank that goes elsewhere, for another or for none (-1). */
typedef struct Change {
    int64_t head, other, to;
    double seconds; /* of the slower of the two ranks afterwards */
} Change;

static void consider(const DsvPlacementTask *task, const Load *load, int64_t from, Change change,
                     Change *best)
{
    double out = task->burden[change.head], in = change.other >= 0 ? task->burden[change.other] : 0;
    int64_t more = change.other >= 0 ? 0 : 1;
    Load a = {load[from].burden - out + in, load[from].heads - more};
    Load b = {load[change.to].burden + out - in, load[change.to].heads + more};
    if (a.heads < 1)
        return;
    change.seconds = fmax(cost_of(task, a), cost_of(task, b));
    if (change.seconds < best->seconds)
        *best = change;
}

static Change best_change(const DsvPlacementTask *task, const Load *load, const int32_t *rank, int64_t from,
                          double seconds)
{
    Change best = {-1, -1, -1, seconds * (1 - LEAST_GAIN)};
    for (int64_t head = 0; head < task->heads; head++) {
        if (rank[head] != from)
            continue;
        for (int64_t to = 0; to < task->ranks; to++)
            if (to != from)
                consider(task, load, from, (Change){head, -1, to, 0}, &best);
        for (int64_t other = 0; other < task->heads; other++)
            if (rank[other] != from)
                consider(task, load, from, (Change){head, other, rank[other], 0}, &best);
    }
    return best;
}

/* Moves and swaps heads of the slowest rank while that makes the slower of the two ranks faster. */
static double refine(const DsvPlacementTask *task, int32_t *rank)
{
    for (;;) {
        Load load[MOST] = {{0, 0}};
        double seconds;
        add_loads(task, rank, load);
        int64_t from = slowest(task, load, &seconds);
        Change change = best_change(task, load, rank, from, seconds);
        if (change.head < 0)
            return seconds;
        rank[change.head] = (int32_t)change.to;
        if (change.other >= 0)
            rank[change.other] = (int32_t)from;
    }
}

/* The two kinds of lower bound on a rank's cost: base[kind][heads] + slope[kind] burden. */
enum { ALL_HIDDEN, ALL_SEEN, KINDS };

typedef struct Search {
    const DsvPlacementTask *task;
    const int32_t *order;
    double base[KINDS][EXACT_HEADS_MOST + 1], slope[KINDS];
    double cheapest[KINDS][EXACT_HEADS_MOST + 1]; /* least base of so many heads or more */
    double bound;                                 /* no placement is faster */
    Load load[EXACT_RANKS_MOST];
    int32_t now[EXACT_HEADS_MOST];                /* as far as assigned */
    int32_t *best;
    double seconds;                               /* of the best */
    int64_t nodes;
} Search;

/* The least sum of `base` over the ranks, of all ways to share N heads out. */
static double least_base(const DsvPlacementTask *task, const double *base)
{
    double least[EXACT_HEADS_MOST + 1], next[EXACT_HEADS_MOST + 1];
    for (int64_t n = 0; n <= task->heads; n++)
        least[n] = n == 0 ? 0 : INFINITY;
    for (int64_t r = 0; r < task->ranks; r++) {
        for (int64_t n = 0; n <= task->heads; n++) {
            next[n] = INFINITY;
            for (int64_t own = 1; own <= n; own++)
                next[n] = fmin(next[n], least[n - own] + base[own]);
        }
        for (int64_t n = 0; n <= task->heads; n++)
            least[n] = next[n];
    }
    return least[task->heads];
}

static void prepare_bounds(Search *s)
{
    const DsvPlacementTask *task = s->task;
    double all = 0;
    s->slope[ALL_HIDDEN] = 1;
    s->slope[ALL_SEEN] = 1;
    for (int64_t h = 0; h < task->heads; h++)
        all += task->burden[h];
    for (int pass = 0; pass < DSV_PASSES; pass++)
        s->slope[ALL_SEEN] -= task->cost->moved[pass] ? task->cost->hides * task->cost->share[pass] : 0;
    for (int kind = 0; kind < KINDS; kind++) {
        for (int64_t n = task->heads; n >= 0; n--) {
            s->base[kind][n] = task->cost->fixed[n];
            for (int pass = 0; pass < DSV_PASSES && kind == ALL_SEEN; pass++)
                s->base[kind][n] += task->cost->moved[pass] ? task->cost->moved[pass][n] : 0;
            s->cheapest[kind][n] = n == task->heads ? s->base[kind][n]
                                                    : fmin(s->base[kind][n], s->cheapest[kind][n + 1]);
        }
        double mean = (least_base(task, s->base[kind]) + s->slope[kind] * all) / (double)task->ranks;
        double longest = s->cheapest[kind][1] + s->slope[kind] * task->burden[s->order[0]];
        s->bound = fmax(s->bound, fmax(mean, longest));
    }
}

static bool hopeless(const Search *s, Load load)
{
    for (int kind = 0; kind < KINDS; kind++)
        if (s->cheapest[kind][load.heads] + s->slope[kind] * load.burden >= s->seconds * (1 - LEAST_GAIN))
            return true;
    return false;
}

static bool over(const Search *s)
{
    return s->nodes >= s->task->nodes_most || s->seconds <= s->bound * (1 + s->task->slack);
}

static void take_better(Search *s)
{
    double seconds;
    slowest(s->task, s->load, &seconds);
    if (seconds >= s->seconds * (1 - LEAST_GAIN))
        return;
    s->seconds = seconds;
    for (int64_t h = 0; h < s->task->heads; h++)
        s->best[h] = s->now[h];
}

/* Whether a rank before r stands exactly as r does: what r could do it has tried. */
static bool tried(const Search *s, int64_t r)
{
    for (int64_t other = 0; other < r; other++)
        if (s->load[other].heads == s->load[r].heads && s->load[other].burden == s->load[r].burden)
            return true;
    return false;
}

static void descend(Search *s, int64_t i, int64_t empty)
{
    const DsvPlacementTask *task = s->task;
    if (i == task->heads) {
        take_better(s);
        return;
    }
    int32_t head = s->order[i];
    for (int64_t r = 0; r < task->ranks && !over(s); r++) {
        Load before = s->load[r];
        bool first = before.heads == 0;
        if (tried(s, r) || (!first && task->heads - i <= empty)) /* the others wait for all that is left */
            continue;
        s->nodes++;
        s->load[r].burden += task->burden[head];
        s->load[r].heads++;
        s->now[head] = (int32_t)r;
        if (!hopeless(s, s->load[r]))
            descend(s, i + 1, empty - first);
        s->load[r] = before;
    }
}

/* Numbers the ranks by their first head. */
static void renumber(const DsvPlacementTask *task, int32_t *rank)
{
    int32_t name[MOST], next = 0;
    for (int64_t r = 0; r < task->ranks; r++)
        name[r] = -1;
    for (int64_t h = 0; h < task->heads; h++) {
        if (name[rank[h]] < 0)
            name[rank[h]] = next++;
        rank[h] = name[rank[h]];
    }
}

/* Heads in order, counts as even as they can be. */
static void in_order(const DsvPlacementTask *task, int32_t *rank)
{
    for (int64_t h = 0; h < task->heads; h++)
        rank[h] = (int32_t)(h * task->ranks / task->heads);
}

/* `other` in place of `rank` where it is faster; where it is as fast, too, if `even_so`. */
static double better(const DsvPlacementTask *task, const int32_t *other, double of_other, bool even_so,
                     int32_t *rank, double seconds)
{
    if (!(of_other < seconds || (even_so && of_other <= seconds * (1 + LEAST_GAIN))))
        return seconds;
    for (int64_t h = 0; h < task->heads; h++)
        rank[h] = other[h];
    return of_other;
}

double dsvi_place_heads(const DsvPlacementTask *task, int32_t *rank)
{
    int32_t order[MOST], other[MOST];
    DSVI_ASSERT(task->ranks >= 1 && task->heads >= task->ranks && task->heads <= MOST);
    sort_heads(task, order);
    longest_first(task, order, false, rank);
    double seconds = refine(task, rank);
    longest_first(task, order, true, other);
    seconds = better(task, other, refine(task, other), false, rank, seconds);
    if (task->nodes_most > 0 && task->heads <= EXACT_HEADS_MOST && task->ranks <= EXACT_RANKS_MOST) {
        Search search = {.task = task, .order = order, .best = rank, .seconds = seconds};
        prepare_bounds(&search);
        descend(&search, 0, task->ranks);
        seconds = search.seconds;
    }
    in_order(task, other);
    seconds = better(task, other, dsvi_placement_cost(task, other), true, rank, seconds);
    renumber(task, rank);
    return seconds;
}
