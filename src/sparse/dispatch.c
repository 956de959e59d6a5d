/* See dispatch.h. Comparisons are such that a NaN never makes a block sparse. */
#include "sparse/dispatch.h"

#include <math.h>
#include <stdio.h>

/* The bound for the worst head. It is capped at min_mass, the bound for the mean over heads, so that
 * min_mass=0 switches both off. */
static double head_floor(const DsvGuard *guard)
{
    return fmin(guard->min_head_mass, guard->min_mass);
}

/* All bounds met, each loosened by `slack`. */
static bool good(const DsvGuard *guard, const DsvGuardView *view, double slack)
{
    return view->captured >= guard->min_mass - slack && view->density <= guard->max_density + slack &&
           view->head_captured >= head_floor(guard) - slack;
}

bool dsvi_guard_decide(const DsvGuard *guard, const DsvGuardView *view, int64_t block, char *line,
                       size_t line_bytes)
{
    line[0] = 0;
    if (view->sparse && view->overflowed) {
        snprintf(line, line_bytes, "block %lld turns dense: its lists needed density %.2f in this step, "
                 "above the %.2f there is room for", (long long)block, view->needed, view->capacity);
        return false;
    }
    if (!view->measured)
        return view->sparse;
    bool sparse = view->sparse ? good(guard, view, guard->hysteresis) : view->fit && good(guard, view, 0);
    if (sparse != view->sparse)
        snprintf(line, line_bytes,
                 "block %lld turns %s: its lists hold %.2f of the attention mass (at least "
                 "%.2f wanted) at density %.2f (at most %.2f); head %lld, the worst, holds %.2f (at least "
                 "%.2f wanted)",
                 (long long)block, sparse ? "sparse" : "dense", view->captured, guard->min_mass,
                 view->density, guard->max_density, (long long)view->worst_head, view->head_captured,
                 head_floor(guard));
    return sparse;
}
