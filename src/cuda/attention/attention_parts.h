/* Divides a pass of dense attention into several calls of cuDNN that together take less time than one: the
 * idea, with a drawing, is in attention_parts.cu. */
#ifndef DSVI_ATTENTION_PARTS_H
#define DSVI_ATTENTION_PARTS_H

#include "cuda/device_cuda.h"
#include "ops/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The *tiled side* of a pass are the rows that cuDNN divides into tiles: queries in the forward pass, keys in
 * the backward pass. The *loop side* are the others, over which each thread block iterates. */
typedef struct DsviAttentionParts {
    int64_t first; /* number of rows of the tiled side that the first call handles; may be 0 or all rows */
    int64_t parts; /* number of parts into which the loop side is cut in the second call, which handles the
                      other rows of the tiled side; 0: there are no other rows */
    int64_t keys;  /* forward: keys in the first and second calls; a third call, the tail, handles the keys
                      after these. Backward: all keys */
    bool backward;
} DsviAttentionParts;

/* The calls of a divided pass. */
typedef enum DsviAttentionCall {
    DSVI_ATTENTION_FIRST,
    DSVI_ATTENTION_REST,
    DSVI_ATTENTION_TAIL,
    DSVI_ATTENTION_CALLS
} DsviAttentionCall;

/* Returns the division that takes the least time by a model of cuDNN's kernels; the result may be one call
 * with all queries and keys. Data pointers are not read. */
DsviAttentionParts dsvi_attention_parts_choose(const DsviStream *stream, const DsviAttentionArgs *args,
                                               bool backward);
/* Returns the division that consists of one call with all queries and keys. */
DsviAttentionParts dsvi_attention_parts_whole(const DsviAttentionArgs *args, bool backward);
bool dsvi_attention_parts_is_whole(const DsviAttentionArgs *args, DsviAttentionParts parts);

/* Arguments of one of the calls; queries or keys are 0 where the division does not have this call. Its
 * workspace is what dsvi_attention_parts_offset leaves of args->workspace. */
DsviAttentionArgs dsvi_attention_parts_call(const DsviAttentionArgs *args, DsviAttentionParts parts,
                                            DsviAttentionCall which);
/* Bytes at the beginning of args->workspace that a call must not use: copies and partial results. */
size_t dsvi_attention_parts_offset(const DsviAttentionArgs *args, DsviAttentionParts parts,
                                   DsviAttentionCall which);

/* Enqueues the calls, each by `attend`, and kernels that combine their results in args. */
DsvStatus dsvi_attention_parts_run(DsviStream *stream, const DsviAttentionArgs *args,
                                   DsviAttentionParts parts, dsvi_attention_fn *attend);

#ifdef __cplusplus
}
#endif
#endif
