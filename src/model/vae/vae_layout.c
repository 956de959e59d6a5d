/* Chooses strips and chunks for the memory that is allowed. See vae_layout.h.
 *
 * Smaller pieces take less memory and copy more rows and frames between pieces. The plan counts the memory of
 * a candidate with the function that later carves the memory, so the figures are exact. */
#include "model/vae/vae_layout.h"

#include <stdlib.h>

#include "device/carve.h"

/* More memory than this, or than twice the least, gains little time. */
static const uint64_t ENOUGH_BYTES = (uint64_t)3 << 30;

enum { WHOLE_CHUNK_MAX = 16, CANDIDATES_MAX = 4096 };

/* Pieces: rows of a strip and frames of a chunk, both counted in the latents. */
typedef struct Pieces {
    int64_t rows, frames;
    double cost; /* share of additional work, roughly */
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

/* Per piece a convolution copies two rows and two frames twice; at full resolution a latent row is 8 rows and
 * a latent frame 4 frames. The last term is the time of starting the work of a piece. */
static double pieces_cost(const Chooser *c, int64_t rows, int64_t frames)
{
    double strips = (double)((c->latent_height + rows - 1) / rows);
    double chunks = (double)((c->latent_frames + frames - 1) / frames);
    return (strips > 1 ? 0.5 / (double)rows : 0) + (chunks > 1 ? 1.0 / (double)frames : 0) +
           0.001 * strips * chunks;
}

static int by_cost(const void *a, const void *b)
{
    const Pieces *x = a, *y = b;
    if (x->cost != y->cost)
        return x->cost < y->cost ? -1 : 1;
    return x->rows != y->rows ? (x->rows > y->rows ? -1 : 1)
                              : (x->frames > y->frames) - (x->frames < y->frames);
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
            c->candidates[c->count++] = (Pieces){rows, frames, pieces_cost(c, rows, frames)};
        }
        if (frames == c->latent_frames)
            break;
        if (n >= 4 * step)
            step *= 2;
    }
    qsort(c->candidates, c->count, sizeof *c->candidates, by_cost);
    return DSV_OK;
}

/* Divides the pass in strips; returns its bytes without the workspace of convolutions. */
static size_t strips_bytes(Chooser *c, const Pieces *pieces)
{
    dsvi_vae_pass_divide(&c->layout->strips, pieces->rows * c->spatial / c->patch, pieces->frames);
    return pass_bytes(c->layout, &c->layout->strips);
}

static DsvStatus measured_bytes(Chooser *c, DsviVaePass *pass, uint64_t *bytes)
{
    DSVI_TRY(dsvi_vae_pass_measure(pass));
    *bytes = pass_bytes(c->layout, pass);
    c->workspace = pass->workspace_bytes;
    return DSV_OK;
}

/* Takes the candidate that needs least memory. It has one latent frame in a chunk. */
static DsvStatus take_least(Chooser *c, uint64_t *bytes)
{
    const Pieces *least = NULL;
    size_t least_bytes = 0;
    for (size_t i = 0; i < c->count; i++) {
        if (c->candidates[i].frames > 1)
            continue;
        size_t candidate = strips_bytes(c, &c->candidates[i]);
        if (!least || candidate < least_bytes) {
            least = &c->candidates[i];
            least_bytes = candidate;
        }
    }
    strips_bytes(c, least);
    return measured_bytes(c, &c->layout->strips, bytes);
}

/* Chooses the cheapest pieces that fit, else those with the least memory. Sets the limit for these and all
 * later choices to what is worth to use. */
static DsvStatus choose_strips(Chooser *c, uint64_t *bytes)
{
    DSVI_TRY(take_least(c, bytes));
    uint64_t enough = *bytes * 2 > ENOUGH_BYTES ? *bytes * 2 : ENOUGH_BYTES;
    c->limit = c->limit == 0 || c->limit > enough ? enough : c->limit;
    c->workspace = 0;
    for (size_t i = 0; i < c->count; i++) {
        *bytes = strips_bytes(c, &c->candidates[i]) + c->workspace;
        if (*bytes > c->limit)
            continue;
        DSVI_TRY(measured_bytes(c, &c->layout->strips, bytes));
        if (*bytes <= c->limit)
            return DSV_OK;
    }
    return take_least(c, bytes);
}

static DsvStatus choose_whole(Chooser *c, uint64_t *bytes)
{
    int64_t frames = c->latent_frames < WHOLE_CHUNK_MAX ? c->latent_frames : WHOLE_CHUNK_MAX;
    for (;; frames = (frames + 1) / 2) {
        dsvi_vae_pass_divide(&c->layout->whole, c->latent_height, frames);
        DSVI_TRY(measured_bytes(c, &c->layout->whole, bytes));
        if (*bytes <= c->limit || frames == 1)
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
    DSVI_TRY_GOTO(status, choose_whole(&c, &whole), done);
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
