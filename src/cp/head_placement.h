/* Assigns heads to the ranks of a head group so that the slowest rank is as fast as possible (reference: DSV,
 * section 6.1 "head-wise context parallelism").
 *
 * Heads differ in the time of their attention. The functions of this file are pure: they use no device and
 * no communication, and the same numbers give the same placement on every rank. */
#ifndef DSVI_HEAD_PLACEMENT_H
#define DSVI_HEAD_PLACEMENT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { DSVI_PLACED_HEADS_MAX = 1024, DSVI_PASSES = 2 }; /* passes: forward, backward */

/* Model of the seconds of a rank with `heads` heads, whose burdens sum to `burden` seconds:
 *
 *     fixed[heads] + burden + sum over passes p of max(0, moved[p][heads] - hides share[p] burden)
 *
 * fixed: everything that depends only on the number of heads. moved: transfers that overlap with attention;
 * only the part that attention does not hide counts. share[p]: fraction of the burden that belongs to pass
 * p. */
typedef struct DsviRankCost {
    const double *fixed;              /* (N + 1) seconds */
    const double *moved[DSVI_PASSES]; /* (N + 1) seconds; NULL: no transfers */
    double share[DSVI_PASSES];
    double hides; /* fraction of attention that can hide transfers, 0 to 1 */
} DsviRankCost;

double dsvi_rank_cost(const DsviRankCost *cost, double burden, int64_t heads);

typedef struct DsviPlacementTask {
    int64_t heads, ranks; /* N >= ranks >= 1: every rank gets at least one head */
    const double *burden; /* (N) seconds of each head, not negative */
    const DsviRankCost *cost;
    double slack;      /* the search stops at a placement within this fraction of a lower bound */
    int64_t nodes_max; /* limit of nodes of the exact search; 0: no exact search */
} DsviPlacementTask;

/* Sets rank[h] for every head h and returns the slowest rank's seconds. The start is the better of two
 * greedy placements (longest head first; longest head first with equal numbers of heads on all ranks),
 * each refined by moves and swaps. With at most 64 heads and 8 ranks a branch-and-bound search follows;
 * its result is optimal unless nodes_max or slack ended the search. If giving consecutive heads to each
 * rank is as fast, this is the result. Ranks are numbered by their first head. */
double dsvi_place_heads(const DsviPlacementTask *task, int32_t *rank);

/* Returns the slowest rank's seconds under a given placement. */
double dsvi_placement_cost(const DsviPlacementTask *task, const int32_t *rank);

#ifdef __cplusplus
}
#endif
#endif
