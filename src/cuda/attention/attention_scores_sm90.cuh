/* Scores, probabilities and dS in the backward kernels of attention on Hopper, for one warpgroup and a chunk
 * of 64 keys:
 *     S^T = K Q^T, dP^T = V dO^T, P = exp(scale S - lse), dS = P (dP - delta)
 * The rows of S^T are keys. Registers hold P^T and dS^T in the layout that a left factor of a product needs,
 * so dV = P^T dO and dK = dS^T Q use them without a copy. How scores are rounded is described in
 * attention_gather.cuh. */
#ifndef DSVI_ATTENTION_SCORES_SM90_CUH
#define DSVI_ATTENTION_SCORES_SM90_CUH

#include <math.h>

#include "cuda/attention/attention_list.cuh"
#include "cuda/common/hopper.cuh"

namespace dsvi::hopper {

constexpr int CHUNK_KEYS = 64;

/* Begins d = A B^T, summed over DIM columns. A and B are matrices of 64 columns each, one after the other; a
 * matrix of A has 64 lines, a matrix of B has LINES. */
template <int DIM, int LINES, int N>
__device__ __forceinline__ void begin_scores(float (&d)[N], uint32_t a, uint32_t b)
{
    uint64_t left = matrix_at(a, ATOM_BYTES, ATOM_BYTES), right = matrix_at(b, ATOM_BYTES, ATOM_BYTES);
#pragma unroll
    for (int k = 0; k < DIM; k += 16) {
        uint32_t part = k / 64 * LINE_BYTES, inside = k % 64 * 2;
        multiply(d, left + (part * 64 + inside) / 16, right + (part * LINES + inside) / 16, k > 0);
    }
    products_commit();
}

/* Copies to `diagonal` the elements on the diagonal of d, a 64 x 64 product, that this lane holds: those of
 * rows 16 warp + lane / 4 and 16 warp + lane / 4 + 8. Only lanes for which on_diagonal is true hold any. */
__device__ __forceinline__ void take_diagonal(float (&diagonal)[2], const float (&d)[32], int warp, int lane)
{
    int row = 16 * warp + lane / 4;
    diagonal[0] = diagonal[1] = 0;
#pragma unroll
    for (int i = 0; i < 32; i++)
        if (row + i / 2 % 2 * 8 == i / 4 * 8 + lane % 4 * 2 + i % 2)
            diagonal[i / 2 % 2] = d[i];
}

__device__ __forceinline__ bool on_diagonal(int lane)
{
    return lane % 4 == lane / 8;
}

/* Replaces the scores s = q . k of a chunk of keys and 2 N queries by the probabilities exp(scale s - lse).
 * The lse of the queries are at shared-memory address `from`. Only the first `count` keys of the chunk exist;
 * the others get probability 0. */
template <int N>
__device__ __forceinline__ void weigh(float (&s)[N], uint32_t from, int warp, int lane, float scale,
                                      int count)
{
    from += lane % 4 * 8;
#pragma unroll
    for (int j = 0; j < N / 4; j++) {
        float2 lse = load_two(from + 32 * j);
#pragma unroll
        for (int i = 4 * j; i < 4 * j + 4; i++)
            s[i] = power_of_two((__fmul_rn(s[i], scale) - (i % 2 ? lse.y : lse.x)) * (float)M_LOG2E);
    }
    if (count >= CHUNK_KEYS)
        return;
    int row = 16 * warp + lane / 4;
#pragma unroll
    for (int i = 0; i < N; i++)
        s[i] = row + i / 2 % 2 * 8 < count ? s[i] : 0;
}

/* Sets the probabilities p of a chunk of keys and 128 queries to 0 where the half of the queries, 64 each,
 * does not list the key. `span` is, in lanes r and r + 16, the list entry of the warp's r-th key, with the
 * bits LISTED_FIRST and LISTED_SECOND (attention_list.cuh). */
__device__ __forceinline__ void keep_listed(float (&p)[64], int span, int lane)
{
    uint32_t entry[2];
#pragma unroll
    for (int half = 0; half < 2; half++)
        entry[half] = (uint32_t)__shfl_sync(0xffffffffu, span, lane / 4 + 8 * half);
#pragma unroll
    for (int i = 0; i < 64; i++)
        p[i] = entry[i / 2 % 2] & (i < 32 ? LISTED_FIRST : LISTED_SECOND) ? p[i] : 0;
}

/* Computes the gradients ds of the scores from `weight` (the probabilities) and dp (their gradients), and
 * packs probabilities and ds to BF16. The delta of the queries are at shared-memory address `from`. */
template <int N>
__device__ __forceinline__ void differentiate(uint32_t (&p)[N / 2], uint32_t (&ds)[N / 2],
                                              const float (&weight)[N], const float (&dp)[N], uint32_t from,
                                              int lane)
{
    from += lane % 4 * 8;
#pragma unroll
    for (int j = 0; j < N / 4; j++) {
        float2 delta = load_two(from + 32 * j);
#pragma unroll
        for (int i = 4 * j; i < 4 * j + 4; i += 2) {
            p[i / 2] = pair_bits(weight[i], weight[i + 1]);
            ds[i / 2] = pair_bits(weight[i] * (dp[i] - delta.x), weight[i + 1] * (dp[i + 1] - delta.y));
        }
    }
    hold(p);
    hold(ds);
}

/* Stores dS to shared memory, as matrices of 64 queries each. A line of a matrix has the values of one key
 * for 64 queries. */
template <int N>
__device__ __forceinline__ void store_ds(uint32_t to, const uint32_t (&ds)[N], int warp, int lane)
{
    int key = 16 * warp + lane / 8 % 2 * 8 + lane % 8;
    to += key * LINE_BYTES;
#pragma unroll
    for (int n = 0; n < N / 4; n++) {
        int chunk = 2 * n + lane / 16;
        store_matrices(to + n / 4 * (CHUNK_KEYS * LINE_BYTES) + (chunk % 8 ^ lane % 8) * 16, &ds[4 * n]);
    }
}

} // namespace dsvi::hopper

#endif
