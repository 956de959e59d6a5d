/* The state that an update reads and writes (master weights, moments, moving average): where it is, and how
 * it travels if it waits in host memory (offload=states).
 *
 * An update visits the buckets in order, the hosted ones first. Three slots of device memory take turns.
 * While the compute stream updates bucket b in its slot, bucket b + 1 is uploaded and bucket b - 1
 * downloaded, each on a stream of its own, because the link to the host carries both directions at once:
 *
 *     uploads     | 1        | 2        | 3        | 4        |
 *     compute     |u0|       |u1|       |u2|       |u3|
 *     downloads      | 0        | 1        | 2        | 3
 *
 * A backward pass that updates (zero.h) visits the buckets in the opposite order, the hosted ones last, with
 * its own work between the updates. State then travels to the device on a third stream.
 *
 * The host waits for none of the copies. The order in which the streams follow each other makes each of them
 * wait for the copies that it needs and for no later ones: before bucket b is downloaded, the upload of
 * bucket b + 2, into the slot of bucket b - 1, is made to follow the downloads up to b - 1. After the last
 * bucket, the first three buckets are uploaded for the next update, while the device already computes the
 * next step. The same kernels run on the same values as with the state on the device, so the bits are the
 * same.
 *
 * If the CPU updates (zero_host_update.c), the state does not travel. */
#include "train/zero_internal.h"

/* If the backward pass updates, weights and activations are uploaded for it meanwhile, and what waits for
 * them must not wait for state. */
DsviStream *dsvi_zero_state_uploads(const DsviZero *z)
{
    const DsviDevice *device = z->backend->device;
    return z->updates_in_pass ? device->copies : device->uploads;
}

static size_t local_bytes(const DsviStateView *view, int64_t bucket)
{
    return (size_t)dsvi_shard_count(view->shard, bucket) * view->size;
}

DsviStateView dsvi_zero_state_view(const DsviZero *z, DsviStateArray array)
{
    DsviStateView view = {.host = z->host_state[array]};
    bool computes = array == DSVI_STATE_MASTER && z->act == DSVI_F32; /* they are the compute weights */
    if (array == DSVI_STATE_MASTER || array == DSVI_STATE_EMA) {
        DsviShardArray floats = array == DSVI_STATE_MASTER ? z->master : z->ema;
        view.shard = &z->shard;
        view.size = sizeof(float);
        view.mem_class = array == DSVI_STATE_MASTER ? DSVI_MEM_WEIGHTS : DSVI_MEM_EMA;
        view.device = (unsigned char *)floats.data;
        view.flat = floats.flat;
    } else {
        int i = (array - DSVI_STATE_EXP_AVG) / 2;
        bool scales = (array - DSVI_STATE_EXP_AVG) % 2 == 1;
        const DsviMoment *moment = &z->moments.moment[i];
        view.shard = scales ? &moment->scale_bytes : &moment->bytes;
        view.size = 1;
        view.mem_class = DSVI_MEM_OPTIMIZER;
        view.device = scales ? moment->scales : moment->data;
    }
    view.hosted = computes ? 0 : z->hosted;
    return view;
}

unsigned char *dsvi_state_local(const DsviStateView *view, int64_t bucket)
{
    int64_t offset = dsvi_shard_offset(view->shard, bucket, view->flat);
    if (bucket < view->hosted)
        return view->host + (size_t)offset * view->size;
    return view->device + (size_t)(offset - view->shard->packed[view->hosted]) * view->size;
}

/* ---- memory ---- */

void dsvi_zero_host_state(DsviZero *z, int64_t buckets)
{
    z->hosted = buckets;
    dsvi_zero_lend_none(z);
}

/* Returns whether buckets of the array wait in host memory. */
static bool is_hosted(const DsviZero *z, DsviStateArray array, bool has_ema)
{
    return dsvi_zero_state_view(z, array).hosted > 0 && (array != DSVI_STATE_EMA || has_ema);
}

static bool holds_ema(const DsvConfig *settings)
{
    return settings->ema_decay > 0;
}

void dsvi_zero_carve_slots(DsviZero *z, const DsvConfig *settings, DsviArena *arena)
{
    int64_t slots = z->host_update ? 0 : z->hosted < DSVI_STATE_SLOTS ? z->hosted : DSVI_STATE_SLOTS;
    for (int a = 0; a < DSVI_STATE_ARRAYS; a++) {
        DsviStateView view = dsvi_zero_state_view(z, (DsviStateArray)a);
        size_t largest = 0;
        for (int64_t b = 0; b < view.hosted; b++)
            largest = local_bytes(&view, b) > largest ? local_bytes(&view, b) : largest;
        for (int64_t i = 0; i < slots && is_hosted(z, (DsviStateArray)a, holds_ema(settings)); i++)
            z->slot[a][i] = dsvi_arena_take(arena, view.mem_class, largest);
    }
}

void dsvi_zero_carve_state(DsviZero *z, const DsvConfig *settings, DsviArena *arena)
{
    for (int a = 0; a < DSVI_STATE_ARRAYS; a++) {
        DsviStateView view = dsvi_zero_state_view(z, (DsviStateArray)a);
        if (is_hosted(z, (DsviStateArray)a, holds_ema(settings)))
            z->host_state[a] = dsvi_arena_take(arena, view.mem_class,
                                               (size_t)view.shard->packed[view.hosted] * view.size);
    }
    dsvi_zero_carve_lent(z, arena);
    dsvi_zero_carve_host_slots(z, arena);
}

size_t dsvi_zero_waiting_state(const DsviZero *z, const DsvConfig *settings)
{
    size_t bytes = 0;
    for (int a = 0; a < DSVI_STATE_ARRAYS; a++) {
        DsviStateView view = dsvi_zero_state_view(z, (DsviStateArray)a);
        if (is_hosted(z, (DsviStateArray)a, holds_ema(settings)))
            bytes += (size_t)view.shard->packed[view.hosted] * view.size;
    }
    return bytes;
}

/* ---- an update ---- */

void *dsvi_zero_state(const DsviZero *z, DsviStateArray array, int64_t bucket)
{
    DsviStateView view = dsvi_zero_state_view(z, array);
    bool travels = bucket < view.hosted && !z->host_update;
    return travels ? z->slot[array][bucket % DSVI_STATE_SLOTS] : dsvi_state_local(&view, bucket);
}

int64_t dsvi_zero_visited(const DsviZero *z, int64_t visit)
{
    return z->updates_in_pass ? z->shard.buckets - 1 - visit : visit;
}

/* Returns the hosted bucket that is visited as number `i` of these, and the number of a hosted bucket. */
static int64_t hosted_visited(const DsviZero *z, int64_t i)
{
    return z->updates_in_pass ? z->hosted - 1 - i : i;
}

static DsvStatus upload_bucket(DsviZero *z, int64_t bucket)
{
    DsviDevice *device = z->backend->device;
    for (int a = 0; a < DSVI_STATE_ARRAYS; a++) {
        DsviStateView view = dsvi_zero_state_view(z, (DsviStateArray)a);
        if (view.host && view.hosted > 0)
            DSVI_TRY(device->upload(dsvi_zero_state_uploads(z), dsvi_zero_state(z, (DsviStateArray)a, bucket),
                                    dsvi_state_local(&view, bucket), local_bytes(&view, bucket)));
    }
    return dsvi_zero_upload_grads(z, bucket);
}

/* Starts to upload the state of the first `count` hosted buckets to be visited, unless it has been uploaded.
 */
static DsvStatus upload_first(DsviZero *z, int64_t count)
{
    for (; z->uploaded < count && z->uploaded < z->hosted; z->uploaded++)
        DSVI_TRY(upload_bucket(z, hosted_visited(z, z->uploaded)));
    return DSV_OK;
}

static DsvStatus download_bucket(DsviZero *z, int64_t bucket)
{
    DsviDevice *device = z->backend->device;
    for (int a = 0; a < DSVI_STATE_ARRAYS; a++) {
        DsviStateView view = dsvi_zero_state_view(z, (DsviStateArray)a);
        if (view.host && view.hosted > 0)
            DSVI_TRY(device->download(device->downloads, dsvi_state_local(&view, bucket),
                                      dsvi_zero_state(z, (DsviStateArray)a, bucket),
                                      local_bytes(&view, bucket)));
    }
    return DSV_OK;
}

DsvStatus dsvi_zero_state_enter(DsviZero *z, int64_t bucket)
{
    DsviDevice *device = z->backend->device;
    if (bucket >= z->hosted)
        return DSV_OK;
    if (z->host_update)
        return dsvi_zero_host_enter(z);
    int64_t visit = hosted_visited(z, bucket);
    DSVI_TRY(upload_first(z, visit + 1)); /* already done, except for the first bucket */
    DSVI_TRY(device->follow(device->stream, dsvi_zero_state_uploads(z)));
    return upload_first(z, visit + 2);
}

DsvStatus dsvi_zero_state_leave(DsviZero *z, int64_t bucket, bool changed)
{
    DsviDevice *device = z->backend->device;
    if (bucket >= z->hosted)
        return DSV_OK;
    if (z->host_update)
        return dsvi_zero_host_leave(z, bucket);
    DSVI_TRY(device->follow(dsvi_zero_state_uploads(z), device->downloads));
    DSVI_TRY(device->follow(device->downloads, device->stream));
    DSVI_TRY(dsvi_zero_download_weights(z, bucket));
    return changed ? download_bucket(z, bucket) : DSV_OK;
}

DsvStatus dsvi_zero_state_end(DsviZero *z)
{
    DsviDevice *device = z->backend->device;
    if (z->hosted == 0)
        return DSV_OK;
    if (z->host_update)
        return dsvi_zero_host_end(z);
    z->uploaded = 0;
    DSVI_TRY(device->follow(dsvi_zero_state_uploads(z), device->downloads));
    if (!dsvi_zero_lends(z))
        return upload_first(z, DSVI_STATE_SLOTS);
    /* No state is uploaded yet: the next pass needs the link for weights first, and its gradients are
     * uploaded with the state. */
    dsvi_zero_lend_end(z);
    return device->follow(device->uploads, device->downloads);
}

/* ---- access by the host ---- */

DsvStatus dsvi_zero_state_sync(const DsviZero *z)
{
    DsviDevice *device = z->backend->device;
    if (z->hosted == 0)
        return DSV_OK;
    DSVI_TRY(device->sync(dsvi_zero_state_uploads(z)));
    return device->sync(device->downloads);
}

DsvStatus dsvi_zero_state_discard(DsviZero *z)
{
    DSVI_TRY(dsvi_zero_state_sync(z));
    z->uploaded = 0;
    return DSV_OK;
}

void dsvi_zero_settle_state(const DsviZero *z)
{
    DsviStatusRecord first = *dsvi_status_record();
    if (z->hosted > 0)
        (void)dsvi_zero_state_sync(z);
    *dsvi_status_record() = first;
}
