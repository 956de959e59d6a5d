/* See shard.h. */
#include "dist/shard.h"

#include <stdlib.h>
#include <string.h>

/* Shards begin at multiples of a cache line: UNIT floats, LINE_BYTES bytes. */
enum { UNIT = 16, LINE_BYTES = 64 };

static DsvStatus alloc_shard(int64_t rank, int64_t size, int64_t buckets, DsviShard *out)
{
    *out = (DsviShard){.rank = rank, .size = size, .buckets = buckets};
    out->begin = calloc((size_t)buckets + 1, sizeof *out->begin);
    out->bound = calloc((size_t)(buckets * (size + 1)), sizeof *out->bound);
    out->packed = calloc((size_t)buckets + 1, sizeof *out->packed);
    if (out->begin && out->bound && out->packed)
        return DSV_OK;
    dsvi_shard_free(out);
    return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to divide %lld buckets", (long long)buckets);
}

static void pack_buckets(DsviShard *shard)
{
    shard->own = 0;
    for (int64_t b = 0; b < shard->buckets; b++) {
        shard->packed[b] = shard->own;
        shard->own += dsvi_shard_count(shard, b);
    }
    shard->packed[shard->buckets] = shard->own;
}

DsvStatus dsvi_shard_make(const DsviComm *comm, const int64_t *begin, int64_t buckets, DsviShard *out)
{
    int64_t size = dsvi_comm_size(comm);
    DSVI_TRY(alloc_shard(dsvi_comm_rank(comm), size, buckets, out));
    memcpy(out->begin, begin, ((size_t)buckets + 1) * sizeof *begin);
    for (int64_t b = 0; b < buckets; b++)
        dsvi_comm_even_bounds(begin[b + 1] - begin[b], UNIT, size, out->bound + b * (size + 1));
    pack_buckets(out);
    return DSV_OK;
}

void dsvi_shard_align(DsviShard *shard, const int64_t *from, int64_t unit)
{
    for (int64_t b = 0; b < shard->buckets; b++) {
        int64_t *bound = shard->bound + b * (shard->size + 1);
        for (int64_t r = 1; r < shard->size; r++)
            if (bound[r] > from[b] && bound[r] < bound[shard->size])
                bound[r] = from[b] + (bound[r] - from[b]) / unit * unit;
    }
    pack_buckets(shard);
}

DsvStatus dsvi_shard_map(const DsviShard *shard, DsviShardOffset *place, const void *context, DsviShard *out)
{
    int64_t ends = shard->size + 1;
    DSVI_TRY(alloc_shard(shard->rank, shard->size, shard->buckets, out));
    for (int64_t i = 0; i < shard->buckets * ends; i++)
        out->bound[i] = place(context, i / ends, shard->bound[i]);
    for (int64_t b = 0; b < shard->buckets; b++) {
        int64_t end = out->begin[b] + dsvi_shard_bucket_size(out, b);
        out->begin[b + 1] = (end + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    }
    pack_buckets(out);
    return DSV_OK;
}

void dsvi_shard_free(DsviShard *shard)
{
    free(shard->begin);
    free(shard->bound);
    free(shard->packed);
    memset(shard, 0, sizeof *shard);
}

const int64_t *dsvi_shard_bound(const DsviShard *shard, int64_t bucket)
{
    return shard->bound + bucket * (shard->size + 1);
}

int64_t dsvi_shard_first(const DsviShard *shard, int64_t bucket)
{
    return dsvi_shard_bound(shard, bucket)[shard->rank];
}

int64_t dsvi_shard_count(const DsviShard *shard, int64_t bucket)
{
    const int64_t *bound = dsvi_shard_bound(shard, bucket);
    return bound[shard->rank + 1] - bound[shard->rank];
}

int64_t dsvi_shard_bucket_size(const DsviShard *shard, int64_t bucket)
{
    return dsvi_shard_bound(shard, bucket)[shard->size];
}

int64_t dsvi_shard_largest_bucket(const DsviShard *shard)
{
    int64_t largest = 0;
    for (int64_t b = 0; b < shard->buckets; b++)
        largest = dsvi_shard_bucket_size(shard, b) > largest ? dsvi_shard_bucket_size(shard, b) : largest;
    return largest;
}

int64_t dsvi_shard_offset(const DsviShard *shard, int64_t bucket, bool flat)
{
    return flat ? shard->begin[bucket] + dsvi_shard_first(shard, bucket) : shard->packed[bucket];
}

float *dsvi_shard_local(const DsviShard *shard, DsviShardArray array, int64_t bucket)
{
    return array.data + dsvi_shard_offset(shard, bucket, array.flat);
}
