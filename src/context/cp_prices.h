/* The model of cp_plan.h for one degree: what each head costs a rank, and what the number of its heads. */
#ifndef DSVI_CP_PRICES_H
#define DSVI_CP_PRICES_H

#include "context/cp_plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Stretches of tokens under a degree, the most and the least. */
typedef struct DsvCpStretches {
    int64_t head_ranks, sequence_ranks;
    int64_t own_most, own_least;     /* of a rank */
    int64_t group_most, group_least; /* of a head group */
} DsvCpStretches;

/* head_ranks divides the ranks. */
DsvCpStretches dsvi_cp_stretches(const DsvCpShape *shape, int64_t head_ranks);

/* Seconds a step. By head, or by the number of a rank's heads. */
typedef struct DsvCpPrices {
    double burden[DSV_PLACED_HEADS_MOST];       /* of a head: attention, and rows that its lists name */
    double attend[DSV_PASSES][DSV_PLACED_HEADS_MOST]; /* attention once, without selection */
    double rows[DSV_PLACED_HEADS_MOST];         /* the rows' part of the burden */
    double gathered[DSV_PLACED_HEADS_MOST];     /* no seconds: rows that its lists name in other stretches */
    double heads[DSV_PLACED_HEADS_MOST + 1];    /* by number: heads for tokens and back */
    double sequence[DSV_PLACED_HEADS_MOST + 1]; /* by number: transfers that nothing hides */
    double fixed[DSV_PLACED_HEADS_MOST + 1];    /* by number: all that does not go by burden; INFINITY where
                                                 * there is no room for so many */
    double moved[DSV_PASSES][DSV_PLACED_HEADS_MOST + 1]; /* by number: a ring's transfers */
    double calls;                               /* of attention, whatever it attends */
    DsvRankCost cost;                           /* made of the above */
} DsvCpPrices;

/* False where links of groups of so many ranks, or lists, have no known price, or lists would have to be
 * divided into more parts than ops serve. */
bool dsvi_cp_prices(const DsvContextCosts *costs, const DsvCpShape *shape, const DsvCpBlock *block,
                    const DsvCpStretches *at, DsvCpPrices *prices);
/* dsvi_cp_times of a plan of this degree. */
void dsvi_cp_times_at(const DsvCpShape *shape, const DsvCpBlock *block, const DsvCpStretches *at,
                      const DsvCpPrices *prices, const DsvContextPlan *plan, DsvCpTimes *times);

#ifdef __cplusplus
}
#endif
#endif
