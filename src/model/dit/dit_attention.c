/* Dense attention of a block: always for cross-attention, and for self-attention if the model has no sparse
 * layer. */
#include "model/dit/dit_internal.h"

static DsviAttentionArgs dit_attention_dense_args(const DsviDit *dit, int64_t keys,
                                                  const DsviAttentionCall *args)
{
    int64_t queries = dit->tokens, heads = dit->heads, dim = dit->head_dim;
    return (DsviAttentionArgs){
        .batch = dit->batch,
        .heads = heads,
        .queries = queries,
        .keys = keys,
        .head_dim = dim,
        .scale = args->scale,
        .act = dit->act,
        .acc = dit->acc,
        .q = dsvi_heads(args->q, queries, heads, dim),
        .k = dsvi_heads(args->k, keys, heads, dim),
        .v = dsvi_heads(args->v, keys, heads, dim),
        .out = dsvi_heads(args->out, queries, heads, dim),
        .lse = args->lse,
        .dout = dsvi_heads(args->dout, queries, heads, dim),
        .dq = dsvi_heads(args->dq, queries, heads, dim),
        .dk = dsvi_heads(args->dk, keys, heads, dim),
        .dv = dsvi_heads(args->dv, keys, heads, dim),
        .workspace = dit->scratch.attention,
        .workspace_bytes = dit->scratch.attention_bytes,
    };
}

DsvStatus dsvi_dit_attend_dense(const DsviDit *dit, int64_t keys, const DsviAttentionCall *args,
                                bool backward)
{
    const DsviOps *ops = &dit->backend->ops;
    DsviAttentionArgs dense = dit_attention_dense_args(dit, keys, args);
    return backward ? ops->attention_bwd.run(dit->stream, &dense)
                    : ops->attention_fwd.run(dit->stream, &dense);
}

size_t dsvi_dit_attention_workspace(const DsviDit *dit)
{
    const DsviOps *ops = &dit->backend->ops;
    const DsviAttentionCall nothing = {0};
    const int64_t keys[3] = {dit->text_len, dit->image_len, dit->tokens};
    size_t most = 0;
    for (int i = 0; i < (dit->sparse ? 2 : 3); i++) {
        if (keys[i] == 0)
            continue;
        DsviAttentionArgs args = dit_attention_dense_args(dit, keys[i], &nothing);
        size_t forward = DSVI_OP_WORKSPACE(ops->attention_fwd, dit->stream, &args);
        size_t backward = DSVI_OP_WORKSPACE(ops->attention_bwd, dit->stream, &args);
        most = forward > most ? forward : most;
        most = dit->shape.backward && backward > most ? backward : most;
    }
    return most;
}
