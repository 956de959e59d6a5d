/* Attention over the tokens of all ranks (dsvi_cp_attend_fwd and _bwd of cp.h): exchange of tokens for
 * heads, attention, exchange of heads for tokens; and the layout of the workspace. */
#include <stddef.h>

#include "base/arena.h"
#include "cp/cp_internal.h"

/* ---- memory ---- */

size_t dsvi_cp_lse_bytes(const DsviCp *c, int64_t batch, DsviDtype acc)
{
    return (size_t)(batch * c->shape.rows_max) * dsvi_dtype_size(acc);
}

static DsviCpTensor cp_attend_tensor_of(const DsviCpAttention *args, DsviDtype dtype)
{
    return (DsviCpTensor){args->batch, args->head_dim, dtype};
}

static DsviAttentionArgs shapes_of(const DsviCpAttention *args, int64_t heads, int64_t queries, int64_t keys)
{
    DsviHeads of_queries = dsvi_heads(NULL, queries, heads, args->head_dim);
    DsviHeads of_keys = dsvi_heads(NULL, keys, heads, args->head_dim);
    return (DsviAttentionArgs){
        .batch = args->batch,
        .heads = heads,
        .queries = queries,
        .keys = keys,
        .head_dim = args->head_dim,
        .scale = args->scale,
        .act = args->act,
        .acc = args->acc,
        .q = of_queries,
        .k = of_keys,
        .v = of_keys,
        .out = of_queries,
        .dout = of_queries,
        .dq = of_queries,
        .dk = of_keys,
        .dv = of_keys,
    };
}

static size_t cp_attend_larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t op_bytes_of(const DsviBackend *backend, const DsviAttentionArgs *shapes, bool backward)
{
    return backward ? DSVI_OP_WORKSPACE(backend->ops.attention_bwd, backend->device->stream, shapes)
                    : DSVI_OP_WORKSPACE(backend->ops.attention_fwd, backend->device->stream, shapes);
}

/* Returns the bytes of workspace of the attention op for this rank's T queries and `heads` heads: the
 * maximum over the keys of all head groups. */
static size_t op_bytes_of_heads(const DsviCp *c, const DsviCpAttention *args, const DsviCpFactor *factor,
                                int64_t heads, bool backward)
{
    int64_t step = factor->head_ranks, row = c->group->rank / step * step;
    int64_t queries = c->bound[row + step] - c->bound[row], before = -1;
    size_t largest = 0;
    for (int64_t r = 0; r < c->group->size; r += step) {
        int64_t keys = c->bound[r + step] - c->bound[r];
        DsviAttentionArgs shapes = shapes_of(args, heads, queries, keys);
        if (keys != before) /* asking the op for the size of its workspace can be slow, so equal numbers of
                             * keys are skipped */
            largest = cp_attend_larger(largest, op_bytes_of(c->group->backend, &shapes, backward));
        before = keys;
    }
    return largest;
}

/* Returns the bytes of workspace of the attention op: the maximum over the number of heads in an even plan
 * and the largest number of heads in any plan. A workspace for some number of heads is large enough for
 * fewer heads. */
static size_t op_bytes(const DsviCp *c, const DsviCpAttention *args, const DsviCpFactor *factor,
                       bool backward)
{
    int64_t even = (c->shape.heads + factor->head_ranks - 1) / factor->head_ranks;
    int64_t largest = c->shape.rows_max / dsvi_cp_longest(c, factor->head_ranks);
    int64_t possible = c->shape.heads - factor->head_ranks + 1;
    largest = largest < possible ? largest : possible;
    size_t bytes = op_bytes_of_heads(c, args, factor, even, backward);
    return largest == even ? bytes
                           : cp_attend_larger(bytes, op_bytes_of_heads(c, args, factor, largest, backward));
}

static void *cp_attend_take(DsviArena *arena, size_t bytes)
{
    return dsvi_arena_take(arena, DSVI_MEM_SCRATCH, bytes);
}

static void carve_heads_forms(const DsviCp *c, const DsviCpAttention *args, bool backward, DsviArena *arena,
                              DsviCpBuffers *room)
{
    const DsviCpTensor tensor = cp_attend_tensor_of(args, args->act);
    void **const all[] = {&room->q,    &room->k,  &room->v,  &room->out,
                          &room->dout, &room->dq, &room->dk, &room->dv};
    for (int i = 0; i < (backward ? 8 : 4); i++)
        *all[i] = cp_attend_take(arena, dsvi_cp_heads_bytes(c, &tensor));
    room->staging = cp_attend_take(arena, dsvi_cp_move_bytes(c, &tensor));
}

static void carve_ring(const DsviCp *c, const DsviCpAttention *args, const DsviCpFactor *factor,
                       bool backward, DsviArena *arena, DsviCpBuffers *room)
{
    const DsviCpTensor tensor = cp_attend_tensor_of(args, args->act),
                       joint = cp_attend_tensor_of(args, args->acc);
    size_t rows = dsvi_cp_heads_bytes(c, &tensor), sums = dsvi_cp_heads_bytes(c, &joint);
    for (int i = 0; i < (factor->sequence_ranks > 2 ? 2 : 1); i++) {
        room->keys[i] = cp_attend_take(arena, rows);
        room->values[i] = cp_attend_take(arena, rows);
    }
    if (!backward) {
        room->part_out = cp_attend_take(arena, rows);
        room->part_lse = cp_attend_take(arena, dsvi_cp_lse_bytes(c, args->batch, args->acc));
        room->sum = factor->sequence_ranks > 2 ? cp_attend_take(arena, sums) : NULL;
        return;
    }
    for (int i = 0; i < 2; i++) {
        room->sum_dk[i] = cp_attend_take(arena, sums);
        room->sum_dv[i] = cp_attend_take(arena, sums);
    }
    room->sum_dq = cp_attend_take(arena, sums);
    /* with one head rank dk and dv are the caller's tensors, which are too small for the keys of a rank with
     * more tokens */
    room->part_dk = factor->head_ranks > 1 ? room->dk : cp_attend_take(arena, rows);
    room->part_dv = factor->head_ranks > 1 ? room->dv : cp_attend_take(arena, rows);
}

static void carve_workspace(const DsviCp *c, const DsviCpAttention *args, const DsviCpFactor *factor,
                            bool backward, DsviArena *arena, DsviCpBuffers *room)
{
    *room = (DsviCpBuffers){0};
    if (factor->head_ranks > 1)
        carve_heads_forms(c, args, backward, arena, room);
    if (factor->sequence_ranks > 1)
        carve_ring(c, args, factor, backward, arena, room);
}

size_t dsvi_cp_attend_bytes(const DsviCp *c, const DsviCpAttention *args, bool backward)
{
    size_t largest = 0;
    for (int64_t i = 0; i < c->group->factors; i++) {
        const DsviCpFactor *factor = &c->group->factor[i];
        DsviArena arena;
        DsviCpBuffers room;
        if (!dsvi_cp_allows(c, factor))
            continue;
        dsvi_arena_plan(&arena);
        carve_workspace(c, args, factor, backward, &arena, &room);
        cp_attend_take(&arena, op_bytes(c, args, factor, backward));
        largest = cp_attend_larger(largest, arena.used);
    }
    return largest;
}

/* ---- a call ---- */

/* Lays out the workspace of dense attention: the attention op gets all bytes after the other buffers. */
static DsvStatus cp_attend_begin(const DsviCp *c, int64_t block, const DsviCpAttention *args, bool backward,
                                 DsviCpCall *a)
{
    const DsviCpFactor *factor = dsvi_cp_factor(c->group, c->block[block].plan.head_ranks);
    DsviArena arena;
    *a = (DsviCpCall){.c = c, .block = block, .part = dsvi_cp_part(c, block), .heads = *args};
    dsvi_arena_plan(&arena);
    carve_workspace(c, args, factor, backward, &arena, &a->room);
    size_t carved = arena.used;
    if (args->workspace_bytes < carved)
        return DSVI_FAIL(DSV_E_SHAPE, "context-parallel attention: workspace has %zu bytes, expected %zu",
                         args->workspace_bytes, carved);
    dsvi_arena_bind(&arena, args->workspace, carved);
    carve_workspace(c, args, factor, backward, &arena, &a->room);
    a->room.op = args->workspace ? (char *)args->workspace + carved : NULL;
    a->room.op_bytes = args->workspace_bytes - carved;
    return DSV_OK;
}

DsviAttentionArgs dsvi_cp_op_args(const DsviCpCall *a, int64_t keys)
{
    const DsviCpAttention *h = &a->heads;
    DsviAttentionArgs op = shapes_of(h, a->part.heads, a->part.tokens, keys);
    op.q.data = (void *)h->q;
    op.out.data = h->out;
    op.lse = h->lse;
    op.dout.data = (void *)h->dout;
    op.dq.data = h->dq;
    op.workspace = a->room.op;
    op.workspace_bytes = a->room.op_bytes;
    return op;
}

static DsviCpForms cp_attend_forms_of(const DsviCpCall *a, const void *tokens, void *room)
{
    return (DsviCpForms){(void *)tokens, dsvi_cp_heads_address(a->c, a->block, tokens, room)};
}

static DsvStatus cp_attend_to_heads(const DsviCpCall *a, const DsviCpForms *forms, int64_t count)
{
    const DsviCpTensor tensor = cp_attend_tensor_of(&a->heads, a->heads.act);
    return dsvi_cp_to_heads(a->c, a->block, &tensor, forms, count, a->room.staging);
}

static DsvStatus cp_attend_to_tokens(const DsviCpCall *a, const DsviCpForms *forms, int64_t count)
{
    const DsviCpTensor tensor = cp_attend_tensor_of(&a->heads, a->heads.act);
    return dsvi_cp_to_tokens(a->c, a->block, &tensor, forms, count, a->room.staging);
}

/* Exchanges q, k and v, which the forward and the backward pass read, to heads form. */
static DsvStatus inputs_to_heads(DsviCpCall *a, const DsviCpAttention *args)
{
    const DsviCpForms forms[] = {cp_attend_forms_of(a, args->q, a->room.q),
                                 cp_attend_forms_of(a, args->k, a->room.k),
                                 cp_attend_forms_of(a, args->v, a->room.v)};
    a->heads.q = forms[0].heads;
    a->heads.k = forms[1].heads;
    a->heads.v = forms[2].heads;
    return cp_attend_to_heads(a, forms, 3);
}

DsvStatus dsvi_cp_attend_row(const DsviCpCall *a, int64_t row, const DsviAttentionArgs *args)
{
    const DsviBackend *backend = a->c->group->backend;
    const DsviCpRowAttention *other = a->heads.row_attention;
    return other ? other->forward(other->context, row, args)
                 : backend->ops.attention_fwd.run(backend->device->stream, args);
}

DsvStatus dsvi_cp_attend_row_bwd(const DsviCpCall *a, int64_t row, const DsviAttentionArgs *args)
{
    const DsviBackend *backend = a->c->group->backend;
    const DsviCpRowAttention *other = a->heads.row_attention;
    return other ? other->backward(other->context, row, args)
                 : backend->ops.attention_bwd.run(backend->device->stream, args);
}

/* Computes attention with one sequence rank, where the head group has all tokens. */
static DsvStatus attend_all(const DsviCpCall *a, bool backward)
{
    DsviAttentionArgs op = dsvi_cp_op_args(a, a->part.tokens);
    op.k.data = (void *)a->heads.k;
    op.v.data = (void *)a->heads.v;
    op.dk.data = a->heads.dk;
    op.dv.data = a->heads.dv;
    return backward ? dsvi_cp_attend_row_bwd(a, 0, &op) : dsvi_cp_attend_row(a, 0, &op);
}

DsvStatus dsvi_cp_attend_fwd(const DsviCp *c, int64_t block, const DsviCpAttention *args)
{
    DsviCpCall a;
    DSVI_TRY(cp_attend_begin(c, block, args, false, &a));
    const DsviCpForms out = cp_attend_forms_of(&a, args->out, a.room.out);
    DSVI_TRY(inputs_to_heads(&a, args));
    a.heads.out = out.heads;
    DSVI_TRY(a.part.sequence_ranks == 1 ? attend_all(&a, false) : dsvi_cp_ring_fwd(&a));
    return cp_attend_to_tokens(&a, &out, 1);
}

DsvStatus dsvi_cp_attend_bwd(const DsviCp *c, int64_t block, const DsviCpAttention *args)
{
    DsviCpCall a;
    DSVI_TRY(cp_attend_begin(c, block, args, true, &a));
    const DsviCpForms results[] = {cp_attend_forms_of(&a, args->out, a.room.out),
                                   cp_attend_forms_of(&a, args->dout, a.room.dout)};
    const DsviCpForms gradients[] = {cp_attend_forms_of(&a, args->dq, a.room.dq),
                                     cp_attend_forms_of(&a, args->dk, a.room.dk),
                                     cp_attend_forms_of(&a, args->dv, a.room.dv)};
    DSVI_TRY(inputs_to_heads(&a, args));
    DSVI_TRY(cp_attend_to_heads(&a, results, 2));
    a.heads.out = results[0].heads;
    a.heads.dout = results[1].heads;
    a.heads.dq = gradients[0].heads;
    a.heads.dk = gradients[1].heads;
    a.heads.dv = gradients[2].heads;
    DSVI_TRY(a.part.sequence_ranks == 1 ? attend_all(&a, true) : dsvi_cp_ring_bwd(&a));
    return cp_attend_to_tokens(&a, gradients, 3);
}
