/* Features of tokens for selection, from ranks that have some tokens of all heads to ranks that have some
 * heads (ops/select.h: proxies of the queries, candidates of the keys).
 *
 * A rank has (B, N, rows, R) of its own tokens, a row for every `tokens_each` of them, and gets
 * (B, N_own, rows, R) of its heads: of the T tokens of its head group (proxies), or of all tokens
 * (candidates: the low-rank exchange by which lists are chosen locally). What a rank sends to every other
 * rank r of its head group, or of all ranks:
 *     B rows (heads that r has) R sizeof(float) bytes */
#ifndef DSVI_FEATURES_EXCHANGE_H
#define DSVI_FEATURES_EXCHANGE_H

#include "context/context.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvFeaturesExchange {
    int64_t batch, features; /* B, R */
    int64_t tokens_each;     /* divides the unit of the context's stretches, or is a multiple of all tokens */
    bool all_tokens;
    const float *own;        /* device memory, as the rest */
    float *heads;
    void *workspace;         /* at least dsvi_features_exchange_bytes */
} DsvFeaturesExchange;

/* Of `args` batch, features and tokens_each are read; serves any plan of so many head ranks. */
size_t dsvi_features_exchange_bytes(const DsvContext *context, int64_t head_ranks,
                                    const DsvFeaturesExchange *args);

/* All ranks of the head group, or of the context's group, call. */
DsvStatus dsvi_features_exchange(const DsvContext *context, int64_t block, const DsvFeaturesExchange *args);

#ifdef __cplusplus
}
#endif
#endif
