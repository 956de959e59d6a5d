/* Implements sample_room.h. */
#include "sample/sample_room.h"

#include <math.h>
#include <stdio.h>

#include "base/memory_limit.h"
#include "base/offload.h"
#include "device/device_limit.h"

/* Bytes of the free device memory that stay free if blocks must wait in host memory: libraries allocate work
 * space during the first pass. A limit of memory_gib is used whole. */
static const size_t RESERVE = (size_t)1 << 30;
static const double GIB = 1073741824.0;

static void carve_host(void *weights, DsviArena *arena)
{
    dsvi_dit_frozen_carve_host(weights, arena);
}

static void plan_both(DsviSampleRoom *room)
{
    DsviArena host;
    dsvi_arena_plan(&room->plan);
    room->layout(room->object, &room->plan);
    dsvi_arena_plan(&host);
    dsvi_dit_frozen_carve_host(room->weights, &host);
    room->host_bytes = host.used;
}

bool dsvi_sample_room_choose(DsviSampleRoom *room)
{
    DsviDevice *device = room->device;
    size_t cap = (size_t)dsvi_memory_limit(room->settings);
    bool asked = dsvi_offloads(room->settings, "weights");
    room->free = dsvi_device_free_bytes(device);
    room->host_free = device->host_available(device);
    room->limit = cap > 0 && cap < room->free ? cap : room->free;
    dsvi_dit_frozen_lend(room->weights, device, 0, false);
    plan_both(room);
    if (room->plan.used > room->limit || (asked && cap == 0)) {
        size_t target = room->limit > RESERVE ? room->limit - RESERVE : 0;
        if (cap == 0 && asked)
            target = 0;
        else if (room->limit == cap)
            target = cap;
        dsvi_dit_frozen_choose_lent(room->weights, device, false, target, room->layout, room->object);
        plan_both(room);
    }
    return room->plan.used <= room->limit && (room->host_free == 0 || room->host_bytes <= room->host_free);
}

DsvStatus dsvi_sample_room_refuse(const DsviSampleRoom *room)
{
    const DsvConfig *s = room->settings;
    char allowed[96];
    long long lent = (long long)dsvi_dit_frozen_lent(room->weights);
    if (room->plan.used <= room->limit)
        return DSVI_FAIL(DSV_E_NO_MEMORY,
                         "%s: the weights of %lld blocks do not fit on the device and need %.1f GiB of host "
                         "memory, of which %.1f GiB are free",
                         room->path, lent, (double)room->host_bytes / GIB, (double)room->host_free / GIB);
    if (room->limit < room->free)
        snprintf(allowed, sizeof allowed, "memory_gib allows %.6g", s->memory_gib);
    else
        snprintf(allowed, sizeof allowed, "%.1f of %.1f GiB are free", (double)room->free / GIB,
                 (double)room->device->memory_bytes / GIB);
    return DSVI_FAIL(
        DSV_E_NO_MEMORY,
        "%s: sampling %lld frames of %lld x %lld needs at least %.3f GiB of device memory, with the weights "
        "of %lld blocks in host memory, and %s: smaller num_frames, height or width need less",
        room->path, (long long)s->num_frames, (long long)s->width, (long long)s->height,
        ceil((double)room->plan.used / GIB * 1000) / 1000, lent, allowed); /* as memory_gib it suffices */
}

void dsvi_sample_room_line(const DsviSampleRoom *room, char line[DSVI_SAMPLE_ROOM_LINE])
{
    long long lent = (long long)dsvi_dit_frozen_lent(room->weights);
    line[0] = 0;
    if (lent > 0)
        snprintf(line, DSVI_SAMPLE_ROOM_LINE,
                 "the weights of %lld block%s (%.2f GiB) wait in host memory and are copied to the device "
                 "while other blocks compute",
                 lent, lent == 1 ? "" : "s", (double)room->host_bytes / GIB);
}

DsvStatus dsvi_sample_room_open(const DsviSampleRoom *room, const DsvEvents *events, DsviHostPool *pool)
{
    char line[DSVI_SAMPLE_ROOM_LINE];
    DSVI_TRY(dsvi_host_pool_open(room->device, carve_host, room->weights, pool));
    snprintf(line, sizeof line,
             "the system refuses to page-lock %.1f GiB; the weights wait in pageable memory, which makes "
             "their copies slower",
             (double)room->host_bytes / GIB);
    if (pool->pageable && events->log)
        events->log(events->context, DSV_LOG_WARNING, line);
    return DSV_OK;
}
