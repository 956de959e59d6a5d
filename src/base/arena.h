/* Arena: memory that is planned first, allocated once, and then divided into pieces.
 *
 * A layout function takes every piece that it needs from an arena. It runs twice: first on an arena
 * without memory (dsvi_arena_plan), which only counts bytes, then on an arena with memory
 * (dsvi_arena_bind), which returns addresses. Both runs take the same pieces in the same order, so that
 * the planned size is the used size; dsvi_arena_take asserts that the bound memory suffices.
 *
 *     +--------+-----------+-----------+-- ... --+
 *     | piece  | padding   | piece     |         |   one allocation, one owner
 *     +--------+-----------+-----------+-- ... --+
 *
 * Pieces that are never in use at the same time may share memory, like the members of a C union:
 *
 *     DsviArenaOverlay over = dsvi_arena_overlay_begin(arena);
 *     ... take the pieces of the first use ...
 *     dsvi_arena_overlay_next(arena, &over);
 *     ... take the pieces of the second use, from the same offset as the first ...
 *     dsvi_arena_overlay_end(arena, &over);
 *     ... further pieces begin after the longest use ...
 */
#ifndef DSVI_ARENA_H
#define DSVI_ARENA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a piece is used for. The printed memory plan has one row for each class. */
typedef enum DsviMemClass {
    DSVI_MEM_WEIGHTS,     /* master weights and their copy in the compute dtype */
    DSVI_MEM_GRADIENTS,   /* gradients of the weights */
    DSVI_MEM_OPTIMIZER,   /* AdamW moments */
    DSVI_MEM_EMA,         /* moving average of the weights */
    DSVI_MEM_ACTIVATIONS, /* activations that are kept from the forward to the backward pass */
    DSVI_MEM_SCRATCH,     /* working memory that is used inside one call only */
    DSVI_MEM_SPARSE,      /* state of sparse attention: key lists, and what selects and measures them */
    DSVI_MEM_DATA,        /* batches, latents and frames in flight */
    DSVI_MEM_CLASS_COUNT
} DsviMemClass;

const char *dsvi_mem_class_name(DsviMemClass mem_class); /* "weights", "gradients", ... */

typedef struct DsviArena {
    unsigned char *base; /* NULL while planning */
    size_t used;         /* bytes taken so far, padding included; SIZE_MAX: the sum does not fit a size_t */
    size_t size;         /* bytes of the bound memory; 0 while planning */
    /* Bytes taken, by class. Of pieces that share memory (an overlay), only the longest use is counted; if
       several are equally long, the last. */
    size_t by_class[DSVI_MEM_CLASS_COUNT];
} DsviArena;

/* One section of an arena in which several uses share memory. */
typedef struct DsviArenaOverlay {
    DsviArena begin; /* state of the arena where every use begins */
    DsviArena end;   /* state of the arena after the longest use so far */
} DsviArenaOverlay;

/* Makes an arena that only counts bytes. */
void dsvi_arena_plan(DsviArena *arena);
/* Makes an arena over `size` bytes at `base`. The caller owns this memory; `base` is 64-byte aligned. */
void dsvi_arena_bind(DsviArena *arena, void *base, size_t size);
/* Returns the next piece, whose offset from the base is a multiple of 256 bytes; NULL while planning. Taking
 * more than was bound is a bug and aborts. `bytes` may be 0. */
void *dsvi_arena_take(DsviArena *arena, DsviMemClass mem_class, size_t bytes);

/* Begins an overlay and its first use. Overlays may be nested. */
DsviArenaOverlay dsvi_arena_overlay_begin(const DsviArena *arena);
/* Ends the current use of an overlay and begins the next use at the same offset, so that pieces of different
   uses share memory. */
void dsvi_arena_overlay_next(DsviArena *arena, DsviArenaOverlay *overlay);
/* Ends the overlay. The next piece begins after the longest use. */
void dsvi_arena_overlay_end(DsviArena *arena, DsviArenaOverlay *overlay);

#ifdef __cplusplus
}
#endif
#endif
