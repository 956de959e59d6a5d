/* Shared by zero.c and zero_update.c: where a bucket's arrays are, and transfers that an update needs. */
#ifndef DSVI_ZERO_INTERNAL_H
#define DSVI_ZERO_INTERNAL_H

#include "train/zero.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the bytes of the first `element` elements of a bucket's compute weights. `zero` is a DsviZero. */
int64_t dsvi_zero_compute_bytes(const void *zero, int64_t bucket, int64_t element);
/* Returns this rank's shard of a bucket's compute weights. */
unsigned char *dsvi_zero_local_weights(const DsviZero *zero, int64_t bucket);
/* Returns memory for the whole bucket's gradients. After the sum over ranks, with gradients divided among the
 * ranks, its content is not used any more. */
float *dsvi_zero_bucket_grad(const DsviZero *zero, int64_t bucket);

/* Call when this rank's shard of the bucket's weights has changed. At stages 1 and 2 queues the all-gather;
 * at stage 3 only invalidates the buffer, and the next pass gathers. */
DsvStatus dsvi_zero_publish(DsviZero *zero, int64_t bucket);
/* Gathers the shards of all ranks of what dsvi_zero_bucket_grad returns, and waits until they are there. */
DsvStatus dsvi_zero_gather_directions(DsviZero *zero, int64_t bucket);
DsvStatus dsvi_zero_wait_for_queue(DsviZero *zero);

#ifdef __cplusplus
}
#endif
#endif
