/* Implements host_pool.h: one allocation, in the device's page-locked memory if the system allows it. */
#include "device/host_pool.h"

#include <stdlib.h>

DsvStatus dsvi_host_pool_open(DsviDevice *device, dsvi_layout_fn *layout, void *object, DsviHostPool *pool)
{
    enum { ALIGNMENT = 256 };
    DsviArena arena;
    dsvi_arena_plan(&arena);
    layout(object, &arena);
    size_t bytes = arena.used;
    if (bytes == 0)
        return DSV_OK;
    DsvStatus status = device->host_alloc(device, bytes, &pool->memory);
    if (status == DSV_E_NO_MEMORY) {
        pool->pageable = true;
        pool->memory = aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
        status = pool->memory ? DSV_OK : DSVI_FAIL(DSV_E_NO_MEMORY, "no %zu bytes of host memory", bytes);
    }
    DSVI_TRY(status);
    dsvi_arena_bind(&pool->arena, pool->memory, bytes);
    layout(object, &pool->arena);
    return DSV_OK;
}

void dsvi_host_pool_close(DsviDevice *device, DsviHostPool *pool)
{
    if (pool->pageable)
        free(pool->memory);
    else
        device->host_free(device, pool->memory);
    *pool = (DsviHostPool){0};
}
