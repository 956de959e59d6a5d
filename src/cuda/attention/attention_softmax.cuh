/* Online softmax (Milakov & Gimelshein 2018) of the scores of tiles of keys, and the product with V, for
 * portable kernels of attention in BF16. A warp holds its part of S, of P and of O in registers; P, which
 * replaces S, is the left factor of P V without a copy. */
#ifndef DSVI_ATTENTION_SOFTMAX_CUH
#define DSVI_ATTENTION_SOFTMAX_CUH

#include <math.h>

#include "cuda/attention/attention_tile.cuh"

namespace dsvi {

/* Online-softmax state of rows lane / 4 and lane / 4 + 8 of a block of 16 queries: the largest score so far,
 * and the sum of exp(score - largest) over the columns that this lane holds. */
struct Softmax {
    float largest[2], total[2];
};

/* Adds the scores of `count` keys to the softmax: s becomes p, and `out` and `total` are rescaled to the new
 * largest score. In a tail all scores may be -inf. */
template <int KEYS, bool TAIL = false, int N>
__device__ __forceinline__ void online_softmax(float (&s)[KEYS / 8][4], float (&out)[N][4], Softmax *softmax,
                                               int count)
{
    int column = threadIdx.x % 4 * 2;
    float before[2] = {softmax->largest[0], softmax->largest[1]}, rescale[2];
    if (count < KEYS) {
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[n][i] = 8 * n + column + i % 2 < count ? s[n][i] : -INFINITY;
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float now = before[half], sum = 0;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
            now = fmaxf(now, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
        now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 1));
        now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 2));
        float subtracted = TAIL ? tail_largest(now) : now;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
            s[n][2 * half] = exp_weight(s[n][2 * half] - subtracted);
            s[n][2 * half + 1] = exp_weight(s[n][2 * half + 1] - subtracted);
            sum += s[n][2 * half] + s[n][2 * half + 1];
        }
        rescale[half] = exp_weight(before[half] - subtracted);
        softmax->total[half] = softmax->total[half] * rescale[half] + sum;
        softmax->largest[half] = now;
    }
    if (!__any_sync(0xffffffffu, rescale[0] != 1 || rescale[1] != 1))
        return;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            out[n][i] *= rescale[i / 2];
}

/* Matrix product out += P V for one tile of keys, whose V is in shared memory. */
template <int DIM, int BLOCKS, int KEYS>
__device__ __forceinline__ void add_values(float (&out)[BLOCKS][DIM / 8][4],
                                           const float (&p)[BLOCKS][KEYS / 8][4], Lanes v)
{
#pragma unroll
    for (int key = 0; key < KEYS; key += 16) {
        uint32_t left[BLOCKS][4];
#pragma unroll
        for (int i = 0; i < BLOCKS; i++)
#pragma unroll
            for (int n = 0; n < 4; n++) {
                const float *two = &p[i][key / 8 + n / 2][n % 2 * 2];
                left[i][n] = pair_bits(two[0], two[1]);
            }
        multiply_add_block<DIM>(out, left, v, key, 0);
    }
}

} // namespace dsvi

#endif
