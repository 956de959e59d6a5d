/* The model of time in cp_plan.h for one number of head ranks: the part of a rank's time that each head
 * adds, and the part that depends only on the number of its heads. */
#ifndef DSVI_CP_PRICES_H
#define DSVI_CP_PRICES_H

#include "cp/cp_plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Largest and smallest numbers of tokens of ranks and of head groups, for one number of head ranks. */
typedef struct DsviCpShards {
    int64_t head_ranks, sequence_ranks;
    int64_t own_max, own_min;     /* of a rank */
    int64_t group_max, group_min; /* of a head group */
} DsviCpShards;

/* Returns the numbers of tokens for this number of head ranks, which must divide the number of ranks. */
DsviCpShards dsvi_cp_shards(const DsviCpShape *shape, int64_t head_ranks);

/* Predicted seconds per step of the parts of a rank's work. Arrays are indexed by head, or by the number of
 * heads of a rank ("by count"). */
typedef struct DsviCpPrices {
    double burden[DSVI_PLACED_HEADS_MAX]; /* by head: attention, and transfer of the rows that its lists
                                           * name */
    double attend[DSVI_PASSES][DSVI_PLACED_HEADS_MAX]; /* by head: attention once, without selection */
    double rows[DSVI_PLACED_HEADS_MAX];         /* by head: the part of `burden` that is transfer of rows */
    double gathered[DSVI_PLACED_HEADS_MAX];     /* by head: number of other ranks' keys that its lists name */
    double heads[DSVI_PLACED_HEADS_MAX + 1];    /* by count: exchange of tokens for heads, and back */
    double sequence[DSVI_PLACED_HEADS_MAX + 1]; /* by count: transfers that nothing hides, and merging */
    double fixed[DSVI_PLACED_HEADS_MAX + 1];    /* by count: everything that is not in `burden`; INFINITY if
                                                 * so many heads exceed a limit of memory */
    double moved[DSVI_PASSES][DSVI_PLACED_HEADS_MAX + 1]; /* by count: transfers of ring attention */
    double calls;                                         /* fixed cost of all attention calls, for any
                                                           * number of heads */
    DsviRankCost cost;                                    /* points to the arrays above */
} DsviCpPrices;

/* Returns false if the costs of the links or of attention over lists are unknown, or if lists would be
 * divided among more ranks than the ops support (DSVI_SPAN_PARTS_MAX). */
bool dsvi_cp_prices(const DsviCpCosts *costs, const DsviCpShape *shape, const DsviCpBlock *block,
                    const DsviCpShards *at, DsviCpPrices *prices);
/* Computes dsvi_cp_times (cp_plan.h) for a plan with at->head_ranks head ranks, from `prices` that were
 * computed for it. */
void dsvi_cp_times_at(const DsviCpShape *shape, const DsviCpBlock *block, const DsviCpShards *at,
                      const DsviCpPrices *prices, const DsviCpPlan *plan, DsviCpTimes *times);

#ifdef __cplusplus
}
#endif
#endif
