/* See shard.h. */
#include "dist/shard.h"

#include <stdlib.h>
#include <string.h>

/* A cache line of floats: no two ranks' stretches share one, and every parameter begins on one. */
enum { UNIT = 16 };

DsvStatus dsvi_shard_make(const DsvComm *comm, const int64_t *begin, int64_t buckets, DsvShard *out)
{
    int64_t size = dsvi_comm_size(comm), whole[2] = {begin[0], begin[buckets]};
    *out = (DsvShard){.rank = dsvi_comm_rank(comm), .size = size, .buckets = size > 1 ? buckets : 1};
    out->bound = calloc((size_t)(out->buckets * (size + 1)), sizeof *out->bound);
    out->packed = calloc((size_t)out->buckets, sizeof *out->packed);
    if (!out->bound || !out->packed) {
        dsvi_shard_free(out);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to divide %lld buckets", (long long)buckets);
    }
    const int64_t *at = size > 1 ? begin : whole;
    for (int64_t b = 0; b < out->buckets; b++) {
        int64_t *bound = out->bound + b * (size + 1);
        dsvi_comm_bounds(at[b + 1] - at[b], UNIT, size, bound);
        for (int64_t r = 0; r <= size; r++)
            bound[r] += at[b];
        out->packed[b] = out->own;
        out->own += dsvi_shard_count(out, b);
    }
    return DSV_OK;
}

void dsvi_shard_free(DsvShard *shard)
{
    free(shard->bound);
    free(shard->packed);
    memset(shard, 0, sizeof *shard);
}

const int64_t *dsvi_shard_bound(const DsvShard *shard, int64_t bucket)
{
    return shard->bound + bucket * (shard->size + 1);
}

int64_t dsvi_shard_first(const DsvShard *shard, int64_t bucket)
{
    return dsvi_shard_bound(shard, bucket)[shard->rank];
}

int64_t dsvi_shard_count(const DsvShard *shard, int64_t bucket)
{
    const int64_t *bound = dsvi_shard_bound(shard, bucket);
    return bound[shard->rank + 1] - bound[shard->rank];
}

DsvStatus dsvi_shard_pack(const DsvShard *shard, DsvDevice *device, const float *flat, float *packed)
{
    for (int64_t b = 0; b < shard->buckets; b++)
        DSVI_TRY(device->upload(device->stream, packed + shard->packed[b], flat + dsvi_shard_first(shard, b),
                                (size_t)dsvi_shard_count(shard, b) * sizeof *flat));
    return device->sync(device->stream);
}

DsvStatus dsvi_shard_gather(const DsvShard *shard, DsvComm *comm, DsvDevice *device, const float *packed,
                            float *flat)
{
    for (int64_t b = 0; b < shard->buckets; b++)
        DSVI_TRY(device->download(device->stream, flat + dsvi_shard_first(shard, b),
                                  packed + shard->packed[b],
                                  (size_t)dsvi_shard_count(shard, b) * sizeof *flat));
    DSVI_TRY(device->sync(device->stream));
    for (int64_t b = 0; b < shard->buckets; b++)
        DSVI_TRY(dsvi_comm_gather(comm, 0, flat, sizeof *flat, dsvi_shard_bound(shard, b)));
    return DSV_OK;
}
