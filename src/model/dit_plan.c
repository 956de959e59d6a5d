/* Everything the transformer takes from memory, in one place. Run twice, on a planning and on a bound arena
 * (base/arena.h): nothing here may depend on which.
 *
 * In a pass that trains, what is never needed at the same time lies over each other:
 *
 *     time goes down | both ends, gradients of rows  | sub-layers                 | blocks
 *     ---------------+-------------------------------+----------------------------+-----------------
 *     inputs         |                               |               latents, target
 *     forward        | target_rows                   | q, k, workspace            | residual, saved
 *                    |                               |   or ffn_hidden, ffn_act   |
 *     loss           | target_rows, head_rows        |                            | residual, saved
 *     head backward  | dhead_rows            dx, dy  |                            | residual, saved
 *     backward       | dq, dk, dv or dffn    dx, dy  | q, k, workspace            | residual, saved,
 *                    |                               |   or ffn_hidden, ffn_act   |   gradients
 *     its end        | dpatch_rows           dx, dy  |                            | gradients
 *
 * The backward pass goes through the blocks from the last to the first. When it comes to the gradients of a
 * block's weights, it has no more use for what was kept of the blocks behind, and so they find room there. */
#include "model/dit_internal.h"

/* `n` elements of `dtype`. */
static void *take(DsvArena *arena, DsvMemClass mem_class, DsvDtype dtype, int64_t n)
{
    return dsvi_arena_take(arena, mem_class, (size_t)n * dsvi_dtype_size(dtype));
}

/* What survives the forward pass, if there is a backward pass to use it. */
static DsvMemClass kept(const DsvDit *dit)
{
    return dit->shape.backward ? DSV_MEM_ACTIVATIONS : DSV_MEM_SCRATCH;
}

void dsvi_dit_carve(DsvDit *dit, DsvArena *arena)
{
    int64_t pairs = dit->tokens * (dit->head_dim / 2);
    dit->order = take(arena, DSV_MEM_SCRATCH, DSV_I32, dit->all_tokens);
    dit->rope_cos = take(arena, DSV_MEM_SCRATCH, dit->acc, pairs);
    dit->rope_sin = take(arena, DSV_MEM_SCRATCH, dit->acc, pairs);
}

/* ---- from the inputs to the end of a pass ---- */

static void carve_embedded(DsvDit *dit, DsvArena *arena)
{
    DsvDitEmbedded *e = &dit->embedded;
    DsvMemClass c = kept(dit);
    DsvDtype act = dit->act, acc = dit->acc;
    int64_t text = dit->batch * dit->text_len, time = dit->batch * dit->width;
    e->patch_rows = take(arena, c, act, dit->batch * dit->tokens * dit->patch_in);
    e->text = take(arena, c, act, text * dit->config.text_dim);
    e->text_hidden = take(arena, c, act, text * dit->width);
    e->text_act = take(arena, c, act, text * dit->width);
    e->context = take(arena, c, act, text * dit->width);
    e->time_row = take(arena, c, acc, dit->batch * dit->config.freq_dim);
    e->time_hidden = take(arena, c, acc, time);
    e->time_act = take(arena, c, acc, time);
    e->time = take(arena, c, acc, time);
    e->time_silu = take(arena, c, acc, time);
    e->modulation = take(arena, c, acc, 6 * time);
    e->head_modulation = take(arena, c, acc, 2 * time);
}

static void carve_scratch(DsvDit *dit, DsvArena *arena)
{
    DsvDitScratch *s = &dit->scratch;
    DsvMemClass c = DSV_MEM_SCRATCH;
    DsvDtype act = dit->act, acc = dit->acc;
    int64_t stream = dit->batch * dit->tokens * dit->width;
    int64_t longest = dit->tokens > dit->text_len ? dit->tokens : dit->text_len;
    s->x1 = dit->shape.backward ? take(arena, c, acc, stream) : dit->residual[0];
    s->modulation = take(arena, c, acc, dit->config.num_layers * 6 * dit->batch * dit->width);
    s->h = take(arena, c, act, stream);
    s->cross_k = take(arena, c, act, dit->batch * dit->text_len * dit->width);
    s->mean = take(arena, c, acc, dit->batch * longest);
    s->rstd = take(arena, c, acc, dit->batch * longest);
    s->rstd_k = take(arena, c, acc, dit->batch * longest);
}

/* Gradients of text, time and modulation: small. */
static void carve_small_gradients(DsvDit *dit, DsvArena *arena)
{
    DsvDitScratch *s = &dit->scratch;
    DsvMemClass c = DSV_MEM_SCRATCH;
    DsvDtype act = dit->act, acc = dit->acc;
    int64_t text = dit->batch * dit->text_len * dit->width, time = dit->batch * dit->width;
    s->dcontext = take(arena, c, acc, text);
    s->dembedding = take(arena, c, acc, 6 * time);
    s->dmodulation = take(arena, c, acc, dit->config.num_layers * 6 * time);
    s->dy_sum = take(arena, c, acc, dit->config.num_layers * dit->width);
    s->dhead_modulation = take(arena, c, acc, 2 * time);
    s->dtime = take(arena, c, acc, time);
    s->dtime_hidden = take(arena, c, acc, time);
    s->dcross_k = take(arena, c, act, text);
    s->dcross_v = take(arena, c, act, text);
    s->dtext = take(arena, c, act, text);
    s->dtext_hidden = take(arena, c, act, text);
}

/* ---- rows of both ends, and the gradients that come after them ---- */

/* dhead_rows are made of head_rows, when target_rows are done with: they are no longer than those. */
static void carve_gradients(DsvDit *dit, DsvArena *arena)
{
    DsvDitScratch *s = &dit->scratch;
    DsvMemClass c = DSV_MEM_SCRATCH;
    int64_t rows = dit->batch * dit->tokens, stream = rows * dit->width;
    DsvArenaOverlay over = dsvi_arena_overlay(arena);
    s->dhead_rows = take(arena, c, dit->act, rows * dit->patch_out);
    dsvi_arena_instead(arena, &over);
    s->dq = take(arena, c, dit->act, stream);
    s->dk = take(arena, c, dit->act, stream);
    s->dv = take(arena, c, dit->act, stream);
    dsvi_arena_instead(arena, &over);
    s->dffn = take(arena, c, dit->act, dsvi_dit_ffn_rows(dit) * dit->ffn);
    dsvi_arena_instead(arena, &over);
    s->dpatch_rows = take(arena, c, dit->acc, rows * dit->patch_in);
    dsvi_arena_overlay_end(arena, &over);
    s->dx = take(arena, c, dit->acc, stream);
    s->dy = take(arena, c, dit->act, stream);
}

static void carve_ends(DsvDit *dit, DsvArena *arena)
{
    DsvDitScratch *s = &dit->scratch;
    int64_t rows = dit->batch * (dit->shape.loss ? dit->tokens : dit->all_tokens) * dit->patch_out;
    DsvArenaOverlay over = dsvi_arena_overlay(arena);
    s->target_rows = dit->shape.loss ? take(arena, DSV_MEM_SCRATCH, dit->acc, rows) : NULL;
    s->head_rows = take(arena, DSV_MEM_SCRATCH, dit->acc, rows);
    dsvi_arena_instead(arena, &over);
    if (dit->shape.backward)
        carve_gradients(dit, arena);
    dsvi_arena_overlay_end(arena, &over);
}

/* ---- blocks ---- */

/* Of self-attention, or of cross-attention. */
static void carve_attention_workspace(DsvDit *dit, DsvArena *arena)
{
    DsvDitScratch *s = &dit->scratch;
    DsvArenaOverlay over = dsvi_arena_overlay(arena);
    if (dit->sparse)
        dsvi_sparse_carve_call(dit->sparse, arena);
    dsvi_arena_instead(arena, &over);
    s->attention_bytes = dsvi_dit_attention_workspace(dit);
    s->attention = dsvi_arena_take(arena, DSV_MEM_SCRATCH, s->attention_bytes);
    dsvi_arena_overlay_end(arena, &over);
}

/* Attention's tensors, or the feed-forward layer's. */
static void carve_sublayers(DsvDit *dit, DsvArena *arena)
{
    DsvDitScratch *s = &dit->scratch;
    DsvMemClass c = DSV_MEM_SCRATCH;
    int64_t stream = dit->batch * dit->tokens * dit->width, ffn = dsvi_dit_ffn_rows(dit) * dit->ffn;
    DsvArenaOverlay over = dsvi_arena_overlay(arena);
    s->q = take(arena, c, dit->act, stream);
    s->k = take(arena, c, dit->act, stream);
    carve_attention_workspace(dit, arena);
    dsvi_arena_instead(arena, &over);
    if (!dsvi_dit_keeps_all(dit)) {
        s->ffn_hidden = take(arena, c, dit->act, ffn);
        s->ffn_act = take(arena, c, dit->act, ffn);
    }
    dsvi_arena_overlay_end(arena, &over);
}

static size_t lse_bytes(const DsvDit *dit)
{
    if (dit->shape.context)
        return dsvi_context_lse_bytes(dit->shape.context, dit->batch, dit->acc);
    return (size_t)(dit->batch * dit->heads * dit->tokens) * dsvi_dtype_size(dit->acc);
}

static void carve_attended(const DsvDit *dit, DsvArena *arena, DsvDitSaved *saved)
{
    saved->attended = take(arena, kept(dit), dit->act, dit->batch * dit->tokens * dit->width);
    saved->lse = dsvi_arena_take(arena, kept(dit), lse_bytes(dit));
}

/* All of a block but what carve_attended takes. */
static void carve_saved(const DsvDit *dit, DsvArena *arena, DsvDitSaved *saved)
{
    DsvMemClass c = kept(dit);
    DsvDtype act = dit->act, acc = dit->acc;
    int64_t rows = dit->batch * dit->tokens, stream = rows * dit->width;
    int64_t text = dit->batch * dit->text_len * dit->width;
    saved->q = take(arena, c, act, stream);
    saved->k = take(arena, c, act, stream);
    saved->v = take(arena, c, act, stream);
    saved->cross_q = take(arena, c, act, stream);
    saved->cross_k = take(arena, c, act, text);
    saved->cross_v = take(arena, c, act, text);
    saved->cross_attended = take(arena, c, act, stream);
    saved->cross_lse = take(arena, c, acc, dit->batch * dit->heads * dit->tokens);
    saved->y_self = take(arena, c, act, stream);
    saved->y_ffn = take(arena, c, act, stream);
    saved->x2 = dit->shape.backward ? take(arena, c, acc, stream) : dit->residual[0];
    saved->ffn_hidden = dit->scratch.ffn_hidden;
    saved->ffn_act = dit->scratch.ffn_act;
    if (!dsvi_dit_keeps_all(dit))
        return;
    saved->ffn_hidden = take(arena, c, act, rows * dit->ffn);
    saved->ffn_act = take(arena, c, act, rows * dit->ffn);
}

/* Without backward the residual stream goes through all blocks in place: each sum may overwrite its first
 * summand. */
static void carve_residual(DsvDit *dit, DsvArena *arena, int64_t block)
{
    bool own = block == 0 || dit->shape.backward;
    int64_t stream = dit->batch * dit->tokens * dit->width;
    dit->residual[block] = own ? take(arena, kept(dit), dit->acc, stream) : dit->residual[0];
}

/* With gradient checkpointing a block's activations are made again when its turn comes, after those of the
 * block behind it have been used: one set serves all. So it does without backward, where a block needs
 * nothing of the one before. */
static void carve_block(DsvDit *dit, DsvArena *arena, int64_t block)
{
    bool every_attended = dit->shape.backward && dit->shape.keep != DSV_KEEP_INPUT;
    dit->saved[block] = dit->saved[0];
    if (block > 0)
        carve_residual(dit, arena, block);
    if (block == 0 || dsvi_dit_keeps_all(dit))
        carve_saved(dit, arena, &dit->saved[block]);
    if (block == 0 || every_attended)
        carve_attended(dit, arena, &dit->saved[block]);
}

/* Where all gradients may begin, if not before `first`, for those of a stretch to lie behind what has been
 * taken: that may be needed when they are written. */
static size_t behind(const DsvDit *dit, const DsvArena *arena, int64_t stretch, size_t first)
{
    size_t before = (size_t)dit->shape.grad_begin[stretch] * dsvi_dtype_size(dit->acc);
    size_t begin = arena->used > before ? arena->used - before : 0;
    return begin > first ? begin : first;
}

static void fill_up(DsvArena *arena, DsvMemClass mem_class, size_t end)
{
    dsvi_arena_take(arena, mem_class, end > arena->used ? end - arena->used : 0);
}

static void carve_blocks(DsvDit *dit, DsvArena *arena)
{
    const int64_t *grad_begin = dit->shape.grad_begin;
    int64_t layers = dit->config.num_layers;
    DsvArenaOverlay over = dsvi_arena_overlay(arena);
    size_t first = arena->used;
    for (int64_t block = 0; block < layers; block++) {
        carve_block(dit, arena, block);
        first = grad_begin ? behind(dit, arena, block + 1, first) : first;
    }
    carve_residual(dit, arena, layers);
    if (!grad_begin)
        return;
    first = behind(dit, arena, layers + 1, first);
    size_t end = arena->used;
    dsvi_arena_instead(arena, &over);
    fill_up(arena, kept(dit), first);
    dit->room.grad = take(arena, DSV_MEM_GRADIENTS, dit->acc, grad_begin[layers + 2]);
    fill_up(arena, kept(dit), end);
    dsvi_arena_overlay_end(arena, &over);
}

/* ---- a pass ---- */

static void carve_inputs(DsvDit *dit, DsvArena *arena)
{
    int64_t places = dit->batch * dit->all_tokens;
    dit->room.latents = take(arena, DSV_MEM_DATA, dit->acc, places * dit->patch_in);
    dit->room.target = take(arena, DSV_MEM_DATA, dit->acc, places * dit->patch_out);
}

void dsvi_dit_carve_pass(DsvDit *dit, DsvArena *arena)
{
    carve_embedded(dit, arena);
    carve_residual(dit, arena, 0);
    carve_scratch(dit, arena);
    if (dit->shape.backward)
        carve_small_gradients(dit, arena);
    carve_ends(dit, arena);
    DsvArenaOverlay over = dsvi_arena_overlay(arena);
    if (dit->shape.loss)
        carve_inputs(dit, arena);
    dsvi_arena_instead(arena, &over);
    carve_sublayers(dit, arena);
    carve_blocks(dit, arena);
    dsvi_arena_overlay_end(arena, &over);
}

DsvDitRoom dsvi_dit_room(const DsvDit *dit)
{
    return dit->room;
}
