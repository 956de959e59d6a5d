/* Dense attention forward, shared out so that it fills the device. */
#ifndef DSVI_ATTENTION_SPLIT_H
#define DSVI_ATTENTION_SPLIT_H

#include "cuda/device_cuda.h"
#include "ops/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A rectangle of queries and keys, cut in three at most. */
typedef struct DsvAttentionSplit {
    int64_t queries; /* the first ones, perhaps none, perhaps all */
    int64_t keys;    /* the first ones, perhaps all */
    int64_t parts;   /* of the first keys, each attended on its own by the queries behind the first; 0: there
                      * are no such queries */
} DsvAttentionSplit;

/* What takes the least time. Addresses are not read. */
DsvAttentionSplit dsvi_attention_split_of(const DsvStream *stream, const DsvAttentionArgs *args);

/* FIRST: the first queries and keys. BEHIND: the queries behind them and the same keys, whose parts are
 * samples of a larger batch, each with its own copy of the queries. TAIL: all queries and the keys behind the
 * first. */
typedef enum DsvAttentionPiece {
    DSVI_ATTENTION_FIRST,
    DSVI_ATTENTION_BEHIND,
    DSVI_ATTENTION_TAIL,
    DSVI_ATTENTION_PIECES
} DsvAttentionPiece;

/* The call for a piece; it has no queries or no keys where there is none. It is left what lies behind
 * dsvi_attention_split_bytes of the workspace. */
DsvAttentionArgs dsvi_attention_split_piece(const DsvAttentionArgs *args, DsvAttentionSplit split,
                                            DsvAttentionPiece piece);
size_t dsvi_attention_split_bytes(const DsvAttentionArgs *args, DsvAttentionSplit split);

/* All pieces by `attend`, then one result of them. */
DsvStatus dsvi_attention_split_fwd(DsvStream *stream, const DsvAttentionArgs *args, DsvAttentionSplit split,
                                   dsvi_attention_fn *attend);

#ifdef __cplusplus
}
#endif
#endif
