/* attention_error: how far attention over lists, with or without a tail, is from exact attention, on sampled
 * queries.
 *
 * For every sampled query i, with o_i the exact output over all keys (attention.h) and a_i the output over
 * the list of i's group, joined with the tail (attention_tail.h) if `chunk` is not 0: error = |a_i - o_i|^2
 * norm = |o_i|^2 The relative error of a head is sqrt(sum of error / sum of norm), with both sums over its
 * sampled queries. An output of zeros has relative error 1.
 *
 * Both outputs are computed from q, k and v in F32 or wider, without rounding to `act`, so the error is the
 * error of the formulas and contains no rounding of the attention ops. A workspace that suffices for a call
 * also suffices for a call with fewer heads or samples. */
#ifndef DSVI_ATTENTION_ERROR_H
#define DSVI_ATTENTION_ERROR_H

#include "ops/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviAttentionErrorArgs {
    int64_t batch, heads, queries, keys, head_dim;
    double scale;
    DsviDtype act;          /* activation dtype */
    DsviHeads q, k, v;      /* (B, Sq, N, D), (B, Sk, N, D) act */
    const DsviLists *lists; /* required */
    int64_t chunk, run;     /* the tail, as in attention_tail.h; chunk 0: no tail, run is not read */
    int64_t samples;
    const int32_t *sample; /* (samples) query numbers, device memory; the same queries in every (b, h) */
    float *error;          /* (B, N, samples) */
    float *norm;           /* (B, N, samples) */
    void *workspace;       /* 64-byte aligned device memory */
    size_t workspace_bytes;
} DsviAttentionErrorArgs;

typedef DsvStatus dsvi_attention_error_fn(DsviStream *stream, const DsviAttentionErrorArgs *args);
/* Returns the bytes of workspace for these shapes. The data pointers in the arguments are not read. */
typedef size_t dsvi_attention_error_workspace_fn(DsviStream *stream, const DsviAttentionErrorArgs *args);

/* Fails with DSV_E_SHAPE if lists are missing, chunk does not divide their group, run is not positive, or the
 * workspace has fewer bytes than `needed`. Every variant calls this check. */
DsvStatus dsvi_attention_error_check(const DsviAttentionErrorArgs *args, size_t needed);

dsvi_attention_error_fn dsvi_attention_error_ref;
dsvi_attention_error_workspace_fn dsvi_attention_error_workspace_ref;

#ifdef __cplusplus
}
#endif
#endif
