/* Attention over lists when several ranks own the keys. Each list is divided into a near list, of keys that
 * this rank owns, and a far list, of keys that it fetches from other ranks. Queries attend over both, and the
 * two results are merged by their log-sum-exp. The device attends over near lists while keys and values are
 * being fetched.
 *
 * In the backward pass the merged log-sum-exp is used for both parts of a list, so that their
 * probabilities are those of the whole list. Gradients of fetched keys and values are sent to their
 * owners, and dq is the sum of both parts. Keys and values are fetched again unless the forward pass came
 * directly before, because fetched keys and values are kept no longer than that. */
#include "sparse/sparse_internal.h"

/* Prepares DsviSparse.exchange, the exchange of keys and values between ranks, for the block: ranks,
 * shapes and memory. */
static DsvStatus sparse_far_begin(DsviSparse *s, int64_t block)
{
    DsviSparseBlock *b = &s->block[block];
    DsviCpPart part = dsvi_cp_part(s->cp, block);
    const DsviSparseCpBuffers *room = &s->room;
    const DsviRowsShape shape = {s->shape.tokens, s->shape.batch, s->settings.sparse_grain, s->shape.head_dim,
                                 s->shape.act};
    const DsviRowsMemory memory = {
        .needs_marks = b->needs_marks,
        .served_marks = b->served_marks,
        .needs_before = room->needs_before,
        .served_before = room->served_before,
        .needs_first = room->needs_first,
        .served_first = room->served_first,
        .host_first = b->host_first,
        .sent = room->sent,
        .received = room->received,
    };
    return dsvi_rows_begin(s->backend, &part, &shape, &memory, &s->exchange);
}

/* Prepares the exchange of keys for a pass that reuses lists of an earlier pass. The marks of requested
 * spans and their counts in host memory still exist from that earlier pass. */
static DsvStatus begin_later_pass(DsviSparse *s, int64_t block)
{
    DSVI_TRY(sparse_far_begin(s, block));
    dsvi_rows_measure(&s->exchange);
    return dsvi_rows_count(&s->exchange);
}

static DsviListDivideArgs divide_args(DsviSparse *s, int64_t block)
{
    DsviSparseBlock *b = &s->block[block];
    return (DsviListDivideArgs){
        .lists = &b->lists,
        .spans = &s->exchange.needs,
        .self = s->exchange.part.sequence_index,
        .near = &b->near,
        .far = &b->far,
        .width = s->exchange.width,
    };
}

DsvStatus dsvi_sparse_divide_lists(DsviSparse *s, int64_t block)
{
    DsviDevice *device = s->backend->device;
    DsviSparseBlock *b = &s->block[block];
    DSVI_TRY(sparse_far_begin(s, block));
    dsvi_lists_copy_shape(&b->lists, &b->near);
    dsvi_lists_copy_shape(&b->lists, &b->far);
    DsviListDivideArgs args = divide_args(s, block);
    DSVI_TRY(s->backend->ops.lists_divide.run(device->stream, &args));
    DSVI_TRY(dsvi_rows_marks(&s->exchange));
    DSVI_TRY(device->download(device->stream, s->host_near, b->near.offsets + dsvi_lists_count(&b->near),
                              sizeof *s->host_near));
    return device->sync(device->stream);
}

/* Returns the fraction of the spans of keys owned by other ranks that this rank's lists name. */
static double far_fraction(const DsviSparse *s)
{
    const DsviRowsExchange *x = &s->exchange;
    int64_t i = x->part.sequence_index, local = x->needs_bound[i + 1] - x->needs_bound[i];
    int64_t others = dsvi_spans_pairs(&x->needs) * (x->needs_bound[x->part.sequence_ranks] - local);
    return (double)dsvi_rows_needed(x) / (double)others;
}

DsvStatus dsvi_sparse_keep_divided_lists(DsviSparse *s, int64_t block)
{
    DsviSparseBlock *b = &s->block[block];
    dsvi_rows_measure(&s->exchange);
    b->far_share = far_fraction(s);
    b->kept = s->listed_spans;
    b->near.keys = s->exchange.part.tokens;
    b->far.keys = s->exchange.far_keys;
    b->near.capacity = *s->host_near;
    b->far.capacity = b->kept - b->near.capacity;
    dsvi_sparse_point_lists(s, block, b->spans);
    DsviListDivideArgs args = divide_args(s, block);
    return s->backend->ops.lists_emit.run(s->backend->device->stream, &args);
}

/* Returns the address of element `i` of an array in the activation dtype. */
static void *far_act_at(const DsviSparse *s, void *array, int64_t i)
{
    return (char *)array + (size_t)i * dsvi_dtype_size(s->shape.act);
}

/* Returns the number of elements of the tensor of fetched keys, (B, far_keys, N_local, D). */
static int64_t far_elements(const DsviSparse *s)
{
    return s->shape.batch * s->exchange.far_keys * s->exchange.part.heads * s->shape.head_dim;
}

/* Returns the arguments of attention over fetched keys only. Its keys, values and gradients are buffers of
 * DsviSparse.room. */
static DsviAttentionCall far_call(const DsviSparse *s, const DsviAttentionCall *pass)
{
    DsviAttentionCall far = *pass;
    far.k = s->room.compact;
    far.v = far_act_at(s, s->room.compact, far_elements(s));
    far.dq = s->room.far_dq;
    far.dk = s->room.received;
    far.dv = far_act_at(s, s->room.received, far_elements(s));
    return far;
}

static DsvStatus run_part(const DsviSparse *s, int64_t block, const DsviLists *lists,
                          const DsviAttentionCall *pass, dsvi_attention_fn *op)
{
    DsviSparseView view = dsvi_sparse_view(s, block);
    DsviAttentionArgs args = dsvi_sparse_attention_args(s, &view, lists->keys, pass);
    args.lists = lists;
    return op(s->backend->device->stream, &args);
}

static DsvStatus sparse_far_merge(const DsviSparse *s, int64_t block, const DsviAttentionCall *near,
                                  const DsviAttentionCall *far)
{
    DsviSparseView view = dsvi_sparse_view(s, block);
    DsviHeads out = dsvi_heads(near->out, view.queries, view.heads, s->shape.head_dim);
    DsviAttentionMergeArgs args = {
        .batch = s->shape.batch,
        .heads = view.heads,
        .queries = view.queries,
        .head_dim = s->shape.head_dim,
        .act = s->shape.act,
        .acc = s->acc,
        .from_dtype = s->shape.act,
        .to_dtype = s->shape.act,
        .from = out,
        .to = out,
        .part = dsvi_heads(far->out, view.queries, view.heads, s->shape.head_dim),
        .lse = near->lse,
        .part_lse = far->lse,
    };
    return s->backend->ops.attention_merge.run(s->backend->device->stream, &args);
}

DsvStatus dsvi_sparse_far_attend(DsviSparse *s, int64_t block, const DsviAttentionCall *heads)
{
    DsviSparseBlock *b = &s->block[block];
    dsvi_attention_fn *op = s->backend->ops.attention_list_fwd.run;
    if (heads->recompute)
        DSVI_TRY(begin_later_pass(s, block));
    DsviAttentionCall far = far_call(s, heads);
    far.out = s->room.far_out;
    far.lse = s->room.far_lse;
    DSVI_TRY(dsvi_rows_fetch_begin(&s->exchange, heads->k, heads->v));
    DSVI_TRY(run_part(s, block, &b->near, heads, op));
    DSVI_TRY(dsvi_rows_fetch_end(&s->exchange, (void *)far.k, (void *)far.v));
    if (s->exchange.width == 0)
        return DSV_OK;
    DSVI_TRY(run_part(s, block, &b->far, &far, op));
    return sparse_far_merge(s, block, heads, &far);
}

/* Adds the dq that fetched keys contribute to the dq that this rank's keys contribute. */
static DsvStatus sparse_far_add_dq(const DsviSparse *s, int64_t block, const DsviAttentionCall *near,
                                   const DsviAttentionCall *far)
{
    DsviSparseView view = dsvi_sparse_view(s, block);
    DsviAddArgs args = {
        .n = s->shape.batch * view.queries * view.heads * s->shape.head_dim,
        .a = 1,
        .b = 1,
        .x_dtype = s->shape.act,
        .y_dtype = s->shape.act,
        .x = far->dq,
        .y = near->dq,
    };
    return s->backend->ops.add.run(s->backend->device->stream, &args);
}

DsvStatus dsvi_sparse_far_backward(DsviSparse *s, int64_t block, const DsviAttentionCall *heads, bool fetched)
{
    DsviSparseBlock *b = &s->block[block];
    dsvi_attention_fn *op = s->backend->ops.attention_list_bwd.run;
    if (!fetched)
        DSVI_TRY(begin_later_pass(s, block));
    DsviAttentionCall far = far_call(s, heads);
    if (!fetched)
        DSVI_TRY(dsvi_rows_fetch_begin(&s->exchange, heads->k, heads->v));
    DSVI_TRY(run_part(s, block, &b->near, heads, op));
    if (!fetched)
        DSVI_TRY(dsvi_rows_fetch_end(&s->exchange, (void *)far.k, (void *)far.v));
    if (s->exchange.width > 0)
        DSVI_TRY(run_part(s, block, &b->far, &far, op));
    DSVI_TRY(dsvi_rows_return_begin(&s->exchange, far.dk, far.dv, s->room.compact));
    if (s->exchange.width > 0)
        DSVI_TRY(sparse_far_add_dq(s, block, heads, &far));
    return dsvi_rows_return_end(&s->exchange, heads->dk, heads->dv);
}
