/* Memory planned first, allocated once, carved into pieces.
 *
 * A layout function takes every piece it needs from an arena. It is run twice: on an arena without
 * memory (dsvi_arena_plan), which only counts, and on one with memory (dsvi_arena_bind), which hands
 * out addresses. Both runs take the same pieces in the same order, so the plan cannot drift from the
 * use; dsvi_arena_bind and the takes assert it.
 *
 *     +--------+-----------+-----------+-- ... --+
 *     | piece  | padding   | piece     |         |   one allocation, one owner
 *     +--------+-----------+-----------+-- ... --+
 *
 * Pieces that never hold anything at the same time may lie over each other:
 *
 *     DsvArenaOverlay over = dsvi_arena_overlay(arena);
 *     ... takes for one use ...
 *     dsvi_arena_instead(arena, &over);
 *     ... takes for another, which begin where those of the first did ...
 *     dsvi_arena_overlay_end(arena, &over);
 *     ... takes behind all of them ...
 */
#ifndef DSVI_ARENA_H
#define DSVI_ARENA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a piece is for: the rows of the memory preview. */
typedef enum DsvMemClass {
    DSV_MEM_WEIGHTS,     /* master weights and their copy in the compute dtype */
    DSV_MEM_GRADIENTS,   /* of the weights */
    DSV_MEM_OPTIMIZER,   /* AdamW moments */
    DSV_MEM_EMA,
    DSV_MEM_ACTIVATIONS, /* kept from forward to backward */
    DSV_MEM_SCRATCH,     /* lives inside one call */
    DSV_MEM_SPARSE,      /* lists, projections, predictors, profiles */
    DSV_MEM_DATA,        /* batches, latents and frames in flight */
    DSV_MEM_CLASS_COUNT
} DsvMemClass;

const char *dsvi_mem_class_name(DsvMemClass mem_class);

typedef struct DsvArena {
    unsigned char *base; /* NULL while planning */
    size_t used;         /* bytes taken so far, padding included; SIZE_MAX: more than can be counted */
    size_t size;         /* bytes of the bound memory; 0 while planning */
    size_t by_class[DSV_MEM_CLASS_COUNT]; /* where pieces lie over each other: of the longest use, of
                                           * equal ones the last */
} DsvArena;

typedef struct DsvArenaOverlay {
    DsvArena begin; /* the arena as every use finds it */
    DsvArena end;   /* as the longest use so far left it */
} DsvArenaOverlay;

/* An arena that only counts. */
void dsvi_arena_plan(DsvArena *arena);
/* An arena over `size` bytes at `base` (64-byte aligned, owned by the caller). */
void dsvi_arena_bind(DsvArena *arena, void *base, size_t size);
/* The next piece, a multiple of 256 bytes from the base; NULL while planning. Taking more than was bound is a
 * bug and asserts. `bytes` may be 0. */
void *dsvi_arena_take(DsvArena *arena, DsvMemClass mem_class, size_t bytes);

/* What is taken from here on is for one use, up to one of the two below. Overlays may be nested. */
DsvArenaOverlay dsvi_arena_overlay(const DsvArena *arena);
/* What is taken next lies over what has been taken since the overlay began. */
void dsvi_arena_instead(DsvArena *arena, DsvArenaOverlay *overlay);
/* What is taken next lies behind the longest use. */
void dsvi_arena_overlay_end(DsvArena *arena, DsvArenaOverlay *overlay);

#ifdef __cplusplus
}
#endif
#endif
