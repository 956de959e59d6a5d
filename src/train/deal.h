/* Deals the batches of a step to ranks.
 *
 * A step trains on ranks x passes batches, and each rank on `passes` of them, one after another. Batches of
 * different sizes cost different times, and the step ends when the slowest rank is done. Batches are
 * therefore dealt by predicted cost: sorted, the first `ranks` batches are the first pass, the next are the
 * second pass, and so on. In each pass the rank with the least work so far gets the most expensive batch
 * (longest processing time first: R. L. Graham, "Bounds on multiprocessing timing anomalies", SIAM J. Appl.
 * Math. 17, 1969, in the form for equal numbers of jobs: H. Kellerer, G. Woeginger, "A tight bound for
 * 3-partitioning", Discrete Appl. Math. 45, 1993). Then two ranks exchange two batches as long as this makes
 * the slower of the two faster. At the end each rank's batches are sorted by falling cost: ranks then have
 * batches of similar cost at the same time, which matters where they wait for one another in each block
 * (zero_stage=3).
 *
 * A deal depends on the costs alone, so that all ranks find the same one without communication. */
#ifndef DSVI_DEAL_H
#define DSVI_DEAL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviDeal {
    int64_t ranks, passes;
    /* Arrays of the caller. */
    double *cost;   /* (ranks * passes) of each batch, > 0 */
    int64_t *dealt; /* (ranks, passes) result: the index of the batch that the rank trains on in the pass */
    double *load;   /* (ranks) result: sum of the rank's costs */
    int64_t *order; /* (ranks * passes) scratch */
} DsviDeal;

/* Deals by cost, as described above. Batches of equal cost are dealt in order of their indices. */
void dsvi_deal(DsviDeal *deal);

/* Deals in order: pass p consists of the batches p * ranks to p * ranks + ranks - 1. */
void dsvi_deal_in_order(DsviDeal *deal);

#ifdef __cplusplus
}
#endif
#endif
