/* heads_move: copies the rows of some heads from one tensor to another, bit by bit.
 *
 *     row (b, s, to_head[i]) of `to` = row (b, s, from_head[i]) of `from`,    0 <= i < heads
 *
 * A row has D elements of any dtype (attention.h: DsviHeads). heads_move packs the heads that are sent to
 * another rank, and unpacks the heads that are received. Other rows of `to` are unchanged. The tensors must
 * not overlap, and to_head must not name a head twice. */
#ifndef DSVI_HEADS_MOVE_H
#define DSVI_HEADS_MOVE_H

#include "ops/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviHeadsMoveArgs {
    int64_t batch, tokens, heads, head_dim; /* B, S, number of heads to copy, D */
    DsviDtype dtype;
    /* (heads) numbers of the heads to copy, in host memory, read before the call returns; NULL stands for 0,
     * 1, 2 ... */
    const int32_t *from_head, *to_head;
    DsviHeads from, to;
} DsviHeadsMoveArgs;
typedef DsvStatus dsvi_heads_move_fn(DsviStream *stream, const DsviHeadsMoveArgs *args);

/* Returns entry i of the array from_head or to_head of DsviHeadsMoveArgs. NULL stands for 0, 1, 2 ... */
static inline int64_t dsvi_head_index(const int32_t *heads, int64_t i)
{
    return heads ? heads[i] : i;
}

dsvi_heads_move_fn dsvi_heads_move_ref;

#ifdef __cplusplus
}
#endif
#endif
