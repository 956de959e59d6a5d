/* Copies the state of all ranks from and to rank 0, one bucket at a time, for checkpoints (zero.h). */
#include <string.h>

#include "train/zero_internal.h"

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

static bool is_first_rank(const DsviZero *z)
{
    return dsvi_comm_rank(z->mesh->all) == 0;
}

DsvStatus dsvi_zero_store(DsviZero *z, DsviStateArray array, const DsviBucketIo *source)
{
    const DsviMesh *mesh = z->mesh;
    const DsviStateView view = dsvi_zero_state_view(z, array);
    const DsviShard *shard = view.shard;
    char *bucket = z->host_bucket;
    DSVI_TRY(dsvi_zero_state_discard(z));
    for (int64_t b = 0; b < shard->buckets; b++) {
        char *local = bucket + (size_t)dsvi_shard_first(shard, b) * view.size;
        if (is_first_rank(z))
            DSVI_TRY(source->bucket(source->context, b, bucket));
        if (mesh->replica_rank == 0)
            DSVI_TRY(dsvi_comm_scatter(mesh->shard, 0, bucket, view.size, dsvi_shard_bound(shard, b)));
        DSVI_TRY(
            dsvi_comm_broadcast(mesh->replica, 0, local, (size_t)dsvi_shard_count(shard, b) * view.size));
        DSVI_TRY(store_local(z, &view, b, local));
    }
    return DSV_OK;
}

DsvStatus dsvi_zero_fetch(DsviZero *z, DsviStateArray array, const DsviBucketIo *sink)
{
    const DsviStateView view = dsvi_zero_state_view(z, array);
    const DsviShard *shard = view.shard;
    char *bucket = z->host_bucket;
    DSVI_TRY(dsvi_zero_state_sync(z));
    if (z->mesh->replica_rank > 0)
        return DSV_OK;
    for (int64_t b = 0; b < shard->buckets; b++) {
        DSVI_TRY(fetch_local(z, &view, b, bucket + (size_t)dsvi_shard_first(shard, b) * view.size));
        DSVI_TRY(dsvi_comm_gather(z->mesh->shard, 0, bucket, view.size, dsvi_shard_bound(shard, b)));
        if (is_first_rank(z))
            DSVI_TRY(sink->bucket(sink->context, b, bucket));
    }
    return DSV_OK;
}

typedef struct WholeArray {
    DsviStateView view;
    char *data;
} WholeArray;

static char *place_in_whole(const WholeArray *whole, int64_t bucket, size_t *bytes)
{
    const DsviShard *shard = whole->view.shard;
    *bytes = (size_t)dsvi_shard_bucket_size(shard, bucket) * whole->view.size;
    return whole->data + (size_t)shard->begin[bucket] * whole->view.size;
}

static DsvStatus copy_from_whole(void *context, int64_t bucket, void *data)
{
    size_t bytes;
    const char *place = place_in_whole(context, bucket, &bytes);
    memcpy(data, place, bytes);
    return DSV_OK;
}

static DsvStatus copy_to_whole(void *context, int64_t bucket, void *data)
{
    size_t bytes;
    char *place = place_in_whole(context, bucket, &bytes);
    memcpy(place, data, bytes);
    return DSV_OK;
}

DsvStatus dsvi_zero_store_whole(DsviZero *z, DsviStateArray array, const void *whole)
{
    WholeArray context = {dsvi_zero_state_view(z, array), (char *)whole};
    return dsvi_zero_store(z, array, &(DsviBucketIo){copy_from_whole, &context});
}

DsvStatus dsvi_zero_fetch_whole(DsviZero *z, DsviStateArray array, void *whole)
{
    WholeArray context = {dsvi_zero_state_view(z, array), whole};
    return dsvi_zero_fetch(z, array, &(DsviBucketIo){copy_to_whole, &context});
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
