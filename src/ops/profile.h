/* profile: computes exact attention of sampled queries, to measure how good the key lists of a selector are.
 *
 * For every sampled query i, with the exact p_i over all keys (attention.h):
 *     captured = sum of p_ij over the keys in the list of i's group
 *     share90  = (smallest number of keys whose p sum to `mass` or more) / keys; 1 if rounding keeps the
 *                sum of all p below `mass`
 *     listed   = (keys in the list of i's group) / keys
 * A workspace that suffices for a call also suffices for a call with fewer heads or samples. */
#ifndef DSVI_PROFILE_H
#define DSVI_PROFILE_H

#include "ops/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviProfileArgs {
    int64_t batch, heads, queries, keys, head_dim;
    double scale;
    double mass;    /* share90 is the fraction of keys needed to hold this fraction of attention: 0.9 */
    DsviDtype act;  /* activation dtype */
    DsviHeads q, k; /* (B, Sq, N, D), (B, Sk, N, D) act */
    const DsviLists *lists; /* NULL stands for dense attention: captured and listed are 1 */
    int64_t samples;
    const int32_t *sample; /* (samples) query numbers, device memory; the same queries in every (b, h) */
    float *captured;       /* (B, N, samples) */
    float *share90;        /* (B, N, samples) */
    float *listed;         /* (B, N, samples) */
    void *workspace;
    size_t workspace_bytes;
} DsviProfileArgs;

typedef DsvStatus dsvi_profile_fn(DsviStream *stream, const DsviProfileArgs *args);
typedef size_t dsvi_profile_workspace_fn(DsviStream *stream, const DsviProfileArgs *args);

dsvi_profile_fn dsvi_profile_ref;
dsvi_profile_workspace_fn dsvi_profile_workspace_ref;

#ifdef __cplusplus
}
#endif
#endif
