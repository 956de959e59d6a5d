/* Which rank of a head group takes which heads (reference: DSV, section 6.1 "head-wise context parallelism").
 *
 * Heads differ in how long their attention takes, and the slowest rank decides. Numbers in, placement out: no
 * device, no other ranks; the same numbers give the same placement everywhere. */
#ifndef DSVI_HEAD_PLACEMENT_H
#define DSVI_HEAD_PLACEMENT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { DSV_PLACED_HEADS_MOST = 1024, DSV_PASSES = 2 }; /* passes: forward, backward */

/* The seconds a rank takes with `heads` heads whose burdens sum to `burden` seconds:
 *
 *     fixed[heads] + burden + sum over passes p of max(0, moved[p][heads] - hides share[p] burden)
 *
 * fixed: all that only the number of heads decides. moved: transfers that run beside attention, and count as
 * far as attention does not hide them; share[p] is the part of the burden that belongs to the pass. */
typedef struct DsvRankCost {
    const double *fixed;             /* (N + 1) seconds */
    const double *moved[DSV_PASSES]; /* (N + 1) seconds; NULL: nothing */
    double share[DSV_PASSES];
    double hides;                    /* 0 to 1 */
} DsvRankCost;

double dsvi_rank_cost(const DsvRankCost *cost, double burden, int64_t heads);

typedef struct DsvPlacementTask {
    int64_t heads, ranks;        /* N >= ranks >= 1: every rank gets a head at least */
    const double *burden;        /* (N) seconds, not negative */
    const DsvRankCost *cost;
    double slack;                /* good enough: this share above what no placement can beat */
    int64_t nodes_most;          /* of the exact search; 0: none */
} DsvPlacementTask;

/* Sets rank[h] for every head and returns the slowest rank's seconds. Longest first and even counts are the
 * starts, moves and swaps refine them; where at most 64 heads go to at most 8 ranks a branch-and-bound search
 * then looks for better, and what it finds is the optimum unless it ends by nodes_most or slack. Where heads
 * in order are as fast they stay in order. Ranks are numbered by their first head. */
double dsvi_place_heads(const DsvPlacementTask *task, int32_t *rank);

/* The slowest rank's seconds under a placement that is given. */
double dsvi_placement_cost(const DsvPlacementTask *task, const int32_t *rank);

#ifdef __cplusplus
}
#endif
#endif
