/* Tables of the rotary position embedding (RoPE) over a (frames, rows, columns) grid of tokens. */
#ifndef DSVI_ROPE_H
#define DSVI_ROPE_H

#include <stdint.h>

#include "base/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sets how many pairs of a head's elements rotate with the frame, the row and the column of a token; their
 * sum is head_dim / 2. */
void dsvi_rope_split(int64_t head_dim, int64_t pairs[3]);

/* Fills cos_table and sin_table, host arrays (tokens, head_dim / 2) of a floating `dtype`. Row s belongs to
 * the token at raster position order[s]; with order NULL the tokens are in raster order. head_dim is even, at
 * most 256. */
void dsvi_rope_tables(const int64_t grid[3], int64_t head_dim, int64_t tokens, const int32_t *order,
                      DsviDtype dtype, void *cos_table, void *sin_table);

#ifdef __cplusplus
}
#endif
#endif
