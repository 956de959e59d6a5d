/* The guard (guard.h). Comparisons are written so that a NaN never makes a block sparse. */
#include "sparse/guard.h"

#include <math.h>
#include <stdio.h>

/* Returns the smallest captured mass (fraction of exact attention that the key lists hold) that the guard
 * accepts from a block's worst head. The returned bound is at most min_mass, the bound for the mean over
 * heads, so that min_mass=0 switches both bounds off. */
static double head_floor(const DsviGuard *guard)
{
    return fmin(guard->min_head_mass, guard->min_mass);
}

/* Returns the largest output error that the guard accepts from a block's worst head. It is at least
 * max_error, the bound for the mean over heads, so that a large max_error switches both bounds off. */
static double head_ceiling(const DsviGuard *guard)
{
    return fmax(guard->max_head_error, guard->max_error);
}

/* Returns the bounds that the measured density and the output error or captured mass (fraction of attention
 * in the key lists) of a block miss, each bound loosened by `slack`, as a set of DsviGuardReason. */
static int missed_bounds(const DsviGuard *guard, const DsviGuardView *view, double slack)
{
    bool sparse_enough = view->density <= guard->max_density + slack;
    bool good = guard->by_error ? view->error <= guard->max_error + slack
                                : view->captured >= guard->min_mass - slack;
    bool head_good = guard->by_error ? view->head_error <= head_ceiling(guard) + slack
                                     : view->head_captured >= head_floor(guard) - slack;
    return (sparse_enough ? 0 : DSVI_GUARD_DENSITY) | (good ? 0 : DSVI_GUARD_BLOCK) |
           (head_good ? 0 : DSVI_GUARD_HEAD);
}

/* Writes the reason for a decision to `line`. `verb` is "turns" or "stays". */
static void write_reason(const DsviGuard *guard, const DsviGuardView *view, int64_t block, const char *verb,
                         int missed, char *line, size_t line_bytes)
{
    const char *side = missed ? "dense" : "sparse";
    const char *slower = guard->slower_above ? ", above which lists are slower" : "";
    if (missed & DSVI_GUARD_LIST_MEMORY && view->needed > guard->max_density)
        snprintf(line, line_bytes,
                 "block %lld %s dense: its lists needed density %.2f in this step (at most %.2f%s)",
                 (long long)block, verb, view->needed, guard->max_density, slower);
    else if (missed & DSVI_GUARD_LIST_MEMORY)
        snprintf(line, line_bytes,
                 "block %lld %s dense: its lists needed density %.2f in this step, "
                 "above the %.2f that sparse.list_memory has room for",
                 (long long)block, verb, view->needed, view->capacity);
    else if (guard->by_error)
        snprintf(line, line_bytes,
                 "block %lld %s %s: its output over lists and tail has a relative error of %.2f (at most "
                 "%.2f allowed) at density %.2f (at most %.2f%s); head %lld, the worst, has %.2f (at most "
                 "%.2f allowed)",
                 (long long)block, verb, side, view->error, guard->max_error, view->density,
                 guard->max_density, slower, (long long)view->worst_head, view->head_error,
                 head_ceiling(guard));
    else
        snprintf(
            line, line_bytes,
            "block %lld %s %s: its lists hold %.2f of the attention mass (at least "
            "%.2f required) at density %.2f (at most %.2f%s); head %lld, the worst, holds %.2f (at least "
            "%.2f required)",
            (long long)block, verb, side, view->captured, guard->min_mass, view->density, guard->max_density,
            slower, (long long)view->worst_head, view->head_captured, head_floor(guard));
}

bool dsvi_guard_decide(const DsviGuard *guard, const DsviGuardView *view, int64_t block, int32_t *reason,
                       char *line, size_t line_bytes)
{
    int missed;
    line[0] = 0;
    if (view->sparse && view->overflowed)
        missed = DSVI_GUARD_LIST_MEMORY;
    else if (!view->measured)
        return view->sparse;
    else if (!view->sparse && !view->fit)
        missed = DSVI_GUARD_LIST_MEMORY;
    else
        missed = missed_bounds(guard, view, view->sparse ? guard->hysteresis : 0);
    bool sparse = !missed, turns = sparse != view->sparse;
    bool given = !turns && (missed & *reason); /* the reason that was given for staying dense still holds */
    if (turns || (!sparse && !given))
        write_reason(guard, view, block, turns ? "turns" : "stays", missed, line, line_bytes);
    if (!given)
        *reason = missed & -missed; /* the first one, in the order of the enumeration */
    return sparse;
}
