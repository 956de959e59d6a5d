/* Device memory that a layout function plans and then shares out (base/arena.h). */
#ifndef DSVI_CARVE_H
#define DSVI_CARVE_H

#include "base/arena.h"
#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef void dsvi_carve_fn(void *of, DsvArena *arena);

/* One allocation for all that `carve` takes, zeroed, in *memory, which is the caller's to free, also after a
 * failure: it is to be NULL before. */
DsvStatus dsvi_device_carve(DsvDevice *device, dsvi_carve_fn *carve, void *of, void **memory);

#ifdef __cplusplus
}
#endif
#endif
