/* Implements carve.h: one allocation for all buffers of a layout function. */
#include "device/carve.h"

DsvStatus dsvi_device_alloc_layout(DsviDevice *device, dsvi_layout_fn *layout, void *object, void **memory)
{
    DsviArena arena;
    dsvi_arena_plan(&arena);
    layout(object, &arena);
    size_t bytes = arena.used;
    DSVI_TRY(device->mem_alloc(device, bytes, memory));
    DSVI_TRY(device->clear(device->stream, *memory, bytes));
    dsvi_arena_bind(&arena, *memory, bytes);
    layout(object, &arena);
    return DSV_OK;
}
