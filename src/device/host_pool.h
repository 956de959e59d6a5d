/* Host memory for what waits there until the device needs it. */
#ifndef DSVI_HOST_POOL_H
#define DSVI_HOST_POOL_H

#include "device/carve.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviHostPool {
    void *memory;    /* one allocation; NULL: none */
    DsviArena arena; /* layout of `memory` */
    bool pageable;   /* the system refused to page-lock so much: copies are slower */
} DsviHostPool;

/* Allocates host memory for all buffers that `layout` takes, and runs `layout` again to set the pointers in
 * `object`. The memory is page-locked, or pageable if the system refuses to lock so much. Its content is
 * undefined. Allocates nothing if `layout` takes nothing. *pool must be zero before; the caller closes it,
 * also after a failure. */
DsvStatus dsvi_host_pool_open(DsviDevice *device, dsvi_layout_fn *layout, void *object, DsviHostPool *pool);
/* Frees the memory; no copy may be under way. Takes a pool that is zero. */
void dsvi_host_pool_close(DsviDevice *device, DsviHostPool *pool);

#ifdef __cplusplus
}
#endif
#endif
