/* Implements device_limit.h. The allocations that are held are a list in no order. */
#include "device/device_limit.h"

#include <pthread.h>
#include <stdlib.h>

size_t dsvi_device_free_bytes(DsviDevice *device)
{
    size_t used = device->memory_used(device);
    size_t unused = device->memory_bytes > used ? device->memory_bytes - used : 0;
    size_t available = device->kind == DSVI_DEVICE_CPU ? device->host_available(device) : 0;
    return available > 0 && available < unused ? available : unused;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the lists of all devices */

/* Makes room for one more allocation in the list. */
static DsvStatus grow_list(DsviDevice *device)
{
    size_t room = 2 * device->held_room + 16;
    if (device->held_count < device->held_room)
        return DSV_OK;
    DsviDeviceHeld *more = realloc(device->held, room * sizeof *more);
    if (!more)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a list of %zu allocations", room);
    device->held = more;
    device->held_room = room;
    return DSV_OK;
}

static DsvStatus hold(DsviDevice *device, size_t bytes, dsvi_device_alloc_fn *alloc, void **out)
{
    size_t left = device->limit > device->held_bytes ? device->limit - device->held_bytes : 0;
    if (device->limit > 0 && bytes > left)
        return DSVI_FAIL(DSV_E_NO_MEMORY,
                         "no %zu bytes of device memory: memory_gib allows %zu, of which %zu are left", bytes,
                         device->limit, left);
    DSVI_TRY(grow_list(device));
    DSVI_TRY(alloc(device, bytes, out));
    device->held[device->held_count++] = (DsviDeviceHeld){*out, bytes};
    device->held_bytes += bytes;
    return DSV_OK;
}

DsvStatus dsvi_device_hold(DsviDevice *device, size_t bytes, dsvi_device_alloc_fn *alloc, void **out)
{
    *out = NULL;
    pthread_mutex_lock(&lock);
    DsvStatus status = hold(device, bytes, alloc, out);
    pthread_mutex_unlock(&lock);
    return status;
}

void dsvi_device_release(DsviDevice *device, const void *memory)
{
    size_t i = 0;
    if (!memory)
        return;
    pthread_mutex_lock(&lock);
    while (i < device->held_count && device->held[i].memory != memory)
        i++;
    if (i < device->held_count) {
        device->held_bytes -= device->held[i].bytes;
        device->held[i] = device->held[--device->held_count];
    }
    pthread_mutex_unlock(&lock);
}

void dsvi_device_forget(DsviDevice *device)
{
    free(device->held);
}
