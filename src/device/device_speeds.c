/* Implements device_speeds.h: times copies on the compute stream of an idle device. */
#include "device/device_speeds.h"

enum { COPY_BYTES = 32 << 20, COPY_TRIES = 3 };

typedef enum CopyKind { COPY_UP, COPY_DOWN, COPY_WITHIN, COPY_KINDS } CopyKind;

DsviDeviceSpeeds dsvi_device_speeds_nominal(void)
{
    return (DsviDeviceSpeeds){.flops = 6e14, .memory = 3e12, .link = 5e10, .update = 1e11};
}

static DsvStatus copy_once(DsviDevice *device, CopyKind kind, char *memory, void *host)
{
    DsviStream *stream = device->stream;
    switch (kind) {
    case COPY_UP: return device->upload(stream, memory, host, COPY_BYTES);
    case COPY_DOWN: return device->download(stream, host, memory, COPY_BYTES);
    default: return device->copy(stream, memory + COPY_BYTES, memory, COPY_BYTES);
    }
}

/* Sets *best to the seconds of the fastest of some copies; the first one is not counted. */
static DsvStatus time_copies(DsviDevice *device, CopyKind kind, char *memory, void *host, double *best)
{
    for (int i = -1; i < COPY_TRIES; i++) {
        double begin, end;
        DSVI_TRY(device->clock(device->stream, &begin));
        DSVI_TRY(copy_once(device, kind, memory, host));
        DSVI_TRY(device->clock(device->stream, &end));
        if (i <= 0 || end - begin < *best)
            *best = end - begin;
    }
    return DSV_OK;
}

DsvStatus dsvi_device_speeds_time_copies(DsviDevice *device, DsviDeviceSpeeds *speeds)
{
    const double least = 1e-9; /* of a clock that did not move */
    double seconds[COPY_KINDS] = {0};
    void *memory = NULL, *host = NULL;
    DsvStatus status = device->mem_alloc(device, 2 * (size_t)COPY_BYTES, &memory);
    if (status == DSV_OK)
        status = device->host_alloc(device, COPY_BYTES, &host);
    if (status == DSV_OK)
        status = device->clear(device->stream, memory, 2 * (size_t)COPY_BYTES);
    if (status == DSV_OK)
        status = copy_once(device, COPY_DOWN, memory, host);
    for (int k = 0; k < COPY_KINDS && status == DSV_OK; k++)
        status = time_copies(device, (CopyKind)k, memory, host, &seconds[k]);
    double slower = seconds[COPY_UP] > seconds[COPY_DOWN] ? seconds[COPY_UP] : seconds[COPY_DOWN];
    if (status == DSV_OK) {
        speeds->link = COPY_BYTES / (slower > least ? slower : least);
        speeds->memory = 2.0 * COPY_BYTES / (seconds[COPY_WITHIN] > least ? seconds[COPY_WITHIN] : least);
    }
    device->host_free(device, host);
    device->mem_free(device, memory);
    return status;
}
