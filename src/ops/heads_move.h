/* heads_move: rows of some heads from one tensor to another, as they are.
 *
 *     row (b, s, to_head[i]) of `to` = row (b, s, from_head[i]) of `from`,    0 <= i < heads
 * Rows are of D elements of any dtype (attention.h: DsvHeads). This packs the heads that go to another rank,
 * and puts those that come from one where they belong. Other rows of `to` stay as they are; the tensors must
 * not overlap, and no head of `to` comes twice. */
#ifndef DSVI_HEADS_MOVE_H
#define DSVI_HEADS_MOVE_H

#include "ops/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvHeadsMoveArgs {
    int64_t batch, tokens, heads, head_dim; /* B, S, heads that move, D */
    DsvDtype dtype;
    /* (heads) host memory, read before the call returns; NULL: 0, 1, 2 ... */
    const int32_t *from_head, *to_head;
    DsvHeads from, to;
} DsvHeadsMoveArgs;
typedef DsvStatus dsvi_heads_move_fn(DsvStream *stream, const DsvHeadsMoveArgs *args);

/* Number i of a list of heads, which may be NULL. */
static inline int64_t dsvi_head_of(const int32_t *heads, int64_t i)
{
    return heads ? heads[i] : i;
}

dsvi_heads_move_fn dsvi_heads_move_ref;

#ifdef __cplusplus
}
#endif
#endif
