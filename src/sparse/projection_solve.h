/* Projections of queries and keys to few dimensions that preserve their scores best, in closed form. */
#ifndef DSVI_PROJECTION_SOLVE_H
#define DSVI_PROJECTION_SOLVE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the bytes of workspace that dsvi_projection_solve needs for head size `dim`, a multiple of 64. The
 * workspace must be 8-byte aligned. */
size_t dsvi_projection_workspace(int64_t dim);

/* Means and second moments over tokens of the queries q and keys k of one head. */
typedef struct DsviProjectionMoments {
    const double *query_second, *query_mean; /* (dim, dim) mean of q q^T, symmetric; (dim) mean of q */
    const double *key_second, *key_mean;     /* (dim, dim) mean of k k^T, symmetric; (dim) mean of k */
} DsviProjectionMoments;

/* Computes for one head query_projection P and key_projection K, both (dim, rank) row-major, so that the
 * scores (q P) . (k K) approximate q . k with the least mean squared error over queries and keys with
 * these moments. An error that is the same for all keys of a query does not count, because softmax ignores
 * it. Scores of the mean query are exact for every key, even for a key that did not contribute to the
 * moments: so no key is missed to which all queries attend. A mean query of zero imposes no such
 * condition. 1 <= rank <= dim. DSV_E_DIVERGED if moments are not finite or LAPACK fails. */
DsvStatus dsvi_projection_solve(int64_t dim, int64_t rank, const DsviProjectionMoments *moments,
                                float *query_projection, float *key_projection, void *workspace);

#ifdef __cplusplus
}
#endif
#endif
