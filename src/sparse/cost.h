/* What attention costs on this machine, and where sparse attention stops paying. */
#ifndef DSVI_COST_H
#define DSVI_COST_H

#include "context/context_costs.h"
#include "sparse/sparse.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvCostFound {
    double break_even;          /* density up to which sparse attention pays; 0 without sparse.enabled */
    DsvAttentionCost attention; /* whose lists then have no points */
    char line[256];             /* what was found */
} DsvCostFound;

/* Times dense attention, and selection and attention over lists, on random tensors of this shape, at fewer
 * tokens where it would take long, or there is no memory for more. Allocates and frees what it needs. */
DsvStatus dsvi_cost_measure(DsvBackend *backend, const DsvConfig *settings, const DsvSparseShape *shape,
                            DsvCostFound *found);

#ifdef __cplusplus
}
#endif
#endif
