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

/* Returns whether the measured density and the output error or captured mass (fraction of attention in the
 * key lists) of a block meet all bounds of the guard, each bound loosened by `slack`. */
static bool meets_bounds(const DsviGuard *guard, const DsviGuardView *view, double slack)
{
    bool good = guard->by_error ? view->error <= guard->max_error + slack &&
                                      view->head_error <= head_ceiling(guard) + slack
                                : view->captured >= guard->min_mass - slack &&
                                      view->head_captured >= head_floor(guard) - slack;
    return good && view->density <= guard->max_density + slack;
}

/* Writes the reason for a decision to `line`. */
static void write_reason(const DsviGuard *guard, const DsviGuardView *view, int64_t block, bool sparse,
                         char *line, size_t line_bytes)
{
    if (guard->by_error)
        snprintf(line, line_bytes,
                 "block %lld turns %s: its output over lists and tail has a relative error of %.2f (at most "
                 "%.2f allowed) at density %.2f (at most %.2f); head %lld, the worst, has %.2f (at most "
                 "%.2f allowed)",
                 (long long)block, sparse ? "sparse" : "dense", view->error, guard->max_error, view->density,
                 guard->max_density, (long long)view->worst_head, view->head_error, head_ceiling(guard));
    else
        snprintf(line, line_bytes,
                 "block %lld turns %s: its lists hold %.2f of the attention mass (at least "
                 "%.2f required) at density %.2f (at most %.2f); head %lld, the worst, holds %.2f (at least "
                 "%.2f required)",
                 (long long)block, sparse ? "sparse" : "dense", view->captured, guard->min_mass,
                 view->density, guard->max_density, (long long)view->worst_head, view->head_captured,
                 head_floor(guard));
}

bool dsvi_guard_decide(const DsviGuard *guard, const DsviGuardView *view, int64_t block, char *line,
                       size_t line_bytes)
{
    line[0] = 0;
    if (view->sparse && view->overflowed) {
        snprintf(line, line_bytes,
                 "block %lld turns dense: its lists needed density %.2f in this step, "
                 "above the %.2f there is room for",
                 (long long)block, view->needed, view->capacity);
        return false;
    }
    if (!view->measured)
        return view->sparse;
    bool sparse = view->sparse ? meets_bounds(guard, view, guard->hysteresis)
                               : view->fit && meets_bounds(guard, view, 0);
    if (sparse != view->sparse)
        write_reason(guard, view, block, sparse, line, line_bytes);
    return sparse;
}
