/* A block's attention on ranks that share the samples (context.h): features and tensors go to where heads
 * are, results come back. */
#include "sparse/sparse_internal.h"

DsvStatus dsvi_sparse_take_features(DsvSparse *s, int64_t block)
{
    const DsvFeatures *f = &s->selector->features;
    DsvFeaturesExchange proxies = {
        .batch = s->shape.batch, .features = f->features, .tokens_each = f->chunk, .own = f->proxies,
        .heads = s->room.proxies, .workspace = s->room.features,
    };
    DsvFeaturesExchange candidates = {
        .batch = s->shape.batch, .features = f->features, .tokens_each = f->candidate_keys,
        .all_tokens = true, .own = f->candidates, .heads = s->room.candidates, .workspace = s->room.features,
    };
    s->proxies = s->context ? s->room.proxies : f->proxies;
    s->candidates = s->context ? s->room.candidates : f->candidates;
    if (!s->context)
        return DSV_OK;
    DSVI_TRY(dsvi_features_exchange(s->context, block, &proxies));
    return dsvi_features_exchange(s->context, block, &candidates);
}

/* ---- tensors ---- */

static DsvContextTensor tensor_of(const DsvSparse *s)
{
    return (DsvContextTensor){s->shape.batch, s->shape.head_dim, s->shape.act};
}

/* The pass with tensors where their heads forms lie. */
static DsvSparseAttention in_heads_form(const DsvSparse *s, int64_t block, const DsvSparseAttention *pass)
{
    const DsvSparseRoom *room = &s->room;
    const DsvContext *c = s->context;
    DsvSparseAttention heads = *pass;
    heads.q = dsvi_context_heads_place(c, block, pass->q, room->q);
    heads.k = dsvi_context_heads_place(c, block, pass->k, room->k);
    heads.v = dsvi_context_heads_place(c, block, pass->v, room->v);
    heads.out = dsvi_context_heads_place(c, block, pass->out, room->out);
    heads.dout = dsvi_context_heads_place(c, block, pass->dout, room->dout);
    heads.dq = dsvi_context_heads_place(c, block, pass->dq, room->dq);
    heads.dk = dsvi_context_heads_place(c, block, pass->dk, room->dk);
    heads.dv = dsvi_context_heads_place(c, block, pass->dv, room->dv);
    return heads;
}

static DsvContextForms forms_of(const void *tokens, const void *heads)
{
    return (DsvContextForms){(void *)tokens, (void *)heads};
}

static DsvStatus to_heads(const DsvSparse *s, int64_t block, const DsvContextForms *forms, int64_t count)
{
    DsvContextTensor tensor = tensor_of(s);
    return dsvi_context_to_heads(s->context, block, &tensor, forms, count, s->room.moved);
}

static DsvStatus to_tokens(const DsvSparse *s, int64_t block, const DsvContextForms *forms, int64_t count)
{
    DsvContextTensor tensor = tensor_of(s);
    return dsvi_context_to_tokens(s->context, block, &tensor, forms, count, s->room.moved);
}

enum { SCORED_INPUTS = 2, INPUTS }; /* queries and keys; values too */

/* Inputs number `first` to `end` - 1. */
static DsvStatus inputs_to_heads(const DsvSparse *s, int64_t block, const DsvSparseAttention *pass,
                                 const DsvSparseAttention *heads, int64_t first, int64_t end)
{
    const DsvContextForms forms[] = {forms_of(pass->q, heads->q), forms_of(pass->k, heads->k),
                                     forms_of(pass->v, heads->v)};
    return to_heads(s, block, forms + first, end - first);
}

/* ---- exact scores ---- */

/* All keys lie where fetched ones would. */
DsvStatus dsvi_sparse_take_scored(DsvSparse *s, int64_t block, const DsvSparseAttention *pass,
                                  DsvSparseScored *scored)
{
    *scored = (DsvSparseScored){pass->q, pass->k};
    if (!s->context)
        return DSV_OK;
    DsvContextTensor tensor = tensor_of(s);
    DsvSparseAttention heads = in_heads_form(s, block, pass);
    void *all = dsvi_context_all_place(s->context, block, heads.k, s->room.compact);
    s->room_block = -1;
    s->scored_block = block;
    DSVI_TRY(inputs_to_heads(s, block, pass, &heads, 0, SCORED_INPUTS));
    DSVI_TRY(dsvi_context_gather(s->context, block, &tensor, heads.k, all));
    *scored = (DsvSparseScored){heads.q, all};
    return DSV_OK;
}

/* ---- attention ---- */

static DsvContextAttention dense_args(const DsvSparse *s, const DsvSparseAttention *pass)
{
    return (DsvContextAttention){
        .batch = s->shape.batch, .head_dim = s->shape.head_dim, .scale = pass->scale, .act = s->shape.act,
        .acc = s->acc, .q = pass->q, .k = pass->k, .v = pass->v, .out = pass->out, .lse = pass->lse,
        .dout = pass->dout, .dq = pass->dq, .dk = pass->dk, .dv = pass->dv, .workspace = s->shared,
        .workspace_bytes = s->shared_bytes,
    };
}

/* Over the lists of all keys, which this rank has. */
static DsvStatus run_lists(const DsvSparse *s, int64_t block, const DsvSparseAttention *heads,
                           dsvi_attention_fn *op)
{
    DsvSparseView view = dsvi_sparse_view(s, block);
    DsvAttentionArgs args = dsvi_sparse_attention_args(s, &view, s->shape.tokens, heads);
    args.lists = &s->block[block].lists;
    return op(s->backend->device->stream, &args);
}

DsvStatus dsvi_sparse_context_attend(DsvSparse *s, int64_t block, const DsvSparseAttention *pass)
{
    DsvSparseAttention heads = in_heads_form(s, block, pass);
    DsvContextAttention dense = dense_args(s, pass);
    int64_t there = s->scored_block == block ? SCORED_INPUTS : 0;
    s->room_block = s->scored_block = -1;
    if (!s->block[block].over_lists)
        return dsvi_context_attend_fwd(s->context, block, &dense);
    DSVI_TRY(inputs_to_heads(s, block, pass, &heads, there, INPUTS));
    if (dsvi_sparse_view(s, block).divided)
        DSVI_TRY(dsvi_sparse_far_attend(s, block, &heads));
    else
        DSVI_TRY(run_lists(s, block, &heads, s->backend->ops.attention_list_fwd.run));
    const DsvContextForms out = forms_of(pass->out, heads.out);
    DSVI_TRY(to_tokens(s, block, &out, 1));
    s->room_block = block;
    return DSV_OK;
}

/* What the backward pass reads, to heads. `left`: a forward pass came just before, and all but dout is
 * there. */
static DsvStatus give_heads(const DsvSparse *s, int64_t block, const DsvSparseAttention *pass,
                            const DsvSparseAttention *heads, bool left)
{
    const DsvContextForms results[] = {forms_of(pass->dout, heads->dout), forms_of(pass->out, heads->out)};
    if (!left)
        DSVI_TRY(inputs_to_heads(s, block, pass, heads, 0, INPUTS));
    return to_heads(s, block, results, left ? 1 : 2);
}

DsvStatus dsvi_sparse_context_backward(DsvSparse *s, int64_t block, const DsvSparseAttention *pass)
{
    DsvSparseAttention heads = in_heads_form(s, block, pass);
    DsvContextAttention dense = dense_args(s, pass);
    bool left = s->room_block == block;
    s->room_block = -1;
    if (!s->block[block].over_lists)
        return dsvi_context_attend_bwd(s->context, block, &dense);
    DSVI_TRY(give_heads(s, block, pass, &heads, left));
    if (dsvi_sparse_view(s, block).divided)
        DSVI_TRY(dsvi_sparse_far_backward(s, block, &heads, left));
    else
        DSVI_TRY(run_lists(s, block, &heads, s->backend->ops.attention_list_bwd.run));
    const DsvContextForms gradients[] = {forms_of(pass->dq, heads.dq), forms_of(pass->dk, heads.dk),
                                         forms_of(pass->dv, heads.dv)};
    return to_tokens(s, block, gradients, 3);
}
