/* Attention over lists, with the tail that stands in for the keys outside the lists (ops/attention_tail.h,
 * sparse.tail).
 *
 * The tail needs every key. If several ranks own the keys of a head, their keys and values travel around the
 * ring of dense attention (cp/cp.h). With rows R of the rank grid, each query's sum over all keys is the sum
 * of one partial result for each row, over the part of its list and of its tail that the row's keys make:
 *
 *     Z_i = sum over R of Z_iR        T_c = sum over R of T_cR        lse_i = log sum over R of (Z_iR + T_cR)
 *
 * where Z_iR and T_cR are the sums of attention.h and attention_tail.h over the keys of R alone, with the
 * spans of the lists that name keys of R. Every rank begins at a multiple of sparse.tail_run, so that no run
 * of the tail has keys of two ranks, and the runs are those of one rank. The gradients of attention_tail.h
 * are sums of terms w_cr exp(-lse_i), with the lse of the whole: each row's backward pass computes the terms
 * of its own runs, from the lse and out of the whole and, where chunks have several queries, from log T_cR.
 *
 * log T_c of each chunk, or log T_cR of each row and chunk (DsviSparseBlock.tail_lse), is kept from the
 * forward to the backward pass. A recomputed forward pass writes the same bits again. */
#include <string.h>

#include "sparse/sparse_internal.h"

bool dsvi_sparse_has_tail(const DsvConfig *settings)
{
    return settings->sparse_enabled && strcmp(settings->sparse_tail, "none") != 0;
}

static int64_t tail_chunk(const DsvConfig *settings)
{
    if (settings->sparse_tail_chunk > 0)
        return settings->sparse_tail_chunk;
    return settings->sparse_group % 64 == 0 ? 64 : settings->sparse_group;
}

/* Means of 128 keys only where ranks can still divide a clip at most multiples of groups. */
static int64_t tail_run(const DsvConfig *settings)
{
    int64_t group = settings->sparse_group;
    if (settings->sparse_tail_run > 0)
        return settings->sparse_tail_run;
    return group == 64 || group % 128 == 0 ? 128 : group % 64 == 0 ? 64 : group;
}

DsviSparseTail dsvi_sparse_tail_of(const DsvConfig *settings)
{
    bool queries = strcmp(settings->sparse_tail, "key") != 0,
         keys = strcmp(settings->sparse_tail, "query") != 0;
    if (!dsvi_sparse_has_tail(settings))
        return (DsviSparseTail){0, 0};
    return (DsviSparseTail){queries ? tail_chunk(settings) : 1, keys ? tail_run(settings) : 1};
}

static int64_t common_multiple(int64_t a, int64_t b)
{
    int64_t multiple = a;
    while (multiple % b)
        multiple += a;
    return multiple;
}

int64_t dsvi_sparse_unit(const DsvConfig *settings)
{
    int64_t spans = settings->sparse_enabled ? settings->sparse_grain : 1;
    int64_t run = dsvi_sparse_has_tail(settings) ? dsvi_sparse_tail_of(settings).run : 1;
    return common_multiple(common_multiple(settings->sparse_group, spans), run);
}

DsvStatus dsvi_sparse_check_tail(const DsvConfig *settings, const DsviCp *cp)
{
    DsviSparseTail tail = dsvi_sparse_tail_of(settings);
    if (!dsvi_sparse_has_tail(settings))
        return DSV_OK;
    if (settings->sparse_group % tail.chunk)
        return DSVI_FAIL(DSV_E_USAGE,
                         "sparse.tail is %s and sparse.tail_chunk, %lld, does not divide sparse.group, %lld",
                         settings->sparse_tail, (long long)tail.chunk, (long long)settings->sparse_group);
    if (cp && dsvi_cp_clip(cp)->unit % tail.run)
        return DSVI_FAIL(DSV_E_USAGE,
                         "sparse.tail is %s and ranks divide a clip at multiples of %lld tokens, expected "
                         "multiples of sparse.tail_run, %lld",
                         settings->sparse_tail, (long long)dsvi_cp_clip(cp)->unit, (long long)tail.run);
    return DSV_OK;
}

int64_t dsvi_sparse_tail_count(const DsviSparse *s, int64_t queries)
{
    return s->tail.chunk > 0 ? dsvi_tail_chunks(queries, s->tail.chunk) : 0;
}

double dsvi_sparse_tail_work(const DsviSparse *s)
{
    return s->tail.chunk > 0 ? 1 / (double)(s->tail.chunk * s->tail.run) : 0;
}

static DsviAttentionTailArgs tail_args(const DsviSparse *s, const DsviAttentionArgs *lists, void *tail_lse)
{
    return (DsviAttentionTailArgs){
        .attention = *lists, .chunk = s->tail.chunk, .run = s->tail.run, .tail_lse = tail_lse};
}

size_t dsvi_sparse_args_workspace(const DsviSparse *s, const DsviAttentionArgs *args)
{
    const DsviOps *ops = &s->backend->ops;
    DsviStream *stream = s->backend->device->stream;
    DsviAttentionTailArgs tail = tail_args(s, args, NULL);
    bool has_tail = s->tail.chunk > 0;
    size_t forward = DSVI_OP_WORKSPACE(ops->attention_list_fwd, stream, args);
    if (has_tail)
        forward = dsvi_sparse_max_size(forward, DSVI_OP_WORKSPACE(ops->attention_tail_fwd, stream, &tail));
    if (!s->shape.backward)
        return forward;
    size_t backward = DSVI_OP_WORKSPACE(ops->attention_list_bwd, stream, args);
    if (has_tail)
        backward = dsvi_sparse_max_size(backward, DSVI_OP_WORKSPACE(ops->attention_tail_bwd, stream, &tail));
    return dsvi_sparse_max_size(forward, backward);
}

static DsvStatus attend_with_tail(const DsviSparse *s, const DsviAttentionArgs *args, void *tail_lse)
{
    const DsviOps *ops = &s->backend->ops;
    DsviStream *stream = s->backend->device->stream;
    DsviAttentionTailArgs tail = tail_args(s, args, tail_lse);
    DSVI_TRY(ops->attention_list_fwd.run(stream, args));
    return s->tail.chunk > 0 ? ops->attention_tail_fwd.run(stream, &tail) : DSV_OK;
}

static DsvStatus attend_with_tail_bwd(const DsviSparse *s, const DsviAttentionArgs *args, void *tail_lse)
{
    const DsviOps *ops = &s->backend->ops;
    DsviStream *stream = s->backend->device->stream;
    DsviAttentionTailArgs tail = tail_args(s, args, tail_lse);
    DSVI_TRY(ops->attention_list_bwd.run(stream, args));
    return s->tail.chunk > 0 ? ops->attention_tail_bwd.run(stream, &tail) : DSV_OK;
}

/* ---- all keys are on this rank ---- */

static DsviAttentionArgs list_args(const DsviSparse *s, int64_t block, const DsviAttentionCall *heads)
{
    DsviSparseView view = dsvi_sparse_view(s, block);
    DsviAttentionArgs args = dsvi_sparse_attention_args(s, &view, s->shape.tokens, heads);
    args.lists = &s->block[block].lists;
    return args;
}

DsvStatus dsvi_sparse_attend_args(const DsviSparse *s, int64_t block, const DsviAttentionArgs *args)
{
    return attend_with_tail(s, args, s->block[block].tail_lse);
}

DsvStatus dsvi_sparse_attend_args_bwd(const DsviSparse *s, int64_t block, const DsviAttentionArgs *args)
{
    return attend_with_tail_bwd(s, args, s->block[block].tail_lse);
}

DsvStatus dsvi_sparse_attend_lists(const DsviSparse *s, int64_t block, const DsviAttentionCall *heads)
{
    DsviAttentionArgs args = list_args(s, block, heads);
    return dsvi_sparse_attend_args(s, block, &args);
}

DsvStatus dsvi_sparse_attend_lists_bwd(const DsviSparse *s, int64_t block, const DsviAttentionCall *heads)
{
    DsviAttentionArgs args = list_args(s, block, heads);
    return dsvi_sparse_attend_args_bwd(s, block, &args);
}

/* ---- several ranks own the keys ---- */

/* Sets `part` to the lists over the keys of row `row` of the rank grid, whose spans it computes into
 * DsviSparse.whole_spans. */
static DsvStatus lists_of_row(const DsviSparse *s, int64_t block, int64_t row, DsviLists *part)
{
    const DsviSparseBlock *b = &s->block[block];
    DsviCpPart ranks = dsvi_cp_part(s->cp, block);
    int64_t grain = b->lists.grain;
    DsviListPartArgs args = {.lists = &b->lists,
                             .first = (ranks.bound[row] + grain - 1) / grain,
                             .end = (ranks.bound[row + 1] + grain - 1) / grain,
                             .part = part};
    part->offsets = b->near.offsets;
    dsvi_lists_copy_shape(&b->lists, part);
    part->spans = s->whole_spans;
    part->keys = dsvi_part_keys(&b->lists, args.first, args.end);
    return s->backend->ops.lists_part.run(s->backend->device->stream, &args);
}

/* Makes of the arguments of dense attention to the keys of one row those of attention over lists. `part` is
 * filled. Sets *tail_lse to the row's part of DsviSparseBlock.tail_lse. */
static DsvStatus row_args(const DsviSparseRows *rows, int64_t row, const DsviAttentionArgs *dense,
                          DsviLists *part, DsviAttentionArgs *args, void **tail_lse)
{
    const DsviSparse *s = rows->sparse;
    int64_t chunks = dense->batch * dense->heads * dsvi_sparse_tail_count(s, dense->queries);
    *args = *dense;
    args->lists = part;
    args->workspace = s->workspace;
    args->workspace_bytes = s->workspace_bytes;
    *tail_lse = (char *)s->block[rows->block].tail_lse + (size_t)(row * chunks) * dsvi_dtype_size(s->acc);
    return lists_of_row(s, rows->block, row, part);
}

static DsvStatus attend_row(void *context, int64_t row, const DsviAttentionArgs *dense)
{
    const DsviSparseRows *rows = context;
    DsviAttentionArgs args;
    DsviLists part;
    void *tail_lse;
    DSVI_TRY(row_args(rows, row, dense, &part, &args, &tail_lse));
    return attend_with_tail(rows->sparse, &args, tail_lse);
}

static DsvStatus attend_row_bwd(void *context, int64_t row, const DsviAttentionArgs *dense)
{
    const DsviSparseRows *rows = context;
    DsviAttentionArgs args;
    DsviLists part;
    void *tail_lse;
    DSVI_TRY(row_args(rows, row, dense, &part, &args, &tail_lse));
    return attend_with_tail_bwd(rows->sparse, &args, tail_lse);
}

DsviCpRowAttention dsvi_sparse_row_attention(DsviSparseRows *rows)
{
    return (DsviCpRowAttention){.forward = attend_row, .backward = attend_row_bwd, .context = rows};
}
