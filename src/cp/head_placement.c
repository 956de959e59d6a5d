/* Assigns heads to ranks (head_placement.h). The branch-and-bound search assigns heads to ranks in order of
 * descending burden (seconds of attention). It abandons a branch if a lower bound of one rank's cost reaches
 * the best known result: the lower bound uses that the rank's burden can only grow, and assumes the cheapest
 * number of heads that the rank can still reach. The search ends when the best result is close to a lower
 * bound of all placements: the slowest rank takes at least the mean over ranks.
 *
 * Both bounds use that a rank's cost is at least fixed + burden (all transfers hidden), and at least fixed
 * + moved - hides share burden + burden (no transfer hidden completely). */
#include "cp/head_placement.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/status.h"

enum { HEADS_MAX = DSVI_PLACED_HEADS_MAX, EXACT_HEADS_MAX = 64, EXACT_RANKS_MAX = 8 };
#define GAIN_MIN 1e-12 /* relative gain in seconds; a smaller gain is rounding */

typedef struct Load {
    double burden;
    int64_t heads;
} Load;

double dsvi_rank_cost(const DsviRankCost *cost, double burden, int64_t heads)
{
    double seconds = cost->fixed[heads] + burden;
    for (int pass = 0; pass < DSVI_PASSES; pass++)
        if (cost->moved[pass])
            seconds += fmax(0, cost->moved[pass][heads] - cost->hides * cost->share[pass] * burden);
    return seconds;
}

static double cost_of(const DsviPlacementTask *task, Load load)
{
    return dsvi_rank_cost(task->cost, load.burden, load.heads);
}

/* Adds the heads of a placement to the loads of their ranks. The caller has cleared `load`. */
static void add_loads(const DsviPlacementTask *task, const int32_t *rank, Load *load)
{
    for (int64_t h = 0; h < task->heads; h++) {
        load[rank[h]].burden += task->burden[h];
        load[rank[h]].heads++;
    }
}

static int64_t head_placement_slowest(const DsviPlacementTask *task, const Load *load, double *seconds)
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

double dsvi_placement_cost(const DsviPlacementTask *task, const int32_t *rank)
{
    Load load[HEADS_MAX] = {{0, 0}};
    double seconds;
    add_loads(task, rank, load);
    head_placement_slowest(task, load, &seconds);
    return seconds;
}

/* Writes the head numbers to `order`, sorted by descending burden; heads with equal burdens by number. */
static void sort_heads(const DsviPlacementTask *task, int32_t *order)
{
    for (int64_t i = 0; i < task->heads; i++) {
        int64_t at = i;
        for (; at > 0 && task->burden[order[at - 1]] < task->burden[i]; at--)
            order[at] = order[at - 1];
        order[at] = (int32_t)i;
    }
}

/* Assigns each head to the rank with the smallest burden; with `even`, only to one of the ranks with the
 * fewest heads. */
static void longest_first(const DsviPlacementTask *task, const int32_t *order, bool even, int32_t *rank)
{
    Load load[HEADS_MAX] = {{0, 0}};
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

/* Moves `head` from the slowest rank to rank `to`, in exchange for head `other`, or for none (-1). */
typedef struct Change {
    int64_t head, other, to;
    double seconds; /* seconds of the slower of the two ranks after the change */
} Change;

static void consider(const DsviPlacementTask *task, const Load *load, int64_t from, Change change,
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

static Change best_change(const DsviPlacementTask *task, const Load *load, const int32_t *rank, int64_t from,
                          double seconds)
{
    Change best = {-1, -1, -1, seconds * (1 - GAIN_MIN)};
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

/* Repeats the best move or swap of a head of the slowest rank, as long as both ranks are then faster than the
 * slowest rank was. Returns the slowest rank's seconds. */
static double refine(const DsviPlacementTask *task, int32_t *rank)
{
    for (;;) {
        Load load[HEADS_MAX] = {{0, 0}};
        double seconds;
        add_loads(task, rank, load);
        int64_t from = head_placement_slowest(task, load, &seconds);
        Change change = best_change(task, load, rank, from, seconds);
        if (change.head < 0)
            return seconds;
        rank[change.head] = (int32_t)change.to;
        if (change.other >= 0)
            rank[change.other] = (int32_t)from;
    }
}

/* The two kinds of lower bound on a rank's cost: base[kind][heads] + slope[kind] burden. */
enum { ALL_HIDDEN, NONE_HIDDEN, KINDS };

typedef struct Search {
    const DsviPlacementTask *task;
    const int32_t *order;
    double base[KINDS][EXACT_HEADS_MAX + 1], slope[KINDS];
    double cheapest[KINDS][EXACT_HEADS_MAX + 1]; /* [kind][n]: minimum of base over n or more heads */
    double bound;                                /* lower bound of all placements */
    Load load[EXACT_RANKS_MAX];
    int32_t now[EXACT_HEADS_MAX]; /* rank of each head assigned so far */
    int32_t *best;
    double seconds; /* the slowest rank's seconds in `best` */
    int64_t nodes;
} Search;

/* Returns the smallest sum over the ranks of base[number of the rank's heads], among all ways to give each
 * rank a number of heads. */
static double least_base(const DsviPlacementTask *task, const double *base)
{
    double least[EXACT_HEADS_MAX + 1], next[EXACT_HEADS_MAX + 1];
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
    const DsviPlacementTask *task = s->task;
    double all = 0;
    s->slope[ALL_HIDDEN] = 1;
    s->slope[NONE_HIDDEN] = 1;
    for (int64_t h = 0; h < task->heads; h++)
        all += task->burden[h];
    for (int pass = 0; pass < DSVI_PASSES; pass++)
        s->slope[NONE_HIDDEN] -= task->cost->moved[pass] ? task->cost->hides * task->cost->share[pass] : 0;
    for (int kind = 0; kind < KINDS; kind++) {
        for (int64_t n = task->heads; n >= 0; n--) {
            s->base[kind][n] = task->cost->fixed[n];
            for (int pass = 0; pass < DSVI_PASSES && kind == NONE_HIDDEN; pass++)
                s->base[kind][n] += task->cost->moved[pass] ? task->cost->moved[pass][n] : 0;
            s->cheapest[kind][n] = n == task->heads ? s->base[kind][n]
                                                    : fmin(s->base[kind][n], s->cheapest[kind][n + 1]);
        }
        double mean = (least_base(task, s->base[kind]) + s->slope[kind] * all) / (double)task->ranks;
        double longest = s->cheapest[kind][1] + s->slope[kind] * task->burden[s->order[0]];
        s->bound = fmax(s->bound, fmax(mean, longest));
    }
}

static bool cannot_improve(const Search *s, Load load)
{
    for (int kind = 0; kind < KINDS; kind++)
        if (s->cheapest[kind][load.heads] + s->slope[kind] * load.burden >= s->seconds * (1 - GAIN_MIN))
            return true;
    return false;
}

static bool search_ended(const Search *s)
{
    return s->nodes >= s->task->nodes_max || s->seconds <= s->bound * (1 + s->task->slack);
}

static void adopt_if_better(Search *s)
{
    double seconds;
    head_placement_slowest(s->task, s->load, &seconds);
    if (seconds >= s->seconds * (1 - GAIN_MIN))
        return;
    s->seconds = seconds;
    for (int64_t h = 0; h < s->task->heads; h++)
        s->best[h] = s->now[h];
}

/* Returns whether a rank before r has the same load as rank r: assigning the next head to r would then
 * give no new placement. */
static bool same_as_earlier_rank(const Search *s, int64_t r)
{
    for (int64_t other = 0; other < r; other++)
        if (s->load[other].heads == s->load[r].heads && s->load[other].burden == s->load[r].burden)
            return true;
    return false;
}

static void descend(Search *s, int64_t i, int64_t empty)
{
    const DsviPlacementTask *task = s->task;
    if (i == task->heads) {
        adopt_if_better(s);
        return;
    }
    int32_t head = s->order[i];
    for (int64_t r = 0; r < task->ranks && !search_ended(s); r++) {
        Load before = s->load[r];
        bool first = before.heads == 0;
        /* every empty rank needs one of the remaining heads */
        if (same_as_earlier_rank(s, r) || (!first && task->heads - i <= empty))
            continue;
        s->nodes++;
        s->load[r].burden += task->burden[head];
        s->load[r].heads++;
        s->now[head] = (int32_t)r;
        if (!cannot_improve(s, s->load[r]))
            descend(s, i + 1, empty - first);
        s->load[r] = before;
    }
}

/* Renumbers the ranks in `rank` in the order of the first head that each has. */
static void renumber(const DsviPlacementTask *task, int32_t *rank)
{
    int32_t name[HEADS_MAX], next = 0;
    for (int64_t r = 0; r < task->ranks; r++)
        name[r] = -1;
    for (int64_t h = 0; h < task->heads; h++) {
        if (name[rank[h]] < 0)
            name[rank[h]] = next++;
        rank[h] = name[rank[h]];
    }
}

/* Assigns consecutive heads to each rank, in numbers as equal as possible. */
static void place_in_order(const DsviPlacementTask *task, int32_t *rank)
{
    for (int64_t h = 0; h < task->heads; h++)
        rank[h] = (int32_t)(h * task->ranks / task->heads);
}

/* Copies the placement `other` to `rank` if `other` is faster, or with if_equal also if it is as fast.
 * Returns the slowest rank's seconds in the resulting placement. */
static double adopt_if_faster(const DsviPlacementTask *task, const int32_t *other, double other_seconds,
                              bool if_equal, int32_t *rank, double seconds)
{
    if (!(other_seconds < seconds || (if_equal && other_seconds <= seconds * (1 + GAIN_MIN))))
        return seconds;
    for (int64_t h = 0; h < task->heads; h++)
        rank[h] = other[h];
    return other_seconds;
}

double dsvi_place_heads(const DsviPlacementTask *task, int32_t *rank)
{
    int32_t order[HEADS_MAX], other[HEADS_MAX];
    DSVI_ASSERT(task->ranks >= 1 && task->heads >= task->ranks && task->heads <= HEADS_MAX);
    sort_heads(task, order);
    longest_first(task, order, false, rank);
    double seconds = refine(task, rank);
    longest_first(task, order, true, other);
    seconds = adopt_if_faster(task, other, refine(task, other), false, rank, seconds);
    if (task->nodes_max > 0 && task->heads <= EXACT_HEADS_MAX && task->ranks <= EXACT_RANKS_MAX) {
        Search search = {.task = task, .order = order, .best = rank, .seconds = seconds};
        prepare_bounds(&search);
        descend(&search, 0, task->ranks);
        seconds = search.seconds;
    }
    place_in_order(task, other);
    seconds = adopt_if_faster(task, other, dsvi_placement_cost(task, other), true, rank, seconds);
    renumber(task, rank);
    return seconds;
}
