/* attention_merge: combines two attention results of the same queries over disjoint sets of keys.
 *
 *     lse = log(exp(from_lse) + exp(part_lse))
 *     to  = exp(from_lse - lse) from + exp(part_lse - lse) part
 *
 * for each row (b, s, h). The larger lse is subtracted from both exponents, so that nothing overflows. An lse
 * of -inf means that the result had no key; its row is then not read and may contain anything. If from_lse
 * and part_lse are both -inf, `to` is 0 and lse is -inf. Results over more than two sets of keys are merged
 * one after another; between the first and the last merge the combined result is kept in `acc`, the
 * accumulation dtype. Arithmetic is in F32 or wider. */
#ifndef DSVI_ATTENTION_MERGE_H
#define DSVI_ATTENTION_MERGE_H

#include "ops/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviAttentionMergeArgs {
    int64_t batch, heads, queries, head_dim; /* B, N, S, D */
    DsviDtype act, acc;                      /* activation dtype, accumulation dtype */
    /* each of these dtypes is `act` (activations) or `acc` (accumulation) */
    DsviDtype from_dtype, to_dtype;
    DsviHeads from; /* (B, S, N, D) */
    DsviHeads part; /* (B, S, N, D) act */
    DsviHeads to;   /* (B, S, N, D) of to_dtype; may be `from` if dtypes and strides
                     * agree */
    void *lse; /* (B, N, S) acc: log-sum-exp of scores; holds from_lse on entry, and is overwritten with the
                * combined lse */
    const void *part_lse; /* (B, N, S) acc */
} DsviAttentionMergeArgs;
typedef DsvStatus dsvi_attention_merge_fn(DsviStream *stream, const DsviAttentionMergeArgs *args);

dsvi_attention_merge_fn dsvi_attention_merge_ref;

#ifdef __cplusplus
}
#endif
#endif
