/* A block's attention with context parallelism (cp/cp.h). Features and tensors are exchanged so that each
 * rank has more tokens of fewer heads ("heads form"); after attention the results return to token form. */
#include "sparse/sparse_internal.h"

DsvStatus dsvi_sparse_exchange_features(DsviSparse *s, int64_t block)
{
    const DsviFeatures *f = &s->selector->features;
    DsviFeaturesExchange proxies = {
        .batch = s->shape.batch,
        .features = f->features,
        .tokens_each = f->chunk,
        .own = f->proxies,
        .heads = s->room.proxies,
        .workspace = s->room.features,
    };
    DsviFeaturesExchange candidates = {
        .batch = s->shape.batch,
        .features = f->features,
        .tokens_each = f->candidate_keys,
        .all_tokens = true,
        .own = f->candidates,
        .heads = s->room.candidates,
        .workspace = s->room.features,
    };
    s->proxies = s->cp ? s->room.proxies : f->proxies;
    s->candidates = s->cp ? s->room.candidates : f->candidates;
    if (!s->cp)
        return DSV_OK;
    DSVI_TRY(dsvi_features_exchange(s->cp, block, &proxies));
    return dsvi_features_exchange(s->cp, block, &candidates);
}

/* ---- tensors in heads form ---- */

static DsviCpTensor sparse_cp_tensor_of(const DsviSparse *s)
{
    return (DsviCpTensor){s->shape.batch, s->shape.head_dim, s->shape.act};
}

/* Returns `pass` with all tensors replaced by their heads forms: buffers of `room`, or the tensors themselves
 * if the plan does not divide heads. */
static DsviAttentionCall sparse_cp_in_heads_form(const DsviSparse *s, int64_t block,
                                                 const DsviAttentionCall *pass)
{
    const DsviSparseCpBuffers *room = &s->room;
    const DsviCp *c = s->cp;
    DsviAttentionCall heads = *pass;
    heads.q = dsvi_cp_heads_address(c, block, pass->q, room->q);
    heads.k = dsvi_cp_heads_address(c, block, pass->k, room->k);
    heads.v = dsvi_cp_heads_address(c, block, pass->v, room->v);
    heads.out = dsvi_cp_heads_address(c, block, pass->out, room->out);
    heads.dout = dsvi_cp_heads_address(c, block, pass->dout, room->dout);
    heads.dq = dsvi_cp_heads_address(c, block, pass->dq, room->dq);
    heads.dk = dsvi_cp_heads_address(c, block, pass->dk, room->dk);
    heads.dv = dsvi_cp_heads_address(c, block, pass->dv, room->dv);
    return heads;
}

static DsviCpForms sparse_cp_forms_of(const void *tokens, const void *heads)
{
    return (DsviCpForms){(void *)tokens, (void *)heads};
}

static DsvStatus sparse_cp_to_heads(const DsviSparse *s, int64_t block, const DsviCpForms *forms,
                                    int64_t count)
{
    DsviCpTensor tensor = sparse_cp_tensor_of(s);
    return dsvi_cp_to_heads(s->cp, block, &tensor, forms, count, s->room.moved);
}

static DsvStatus sparse_cp_to_tokens(const DsviSparse *s, int64_t block, const DsviCpForms *forms,
                                     int64_t count)
{
    DsviCpTensor tensor = sparse_cp_tensor_of(s);
    return dsvi_cp_to_tokens(s->cp, block, &tensor, forms, count, s->room.moved);
}

enum { SCORED_INPUTS = 2, INPUTS }; /* exact scores need q and k, attention and its error need q, k and v */

/* Exchanges the tensors number `first` to `end` - 1 of (q, k, v) into heads form: more tokens of fewer heads
 * on each rank. */
static DsvStatus inputs_to_heads(const DsviSparse *s, int64_t block, const DsviAttentionCall *pass,
                                 const DsviAttentionCall *heads, int64_t first, int64_t end)
{
    const DsviCpForms forms[] = {sparse_cp_forms_of(pass->q, heads->q), sparse_cp_forms_of(pass->k, heads->k),
                                 sparse_cp_forms_of(pass->v, heads->v)};
    return sparse_cp_to_heads(s, block, forms + first, end - first);
}

/* ---- exact scores ---- */

/* If several ranks own the keys of a head, all keys, and with a tail all values, are gathered into `compact`,
 * the buffer that holds fetched keys during attention. */
DsvStatus dsvi_sparse_exchange_scored(DsviSparse *s, int64_t block, const DsviAttentionCall *pass,
                                      bool values, DsviSparseScored *scored)
{
    const DsviSparseShape *shape = &s->shape;
    *scored = (DsviSparseScored){0};
    if (!s->cp) {
        scored->q = dsvi_call_q(pass, shape->tokens, shape->heads, shape->head_dim);
        scored->k = dsvi_call_k(pass, shape->tokens, shape->heads, shape->head_dim);
        if (values)
            scored->v = dsvi_call_v(pass, shape->tokens, shape->heads, shape->head_dim);
        return DSV_OK;
    }
    DsviSparseView view = dsvi_sparse_view(s, block);
    bool has_values = values && !dsvi_sparse_fetches(s, block);
    DsviCpTensor tensor = sparse_cp_tensor_of(s);
    DsviAttentionCall heads = sparse_cp_in_heads_form(s, block, pass);
    size_t bytes = (size_t)(shape->batch * shape->tokens * view.heads * shape->head_dim) *
                   dsvi_dtype_size(shape->act);
    void *all = dsvi_cp_gathered_address(s->cp, block, heads.k, s->room.compact);
    void *all_values = dsvi_cp_gathered_address(s->cp, block, heads.v, (char *)s->room.compact + bytes);
    s->room_block = -1;
    s->scored_block = block;
    s->scored_inputs = has_values ? INPUTS : SCORED_INPUTS;
    DSVI_TRY(inputs_to_heads(s, block, pass, &heads, 0, s->scored_inputs));
    DSVI_TRY(dsvi_cp_gather(s->cp, block, &tensor, heads.k, all));
    scored->q = dsvi_heads(heads.q, view.queries, view.heads, shape->head_dim);
    scored->k = dsvi_heads(all, shape->tokens, view.heads, shape->head_dim);
    if (!has_values)
        return DSV_OK;
    DSVI_TRY(dsvi_cp_gather(s->cp, block, &tensor, heads.v, all_values));
    scored->v = dsvi_heads(all_values, shape->tokens, view.heads, shape->head_dim);
    return DSV_OK;
}

/* ---- attention ---- */

/* Returns whether the ranks attend to all keys, which travel around a ring: densely, or over lists with a
 * tail. */
static bool attends_in_ring(const DsviSparse *s, int64_t block)
{
    return !s->block[block].over_lists || (s->tail.chunk > 0 && dsvi_sparse_view(s, block).divided);
}

/* Returns arguments of attention to all keys: dense, or as `rows` says. */
static DsviCpAttention sparse_cp_all_args(const DsviSparse *s, const DsviAttentionCall *pass,
                                          const DsviCpRowAttention *rows)
{
    return (DsviCpAttention){
        .batch = s->shape.batch,
        .head_dim = s->shape.head_dim,
        .scale = pass->scale,
        .act = s->shape.act,
        .acc = s->acc,
        .q = pass->q,
        .k = pass->k,
        .v = pass->v,
        .out = pass->out,
        .lse = pass->lse,
        .dout = pass->dout,
        .dq = pass->dq,
        .dk = pass->dk,
        .dv = pass->dv,
        .workspace = s->shared,
        .workspace_bytes = s->shared_bytes,
        .row_attention = rows,
    };
}

DsvStatus dsvi_sparse_cp_attend(DsviSparse *s, int64_t block, const DsviAttentionCall *pass)
{
    DsviAttentionCall heads = sparse_cp_in_heads_form(s, block, pass);
    DsviSparseRows rows = {s, block};
    const DsviCpRowAttention with_tail = dsvi_sparse_row_attention(&rows);
    DsviCpAttention all = sparse_cp_all_args(s, pass, s->block[block].over_lists ? &with_tail : NULL);
    int64_t exchanged = s->scored_block == block ? s->scored_inputs : 0;
    s->room_block = s->scored_block = -1;
    if (attends_in_ring(s, block))
        return dsvi_cp_attend_fwd(s->cp, block, &all);
    DSVI_TRY(inputs_to_heads(s, block, pass, &heads, exchanged, INPUTS));
    if (dsvi_sparse_view(s, block).divided)
        DSVI_TRY(dsvi_sparse_far_attend(s, block, &heads));
    else
        DSVI_TRY(dsvi_sparse_attend_lists(s, block, &heads));
    const DsviCpForms out = sparse_cp_forms_of(pass->out, heads.out);
    DSVI_TRY(sparse_cp_to_tokens(s, block, &out, 1));
    s->room_block = block;
    return DSV_OK;
}

/* Exchanges the tensors that the backward pass reads into heads form (more tokens of fewer heads on each
 * rank). `in_room` true: `room` still holds everything except dout from the block's forward pass, because
 * no other pass came between. */
static DsvStatus backward_inputs_to_heads(const DsviSparse *s, int64_t block, const DsviAttentionCall *pass,
                                          const DsviAttentionCall *heads, bool in_room)
{
    const DsviCpForms results[] = {sparse_cp_forms_of(pass->dout, heads->dout),
                                   sparse_cp_forms_of(pass->out, heads->out)};
    if (!in_room)
        DSVI_TRY(inputs_to_heads(s, block, pass, heads, 0, INPUTS));
    return sparse_cp_to_heads(s, block, results, in_room ? 1 : 2);
}

DsvStatus dsvi_sparse_cp_backward(DsviSparse *s, int64_t block, const DsviAttentionCall *pass)
{
    DsviAttentionCall heads = sparse_cp_in_heads_form(s, block, pass);
    DsviSparseRows rows = {s, block};
    const DsviCpRowAttention with_tail = dsvi_sparse_row_attention(&rows);
    DsviCpAttention all = sparse_cp_all_args(s, pass, s->block[block].over_lists ? &with_tail : NULL);
    bool in_room = s->room_block == block;
    s->room_block = -1;
    if (attends_in_ring(s, block))
        return dsvi_cp_attend_bwd(s->cp, block, &all);
    DSVI_TRY(backward_inputs_to_heads(s, block, pass, &heads, in_room));
    if (dsvi_sparse_view(s, block).divided)
        DSVI_TRY(dsvi_sparse_far_backward(s, block, &heads, in_room));
    else
        DSVI_TRY(dsvi_sparse_attend_lists_bwd(s, block, &heads));
    const DsviCpForms gradients[] = {sparse_cp_forms_of(pass->dq, heads.dq),
                                     sparse_cp_forms_of(pass->dk, heads.dk),
                                     sparse_cp_forms_of(pass->dv, heads.dv)};
    return sparse_cp_to_tokens(s, block, gradients, 3);
}
