/* Attention over lists, with the tail that stands in for the keys outside the lists (ops/attention_tail.h,
 * sparse.tail). This rank has all keys of its heads: the tail needs every key, so ranks that share a clip
 * must divide the heads and not the tokens (dsvi_sparse_head_ranks).
 *
 * log T_c of each chunk (DsviSparseBlock.tail_lse) is kept from the forward to the backward pass. A
 * recomputed forward pass writes the same bits again. */
#include <string.h>

#include "sparse/sparse_internal.h"

bool dsvi_sparse_has_tail(const DsvConfig *settings)
{
    return settings->sparse_enabled && strcmp(settings->sparse_tail, "none") != 0;
}

DsviSparseTail dsvi_sparse_tail_of(const DsvConfig *settings)
{
    bool queries = strcmp(settings->sparse_tail, "key") != 0,
         keys = strcmp(settings->sparse_tail, "query") != 0;
    if (!dsvi_sparse_has_tail(settings))
        return (DsviSparseTail){0, 0};
    return (DsviSparseTail){queries ? settings->sparse_tail_chunk : 1, keys ? settings->sparse_tail_run : 1};
}

DsvStatus dsvi_sparse_check_tail(const DsvConfig *settings, const DsviCp *cp)
{
    DsviSparseTail tail = dsvi_sparse_tail_of(settings);
    DsviCpLimits part;
    if (!dsvi_sparse_has_tail(settings))
        return DSV_OK;
    if (settings->sparse_group % tail.chunk)
        return DSVI_FAIL(DSV_E_USAGE,
                         "sparse.tail is %s and sparse.tail_chunk, %lld, does not divide sparse.group, %lld",
                         settings->sparse_tail, (long long)tail.chunk, (long long)settings->sparse_group);
    for (int64_t i = 0; cp && dsvi_cp_limits(cp, i, &part); i++)
        if (part.sequence_ranks > 1)
            return DSVI_FAIL(DSV_E_USAGE,
                             "sparse.tail is %s and %lld ranks divide the tokens of a clip in a plan, "
                             "expected 1: a tail needs all keys on each rank",
                             settings->sparse_tail, (long long)part.sequence_ranks);
    return DSV_OK;
}

DsvStatus dsvi_sparse_head_ranks(const DsvConfig *settings, int64_t ranks, int64_t heads, int64_t *head_ranks)
{
    *head_ranks = settings->cp_heads;
    if (!dsvi_sparse_has_tail(settings) || ranks < 2)
        return DSV_OK;
    if (settings->cp_heads != 0 && settings->cp_heads != ranks)
        return DSVI_FAIL(DSV_E_USAGE,
                         "sparse.tail is %s and cp_heads is %lld, expected 0 or the %lld ranks that share a "
                         "clip: with a tail these ranks divide the heads only",
                         settings->sparse_tail, (long long)settings->cp_heads, (long long)ranks);
    if (ranks > heads)
        return DSVI_FAIL(DSV_E_USAGE,
                         "sparse.tail is %s and %lld ranks share a clip, expected at most %lld, one for each "
                         "head: with a tail these ranks divide the heads only",
                         settings->sparse_tail, (long long)ranks, (long long)heads);
    *head_ranks = ranks;
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

size_t dsvi_sparse_tail_workspace(const DsviSparse *s, const DsviAttentionArgs *lists)
{
    const DsviOps *ops = &s->backend->ops;
    DsviStream *stream = s->backend->device->stream;
    DsviAttentionTailArgs args = tail_args(s, lists, NULL);
    if (s->tail.chunk == 0)
        return 0;
    size_t forward = DSVI_OP_WORKSPACE(ops->attention_tail_fwd, stream, &args);
    size_t backward = s->shape.backward ? DSVI_OP_WORKSPACE(ops->attention_tail_bwd, stream, &args) : 0;
    return forward > backward ? forward : backward;
}

static DsviAttentionArgs list_args(const DsviSparse *s, int64_t block, const DsviAttentionCall *heads)
{
    DsviSparseView view = dsvi_sparse_view(s, block);
    DsviAttentionArgs args = dsvi_sparse_attention_args(s, &view, s->shape.tokens, heads);
    args.lists = &s->block[block].lists;
    return args;
}

DsvStatus dsvi_sparse_attend_lists(const DsviSparse *s, int64_t block, const DsviAttentionCall *heads)
{
    const DsviOps *ops = &s->backend->ops;
    DsviStream *stream = s->backend->device->stream;
    DsviAttentionArgs args = list_args(s, block, heads);
    DsviAttentionTailArgs tail = tail_args(s, &args, s->block[block].tail_lse);
    DSVI_TRY(ops->attention_list_fwd.run(stream, &args));
    return s->tail.chunk > 0 ? ops->attention_tail_fwd.run(stream, &tail) : DSV_OK;
}

DsvStatus dsvi_sparse_attend_lists_bwd(const DsviSparse *s, int64_t block, const DsviAttentionCall *heads)
{
    const DsviOps *ops = &s->backend->ops;
    DsviStream *stream = s->backend->device->stream;
    DsviAttentionArgs args = list_args(s, block, heads);
    DsviAttentionTailArgs tail = tail_args(s, &args, s->block[block].tail_lse);
    DSVI_TRY(ops->attention_list_bwd.run(stream, &args));
    return s->tail.chunk > 0 ? ops->attention_tail_bwd.run(stream, &tail) : DSV_OK;
}
