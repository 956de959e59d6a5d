/* Attention, dense and over lists, forward and backward.
 *
 *     s_ij = scale q_i . k_j      p_ij = exp(s_ij - lse_i)      out_i = sum_j p_ij v_j
 *     lse_i = log sum_j exp(s_ij)                               (natural log)
 * j runs over all keys (dense) or over those in the list of i's group (lists.h). A query whose list is
 * empty has out = 0, lse = -inf and no gradient.
 *     delta_i = sum_d out_id dout_id      ds_ij = p_ij (dout_i . v_j - delta_i)
 *     dq_i = scale sum_j ds_ij k_j        dk_j = scale sum_i ds_ij q_i        dv_j = sum_i p_ij dout_i
 *
 * FLOPs forward 4 B N D pairs, backward 10 B N D pairs, pairs = queries x keys attended.
 * Sums are in F32 or wider. As factors of a product p (before its division by the sum of all) and ds may be
 * rounded to act. Rows of D elements are contiguous; where rows start is free (strides in
 * elements), so (B, S, N, D) and (B, N, S, D) are both served. Nothing outside the rows is touched. */
#ifndef DSVI_ATTENTION_H
#define DSVI_ATTENTION_H

#include "base/dtype.h"
#include "device/device.h"
#include "ops/lists.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Row (b, s, h) starts at data + (b * batch_stride + s * token_stride + h * head_stride) elements. */
typedef struct DsvHeads {
    void *data;
    int64_t batch_stride, token_stride, head_stride;
} DsvHeads;

/* The usual case: contiguous (B, S, N, D). */
static inline DsvHeads dsvi_heads(const void *data, int64_t tokens, int64_t heads, int64_t head_dim)
{
    DsvHeads rows;
    rows.data = (void *)data;
    rows.batch_stride = tokens * heads * head_dim;
    rows.token_stride = heads * head_dim;
    rows.head_stride = head_dim;
    return rows;
}

/* Where row (b, s, h) starts, in elements. */
static inline int64_t dsvi_heads_at(const DsvHeads *rows, int64_t b, int64_t s, int64_t h)
{
    return b * rows->batch_stride + s * rows->token_stride + h * rows->head_stride;
}

/* The same rows from token `first` on, `size` bytes an element. */
static inline DsvHeads dsvi_heads_from(const DsvHeads *rows, int64_t first, size_t size)
{
    DsvHeads others = *rows;
    others.data = (char *)rows->data + (size_t)(first * rows->token_stride) * size;
    return others;
}

#define DSV_HEAD_DIM_MAX 256

typedef struct DsvAttentionArgs {
    int64_t batch, heads, queries, keys, head_dim; /* B, N, Sq, Sk, D; D even */
    double scale;
    DsvDtype act, acc;        /* act of q k v out and their gradients; acc of lse */
    const DsvLists *lists;    /* NULL: dense; else lists->batch, heads, queries, keys agree */
    DsvHeads q, k, v;         /* (B, Sq, N, D), (B, Sk, N, D) act */
    DsvHeads out;             /* (B, Sq, N, D) act: written by forward, read by backward */
    void *lse;                /* (B, N, Sq) acc: likewise */
    /* backward only; dq, dk, dv are overwritten, every row of them */
    DsvHeads dout, dq, dk, dv;
    void *workspace;          /* at least what the op's workspace function asks for, for these shapes or with
                               * more heads; 64-byte aligned */
    size_t workspace_bytes;
} DsvAttentionArgs;

typedef DsvStatus dsvi_attention_fn(DsvStream *stream, const DsvAttentionArgs *args);
/* Scratch bytes for these shapes (data pointers are not read). */
typedef size_t dsvi_attention_workspace_fn(DsvStream *stream, const DsvAttentionArgs *args);

/* Refuses what no variant serves: shapes that disagree, a head size out of range. */
DsvStatus dsvi_attention_check(const DsvAttentionArgs *args);
/* q_i . k_j of (b, h), in double. */
double dsvi_heads_dot(DsvDtype dtype, const DsvHeads *q, int64_t i, const DsvHeads *k, int64_t j, int64_t b,
                      int64_t h, int64_t dim);

/* Dense and lists alike; no workspace. */
dsvi_attention_fn dsvi_attention_fwd_ref, dsvi_attention_bwd_ref;

#ifdef __cplusplus
}
#endif
#endif
