/* What a device must offer beside its ops: memory, copies, an ordered stream of work, clocks.
 *
 * An implementation fills DsvDevice; host code calls through it and never asks which one it is.
 * On the CPU device a stream does everything at once, on the caller's thread. */
#ifndef DSVI_DEVICE_H
#define DSVI_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvDevice DsvDevice;
typedef struct DsvStream DsvStream; /* defined by each device; belongs to one device */

typedef enum DsvDeviceKind { DSV_DEVICE_CPU, DSV_DEVICE_CUDA } DsvDeviceKind;

struct DsvDevice {
    DsvDeviceKind kind;
    const char *name;        /* e.g. "AMD EPYC, avx512, 2 threads" */
    size_t memory_bytes;     /* what it has in all */
    size_t host_bytes;       /* what the host has in all, for every process on it; 0: not known */
    DsvStream *stream;       /* the compute stream: one is enough for what we do */
    DsvStream *copies;       /* for copies beside what that does: upload, download, sync and follow take it.
                              * Where a stream does everything at once it is the compute stream itself */
    bool deterministic;      /* the same calls give the same bits */

    /* 64-byte aligned device memory. DSV_E_NO_MEMORY names the bytes asked for and those free. */
    DsvStatus (*mem_alloc)(DsvDevice *device, size_t bytes, void **out);
    void (*mem_free)(DsvDevice *device, void *memory); /* takes NULL */

    /* 64-byte aligned host memory from which copies run beside the caller's work. Ops may write it, too. */
    DsvStatus (*host_alloc)(DsvDevice *device, size_t bytes, void **out);
    void (*host_free)(DsvDevice *device, void *memory); /* takes NULL */
    /* Bytes in use: the process's resident set, or of a GPU's memory all that is, for other programs too. */
    size_t (*memory_used)(DsvDevice *device);

    /* In stream order. Host memory must stay untouched until the stream has been waited for. */
    DsvStatus (*upload)(DsvStream *stream, void *device_dst, const void *host_src, size_t bytes);
    DsvStatus (*download)(DsvStream *stream, void *host_dst, const void *device_src, size_t bytes);
    DsvStatus (*copy)(DsvStream *stream, void *dst, const void *src, size_t bytes);
    DsvStatus (*zero)(DsvStream *stream, void *dst, size_t bytes);

    /* Waits until all work given to the stream so far is done; reports its first failure. */
    DsvStatus (*sync)(DsvStream *stream);

    /* Puts the flag behind all work so far: there is one, which moves. */
    DsvStatus (*flag)(DsvStream *stream);
    /* Waits until all work before the flag is done, and for nothing behind it. */
    DsvStatus (*await)(DsvStream *stream);

    /* What `stream` is given from here on begins once all that `leader` has been given so far is done: the
     * host waits for neither. */
    DsvStatus (*follow)(DsvStream *stream, DsvStream *leader);

    /* Seconds on a clock that only grows, as seen after all work so far (this waits). */
    DsvStatus (*clock)(DsvStream *stream, double *seconds);

    /* Puts mark number `mark`, from 0, behind all work so far; one that was put before is moved. */
    DsvStatus (*mark)(DsvStream *stream, int64_t mark);
    /* Seconds from one mark to another put behind it; waits for that. */
    DsvStatus (*between)(DsvStream *stream, int64_t first, int64_t last, double *seconds);

    void (*close)(DsvDevice *device); /* frees everything, the struct included */
};

#ifdef __cplusplus
}
#endif
#endif
