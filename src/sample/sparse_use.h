/* How the blocks of a model attended while a clip was sampled. */
#ifndef DSVI_SPARSE_USE_H
#define DSVI_SPARSE_USE_H

#include "sparse/sparse.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviSparseUse {
    int64_t blocks, steps; /* steps that were added */
    int64_t *sparse_steps; /* (blocks) steps in which the block attended over lists */
    double *density;       /* (blocks) sum over steps of the density; 1 for a step with dense attention */
    double *captured;      /* (blocks) captured mass at the last step, NaN before the first measurement */
} DsviSparseUse;

/* DSV_E_NO_MEMORY; release with dsvi_sparse_use_free, also after a failure. */
DsvStatus dsvi_sparse_use_make(int64_t blocks, DsviSparseUse *out);
void dsvi_sparse_use_free(DsviSparseUse *use);
/* Forgets all steps. */
void dsvi_sparse_use_clear(DsviSparseUse *use);
/* Adds the step that ended last. If the step had several passes, the last pass counts. */
void dsvi_sparse_use_add(DsviSparseUse *use, const DsviSparse *sparse);

/* All blocks together. */
typedef struct DsviSparseUseMean {
    int64_t sparse_blocks; /* blocks that attended over lists in at least one step */
    double density;        /* mean over blocks and steps; 1 without steps */
    double captured;       /* mean over sparse blocks; NaN without sparse blocks */
} DsviSparseUseMean;

DsviSparseUseMean dsvi_sparse_use_mean(const DsviSparseUse *use);
/* Writes what one block did, one line without a newline. */
void dsvi_sparse_use_line(const DsviSparseUse *use, int64_t block, char *line, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
