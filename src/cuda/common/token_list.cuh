/* Device side of DsviTokenList (ops/pointwise.h). Kernels get lists whose `count` the host has set to the
 * number of tokens if all are processed. */
#ifndef DSVI_TOKEN_LIST_CUH
#define DSVI_TOKEN_LIST_CUH

#include "cuda/common/kernel.cuh"
#include "ops/pointwise.h"

namespace dsvi {

/* Returns processed token number `i` of a sample. LISTED is false in kernels for all tokens, which then do
 * not spend registers on lists. */
template <bool LISTED> __device__ __forceinline__ int64_t listed_token(const DsviTokenList &only, int64_t i)
{
    return LISTED ? only.token[i] : i;
}

/* Returns the row, among those of all samples' tokens, of processed row number `i`. */
__device__ __forceinline__ int64_t listed_row(const DsviTokenList &only, int64_t tokens, int64_t i)
{
    return only.token ? i / only.count * tokens + only.token[i % only.count] : i;
}

} // namespace dsvi

#endif
