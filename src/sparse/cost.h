/* Measures what attention costs on this machine, and the density at which sparse attention becomes slower
 * than dense attention. */
#ifndef DSVI_COST_H
#define DSVI_COST_H

#include "cp/cp_costs.h"
#include "sparse/sparse.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviCostFound {
    double break_even;           /* density up to which sparse attention is faster; 0 if sparse.enabled is
                                  * false */
    DsviAttentionCost attention; /* seconds; its cost of attention over lists has no points if sparse.enabled
                                  * is false */
    char line[256];              /* the measured costs in one sentence, for the log */
} DsviCostFound;

/* Times dense attention, making lists, and attention over lists, on random tensors of this shape. Uses fewer
 * tokens if all of them would take long or do not fit in memory. Allocates and frees what it needs. */
DsvStatus dsvi_cost_measure(DsviBackend *backend, const DsvConfig *settings, const DsviSparseShape *shape,
                            DsviCostFound *found);

#ifdef __cplusplus
}
#endif
#endif
