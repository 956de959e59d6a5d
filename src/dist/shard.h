/* Division of a model's flat arrays (weights, gradients, optimizer state) among ranks, for ZeRO.
 *
 * A flat array holds all parameters one after the other. It is divided into buckets, whose gradients the
 * backward pass finishes together, and each bucket into one shard per rank. A packed array holds only the
 * local shards of one rank:
 *
 *     flat     | bucket 0      | bucket 1                  | bucket 2      |
 *     rank       0    1    2     0        1        2         0    1    2
 *     packed     [shard of bucket 0][shard of bucket 1][shard of bucket 2]     on each rank
 *
 * All ranks thus take part in summing, updating and gathering each bucket. With one rank, packed and flat
 * arrays are the same. */
#ifndef DSVI_SHARD_H
#define DSVI_SHARD_H

#include "device/device.h"
#include "dist/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviShard {
    int64_t rank, size;
    int64_t buckets;
    int64_t *begin;  /* (buckets + 1) offset of each bucket in flat arrays, then the end of the last */
    int64_t *bound;  /* (buckets, size + 1) offset of each rank's shard in its bucket, then the end */
    int64_t *packed; /* (buckets + 1) offset of each bucket's local shard in packed arrays, then the end */
    int64_t own;     /* items of a packed array */
} DsviShard;

/* Divides an array of F32 elements. Bucket b has the elements begin[b] <= i < begin[b + 1]; `begin` has
 * buckets + 1 numbers, all but the last multiples of 16. */
DsvStatus dsvi_shard_make(const DsviComm *comm, const int64_t *begin, int64_t buckets, DsviShard *out);
/* Moves the bounds between shards in bucket b that are above element from[b] (an offset in the bucket) down
 * to a multiple of `unit` elements after from[b]. */
void dsvi_shard_align(DsviShard *shard, const int64_t *from, int64_t unit);
/* Returns the byte at which element `element` of a bucket begins in another representation of the array;
 * `element` may be the bucket's element count, for its end. */
typedef int64_t DsviShardOffset(const void *context, int64_t bucket, int64_t element);
/* Divides another representation of the same array between the same elements. Items of *out are bytes; its
 * buckets begin at multiples of 64. */
DsvStatus dsvi_shard_map(const DsviShard *shard, DsviShardOffset *place, const void *context, DsviShard *out);
void dsvi_shard_free(DsviShard *shard);

/* The local shard of a bucket: items first to first + count - 1 of the bucket. */
int64_t dsvi_shard_first(const DsviShard *shard, int64_t bucket);
int64_t dsvi_shard_count(const DsviShard *shard, int64_t bucket);
/* Returns the bounds (size + 1) of the ranks' shards in a bucket, as the calls of comm.h expect them. */
const int64_t *dsvi_shard_bound(const DsviShard *shard, int64_t bucket);
/* Returns the number of items of a bucket, and of the largest bucket. */
int64_t dsvi_shard_bucket_size(const DsviShard *shard, int64_t bucket);
int64_t dsvi_shard_largest_bucket(const DsviShard *shard);
/* Returns the offset of a bucket's local shard in a flat or packed array. */
int64_t dsvi_shard_offset(const DsviShard *shard, int64_t bucket, bool flat);

/* A flat or packed array of F32 elements in device memory, of which the local shards are used. */
typedef struct DsviShardArray {
    float *data;
    bool flat; /* false: packed */
} DsviShardArray;
/* Returns the local shard of a bucket. */
float *dsvi_shard_local(const DsviShard *shard, DsviShardArray array, int64_t bucket);

#ifdef __cplusplus
}
#endif
#endif
