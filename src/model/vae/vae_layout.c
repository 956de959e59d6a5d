/* Chooses strips and chunks for the memory that is allowed. See vae_layout.h.
 *
 * Smaller pieces take less memory, copy more rows and frames between pieces, and fill fewer of the tiles in
 * which kernels convolve. The plan counts the memory of a candidate with the function that later carves the
 * memory, so the figures are exact. */
#include "model/vae/vae_layout.h"

#include <stdlib.h>

#include "device/carve.h"

/* The share of additional work that is worth a GiB of memory. */
static const double GIB_COST = 0.02;

enum { WHOLE_CHUNK_MAX = 16, CANDIDATES_MAX = 4096 };

/* Pieces: rows of a strip and frames of a chunk, both counted in the latents. */
typedef struct Pieces {
    int64_t rows, frames;
    size_t bytes; /* without the workspace of convolutions */
    double cost;  /* share of additional work, roughly, and the memory's cost */
} Pieces;

typedef struct Chooser {
    DsviVaeLayout *layout;
    int64_t patch, spatial, latent_frames, latent_height;
    uint64_t limit;     /* 0: none */
    size_t workspace;   /* that the last measured candidate needed */
    Pieces *candidates; /* (count) */
    size_t count;
} Chooser;

/* Returns the bytes of a pass and of the tensor between the passes. */
static size_t pass_bytes(const DsviVaeLayout *layout, DsviVaePass *pass)
{
    DsviArena arena;
    dsvi_arena_plan(&arena);
    dsvi_arena_take(&arena, DSVI_MEM_ACTIVATIONS, layout->between_bytes);
    dsvi_vae_pass_carve(pass, &arena);
    return arena.used;
}

static void layout_carve(void *context, DsviArena *arena)
{
    DsviVaeLayout *layout = context;
    layout->between = dsvi_arena_take(arena, DSVI_MEM_ACTIVATIONS, layout->between_bytes);
    DsviArenaOverlay overlay = dsvi_arena_overlay_begin(arena);
    dsvi_vae_pass_carve(&layout->strips, arena);
    dsvi_arena_overlay_next(arena, &overlay);
    dsvi_vae_pass_carve(&layout->whole, arena);
    dsvi_arena_overlay_end(arena, &overlay);
    if (!arena->base)
        layout->bytes = arena->used;
}

static int by_cost(const void *a, const void *b)
{
    const Pieces *x = a, *y = b;
    if (x->cost != y->cost)
        return x->cost < y->cost ? -1 : 1;
    return x->rows != y->rows ? (x->rows > y->rows ? -1 : 1)
                              : (x->frames > y->frames) - (x->frames < y->frames);
}

/* Divides the pass in strips; returns its bytes without the workspace of convolutions. */
static size_t strips_bytes(Chooser *c, const Pieces *pieces)
{
    dsvi_vae_pass_divide(&c->layout->strips, pieces->rows * c->spatial / c->patch, pieces->frames);
    return pass_bytes(c->layout, &c->layout->strips);
}

/* Computes bytes and cost of a candidate. Between pieces a convolution copies two rows and two frames twice;
 * at full resolution a latent row is 8 or 16 rows and a latent frame 4 frames. The last term of the work is
 * the time of starting a piece. The factors follow from counts of products and copied bytes for an H200. */
static Pieces pieces_of(Chooser *c, int64_t rows, int64_t frames)
{
    Pieces pieces = {.rows = rows, .frames = frames};
    double strips = (double)((c->latent_height + rows - 1) / rows);
    double chunks = (double)((c->latent_frames + frames - 1) / frames);
    pieces.bytes = strips_bytes(c, &pieces);
    pieces.cost = dsvi_vae_tile_waste(&c->layout->strips) + (strips > 1 ? 0.05 / (double)rows : 0) +
                  (chunks > 1 ? 0.08 / (double)frames : 0) + 0.0005 * strips * chunks +
                  GIB_COST * (double)pieces.bytes / (double)(1 << 30);
    return pieces;
}

/* Lists chunks of 1, 2, 3, 4, 6, 8, 12, ... frames and of all frames, each with all heights of strips that
 * give different numbers of strips. */
static DsvStatus list_candidates(Chooser *c)
{
    c->candidates = calloc(CANDIDATES_MAX, sizeof *c->candidates);
    if (!c->candidates)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to choose the pieces of a video");
    for (int64_t n = 1, step = 1;; n += step) {
        int64_t frames = n < c->latent_frames ? n : c->latent_frames, before = 0;
        for (int64_t strips = 1; strips <= c->latent_height && c->count < CANDIDATES_MAX; strips++) {
            int64_t rows = (c->latent_height + strips - 1) / strips;
            if (rows == before)
                continue;
            before = rows;
            c->candidates[c->count++] = pieces_of(c, rows, frames);
        }
        if (frames == c->latent_frames)
            break;
        if (n >= 4 * step)
            step *= 2;
    }
    qsort(c->candidates, c->count, sizeof *c->candidates, by_cost);
    return DSV_OK;
}

static DsvStatus measured_bytes(Chooser *c, DsviVaePass *pass, uint64_t *bytes)
{
    DSVI_TRY(dsvi_vae_pass_measure(pass));
    *bytes = pass_bytes(c->layout, pass);
    c->workspace = pass->workspace_bytes;
    return DSV_OK;
}

/* Takes the candidate that needs least memory. */
static DsvStatus take_least(Chooser *c, uint64_t *bytes)
{
    const Pieces *least = &c->candidates[0];
    for (size_t i = 1; i < c->count; i++)
        least = c->candidates[i].bytes < least->bytes ? &c->candidates[i] : least;
    strips_bytes(c, least);
    return measured_bytes(c, &c->layout->strips, bytes);
}

/* Chooses the cheapest pieces that fit, else those with the least memory. */
static DsvStatus choose_strips(Chooser *c, uint64_t *bytes)
{
    for (size_t i = 0; i < c->count; i++) {
        const Pieces *pieces = &c->candidates[i];
        if (c->limit > 0 && pieces->bytes + c->workspace > c->limit)
            continue;
        strips_bytes(c, pieces);
        DSVI_TRY(measured_bytes(c, &c->layout->strips, bytes));
        if (c->limit == 0 || *bytes <= c->limit)
            return DSV_OK;
    }
    return take_least(c, bytes);
}

/* Chooses the pieces of the pass over whole frames, which may take as much memory as the strips without a
 * limit. */
static DsvStatus choose_whole(Chooser *c, uint64_t strips_taken, uint64_t *bytes)
{
    int64_t frames = c->latent_frames < WHOLE_CHUNK_MAX ? c->latent_frames : WHOLE_CHUNK_MAX;
    uint64_t limit = c->limit > 0 ? c->limit : strips_taken;
    for (;; frames = (frames + 1) / 2) {
        dsvi_vae_pass_divide(&c->layout->whole, c->latent_height, frames);
        DSVI_TRY(measured_bytes(c, &c->layout->whole, bytes));
        if (*bytes <= limit || frames == 1)
            return DSV_OK;
    }
}

static DsvStatus make_passes(Chooser *c, DsviDtype act, const DsviVaeHalf *half, int64_t temporal)
{
    DsviVaeLayout *layout = c->layout;
    DsviVaeBound video = {3 * c->patch * c->patch, layout->height / c->patch, layout->width / c->patch,
                          temporal};
    DsviVaeBound latents = {half->stages[0].in, c->latent_height, layout->width / c->spatial, 1};
    int64_t rest = half->count - half->split;
    DsviVaePass *first = layout->decode ? &layout->whole : &layout->strips;
    DsviVaePass *second = layout->decode ? &layout->strips : &layout->whole;
    DSVI_TRY(dsvi_vae_pass_make(layout->backend, act, half->stages, half->split,
                                layout->decode ? latents : video, c->latent_frames, layout->decode,
                                layout->decode, first));
    DsviVaeBound between = first->bounds[first->count];
    layout->between_bytes = (size_t)(dsvi_vae_frames_before(first, first->count, c->latent_frames) *
                                     between.height * between.width * between.channels) *
                            dsvi_dtype_size(act);
    DSVI_TRY(dsvi_vae_pass_make(layout->backend, act, half->stages + half->split, rest, between,
                                c->latent_frames, layout->decode, !layout->decode, second));
    layout->strips.patch = c->patch;
    return DSV_OK;
}

DsvStatus dsvi_vae_layout_make(DsviBackend *backend, DsviDtype act, const DsviVaeConfig *config,
                               const DsviVaeHalf *half, bool decode, int64_t frames, int64_t height,
                               int64_t width, uint64_t limit, DsviVaeLayout *out, uint64_t *least)
{
    DsvStatus status;
    int64_t temporal, spatial;
    uint64_t strips = 0, whole = 0;
    *out = (DsviVaeLayout){
        .backend = backend, .decode = decode, .frames = frames, .height = height, .width = width};
    *least = 0;
    dsvi_vae_factors(config, &temporal, &spatial);
    Chooser c = {
        .layout = out,
        .patch = config->patch,
        .spatial = spatial,
        .latent_frames = 1 + (frames - 1) / temporal,
        .latent_height = height / spatial,
        .limit = limit,
    };
    DSVI_TRY_GOTO(status, make_passes(&c, act, half, temporal), done);
    DSVI_TRY_GOTO(status, list_candidates(&c), done);
    DSVI_TRY_GOTO(status, choose_strips(&c, &strips), done);
    DSVI_TRY_GOTO(status, choose_whole(&c, strips, &whole), done);
    DsviArena arena;
    dsvi_arena_plan(&arena);
    layout_carve(out, &arena);
    if (limit > 0 && out->bytes > limit) {
        *least = out->bytes;
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "the activations of the VAE need %llu bytes",
                           (unsigned long long)out->bytes);
    }
done:
    free(c.candidates);
    return status;
}

DsvStatus dsvi_vae_layout_allocate(DsviVaeLayout *layout)
{
    return dsvi_device_alloc_layout(layout->backend->device, layout_carve, layout, &layout->memory);
}

void dsvi_vae_layout_free(DsviVaeLayout *layout)
{
    dsvi_vae_pass_free(&layout->strips);
    dsvi_vae_pass_free(&layout->whole);
    if (layout->memory)
        layout->backend->device->mem_free(layout->backend->device, layout->memory);
    *layout = (DsviVaeLayout){0};
}
