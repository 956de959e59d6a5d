/* See carve.h. */
#include "device/carve.h"

DsvStatus dsvi_device_carve(DsvDevice *device, dsvi_carve_fn *carve, void *of, void **memory)
{
    DsvArena arena;
    dsvi_arena_plan(&arena);
    carve(of, &arena);
    size_t bytes = arena.used;
    DSVI_TRY(device->mem_alloc(device, bytes, memory));
    DSVI_TRY(device->zero(device->stream, *memory, bytes));
    dsvi_arena_bind(&arena, *memory, bytes);
    carve(of, &arena);
    return DSV_OK;
}
