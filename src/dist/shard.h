/* Which part of a model's flat arrays each rank keeps.
 *
 * Weights and gradients lie whole on every rank; what only the optimizer needs (moments, the moving average)
 * lies where it is needed. A flat array is cut into buckets, stretches whose gradients a backward pass
 * finishes together, and every bucket into one stretch a rank:
 *
 *     flat     | bucket 0      | bucket 1                  | bucket 2      |
 *     rank       0    1    2     0        1        2         0    1    2
 *     packed     [own stretch of 0][own stretch of 1][own stretch of 2]     on each rank
 *
 * So every bucket keeps all ranks busy, be it summed, updated or sent round. A rank that is alone has one
 * bucket, all of it, and packed is flat. */
#ifndef DSVI_SHARD_H
#define DSVI_SHARD_H

#include "device/device.h"
#include "dist/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvShard {
    int64_t rank, size;
    int64_t buckets;
    int64_t *bound;  /* (buckets, size + 1) where each rank's stretch begins in the flat array */
    int64_t *packed; /* (buckets) where the own stretch begins in packed arrays */
    int64_t own;     /* elements of a packed array */
} DsvShard;

/* Bucket b is [begin[b], begin[b + 1]) of F32 elements; begin has buckets + 1 numbers, multiples of 16 but
 * for the last. */
DsvStatus dsvi_shard_make(const DsvComm *comm, const int64_t *begin, int64_t buckets, DsvShard *out);
void dsvi_shard_free(DsvShard *shard);

/* The own stretch of a bucket: elements [first, first + count) of flat arrays, from packed[bucket] on in
 * packed ones. */
int64_t dsvi_shard_first(const DsvShard *shard, int64_t bucket);
int64_t dsvi_shard_count(const DsvShard *shard, int64_t bucket);
/* Where each rank's stretch of a bucket begins: (size + 1), for the calls of comm.h. */
const int64_t *dsvi_shard_bound(const DsvShard *shard, int64_t bucket);

/* The own stretches of `flat`, host memory, to `packed`, device memory; both may be used afterwards. */
DsvStatus dsvi_shard_pack(const DsvShard *shard, DsvDevice *device, const float *flat, float *packed);
/* All ranks' packed arrays, device memory, to `flat` of rank 0, host memory. On others `flat` is scratch. */
DsvStatus dsvi_shard_gather(const DsvShard *shard, DsvComm *comm, DsvDevice *device, const float *packed,
                            float *flat);

#ifdef __cplusplus
}
#endif
#endif
