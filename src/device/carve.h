/* Allocates device memory for a layout function, which takes buffers from an arena (base/arena.h). */
#ifndef DSVI_CARVE_H
#define DSVI_CARVE_H

#include "base/arena.h"
#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef void dsvi_layout_fn(void *object, DsviArena *arena);

/* Allocates one block for all buffers that `layout` takes, clears it, and runs `layout` again to set the
 * pointers in `object`. The block is stored in *memory, which must be NULL before. The caller frees it with
 * device->mem_free, also after a failure. */
DsvStatus dsvi_device_alloc_layout(DsviDevice *device, dsvi_layout_fn *layout, void *object, void **memory);

#ifdef __cplusplus
}
#endif
#endif
