/* The weights with which the results of attention over two sets of keys are joined. */
#ifndef DSVI_ATTENTION_WEIGHTS_CUH
#define DSVI_ATTENTION_WEIGHTS_CUH

#include <math.h>

namespace dsvi {

/* Weights of the two results, and the joint lse. */
struct Weights {
    float from, part, lse;
};

/* Returns the weights of two results with these lse (log of the sum of exp(scores)). */
__device__ __forceinline__ Weights weigh(float from_lse, float part_lse)
{
    float larger = fmaxf(from_lse, part_lse);
    if (larger == -INFINITY)
        return {0.f, 0.f, larger};
    float from = expf(from_lse - larger), part = expf(part_lse - larger), sum = from + part;
    return {from / sum, part / sum, larger + logf(sum)};
}

} // namespace dsvi

#endif
