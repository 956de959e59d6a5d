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

/* Returns whether the measured density and captured mass (fraction of attention in the key lists) of a
 * block meet all bounds of the guard, each bound loosened by `slack`. */
static bool meets_bounds(const DsviGuard *guard, const DsviGuardView *view, double slack)
{
    return view->captured >= guard->min_mass - slack && view->density <= guard->max_density + slack &&
           view->head_captured >= head_floor(guard) - slack;
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
        snprintf(line, line_bytes,
                 "block %lld turns %s: its lists hold %.2f of the attention mass (at least "
                 "%.2f required) at density %.2f (at most %.2f); head %lld, the worst, holds %.2f (at least "
                 "%.2f required)",
                 (long long)block, sparse ? "sparse" : "dense", view->captured, guard->min_mass,
                 view->density, guard->max_density, (long long)view->worst_head, view->head_captured,
                 head_floor(guard));
    return sparse;
}
