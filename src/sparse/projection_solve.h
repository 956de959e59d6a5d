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

/* For one head: query_projection P and key_projection K, both (dim, rank) row-major, such that
 * (q P) . (k K) comes as close to q . k as rank allows: least mean squared error over queries of second
 * moment `query_second` and keys of second moment `key_second` and mean `key_mean` (dim), where a constant
 * per query is free: softmax does not see it. The moments are symmetric (dim, dim); 1 <= rank <= dim. */
DsvStatus dsvi_projection_solve(int64_t dim, int64_t rank, const double *query_second,
                                const double *key_second, const double *key_mean, float *query_projection,
                                float *key_projection, void *workspace);

#ifdef __cplusplus
}
#endif
#endif
