/* Which part of a model's flat arrays each rank keeps.
 *
 * A flat array is cut into buckets, stretches whose gradients a backward pass finishes together, and every
 * bucket into one stretch a rank. What only its owner needs lies packed:
 *
 *     flat     | bucket 0      | bucket 1                  | bucket 2      |
 *     rank       0    1    2     0        1        2         0    1    2
 *     packed     [own stretch of 0][own stretch of 1][own stretch of 2]     on each rank
 *
 * So every bucket keeps all ranks busy, be it summed, updated or sent round. Of a rank that is alone packed
 * is flat. */
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
    int64_t *begin;  /* (buckets + 1) where each bucket begins in flat arrays, and where the last ends */
    int64_t *bound;  /* (buckets, size + 1) where each rank's stretch begins in its bucket */
    int64_t *packed; /* (buckets + 1) where own stretches begin in packed arrays, and end */
    int64_t own;     /* items of a packed array */
} DsvShard;

/* Bucket b is [begin[b], begin[b + 1]) of F32 elements; begin has buckets + 1 numbers, multiples of 16 but
 * for the last. */
DsvStatus dsvi_shard_make(const DsvComm *comm, const int64_t *begin, int64_t buckets, DsvShard *out);
/* The same division of an array whose items are bytes: place(context, bucket, i) tells where element i of a
 * bucket, or its end, lies there. Buckets begin at multiples of 64. */
typedef int64_t DsvShardPlace(const void *context, int64_t bucket, int64_t element);
DsvStatus dsvi_shard_map(const DsvShard *shard, DsvShardPlace *place, const void *context, DsvShard *out);
void dsvi_shard_free(DsvShard *shard);

/* The own stretch of a bucket: items [first, first + count) of the bucket, from packed[bucket] on in packed
 * arrays. */
int64_t dsvi_shard_first(const DsvShard *shard, int64_t bucket);
int64_t dsvi_shard_count(const DsvShard *shard, int64_t bucket);
/* Where each rank's stretch begins in a bucket: (size + 1), for the calls of comm.h. */
const int64_t *dsvi_shard_bound(const DsvShard *shard, int64_t bucket);
/* Items of a whole bucket, and of the largest. */
int64_t dsvi_shard_whole(const DsvShard *shard, int64_t bucket);
int64_t dsvi_shard_largest(const DsvShard *shard);
/* Where the own stretch of a bucket begins in an array that is flat, or packed. */
int64_t dsvi_shard_place(const DsvShard *shard, int64_t bucket, bool flat);

/* F32 elements on a device of which the own stretches count, wherever they lie. */
typedef struct DsvShardArray {
    float *data;
    bool flat; /* else packed */
} DsvShardArray;
/* The own stretch of a bucket. */
float *dsvi_shard_at(const DsvShard *shard, DsvShardArray array, int64_t bucket);


#ifdef __cplusplus
}
#endif
#endif
