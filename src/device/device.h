/* The interface of a device, apart from its operations: memory, copies, ordered streams of work, clocks.
 *
 * A backend fills in DsviDevice; host code calls through it and does not depend on the kind of device. On the
 * CPU device every call on a stream is synchronous and runs on the caller's thread. */
#ifndef DSVI_DEVICE_H
#define DSVI_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviDevice DsviDevice;
typedef struct DsviStream DsviStream; /* each backend defines its own; a stream belongs to one device */

typedef enum DsviDeviceKind { DSVI_DEVICE_CPU, DSVI_DEVICE_CUDA } DsviDeviceKind;

/* An allocation of device memory. */
typedef struct DsviDeviceHeld {
    const void *memory;
    size_t bytes;
} DsviDeviceHeld;

struct DsviDevice {
    DsviDeviceKind kind;
    const char *name;    /* e.g. "AMD EPYC, avx512, 2 threads" */
    size_t memory_bytes; /* total device memory */
    size_t host_bytes;   /* total memory of the host, shared by all its processes; 0: unknown */
    DsviStream *stream;  /* the compute stream, on which all operations run */
    DsviStream *copies;  /* A second stream for copies that run concurrently with the compute stream.
                          * Only upload, download, sync and follow accept it. On a device with
                          * synchronous streams it is the compute stream itself. */
    DsviStream *uploads; /* Two more streams like `copies`, one for each direction, so that large
                          * uploads and downloads run at the same time. */
    DsviStream *downloads;
    bool deterministic; /* equal calls give bitwise equal results */

    size_t limit; /* bytes that mem_alloc may have handed out at once, beyond which it fails with
                   * DSV_E_NO_MEMORY; 0: no limit. What libraries of the device allocate for themselves does
                   * not count. The caller may change it at any time. */
    /* What mem_alloc has handed out and mem_free has not taken back; changed by device_limit.c alone. */
    size_t held_bytes;
    DsviDeviceHeld *held; /* (held_room), of which the first held_count are used */
    size_t held_count, held_room;

    /* Allocates 64-byte aligned device memory. The message of DSV_E_NO_MEMORY names the requested
     * bytes, and the free bytes or the bytes left within the limit. */
    DsvStatus (*mem_alloc)(DsviDevice *device, size_t bytes, void **out);
    void (*mem_free)(DsviDevice *device, void *memory); /* takes NULL */

    /* Allocates 64-byte aligned host memory that copies can access asynchronously (pinned memory on a GPU).
     * Ops may also write to it. */
    DsvStatus (*host_alloc)(DsviDevice *device, size_t bytes, void **out);
    void (*host_free)(DsviDevice *device, void *memory); /* takes NULL */
    /* Returns the bytes of host memory that could be allocated now (dsvi_memory_available in base/host.h);
     * 0: unknown. */
    size_t (*host_available)(DsviDevice *device);
    /* Returns the bytes in use: on the CPU the resident set of this process, on a GPU the used memory of the
     * whole device, other programs included. */
    size_t (*memory_used)(DsviDevice *device);

    /* The copies below run in stream order. The caller must not touch the host memory before it has waited
     * for the stream. */
    DsvStatus (*upload)(DsviStream *stream, void *device_dst, const void *host_src, size_t bytes);
    DsvStatus (*download)(DsviStream *stream, void *host_dst, const void *device_src, size_t bytes);
    DsvStatus (*copy)(DsviStream *stream, void *dst, const void *src, size_t bytes);
    DsvStatus (*clear)(DsviStream *stream, void *dst, size_t bytes);

    /* Makes `native`, a stream of the program that calls the library, the compute stream from now on: a
     * cudaStream_t on a GPU, where NULL is the default stream; not read on the CPU. Makes the device the
     * calling thread's current device. Work enqueued later waits for work enqueued before. The caller keeps
     * `native` until the device is closed. */
    DsvStatus (*use_stream)(DsviDevice *device, void *native);

    /* Waits until all work enqueued on the stream so far is done. Returns its first failure. */
    DsvStatus (*sync)(DsviStream *stream);

    /* Records the stream's flag after all work enqueued so far. A stream has one flag; recording it again
     * moves it. */
    DsvStatus (*flag)(DsviStream *stream);
    /* Waits until the work enqueued before the flag is done. Does not wait for later work. */
    DsvStatus (*await)(DsviStream *stream);

    /* Makes work enqueued on `stream` from now on wait until all work enqueued on `leader` so far is done.
     * The host does not wait. */
    DsvStatus (*follow)(DsviStream *stream, DsviStream *leader);

    /* Returns the seconds of a monotonic clock, after waiting for all work enqueued so far. */
    DsvStatus (*clock)(DsviStream *stream, double *seconds);

    /* Records timing mark number `mark` (>= 0) after all work enqueued so far. Recording a mark again moves
     * it. */
    DsvStatus (*mark)(DsviStream *stream, int64_t mark);
    /* Returns the seconds from mark `first` to mark `last`, which was recorded later. Waits for `last`. */
    DsvStatus (*between)(DsviStream *stream, int64_t first, int64_t last, double *seconds);

    void (*close)(DsviDevice *device); /* frees all resources, including the struct */
};

#ifdef __cplusplus
}
#endif
#endif
