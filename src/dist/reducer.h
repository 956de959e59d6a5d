/* Sums gradients over the ranks while the backward pass goes on: a thread of its own takes bucket after
 * bucket as they are told to be ready.
 *
 * From the first dsvi_reducer_ready to dsvi_reducer_wait the comm is the reducer's. Buckets come in the same
 * order on all ranks. */
#ifndef DSVI_REDUCER_H
#define DSVI_REDUCER_H

#include "dist/shard.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvReducer DsvReducer;

/* Of the flat array `grad`, of which each rank gets the sums of its own stretches. `others`: the caller uses
 * other groups of these ranks meanwhile. */
DsvStatus dsvi_reducer_create(DsvComm *comm, bool others, const DsvShard *shard, float *grad,
                              DsvReducer **out);
void dsvi_reducer_free(DsvReducer **reducer); /* takes NULL in it; not while buckets are under way */

/* The bucket will not change any more on this rank, once the device's stream has done what it has been given.
 * The bucket with the largest number comes first. */
void dsvi_reducer_ready(DsvReducer *reducer, int64_t bucket);
/* Waits until all that were ready are summed; the first failure since the last call. */
DsvStatus dsvi_reducer_wait(DsvReducer *reducer);

#ifdef __cplusplus
}
#endif
#endif
