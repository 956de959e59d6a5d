/* Dense attention over the tokens of all ranks: to heads, attention, to tokens; and the memory it wants. */
#include <stddef.h>

#include "base/arena.h"
#include "context/context_internal.h"

/* ---- memory ---- */

size_t dsvi_context_lse_bytes(const DsvContext *c, int64_t batch, DsvDtype acc)
{
    return (size_t)(batch * c->shape.rows_most) * dsvi_dtype_size(acc);
}

static DsvContextTensor tensor_of(const DsvContextAttention *args, DsvDtype dtype)
{
    return (DsvContextTensor){args->batch, args->head_dim, dtype};
}

static DsvAttentionArgs shapes_of(const DsvContextAttention *args, int64_t heads, int64_t queries,
                                  int64_t keys)
{
    DsvHeads of_queries = dsvi_heads(NULL, queries, heads, args->head_dim);
    DsvHeads of_keys = dsvi_heads(NULL, keys, heads, args->head_dim);
    return (DsvAttentionArgs){
        .batch = args->batch, .heads = heads, .queries = queries, .keys = keys, .head_dim = args->head_dim,
        .scale = args->scale, .act = args->act, .acc = args->acc,
        .q = of_queries, .k = of_keys, .v = of_keys, .out = of_queries, .dout = of_queries,
        .dq = of_queries, .dk = of_keys, .dv = of_keys,
    };
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t op_bytes_of(const DsvBackend *backend, const DsvAttentionArgs *shapes, bool backward)
{
    return backward ? DSVI_OP_WORKSPACE(backend->ops.attention_bwd, backend->device->stream, shapes)
                    : DSVI_OP_WORKSPACE(backend->ops.attention_fwd, backend->device->stream, shapes);
}

/* For this rank's queries and so many heads, with the keys of whichever stretch. */
static size_t op_bytes_of_heads(const DsvContext *c, const DsvContextAttention *args, const Factor *factor,
                                int64_t heads, bool backward)
{
    int64_t step = factor->head_ranks, row = c->group->rank / step * step;
    int64_t queries = c->bound[row + step] - c->bound[row], before = -1;
    size_t most = 0;
    for (int64_t r = 0; r < c->group->size; r += step) {
        int64_t keys = c->bound[r + step] - c->bound[r];
        DsvAttentionArgs shapes = shapes_of(args, heads, queries, keys);
        if (keys != before) /* to ask may take long, and stretches of one length follow each other */
            most = larger(most, op_bytes_of(c->group->backend, &shapes, backward));
        before = keys;
    }
    return most;
}

/* Of the numbers of heads that even plans give, and of the most that a plan may give: what serves a number of
 * heads serves smaller ones. */
static size_t op_bytes(const DsvContext *c, const DsvContextAttention *args, const Factor *factor,
                       bool backward)
{
    int64_t even = (c->shape.heads + factor->head_ranks - 1) / factor->head_ranks;
    int64_t most = c->shape.rows_most / dsvi_context_longest(c, factor->head_ranks);
    int64_t possible = c->shape.heads - factor->head_ranks + 1;
    most = most < possible ? most : possible;
    size_t bytes = op_bytes_of_heads(c, args, factor, even, backward);
    return most == even ? bytes : larger(bytes, op_bytes_of_heads(c, args, factor, most, backward));
}

static void *take(DsvArena *arena, size_t bytes)
{
    return dsvi_arena_take(arena, DSV_MEM_SCRATCH, bytes);
}

static void lay_heads(const DsvContext *c, const DsvContextAttention *args, bool backward, DsvArena *arena,
                      Room *room)
{
    const DsvContextTensor tensor = tensor_of(args, args->act);
    void **const all[] = {&room->q,    &room->k,  &room->v,  &room->out,
                          &room->dout, &room->dq, &room->dk, &room->dv};
    for (int i = 0; i < (backward ? 8 : 4); i++)
        *all[i] = take(arena, dsvi_context_heads_bytes(c, &tensor));
    room->staging = take(arena, dsvi_context_move_bytes(c, &tensor));
}

static void lay_ring(const DsvContext *c, const DsvContextAttention *args, const Factor *factor,
                     bool backward, DsvArena *arena, Room *room)
{
    const DsvContextTensor tensor = tensor_of(args, args->act), joint = tensor_of(args, args->acc);
    size_t rows = dsvi_context_heads_bytes(c, &tensor), sums = dsvi_context_heads_bytes(c, &joint);
    for (int i = 0; i < (factor->sequence_ranks > 2 ? 2 : 1); i++) {
        room->keys[i] = take(arena, rows);
        room->values[i] = take(arena, rows);
    }
    if (!backward) {
        room->part_out = take(arena, rows);
        room->part_lse = take(arena, dsvi_context_lse_bytes(c, args->batch, args->acc));
        room->sum = factor->sequence_ranks > 2 ? take(arena, sums) : NULL;
        return;
    }
    for (int i = 0; i < 2; i++) {
        room->sum_dk[i] = take(arena, sums);
        room->sum_dv[i] = take(arena, sums);
    }
    room->sum_dq = take(arena, sums);
    /* another's stretch may be longer than the own one, for which alone dk and dv in tokens form have room */
    room->part_dk = factor->head_ranks > 1 ? room->dk : take(arena, rows);
    room->part_dv = factor->head_ranks > 1 ? room->dv : take(arena, rows);
}

static void lay_room(const DsvContext *c, const DsvContextAttention *args, const Factor *factor,
                     bool backward, DsvArena *arena, Room *room)
{
    *room = (Room){0};
    if (factor->head_ranks > 1)
        lay_heads(c, args, backward, arena, room);
    if (factor->sequence_ranks > 1)
        lay_ring(c, args, factor, backward, arena, room);
}

size_t dsvi_context_attend_bytes(const DsvContext *c, const DsvContextAttention *args, bool backward)
{
    size_t most = 0;
    for (int64_t i = 0; i < c->group->factors; i++) {
        const Factor *factor = &c->group->factor[i];
        DsvArena arena;
        Room room;
        if (!dsvi_context_allows(c, factor))
            continue;
        dsvi_arena_plan(&arena);
        lay_room(c, args, factor, backward, &arena, &room);
        take(&arena, op_bytes(c, args, factor, backward));
        most = larger(most, arena.used);
    }
    return most;
}

/* ---- a call ---- */

/* The op gets what is behind the other pieces. */
static DsvStatus begin(const DsvContext *c, int64_t block, const DsvContextAttention *args, bool backward,
                       Attend *a)
{
    const Factor *factor = dsvi_context_factor(c->group, c->block[block].plan.head_ranks);
    DsvArena arena;
    *a = (Attend){.c = c, .block = block, .part = dsvi_context_part(c, block), .heads = *args};
    dsvi_arena_plan(&arena);
    lay_room(c, args, factor, backward, &arena, &a->room);
    size_t wanted = arena.used;
    if (args->workspace_bytes < wanted)
        return DSVI_FAIL(DSV_E_SHAPE, "attention of a context: workspace has %zu bytes, wanted %zu",
                         args->workspace_bytes, wanted);
    dsvi_arena_bind(&arena, args->workspace, wanted);
    lay_room(c, args, factor, backward, &arena, &a->room);
    a->room.op = args->workspace ? (char *)args->workspace + wanted : NULL;
    a->room.op_bytes = args->workspace_bytes - wanted;
    return DSV_OK;
}

DsvAttentionArgs dsvi_context_op_args(const Attend *a, int64_t keys)
{
    const DsvContextAttention *h = &a->heads;
    DsvAttentionArgs op = shapes_of(h, a->part.heads, a->part.tokens, keys);
    op.q.data = (void *)h->q;
    op.out.data = h->out;
    op.lse = h->lse;
    op.dout.data = (void *)h->dout;
    op.dq.data = h->dq;
    op.workspace = a->room.op;
    op.workspace_bytes = a->room.op_bytes;
    return op;
}

static DsvContextForms forms_of(const Attend *a, const void *tokens, void *room)
{
    return (DsvContextForms){(void *)tokens, dsvi_context_heads_place(a->c, a->block, tokens, room)};
}

static DsvStatus to_heads(const Attend *a, const DsvContextForms *forms, int64_t count)
{
    const DsvContextTensor tensor = tensor_of(&a->heads, a->heads.act);
    return dsvi_context_to_heads(a->c, a->block, &tensor, forms, count, a->room.staging);
}

static DsvStatus to_tokens(const Attend *a, const DsvContextForms *forms, int64_t count)
{
    const DsvContextTensor tensor = tensor_of(&a->heads, a->heads.act);
    return dsvi_context_to_tokens(a->c, a->block, &tensor, forms, count, a->room.staging);
}

/* Queries, keys and values, which both passes read. */
static DsvStatus take_inputs(Attend *a, const DsvContextAttention *args)
{
    const DsvContextForms forms[] = {forms_of(a, args->q, a->room.q), forms_of(a, args->k, a->room.k),
                                     forms_of(a, args->v, a->room.v)};
    a->heads.q = forms[0].heads;
    a->heads.k = forms[1].heads;
    a->heads.v = forms[2].heads;
    return to_heads(a, forms, 3);
}

/* One sequence rank: the head group has all tokens. */
static DsvStatus attend_all(const Attend *a, bool backward)
{
    const DsvBackend *backend = a->c->group->backend;
    DsvAttentionArgs op = dsvi_context_op_args(a, a->part.tokens);
    op.k.data = (void *)a->heads.k;
    op.v.data = (void *)a->heads.v;
    op.dk.data = a->heads.dk;
    op.dv.data = a->heads.dv;
    return backward ? backend->ops.attention_bwd.run(backend->device->stream, &op)
                    : backend->ops.attention_fwd.run(backend->device->stream, &op);
}

DsvStatus dsvi_context_attend_fwd(const DsvContext *c, int64_t block, const DsvContextAttention *args)
{
    Attend a;
    DSVI_TRY(begin(c, block, args, false, &a));
    const DsvContextForms out = forms_of(&a, args->out, a.room.out);
    DSVI_TRY(take_inputs(&a, args));
    a.heads.out = out.heads;
    DSVI_TRY(a.part.sequence_ranks == 1 ? attend_all(&a, false) : dsvi_context_ring_fwd(&a));
    return to_tokens(&a, &out, 1);
}

DsvStatus dsvi_context_attend_bwd(const DsvContext *c, int64_t block, const DsvContextAttention *args)
{
    Attend a;
    DSVI_TRY(begin(c, block, args, true, &a));
    const DsvContextForms results[] = {forms_of(&a, args->out, a.room.out),
                                       forms_of(&a, args->dout, a.room.dout)};
    const DsvContextForms gradients[] = {forms_of(&a, args->dq, a.room.dq), forms_of(&a, args->dk, a.room.dk),
                                         forms_of(&a, args->dv, a.room.dv)};
    DSVI_TRY(take_inputs(&a, args));
    DSVI_TRY(to_heads(&a, results, 2));
    a.heads.out = results[0].heads;
    a.heads.dout = results[1].heads;
    a.heads.dq = gradients[0].heads;
    a.heads.dk = gradients[1].heads;
    a.heads.dv = gradients[2].heads;
    DSVI_TRY(a.part.sequence_ranks == 1 ? attend_all(&a, true) : dsvi_context_ring_bwd(&a));
    return to_tokens(&a, gradients, 3);
}
