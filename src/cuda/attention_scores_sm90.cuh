/* From scores to dS in attention's backward passes on Hopper, for a warpgroup and 64 keys, a chunk:
 *     S^T = K Q^T, dP^T = V dO^T, P = exp(scale S - lse), dS = P (dP - delta)
 * The lines of S^T are keys: as registers hold P^T and dS^T, they are left factors of dV = P^T dO and
 * dK = dS^T Q. How scores are rounded: attention_gather.cuh. */
#ifndef DSVI_ATTENTION_SCORES_SM90_CUH
#define DSVI_ATTENTION_SCORES_SM90_CUH

#include <math.h>

#include "cuda/hopper.cuh"

namespace dsvi::hopper {

constexpr int CHUNK_KEYS = 64;

/* d = A B^T, over DIM, begun. In each 64 of their columns A has 64 lines and B has LINES. */
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

/* Element [row] of this lane's two on the diagonal of d, row / 4 and 8 further, in a product of 64 x 64; the
 * lanes that hold them are those for which on_diagonal. */
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

/* Scores of 2 N queries become weights; their lse is at `from`. Of the chunk, key `count` and what
 * follows have none. */
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

/* dp becomes ds; both are packed. delta of the queries is at `from`. */
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

/* dS to shared memory: lines are keys, of 64 queries each. */
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
