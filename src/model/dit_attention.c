/* Where a block's attention is done: self-attention by the sparse layer, or densely without one;
 * cross-attention always densely. DsvSparseAttention carries the tensors of both. */
#include "model/dit_internal.h"

static DsvAttentionArgs dense_args(const DsvDit *dit, int64_t keys, const DsvSparseAttention *args)
{
    int64_t queries = dit->tokens, heads = dit->heads, dim = dit->head_dim;
    return (DsvAttentionArgs){
        .batch = dit->batch, .heads = heads, .queries = queries, .keys = keys, .head_dim = dim,
        .scale = args->scale, .act = dit->act, .acc = dit->acc,
        .q = dsvi_heads(args->q, queries, heads, dim), .k = dsvi_heads(args->k, keys, heads, dim),
        .v = dsvi_heads(args->v, keys, heads, dim), .out = dsvi_heads(args->out, queries, heads, dim),
        .lse = args->lse,
        .dout = dsvi_heads(args->dout, queries, heads, dim), .dq = dsvi_heads(args->dq, queries, heads, dim),
        .dk = dsvi_heads(args->dk, keys, heads, dim), .dv = dsvi_heads(args->dv, keys, heads, dim),
        .workspace = dit->scratch.attention, .workspace_bytes = dit->scratch.attention_bytes,
    };
}

static DsvStatus attend_densely(const DsvDit *dit, int64_t keys, const DsvSparseAttention *args,
                                bool backward)
{
    const DsvOps *ops = &dit->backend->ops;
    DsvAttentionArgs dense = dense_args(dit, keys, args);
    return backward ? ops->attention_bwd.run(dit->stream, &dense)
                    : ops->attention_fwd.run(dit->stream, &dense);
}

size_t dsvi_dit_attention_workspace(const DsvDit *dit)
{
    const DsvOps *ops = &dit->backend->ops;
    const DsvSparseAttention nothing = {0};
    const int64_t keys[2] = {dit->text_len, dit->tokens};
    size_t most = 0;
    for (int i = 0; i < (dit->sparse ? 1 : 2); i++) {
        DsvAttentionArgs args = dense_args(dit, keys[i], &nothing);
        size_t forward = DSVI_OP_WORKSPACE(ops->attention_fwd, dit->stream, &args);
        size_t backward = DSVI_OP_WORKSPACE(ops->attention_bwd, dit->stream, &args);
        most = forward > most ? forward : most;
        most = dit->shape.backward && backward > most ? backward : most;
    }
    return most;
}

DsvStatus dsvi_dit_self_attend(DsvDit *dit, int64_t block, const DsvSparseAttention *args, bool backward)
{
    if (!dit->sparse)
        return attend_densely(dit, dit->tokens, args, backward);
    return backward ? dsvi_sparse_backward(dit->sparse, block, args)
                    : dsvi_sparse_forward(dit->sparse, block, args);
}

DsvStatus dsvi_dit_cross_attend(DsvDit *dit, const DsvSparseAttention *args, bool backward)
{
    return attend_densely(dit, dit->text_len, args, backward);
}
