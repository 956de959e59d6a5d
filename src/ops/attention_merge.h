/* attention_merge: two results of attention of the same queries over different keys become one.
 *
 *     lse = log(exp(from_lse) + exp(part_lse))
 *     to  = exp(from_lse - lse) from + exp(part_lse - lse) part
 * for each row (b, s, h); formed from the larger of the two, so that nothing overflows. An lse of -inf says
 * that there was no key: that result is not used, whatever it is; where both are so, `to` is 0 and lse -inf.
 * Results of many stretches of keys are merged one by one: between the first and the last merge the joint
 * result is kept in acc. Arithmetic is in F32 or wider. */
#ifndef DSVI_ATTENTION_MERGE_H
#define DSVI_ATTENTION_MERGE_H

#include "ops/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvAttentionMergeArgs {
    int64_t batch, heads, queries, head_dim; /* B, N, S, D */
    DsvDtype act, acc;
    DsvDtype from_dtype, to_dtype;           /* act or acc */
    DsvHeads from;                           /* (B, S, N, D) */
    DsvHeads part;                           /* (B, S, N, D) act */
    DsvHeads to;                             /* (B, S, N, D); may be `from`, where dtypes and strides agree */
    void *lse;                               /* (B, N, S) acc: from_lse, overwritten with the joint one */
    const void *part_lse;                    /* (B, N, S) acc */
} DsvAttentionMergeArgs;
typedef DsvStatus dsvi_attention_merge_fn(DsvStream *stream, const DsvAttentionMergeArgs *args);

dsvi_attention_merge_fn dsvi_attention_merge_ref;

#ifdef __cplusplus
}
#endif
#endif
