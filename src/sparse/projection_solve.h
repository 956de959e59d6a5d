/* The best r-dimensional stand-ins of queries and keys for computing scores, in closed form. */
#ifndef DSVI_PROJECTION_SOLVE_H
#define DSVI_PROJECTION_SOLVE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of workspace (8-byte aligned) for head size `dim`, a multiple of 64. */
size_t dsvi_projection_workspace(int64_t dim);

/* Of one head: symmetric second moments (dim, dim) and means (dim). */
typedef struct DsvProjectionMoments {
    const double *query_second, *query_mean;
    const double *key_second, *key_mean;
} DsvProjectionMoments;

/* For one head: query_projection P and key_projection K, both (dim, rank) row-major, such that
 * (q P) . (k K) comes as close to q . k as rank allows: least mean squared error over queries and keys of
 * these moments, where a constant per query is free, since softmax does not see it. Scores of the mean query
 * are exact for every key, also for a key that was not in the moments: so a key that all queries attend to is
 * never missed. A mean query of zero sets no such condition. 1 <= rank <= dim. */
DsvStatus dsvi_projection_solve(int64_t dim, int64_t rank, const DsvProjectionMoments *moments,
                                float *query_projection, float *key_projection, void *workspace);

#ifdef __cplusplus
}
#endif
#endif
