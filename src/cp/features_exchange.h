/* Exchange of the features by which key lists are selected (ops/select.h). Before the exchange a rank has the
 * features of all heads for its tokens; afterwards it has the features of its heads for more tokens.
 *
 * The input is (B, N, rows, R) F32, one row for every `tokens_each` tokens of this rank. The output is (B,
 * N_own, rows, R) F32 for this rank's heads: the rows of the T tokens of its head group (used for proxies,
 * which stand for groups of queries), or the rows of all tokens (used for candidates, which stand for keys,
 * so that each rank can select its lists without further communication). Bytes that a rank sends to every
 * other rank r of its head group, or of the cp group:
 *     B (rows of the sender) (heads of r) R sizeof(float) */
#ifndef DSVI_FEATURES_EXCHANGE_H
#define DSVI_FEATURES_EXCHANGE_H

#include "cp/cp.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviFeaturesExchange {
    int64_t batch, features; /* B, R */
    int64_t tokens_each;     /* divides DsviCpClip.unit, or is a multiple of the number of all tokens */
    bool all_tokens;         /* true: output rows of all tokens; false: of the head group's tokens */
    const float *own;        /* input; all pointers of this struct are device memory */
    float *heads;            /* output */
    void *workspace;         /* at least dsvi_features_exchange_bytes */
} DsviFeaturesExchange;

/* Bytes of workspace for any plan with this head_ranks. Reads batch, features and tokens_each of `args`. */
size_t dsvi_features_exchange_bytes(const DsviCp *cp, int64_t head_ranks, const DsviFeaturesExchange *args);

/* Called by all ranks of the head group, or with all_tokens by all ranks of the cp group. */
DsvStatus dsvi_features_exchange(const DsviCp *cp, int64_t block, const DsviFeaturesExchange *args);

#ifdef __cplusplus
}
#endif
#endif
