/* Attention over lists whose keys lie on several ranks: each list becomes a near one, over the own keys, and
 * a far one, over keys that are fetched; queries attend to both, one after the other, and results are merged
 * by their log-sum-exp. While rows travel the device attends to the near ones.
 *
 * Backward, the merged lse makes both halves' probabilities those of the whole; gradients of fetched rows go
 * home, dq is the sum of both halves'. Rows are fetched again unless the forward pass came just before:
 * nothing of them is kept for longer. */
#include "sparse/sparse_internal.h"

/* Tells the exchange what this block's is about. */
static DsvStatus begin(DsvSparse *s, int64_t block)
{
    DsvSparseBlock *b = &s->block[block];
    DsvContextPart part = dsvi_context_part(s->context, block);
    const DsvSparseRoom *room = &s->room;
    const DsvRowsShape shape = {s->shape.tokens, s->shape.batch, s->settings.sparse_grain, s->shape.head_dim,
                                s->shape.act};
    const DsvRowsMemory memory = {
        .needs_marks = b->needs_marks, .wants_marks = b->wants_marks, .needs_before = room->needs_before,
        .wants_before = room->wants_before, .needs_first = room->needs_first,
        .wants_first = room->wants_first, .host_first = b->host_first, .sent = room->sent,
        .received = room->received,
    };
    return dsvi_rows_begin(s->backend, &part, &shape, &memory, &s->exchange);
}

/* For a pass after the one that made the lists. */
static DsvStatus begin_again(DsvSparse *s, int64_t block)
{
    DSVI_TRY(begin(s, block));
    dsvi_rows_measure(&s->exchange);
    return dsvi_rows_count(&s->exchange);
}

static DsvListDivideArgs divide_args(DsvSparse *s, int64_t block)
{
    DsvSparseBlock *b = &s->block[block];
    return (DsvListDivideArgs){
        .lists = &b->lists, .runs = &s->exchange.needs, .self = s->exchange.part.sequence_index,
        .near = &b->near, .far = &b->far, .width = s->exchange.width,
    };
}

DsvStatus dsvi_sparse_divide(DsvSparse *s, int64_t block)
{
    DsvDevice *device = s->backend->device;
    DsvSparseBlock *b = &s->block[block];
    DSVI_TRY(begin(s, block));
    dsvi_lists_shape_half(&b->lists, &b->near);
    dsvi_lists_shape_half(&b->lists, &b->far);
    DsvListDivideArgs args = divide_args(s, block);
    DSVI_TRY(s->backend->ops.lists_divide.run(device->stream, &args));
    DSVI_TRY(dsvi_rows_marks(&s->exchange));
    DSVI_TRY(device->download(device->stream, s->host_near, b->near.offsets + dsvi_lists_count(&b->near),
                              sizeof *s->host_near));
    return device->sync(device->stream);
}

static double far_share(const DsvSparse *s)
{
    const DsvRowsExchange *x = &s->exchange;
    int64_t i = x->part.sequence_index, own = x->needs_bound[i + 1] - x->needs_bound[i];
    int64_t others = dsvi_runs_pairs(&x->needs) * (x->needs_bound[x->part.sequence_ranks] - own);
    return (double)dsvi_rows_needed(x) / (double)others;
}

DsvStatus dsvi_sparse_keep_divided(DsvSparse *s, int64_t block)
{
    DsvSparseBlock *b = &s->block[block];
    dsvi_rows_measure(&s->exchange);
    b->far_share = far_share(s);
    b->kept = s->listed_runs;
    b->near.keys = s->exchange.part.tokens;
    b->far.keys = s->exchange.far_keys;
    b->near.capacity = *s->host_near;
    b->far.capacity = b->kept - b->near.capacity;
    dsvi_sparse_point_lists(s, block, b->runs);
    DsvListDivideArgs args = divide_args(s, block);
    return s->backend->ops.lists_emit.run(s->backend->device->stream, &args);
}

/* Element `i` of an array of act. */
static void *act_at(const DsvSparse *s, void *array, int64_t i)
{
    return (char *)array + (size_t)i * dsvi_dtype_size(s->shape.act);
}

/* Elements of a tensor of fetched keys. */
static int64_t far_elements(const DsvSparse *s)
{
    return s->shape.batch * s->exchange.far_keys * s->exchange.part.heads * s->shape.head_dim;
}

/* The half of `pass` over fetched keys: its results and gradients lie in the room. */
static DsvSparseAttention far_half(const DsvSparse *s, const DsvSparseAttention *pass)
{
    DsvSparseAttention far = *pass;
    far.k = s->room.compact;
    far.v = act_at(s, s->room.compact, far_elements(s));
    far.dq = s->room.far_dq;
    far.dk = s->room.received;
    far.dv = act_at(s, s->room.received, far_elements(s));
    return far;
}

static DsvStatus run_half(const DsvSparse *s, int64_t block, const DsvLists *lists,
                          const DsvSparseAttention *pass, dsvi_attention_fn *op)
{
    DsvSparseView view = dsvi_sparse_view(s, block);
    DsvAttentionArgs args = dsvi_sparse_attention_args(s, &view, lists->keys, pass);
    args.lists = lists;
    return op(s->backend->device->stream, &args);
}

static DsvStatus merge(const DsvSparse *s, int64_t block, const DsvSparseAttention *near,
                       const DsvSparseAttention *far)
{
    DsvSparseView view = dsvi_sparse_view(s, block);
    DsvHeads out = dsvi_heads(near->out, view.queries, view.heads, s->shape.head_dim);
    DsvAttentionMergeArgs args = {
        .batch = s->shape.batch, .heads = view.heads, .queries = view.queries, .head_dim = s->shape.head_dim,
        .act = s->shape.act, .acc = s->acc, .from_dtype = s->shape.act, .to_dtype = s->shape.act,
        .from = out, .to = out, .part = dsvi_heads(far->out, view.queries, view.heads, s->shape.head_dim),
        .lse = near->lse, .part_lse = far->lse,
    };
    return s->backend->ops.attention_merge.run(s->backend->device->stream, &args);
}

DsvStatus dsvi_sparse_far_attend(DsvSparse *s, int64_t block, const DsvSparseAttention *heads)
{
    DsvSparseBlock *b = &s->block[block];
    dsvi_attention_fn *op = s->backend->ops.attention_list_fwd.run;
    if (heads->recompute)
        DSVI_TRY(begin_again(s, block));
    DsvSparseAttention far = far_half(s, heads);
    far.out = s->room.far_out;
    far.lse = s->room.far_lse;
    DSVI_TRY(dsvi_rows_fetch_begin(&s->exchange, heads->k, heads->v));
    DSVI_TRY(run_half(s, block, &b->near, heads, op));
    DSVI_TRY(dsvi_rows_fetch_end(&s->exchange, (void *)far.k, (void *)far.v));
    if (s->exchange.width == 0)
        return DSV_OK;
    DSVI_TRY(run_half(s, block, &b->far, &far, op));
    return merge(s, block, heads, &far);
}

/* dq of both halves. */
static DsvStatus add_dq(const DsvSparse *s, int64_t block, const DsvSparseAttention *near,
                        const DsvSparseAttention *far)
{
    DsvSparseView view = dsvi_sparse_view(s, block);
    DsvAddArgs args = {
        .n = s->shape.batch * view.queries * view.heads * s->shape.head_dim, .a = 1, .b = 1,
        .x_dtype = s->shape.act, .y_dtype = s->shape.act, .x = far->dq, .y = near->dq,
    };
    return s->backend->ops.add.run(s->backend->device->stream, &args);
}

DsvStatus dsvi_sparse_far_backward(DsvSparse *s, int64_t block, const DsvSparseAttention *heads, bool fetched)
{
    DsvSparseBlock *b = &s->block[block];
    dsvi_attention_fn *op = s->backend->ops.attention_list_bwd.run;
    if (!fetched)
        DSVI_TRY(begin_again(s, block));
    DsvSparseAttention far = far_half(s, heads);
    if (!fetched)
        DSVI_TRY(dsvi_rows_fetch_begin(&s->exchange, heads->k, heads->v));
    DSVI_TRY(run_half(s, block, &b->near, heads, op));
    if (!fetched)
        DSVI_TRY(dsvi_rows_fetch_end(&s->exchange, (void *)far.k, (void *)far.v));
    if (s->exchange.width > 0)
        DSVI_TRY(run_half(s, block, &b->far, &far, op));
    DSVI_TRY(dsvi_rows_home_begin(&s->exchange, far.dk, far.dv, s->room.compact));
    if (s->exchange.width > 0)
        DSVI_TRY(add_dq(s, block, heads, &far));
    return dsvi_rows_home_end(&s->exchange, heads->dk, heads->dv);
}
