/* Memory layout of the transformer. The functions of this file run twice, with an arena that only counts
 * bytes and with an arena bound to memory (base/arena.h), and must take the same pieces both times.
 *
 * In a training pass buffers share memory if they are never needed at the same time. Each column of this
 * table is one region of memory, each row a period of time:
 *
 *     time           | both ends, gradients of rows  | sub-layers                 | blocks
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
 * The backward pass goes through the blocks from the last to the first. When it computes the gradients of
 * a block's weights, activations of later blocks are not needed any more, and the gradients are stored in
 * their memory. */
#include "model/dit/dit_internal.h"

/* Takes memory for `n` elements of `dtype` from the arena. */
static void *dit_plan_take(DsviArena *arena, DsviMemClass mem_class, DsviDtype dtype, int64_t n)
{
    return dsvi_arena_take(arena, mem_class, (size_t)n * dsvi_dtype_size(dtype));
}

/* Returns the class of memory that is kept from forward to backward pass, if there is a backward pass. */
static DsviMemClass kept(const DsviDit *dit)
{
    return dit->shape.backward ? DSVI_MEM_ACTIVATIONS : DSVI_MEM_SCRATCH;
}

void dsvi_dit_carve(DsviDit *dit, DsviArena *arena)
{
    int64_t pairs = dit->tokens * (dit->head_dim / 2);
    dit->order = dit_plan_take(arena, DSVI_MEM_SCRATCH, DSVI_I32, dit->all_tokens);
    dit->rope_cos = dit_plan_take(arena, DSVI_MEM_SCRATCH, dit->acc, pairs);
    dit->rope_sin = dit_plan_take(arena, DSVI_MEM_SCRATCH, dit->acc, pairs);
    if (!dit->shape.given_first)
        return;
    dit->of_time = dit_plan_take(arena, DSVI_MEM_SCRATCH, DSVI_I32, dit->tokens);
    if (dit->shape.loss)
        dit->loss_weight = dit_plan_take(arena, DSVI_MEM_SCRATCH, dit->acc, dit->tokens * dit->patch_out);
}

/* ---- buffers that are valid through a whole pass ---- */

static void carve_embedded(DsviDit *dit, DsviArena *arena)
{
    DsviDitEmbedded *e = &dit->embedded;
    DsviMemClass c = kept(dit);
    DsviDtype act = dit->act, acc = dit->acc;
    int64_t text = dit->batch * dit->text_len, time = dit->time_rows * dit->width;
    e->patch_rows = dit_plan_take(arena, c, act, dit->batch * dit->tokens * dit->patch_in);
    e->text = dit_plan_take(arena, c, act, text * dit->config.text_dim);
    e->text_hidden = dit_plan_take(arena, c, act, text * dit->width);
    e->text_act = dit_plan_take(arena, c, act, text * dit->width);
    e->text_states = dit_plan_take(arena, c, act, text * dit->width);
    int64_t image = dit->batch * dit->image_len, image_dim = dit->config.image_dim;
    bool positions = dit->config.pos_embed_seq_len > 0;
    e->image_rows = positions ? dit_plan_take(arena, c, acc, image * image_dim) : NULL;
    e->image_normed = dit_plan_take(arena, c, act, image * image_dim);
    e->image_hidden = dit_plan_take(arena, c, act, image * image_dim);
    e->image_act = dit_plan_take(arena, c, act, image * image_dim);
    e->image_out = dit_plan_take(arena, c, acc, image * dit->width);
    e->image_states = dit_plan_take(arena, c, act, image * dit->width);
    e->time_row = dit_plan_take(arena, c, acc, dit->time_rows * dit->config.freq_dim);
    e->time_hidden = dit_plan_take(arena, c, acc, time);
    e->time_act = dit_plan_take(arena, c, acc, time);
    e->time = dit_plan_take(arena, c, acc, time);
    e->time_silu = dit_plan_take(arena, c, acc, time);
    e->modulation = dit_plan_take(arena, c, acc, 6 * time);
    e->head_modulation = dit_plan_take(arena, c, acc, 2 * time);
}

/* Returns the number of rows that hold the text or the image of a batch. */
static int64_t condition_rows(const DsviDit *dit)
{
    return dit->batch * (dit->text_len > dit->image_len ? dit->text_len : dit->image_len);
}

static void carve_scratch(DsviDit *dit, DsviArena *arena)
{
    DsviDitScratch *s = &dit->scratch;
    DsviMemClass c = DSVI_MEM_SCRATCH;
    DsviDtype act = dit->act, acc = dit->acc;
    int64_t stream = dit->batch * dit->tokens * dit->width;
    int64_t longest = dit->longest;
    s->x1 = dit->shape.backward ? dit_plan_take(arena, c, acc, stream) : dit->residual[0];
    s->modulation = dit_plan_take(arena, c, acc, dit->config.num_layers * 6 * dit->time_rows * dit->width);
    s->h = dit_plan_take(arena, c, act, stream);
    s->cross_k = dit_plan_take(arena, c, act, condition_rows(dit) * dit->width);
    s->mean = dit_plan_take(arena, c, acc, dit->batch * longest);
    s->rstd = dit_plan_take(arena, c, acc, dit->batch * longest);
    s->rstd_k = dit_plan_take(arena, c, acc, dit->batch * longest);
    if (!dit->shape.lora)
        return;
    s->lora_rows = dit_plan_take(arena, c, act, dit->batch * longest * dit->shape.lora->rank_max);
    s->lora_drows = dit_plan_take(arena, c, act, dit->batch * longest * dit->shape.lora->rank_max);
    s->unread = dit_plan_take(arena, c, acc, 2 * dit->width);
    int64_t of_ffn = dsvi_dit_ffn_rows(dit) * dit->ffn, of_width = dit->batch * longest * dit->width;
    if (dit->shape.lora_dropout > 0)
        s->lora_input = dit_plan_take(arena, c, act, of_ffn > of_width ? of_ffn : of_width);
}

/* Takes gradients of text, image, time and modulation, which are small. */
static void carve_small_gradients(DsviDit *dit, DsviArena *arena)
{
    DsviDitScratch *s = &dit->scratch;
    DsviMemClass c = DSVI_MEM_SCRATCH;
    DsviDtype act = dit->act, acc = dit->acc;
    int64_t text = dit->batch * dit->text_len * dit->width, time = dit->time_rows * dit->width;
    s->dtext_states = dit_plan_take(arena, c, acc, text);
    s->dembedding = dit_plan_take(arena, c, acc, 6 * time);
    s->dmodulation = dit_plan_take(arena, c, acc, dit->config.num_layers * 6 * time);
    s->dy_sum = dit_plan_take(arena, c, acc, dit->config.num_layers * dit->width);
    s->dhead_modulation = dit_plan_take(arena, c, acc, 2 * time);
    s->dtime = dit_plan_take(arena, c, acc, time);
    s->dtime_hidden = dit_plan_take(arena, c, acc, time);
    s->dcross_k = dit_plan_take(arena, c, act, condition_rows(dit) * dit->width);
    s->dcross_v = dit_plan_take(arena, c, act, condition_rows(dit) * dit->width);
    s->dtext = dit_plan_take(arena, c, act, text);
    s->dtext_hidden = dit_plan_take(arena, c, act, text);
    int64_t image = dit->batch * dit->image_len, image_dim = dit->config.image_dim;
    s->dimage_states = dit_plan_take(arena, c, acc, image * dit->width);
    s->dimage_out = dit_plan_take(arena, c, acc, image * dit->width);
    s->dimage_act = dit_plan_take(arena, c, act, image * dit->width);
    s->dimage_hidden = dit_plan_take(arena, c, act, image * image_dim);
    s->dimage_normed = dit_plan_take(arena, c, act, image * image_dim);
    s->dimage_rows = dit_plan_take(arena, c, acc, image * image_dim);
}

/* ---- patches of both ends, and gradients in the same memory ---- */

/* Takes the gradients that share memory with target_rows and head_rows. dhead_rows is converted from
 * head_rows while target_rows is not needed any more; it is at most as long as target_rows, so it does not
 * overwrite head_rows. */
static void carve_gradients(DsviDit *dit, DsviArena *arena)
{
    DsviDitScratch *s = &dit->scratch;
    DsviMemClass c = DSVI_MEM_SCRATCH;
    int64_t rows = dit->batch * dit->tokens, stream = rows * dit->width;
    DsviArenaOverlay over = dsvi_arena_overlay_begin(arena);
    s->dhead_rows = dit_plan_take(arena, c, dit->act, rows * dit->patch_out);
    dsvi_arena_overlay_next(arena, &over);
    s->dq = dit_plan_take(arena, c, dit->act, stream);
    s->dk = dit_plan_take(arena, c, dit->act, stream);
    s->dv = dit_plan_take(arena, c, dit->act, stream);
    dsvi_arena_overlay_next(arena, &over);
    s->dffn = dit_plan_take(arena, c, dit->act, dsvi_dit_ffn_rows(dit) * dit->ffn);
    dsvi_arena_overlay_next(arena, &over);
    s->dpatch_rows = dit_plan_take(arena, c, dit->acc, rows * dit->patch_in);
    dsvi_arena_overlay_end(arena, &over);
    s->dx = dit_plan_take(arena, c, dit->acc, stream);
    s->dy = dit_plan_take(arena, c, dit->act, stream);
}

static void carve_ends(DsviDit *dit, DsviArena *arena)
{
    DsviDitScratch *s = &dit->scratch;
    int64_t rows = dit->batch * (dit->shape.loss ? dit->tokens : dit->all_tokens) * dit->patch_out;
    DsviArenaOverlay over = dsvi_arena_overlay_begin(arena);
    s->target_rows = dit->shape.loss ? dit_plan_take(arena, DSVI_MEM_SCRATCH, dit->acc, rows) : NULL;
    s->head_rows = dit_plan_take(arena, DSVI_MEM_SCRATCH, dit->acc, rows);
    dsvi_arena_overlay_next(arena, &over);
    if (dit->shape.backward)
        carve_gradients(dit, arena);
    dsvi_arena_overlay_end(arena, &over);
}

/* ---- blocks ---- */

/* Takes one workspace for self-attention and cross-attention, which are never computed at the same time. */
static void carve_attention_workspace(DsviDit *dit, DsviArena *arena)
{
    DsviDitScratch *s = &dit->scratch;
    DsviArenaOverlay over = dsvi_arena_overlay_begin(arena);
    if (dit->sparse)
        dsvi_sparse_carve_call(dit->sparse, arena);
    dsvi_arena_overlay_next(arena, &over);
    s->attention_bytes = dsvi_dit_attention_workspace(dit);
    s->attention = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, s->attention_bytes);
    dsvi_arena_overlay_end(arena, &over);
}

/* Takes one region for the tensors of attention and those of the feed-forward layer. */
static void carve_sublayers(DsviDit *dit, DsviArena *arena)
{
    DsviDitScratch *s = &dit->scratch;
    DsviMemClass c = DSVI_MEM_SCRATCH;
    int64_t stream = dit->batch * dit->tokens * dit->width, ffn = dsvi_dit_ffn_rows(dit) * dit->ffn;
    DsviArenaOverlay over = dsvi_arena_overlay_begin(arena);
    s->q = dit_plan_take(arena, c, dit->act, stream);
    s->k = dit_plan_take(arena, c, dit->act, stream);
    carve_attention_workspace(dit, arena);
    dsvi_arena_overlay_next(arena, &over);
    if (dit->last_shared >= 0) {
        s->ffn_hidden = dit_plan_take(arena, c, dit->act, ffn);
        s->ffn_act = dit_plan_take(arena, c, dit->act, ffn);
    }
    dsvi_arena_overlay_end(arena, &over);
}

void dsvi_dit_keep_blocks(DsviDit *dit, const DsviDitKept *blocks)
{
    int64_t layers = dit->config.num_layers;
    dit->stacked = 0;
    dit->last_shared = -1;
    for (int64_t block = 0; block < layers; block++) {
        bool all = dit->shape.backward && blocks[block].keep == DSVI_KEEP_ALL;
        dit->kept[block] = dit->shape.backward ? blocks[block] : (DsviDitKept){DSVI_KEEP_INPUT, false};
        dit->number[block] = !all && dit->kept[block].host ? dit->stacked++ : -1;
        dit->last_shared = all ? dit->last_shared : block;
    }
    dit->number[layers] = dit->stacked > 0 ? dit->stacked : -1;
}

size_t dsvi_dit_lse_bytes(const DsviDit *dit)
{
    if (dit->shape.cp)
        return dsvi_cp_lse_bytes(dit->shape.cp, dit->batch, dit->acc);
    return (size_t)(dit->batch * dit->heads * dit->tokens) * dsvi_dtype_size(dit->acc);
}

static void carve_attended(const DsviDit *dit, DsviArena *arena, DsviDitSaved *saved)
{
    saved->attended = dit_plan_take(arena, kept(dit), dit->act, dit->batch * dit->tokens * dit->width);
    saved->lse = dsvi_arena_take(arena, kept(dit), dsvi_dit_lse_bytes(dit));
}

/* Takes the kept activations of attention over image rows. Without a backward pass its output is stored in
 * the memory of v of self-attention, which is used again after the feed-forward layer has begun. */
static void carve_saved_image(const DsviDit *dit, DsviArena *arena, DsviDitSaved *saved)
{
    int64_t image = dit->batch * dit->image_len * dit->width, rows = dit->batch * dit->tokens;
    if (dit->image_len == 0)
        return;
    saved->image_k = dit_plan_take(arena, kept(dit), dit->act, image);
    saved->image_v = dit_plan_take(arena, kept(dit), dit->act, image);
    saved->image_attended = dit->shape.backward ? dit_plan_take(arena, kept(dit), dit->act, rows * dit->width)
                                                : saved->v;
    saved->image_lse = dit_plan_take(arena, kept(dit), dit->acc, rows * dit->heads);
}

/* Takes all activations of a block except those of carve_attended. Without a backward pass q, k and v of
 * self-attention are not needed any more when cross-attention begins, and three later tensors are stored in
 * their memory. */
static void carve_saved(const DsviDit *dit, DsviArena *arena, bool all, DsviDitSaved *saved)
{
    DsviMemClass c = kept(dit);
    DsviDtype act = dit->act, acc = dit->acc;
    int64_t rows = dit->batch * dit->tokens, stream = rows * dit->width;
    int64_t text = dit->batch * dit->text_len * dit->width;
    saved->q = dit_plan_take(arena, c, act, stream);
    saved->k = dit_plan_take(arena, c, act, stream);
    saved->v = dit_plan_take(arena, c, act, stream);
    saved->cross_q = dit->shape.backward ? dit_plan_take(arena, c, act, stream) : saved->q;
    saved->cross_k = dit_plan_take(arena, c, act, text);
    saved->cross_v = dit_plan_take(arena, c, act, text);
    saved->cross_attended = dit->shape.backward ? dit_plan_take(arena, c, act, stream) : saved->k;
    saved->cross_lse = dit_plan_take(arena, c, acc, dit->batch * dit->heads * dit->tokens);
    carve_saved_image(dit, arena, saved);
    saved->y_self = dit_plan_take(arena, c, act, stream);
    saved->y_ffn = dit->shape.backward ? dit_plan_take(arena, c, act, stream) : saved->v;
    saved->x2 = dit->shape.backward ? dit_plan_take(arena, c, acc, stream) : dit->residual[0];
    saved->ffn_hidden = dit->scratch.ffn_hidden;
    saved->ffn_act = dit->scratch.ffn_act;
    if (!all)
        return;
    saved->ffn_hidden = dit_plan_take(arena, c, act, rows * dit->ffn);
    saved->ffn_act = dit_plan_take(arena, c, act, rows * dit->ffn);
}

/* Takes the input of a block or of the head. Without backward all share one buffer: each sum of the residual
 * stream and a sub-layer's output overwrites the residual stream. */
static void carve_residual(DsviDit *dit, DsviArena *arena, int64_t block)
{
    int64_t stream = dit->batch * dit->tokens * dit->width, number = dit->number[block];
    DsviDitStackSet *set = &dit->stack[number >= 0 ? number % DSVI_STACK_SETS : 0];
    void **residual = &dit->residual[block];
    if (!dit->shape.backward && block > 0)
        *residual = dit->residual[0];
    else if (number >= DSVI_STACK_SETS)
        *residual = set->residual;
    else
        *residual = dit_plan_take(arena, kept(dit), dit->acc, stream);
    if (number >= 0)
        set->residual = *residual;
}

/* Takes the output of a block's self-attention, unless an earlier block of the stack has its memory. */
static void carve_kept_attention(DsviDit *dit, DsviArena *arena, int64_t block)
{
    DsviDitSaved *saved = &dit->saved[block];
    if (dit->number[block] < 0) {
        carve_attended(dit, arena, saved);
        return;
    }
    DsviDitStackSet *set = &dit->stack[dit->number[block] % DSVI_STACK_SETS];
    if (!set->attends) {
        carve_attended(dit, arena, saved);
        *set = (DsviDitStackSet){set->residual, saved->attended, saved->lse, true};
    }
    saved->attended = set->attended;
    saved->lse = set->lse;
}

/* Takes what blocks share: the activations that they do not keep. A block's activations are computed again
 * when those of the following block have been used. Without a backward pass all blocks share one set too. */
static void carve_shared(DsviDit *dit, DsviArena *arena)
{
    bool attends = false;
    for (int64_t block = 0; block < dit->config.num_layers; block++)
        attends |= dit->kept[block].keep == DSVI_KEEP_INPUT;
    if (dit->last_shared >= 0)
        carve_saved(dit, arena, false, &dit->shared);
    if (attends)
        carve_attended(dit, arena, &dit->shared);
    for (int i = 0; i < DSVI_STACK_SETS; i++)
        dit->stack[i].attends = false;
}

/* Takes the activations that a block has for itself. */
static void carve_block(DsviDit *dit, DsviArena *arena, int64_t block)
{
    bool all = dsvi_dit_keeps_all(dit, block);
    dit->saved[block] = all ? (DsviDitSaved){0} : dit->shared;
    if (block > 0)
        carve_residual(dit, arena, block);
    if (all)
        carve_saved(dit, arena, true, &dit->saved[block]);
    if (dit->kept[block].keep != DSVI_KEEP_INPUT)
        carve_kept_attention(dit, arena, block);
}

/* Returns the lowest offset, at least `first`, at which the array of all gradients may begin so that the
 * gradients of `bucket` are stored after everything taken so far, which may still be needed when they are
 * written. */
static size_t lowest_gradients(const DsviDit *dit, const DsviArena *arena, int64_t bucket, size_t first)
{
    size_t before = (size_t)dit->shape.grad_begin[bucket] * dsvi_dtype_size(dit->acc);
    size_t begin = arena->used > before ? arena->used - before : 0;
    return begin > first ? begin : first;
}

/* Takes the arena's memory up to offset `end`, unless all of this memory is taken already. */
static void fill_up(DsviArena *arena, DsviMemClass mem_class, size_t end)
{
    dsvi_arena_take(arena, mem_class, end > arena->used ? end - arena->used : 0);
}

static void carve_blocks(DsviDit *dit, DsviArena *arena)
{
    const int64_t *grad_begin = dit->shape.grad_begin;
    int64_t layers = dit->config.num_layers;
    DsviArenaOverlay over = dsvi_arena_overlay_begin(arena);
    size_t first = arena->used;
    carve_shared(dit, arena);
    for (int64_t block = 0; block < layers; block++) {
        carve_block(dit, arena, block);
        first = grad_begin ? lowest_gradients(dit, arena, block + 1, first) : first;
    }
    carve_residual(dit, arena, layers);
    if (!grad_begin)
        return;
    first = lowest_gradients(dit, arena, layers + 1, first);
    size_t end = arena->used;
    dsvi_arena_overlay_next(arena, &over);
    fill_up(arena, kept(dit), first);
    dit->room.grad = dit_plan_take(arena, DSVI_MEM_GRADIENTS, dit->acc, grad_begin[layers + 2]);
    fill_up(arena, kept(dit), end);
    dsvi_arena_overlay_end(arena, &over);
}

/* ---- parts of the layout ---- */

size_t dsvi_dit_input_bytes(const DsviDit *dit)
{
    DsviArena arena;
    dsvi_arena_plan(&arena);
    dit_plan_take(&arena, kept(dit), dit->acc, dit->batch * dit->tokens * dit->width);
    return arena.used;
}

size_t dsvi_dit_own_bytes(const DsviDit *dit, DsviDitKeep keep)
{
    DsviDitSaved saved;
    DsviArena arena;
    dsvi_arena_plan(&arena);
    if (keep == DSVI_KEEP_ALL)
        carve_saved(dit, &arena, true, &saved);
    if (keep != DSVI_KEEP_INPUT)
        carve_attended(dit, &arena, &saved);
    return dsvi_dit_input_bytes(dit) + arena.used;
}

size_t dsvi_dit_gradients_from(const DsviDit *dit, int64_t bucket)
{
    const int64_t *begin = dit->shape.grad_begin;
    int64_t end = dit->config.num_layers + 2;
    return begin ? (size_t)(begin[end] - begin[bucket]) * dsvi_dtype_size(dit->acc) : 0;
}

/* ---- a pass ---- */

static void carve_inputs(DsviDit *dit, DsviArena *arena)
{
    int64_t places = dit->batch * dit->all_tokens;
    dit->room.latents = dit_plan_take(arena, DSVI_MEM_DATA, dit->acc, places * dit->patch_in);
    dit->room.target = dit_plan_take(arena, DSVI_MEM_DATA, dit->acc, places * dit->patch_out);
}

void dsvi_dit_carve_pass(DsviDit *dit, DsviArena *arena)
{
    carve_embedded(dit, arena);
    carve_residual(dit, arena, 0);
    carve_scratch(dit, arena);
    if (dit->shape.backward)
        carve_small_gradients(dit, arena);
    carve_ends(dit, arena);
    DsviArenaOverlay over = dsvi_arena_overlay_begin(arena);
    if (dit->shape.loss)
        carve_inputs(dit, arena);
    dsvi_arena_overlay_next(arena, &over);
    carve_sublayers(dit, arena);
    carve_blocks(dit, arena);
    dsvi_arena_overlay_end(arena, &over);
}

DsviDitBuffers dsvi_dit_buffers(const DsviDit *dit)
{
    return dit->room;
}
