/* Dense attention forward over keys in two parts. */
#ifndef DSVI_ATTENTION_SPLIT_H
#define DSVI_ATTENTION_SPLIT_H

#include <stdbool.h>

#include "cuda/device_cuda.h"
#include "ops/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether two parts are faster than one pass: many keys, and not a multiple of a tile. */
bool dsvi_attention_split_pays(const DsvAttentionArgs *args);

/* The call over the keys that fill whole tiles; or, `rest`, over those behind them, with results that go to
 * the workspace. Either is left what lies behind dsvi_attention_split_bytes of it. */
DsvAttentionArgs dsvi_attention_split_part(const DsvAttentionArgs *args, bool rest);
/* Bytes of workspace beyond what `attend` wants for a part. */
size_t dsvi_attention_split_bytes(const DsvAttentionArgs *args);

/* Both parts by `attend`, then one result of the two. */
DsvStatus dsvi_attention_split_fwd(DsvStream *stream, const DsvAttentionArgs *args,
                                   dsvi_attention_fn *attend);

#ifdef __cplusplus
}
#endif
#endif
