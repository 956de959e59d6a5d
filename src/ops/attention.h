/* Attention, dense or over key lists, forward and backward.
 *
 *     s_ij = scale q_i . k_j      p_ij = exp(s_ij - lse_i)      out_i = sum_j p_ij v_j
 *     lse_i = log sum_j exp(s_ij)                               (natural log)
 *
 * The sums run over all keys j (dense) or over the keys in the list of query i's group (lists.h). A query
 * whose list is empty has out = 0, lse = -inf and no gradient.
 *
 *     delta_i = sum_d out_id dout_id      ds_ij = p_ij (dout_i . v_j - delta_i)
 *     dq_i = scale sum_j ds_ij k_j        dk_j = scale sum_i ds_ij q_i        dv_j = sum_i p_ij dout_i
 *
 * FLOPs: forward 4 B N D pairs, backward 10 B N D pairs, where pairs = queries x attended keys. Sums are
 * accumulated in F32 or wider. A variant may round p (before the division by the row sum) and ds to `act`,
 * the activation dtype, when they are operands of a matrix product. The D elements of a row are contiguous,
 * and the start of each row is given by strides, so both (B, S, N, D) and (B, N, S, D) are supported. Nothing
 * outside the rows is read or written. */
#ifndef DSVI_ATTENTION_H
#define DSVI_ATTENTION_H

#include "base/dtype.h"
#include "device/device.h"
#include "ops/lists.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A tensor (B, S, N, D) whose rows of D elements are contiguous. Row (b, s, h) starts at
 * data + (b * batch_stride + s * token_stride + h * head_stride) elements. */
typedef struct DsviHeads {
    void *data;
    int64_t batch_stride, token_stride, head_stride;
} DsviHeads;

/* Describes a contiguous (B, S, N, D) tensor. */
static inline DsviHeads dsvi_heads(const void *data, int64_t tokens, int64_t heads, int64_t head_dim)
{
    DsviHeads rows;
    rows.data = (void *)data;
    rows.batch_stride = tokens * heads * head_dim;
    rows.token_stride = heads * head_dim;
    rows.head_stride = head_dim;
    return rows;
}

/* Offset of row (b, s, h) from `data`, in elements. */
static inline int64_t dsvi_heads_at(const DsviHeads *rows, int64_t b, int64_t s, int64_t h)
{
    return b * rows->batch_stride + s * rows->token_stride + h * rows->head_stride;
}

/* Returns a view of the tensor `rows` without the tokens before `first`: token 0 of the view is token `first`
 * of `rows`. An element has `size` bytes. */
static inline DsviHeads dsvi_heads_from(const DsviHeads *rows, int64_t first, size_t size)
{
    DsviHeads others = *rows;
    others.data = (char *)rows->data + (size_t)(first * rows->token_stride) * size;
    return others;
}

/* Largest head size D that variants support. */
#define DSVI_HEAD_DIM_MAX 256

typedef struct DsviAttentionArgs {
    int64_t batch, heads, queries, keys, head_dim; /* B, N, Sq, Sk, D; D even */
    double scale;
    /* act: activation dtype, of q, k, v, out and their gradients; acc: accumulation dtype, of lse */
    DsviDtype act, acc;
    const DsviLists *lists; /* NULL: dense; else batch, heads, queries and keys of the lists must equal
                             * those here */
    DsviHeads q, k, v;      /* (B, Sq, N, D), (B, Sk, N, D) act */
    DsviHeads out;          /* (B, Sq, N, D) act; written by forward, read by backward */
    void *lse;              /* (B, N, Sq) acc; written by forward, read by backward */
    /* Backward only. dout and dq are shaped like out, dk and dv like k. Every row of dq, dk and dv is
     * overwritten. */
    DsviHeads dout, dq, dk, dv;
    void *workspace; /* 64-byte aligned device memory, at least as large as the op's workspace
                      * function returns for these shapes (or for the same shapes with more heads) */
    size_t workspace_bytes;
} DsviAttentionArgs;

typedef DsvStatus dsvi_attention_fn(DsviStream *stream, const DsviAttentionArgs *args);
/* Returns the bytes of workspace for these shapes. The data pointers in the arguments are not read. */
typedef size_t dsvi_attention_workspace_fn(DsviStream *stream, const DsviAttentionArgs *args);

/* Fails with DSV_E_SHAPE if sizes disagree or the head size is out of range. Every variant of attention calls
 * this check. */
DsvStatus dsvi_attention_check(const DsviAttentionArgs *args);
/* Returns the dot product of rows (b, i, h) of q and (b, j, h) of k, both of `dim` elements, in double. */
double dsvi_heads_dot(DsviDtype dtype, const DsviHeads *q, int64_t i, const DsviHeads *k, int64_t j,
                      int64_t b, int64_t h, int64_t dim);
/* Returns x rounded to the dtype `act`. GPU variants round the operands of matrix products in the same way,
 * so the reference implementations do too. */
double dsvi_attention_operand(DsviDtype act, double x);

/* The reference implementations serve dense attention and lists, and need no workspace. */
dsvi_attention_fn dsvi_attention_fwd_ref, dsvi_attention_bwd_ref;

#ifdef __cplusplus
}
#endif
#endif
