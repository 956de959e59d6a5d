/* Copies the state of all ranks from and to flat arrays of rank 0, for checkpoints (zero.h). */
#include <string.h>

#include "train/zero_internal.h"

int64_t dsvi_zero_host_elements(const DsviZero *z)
{
    bool first = dsvi_comm_rank(z->mesh->all) == 0;
    return first ? z->shard.begin[z->shard.buckets] : dsvi_shard_largest_bucket(&z->shard);
}

/* Returns where a bucket is in `flat`: at its place in the flat array on rank 0, at the start elsewhere. */
static char *flat_bucket(const DsviZero *z, const DsviStateView *view, const void *flat, int64_t bucket)
{
    int64_t first = dsvi_comm_rank(z->mesh->all) == 0 ? view->shard->begin[bucket] : 0;
    return (char *)flat + (size_t)first * view->size;
}

/* Copies this rank's shard of a bucket to its place between updates. */
static DsvStatus store_local(const DsviZero *z, const DsviStateView *view, int64_t bucket, const void *local)
{
    DsviDevice *device = z->backend->device;
    size_t bytes = (size_t)dsvi_shard_count(view->shard, bucket) * view->size;
    unsigned char *place = dsvi_state_local(view, bucket);
    if (bucket < view->hosted) {
        if (bytes > 0)
            memcpy(place, local, bytes);
        return DSV_OK;
    }
    DSVI_TRY(device->upload(device->stream, place, local, bytes));
    return device->sync(device->stream);
}

/* The opposite of store_local. */
static DsvStatus fetch_local(const DsviZero *z, const DsviStateView *view, int64_t bucket, void *local)
{
    DsviDevice *device = z->backend->device;
    size_t bytes = (size_t)dsvi_shard_count(view->shard, bucket) * view->size;
    const unsigned char *place = dsvi_state_local(view, bucket);
    if (bucket < view->hosted) {
        if (bytes > 0)
            memcpy(local, place, bytes);
        return DSV_OK;
    }
    DSVI_TRY(device->download(device->stream, local, place, bytes));
    return device->sync(device->stream);
}

DsvStatus dsvi_zero_store(DsviZero *z, DsviStateArray array, const void *flat)
{
    const DsviMesh *mesh = z->mesh;
    const DsviStateView view = dsvi_zero_state_view(z, array);
    const DsviShard *shard = view.shard;
    DSVI_TRY(dsvi_zero_state_discard(z));
    for (int64_t b = 0; b < shard->buckets; b++) {
        char *bucket = flat_bucket(z, &view, flat, b);
        char *local = bucket + (size_t)dsvi_shard_first(shard, b) * view.size;
        if (mesh->replica_rank == 0)
            DSVI_TRY(dsvi_comm_scatter(mesh->shard, 0, bucket, view.size, dsvi_shard_bound(shard, b)));
        DSVI_TRY(
            dsvi_comm_broadcast(mesh->replica, 0, local, (size_t)dsvi_shard_count(shard, b) * view.size));
        DSVI_TRY(store_local(z, &view, b, local));
    }
    return DSV_OK;
}

DsvStatus dsvi_zero_fetch(DsviZero *z, DsviStateArray array, void *flat)
{
    const DsviStateView view = dsvi_zero_state_view(z, array);
    const DsviShard *shard = view.shard;
    DSVI_TRY(dsvi_zero_state_sync(z));
    if (z->mesh->replica_rank > 0)
        return DSV_OK;
    for (int64_t b = 0; b < shard->buckets; b++) {
        char *bucket = flat_bucket(z, &view, flat, b);
        DSVI_TRY(fetch_local(z, &view, b, bucket + (size_t)dsvi_shard_first(shard, b) * view.size));
        DSVI_TRY(dsvi_comm_gather(z->mesh->shard, 0, bucket, view.size, dsvi_shard_bound(shard, b)));
    }
    return DSV_OK;
}

/* With a scale of zero, every code of a moment in 8 bits stands for zero. */
DsvStatus dsvi_zero_clear_moments(DsviZero *z)
{
    DsviDevice *device = z->backend->device;
    DSVI_TRY(dsvi_zero_state_discard(z));
    for (int a = DSVI_STATE_EXP_AVG; a <= DSVI_STATE_EXP_AVG_SQ_SCALES; a++) {
        const DsviStateView view = dsvi_zero_state_view(z, (DsviStateArray)a);
        size_t hosted = (size_t)view.shard->packed[view.hosted], all = (size_t)view.shard->own;
        if (hosted > 0)
            memset(view.host, 0, hosted);
        if (all > hosted)
            DSVI_TRY(device->clear(device->stream, view.device, all - hosted));
    }
    return DSV_OK;
}
