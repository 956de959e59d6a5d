/* Dense attention backward, shared out so that it fills the device. */
#ifndef DSVI_ATTENTION_PARTS_H
#define DSVI_ATTENTION_PARTS_H

#include "cuda/device_cuda.h"
#include "ops/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvAttentionParts {
    int64_t first; /* keys attended by all queries at once; 0: none */
    int64_t parts; /* of the queries, each of which attends the keys behind those on its own; 0: the whole
                    * pass is left as it is */
} DsvAttentionParts;

/* What takes the least time. Addresses are not read. */
DsvAttentionParts dsvi_attention_parts_of(const DsvStream *stream, const DsvAttentionArgs *args);

/* The call over the first keys. */
DsvAttentionArgs dsvi_attention_parts_first(const DsvAttentionArgs *args, DsvAttentionParts parts);
/* The call over the keys behind them. The parts of the queries are samples of a larger batch, each with its
 * own copy of these keys and its own gradients of them. It is left what lies behind
 * dsvi_attention_parts_bytes of the workspace. */
DsvAttentionArgs dsvi_attention_parts_rest(const DsvAttentionArgs *args, DsvAttentionParts parts);
size_t dsvi_attention_parts_bytes(const DsvAttentionArgs *args, DsvAttentionParts parts);

/* Both calls by `attend`, then one result of the two. */
DsvStatus dsvi_attention_parts_bwd(DsvStream *stream, const DsvAttentionArgs *args, DsvAttentionParts parts,
                                   dsvi_attention_fn *attend);

#ifdef __cplusplus
}
#endif
#endif
