/* How much device memory is free, and the limit of what a program may hold (DsviDevice.limit), for the
 * functions mem_alloc and mem_free of the devices. */
#ifndef DSVI_DEVICE_LIMIT_H
#define DSVI_DEVICE_LIMIT_H

#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the bytes of device memory that could be allocated now, whatever DsviDevice.limit is. What other
 * programs use does not count as free: on a CPU, where memory_used is about this process alone, no more is
 * free than host_available says, if this is known. */
size_t dsvi_device_free_bytes(DsviDevice *device);

/* Allocates `bytes` bytes of device memory in *out, or fails. */
typedef DsvStatus dsvi_device_alloc_fn(DsviDevice *device, size_t bytes, void **out);

/* Allocates with `alloc` and counts the memory as held. Fails with DSV_E_NO_MEMORY, without a call of
 * `alloc`, if the device would hold more than its limit. *out is NULL after a failure. */
DsvStatus dsvi_device_hold(DsviDevice *device, size_t bytes, dsvi_device_alloc_fn *alloc, void **out);
/* Counts the allocation at `memory` as freed; takes NULL. */
void dsvi_device_release(DsviDevice *device, const void *memory);
/* Frees the list of allocations, before the device is freed. */
void dsvi_device_forget(DsviDevice *device);

#ifdef __cplusplus
}
#endif
#endif
