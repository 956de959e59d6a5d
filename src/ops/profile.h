/* What attention really looks like, on sampled queries: the exact check of what selectors estimate.
 *
 * For every sampled query i, with the exact p_i over all keys (attention.h):
 *     captured = sum of p_ij over the keys in the list of i's group
 *     share90  = (smallest number of keys whose p sum to `mass` or more) / keys; 1 where rounding keeps
 *                the sum of all p below it
 *     listed   = (keys in the list of i's group) / keys
 * A workspace that serves a call serves calls of fewer heads or samples. */
#ifndef DSVI_PROFILE_H
#define DSVI_PROFILE_H

#include "ops/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvProfileArgs {
    int64_t batch, heads, queries, keys, head_dim;
    double scale;
    double mass;              /* of the share: 0.9 */
    DsvDtype act;
    DsvHeads q, k;            /* (B, Sq, N, D), (B, Sk, N, D) act */
    const DsvLists *lists;    /* NULL: captured and listed are 1 */
    int64_t samples;
    const int32_t *sample;    /* (samples) query numbers, device memory; used for every (b, h) */
    float *captured;          /* (B, N, samples) */
    float *share90;           /* (B, N, samples) */
    float *listed;            /* (B, N, samples) */
    void *workspace;
    size_t workspace_bytes;
} DsvProfileArgs;

typedef DsvStatus dsvi_profile_fn(DsvStream *stream, const DsvProfileArgs *args);
typedef size_t dsvi_profile_workspace_fn(DsvStream *stream, const DsvProfileArgs *args);

dsvi_profile_fn dsvi_profile_ref;
dsvi_profile_workspace_fn dsvi_profile_workspace_ref;

#ifdef __cplusplus
}
#endif
#endif
