/* Everything the transformer takes from memory, in one place. Run twice, on a planning and on a bound arena
 * (base/arena.h): nothing here may depend on which. */
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

/* Whether each block has activations of its own. */
static bool every_saved(const DsvDit *dit)
{
    return dit->shape.backward && dit->shape.keep == DSV_KEEP_ALL;
}

static void carve_tables(DsvDit *dit, DsvArena *arena)
{
    int64_t pairs = dit->tokens * (dit->head_dim / 2);
    dit->order = take(arena, DSV_MEM_SCRATCH, DSV_I32, dit->all_tokens);
    dit->rope_cos = take(arena, DSV_MEM_SCRATCH, dit->acc, pairs);
    dit->rope_sin = take(arena, DSV_MEM_SCRATCH, dit->acc, pairs);
}

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
    int64_t stream = dit->batch * dit->tokens * dit->width, text = dit->batch * dit->text_len * dit->width;
    int64_t ffn = dit->batch * dit->tokens * dit->ffn;
    saved->q = take(arena, c, act, stream);
    saved->k = take(arena, c, act, stream);
    saved->v = take(arena, c, act, stream);
    saved->cross_q = take(arena, c, act, stream);
    saved->cross_k = take(arena, c, act, text);
    saved->cross_v = take(arena, c, act, text);
    saved->cross_attended = take(arena, c, act, stream);
    saved->cross_lse = take(arena, c, acc, dit->batch * dit->heads * dit->tokens);
    saved->ffn_hidden = take(arena, c, act, ffn);
    saved->ffn_act = every_saved(dit) ? take(arena, c, act, ffn) : dit->scratch.ffn_act;
    saved->y_self = take(arena, c, act, stream);
    saved->y_ffn = take(arena, c, act, stream);
    saved->x2 = dit->shape.backward ? take(arena, c, acc, stream) : dit->residual[0];
}

/* Without backward the residual stream goes through all blocks in place, as each sum may overwrite its first
 * summand, and a block needs nothing of the one before. With gradient checkpointing a block's activations are
 * made again when its turn comes, after those of the block behind it have been used: one set serves all. */
static void carve_blocks(DsvDit *dit, DsvArena *arena)
{
    bool every_input = dit->shape.backward;
    bool every_attended = every_input && dit->shape.keep != DSV_KEEP_INPUT;
    int64_t stream = dit->batch * dit->tokens * dit->width;
    for (int64_t i = 0; i <= dit->config.num_layers; i++)
        dit->residual[i] = i == 0 || every_input ? take(arena, kept(dit), dit->acc, stream)
                                                 : dit->residual[0];
    for (int64_t i = 0; i < dit->config.num_layers; i++) {
        dit->saved[i] = dit->saved[0];
        if (i == 0 || every_saved(dit))
            carve_saved(dit, arena, &dit->saved[i]);
        if (i == 0 || every_attended)
            carve_attended(dit, arena, &dit->saved[i]);
    }
}

/* Attention's tensors and the feed-forward layer's, in the same memory. */
static void carve_shared(DsvDit *dit, DsvArena *arena)
{
    DsvDitScratch *s = &dit->scratch;
    bool backward = dit->shape.backward;
    size_t size = dsvi_dtype_size(dit->act), rows = (size_t)(dit->batch * dit->tokens);
    /* rounded up, so that each piece begins as aligned as the arena's own */
    size_t narrow = (rows * (size_t)dit->width * size + 63) / 64 * 64;
    size_t wide = (rows * (size_t)dit->ffn * size + 63) / 64 * 64;
    size_t activation = every_saved(dit) ? 0 : wide, gradient = backward ? wide : 0;
    size_t attention = (backward ? 5 : 2) * narrow, ffn = activation + gradient;
    char *shared = dsvi_arena_take(arena, DSV_MEM_SCRATCH, attention > ffn ? attention : ffn);
    if (!shared) /* planning */
        return;
    s->q = shared;
    s->k = shared + narrow;
    s->ffn_act = shared;
    if (!backward)
        return;
    s->dq = shared + 2 * narrow;
    s->dk = shared + 3 * narrow;
    s->dv = shared + 4 * narrow;
    s->dffn = shared + activation;
}

static void carve_backward(DsvDit *dit, DsvArena *arena)
{
    DsvDitScratch *s = &dit->scratch;
    DsvMemClass c = DSV_MEM_SCRATCH;
    DsvDtype act = dit->act, acc = dit->acc;
    int64_t rows = dit->batch * dit->tokens;
    int64_t stream = rows * dit->width, text = dit->batch * dit->text_len * dit->width;
    int64_t time = dit->batch * dit->width;
    s->dx = take(arena, c, acc, stream);
    s->dcontext = take(arena, c, acc, text);
    s->dembedding = take(arena, c, acc, 6 * time);
    s->dmodulation = take(arena, c, acc, dit->config.num_layers * 6 * time);
    s->dy_sum = take(arena, c, acc, dit->config.num_layers * dit->width);
    s->dhead_modulation = take(arena, c, acc, 2 * time);
    s->dtime = take(arena, c, acc, time);
    s->dtime_hidden = take(arena, c, acc, time);
    s->dy = take(arena, c, act, stream);
    s->dcross_k = take(arena, c, act, text);
    s->dcross_v = take(arena, c, act, text);
    s->dtext = take(arena, c, act, text);
    s->dtext_hidden = take(arena, c, act, text);
    s->dhead_rows = take(arena, c, act, rows * dit->patch_out);
    s->dpatch_rows = take(arena, c, acc, rows * dit->patch_in);
}

static void carve_scratch(DsvDit *dit, DsvArena *arena)
{
    DsvDitScratch *s = &dit->scratch;
    DsvMemClass c = DSV_MEM_SCRATCH;
    DsvDtype act = dit->act, acc = dit->acc;
    int64_t rows = dit->batch * dit->tokens, stream = rows * dit->width;
    int64_t longest = dit->tokens > dit->text_len ? dit->tokens : dit->text_len;
    s->x1 = dit->shape.backward ? take(arena, c, acc, stream) : dit->residual[0];
    s->modulation = take(arena, c, acc, dit->config.num_layers * 6 * dit->batch * dit->width);
    s->h = take(arena, c, act, stream);
    s->cross_k = take(arena, c, act, dit->batch * dit->text_len * dit->width);
    s->mean = take(arena, c, acc, dit->batch * longest);
    s->rstd = take(arena, c, acc, dit->batch * longest);
    s->rstd_k = take(arena, c, acc, dit->batch * longest);
    int64_t head_rows = dit->batch * (dit->shape.loss ? dit->tokens : dit->all_tokens);
    s->head_rows = take(arena, c, acc, head_rows * dit->patch_out);
    s->target_rows = dit->shape.loss ? take(arena, c, acc, head_rows * dit->patch_out) : NULL;
    s->attention_bytes = dsvi_dit_attention_workspace(dit);
    s->attention = dsvi_arena_take(arena, c, s->attention_bytes);
    if (dit->shape.backward)
        carve_backward(dit, arena);
}

void dsvi_dit_carve(DsvDit *dit, DsvArena *arena)
{
    carve_tables(dit, arena);
    carve_embedded(dit, arena);
    carve_shared(dit, arena); /* blocks may use it */
    carve_blocks(dit, arena);
    carve_scratch(dit, arena);
}
