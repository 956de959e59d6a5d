/* See arena.h. */
#include "base/arena.h"

#include <string.h>

#include "base/status.h"

/* In bytes: alignment of the memory given to dsvi_arena_bind, and of each piece's offset in that memory. GPU
 * cache lines have 128 bytes and cudaMalloc returns multiples of 256. A sparse training step took 3 % longer
 * while most pieces began 64 bytes off such multiples. */
enum { BASE_ALIGNMENT = 64, ALIGNMENT = 256 };

const char *dsvi_mem_class_name(DsviMemClass mem_class)
{
    static const char *const name[DSVI_MEM_CLASS_COUNT] = {
        [DSVI_MEM_WEIGHTS] = "weights",         [DSVI_MEM_GRADIENTS] = "gradients",
        [DSVI_MEM_OPTIMIZER] = "optimizer",     [DSVI_MEM_EMA] = "moving average",
        [DSVI_MEM_ACTIVATIONS] = "activations", [DSVI_MEM_SCRATCH] = "scratch",
        [DSVI_MEM_SPARSE] = "sparse",           [DSVI_MEM_DATA] = "data",
    };
    return name[mem_class];
}

void dsvi_arena_plan(DsviArena *arena)
{
    memset(arena, 0, sizeof *arena);
}

void dsvi_arena_bind(DsviArena *arena, void *base, size_t size)
{
    DSVI_ASSERT(base && (uintptr_t)base % BASE_ALIGNMENT == 0);
    memset(arena, 0, sizeof *arena);
    arena->base = base;
    arena->size = size;
}

/* Saturates at SIZE_MAX, which no allocator grants: a sum that wrapped around would look like a small
 * size. */
static size_t add_saturated(size_t a, size_t b)
{
    return b <= SIZE_MAX - a ? a + b : SIZE_MAX;
}

void *dsvi_arena_take(DsviArena *arena, DsviMemClass mem_class, size_t bytes)
{
    size_t padded = add_saturated(bytes, (ALIGNMENT - bytes % ALIGNMENT) % ALIGNMENT);
    void *piece = arena->base ? arena->base + arena->used : NULL;
    DSVI_ASSERT(!arena->base || padded <= arena->size - arena->used);
    arena->used = add_saturated(arena->used, padded);
    arena->by_class[mem_class] = add_saturated(arena->by_class[mem_class], padded);
    return piece;
}

DsviArenaOverlay dsvi_arena_overlay_begin(const DsviArena *arena)
{
    return (DsviArenaOverlay){.begin = *arena, .end = *arena};
}

void dsvi_arena_overlay_next(DsviArena *arena, DsviArenaOverlay *overlay)
{
    if (arena->used >= overlay->end.used)
        overlay->end = *arena;
    *arena = overlay->begin;
}

void dsvi_arena_overlay_end(DsviArena *arena, DsviArenaOverlay *overlay)
{
    dsvi_arena_overlay_next(arena, overlay);
    *arena = overlay->end;
}
