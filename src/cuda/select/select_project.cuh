/* The part of select_features that uses tensor cores: rows of BF16 are projected, either each row by itself,
 * or all rows of a chunk (a multiple of 16 rows) and then averaged, which gives the projection of the mean
 * (ops/select.h).
 *
 * A warp handles 16 rows at a time. A product is mma.m16n8k16: 16 rows by 8 features by 16 elements. The
 * projection matrix is float; each of its elements is split into three BF16 numbers, of which each rounds
 * what the earlier ones leave. So the products are exact and the sums as exact as those of floats. Lane 4 k
 * + q reads elements 8 q .. 8 q + 7 of every 32 elements of rows k and k + 8, 16 bytes each; the elements
 * may be in any order inside a product as long as the fragments of the projection use the same order. The
 * lane gets features 4 q .. 4 q + 3 of these rows. The heads of a token are neighbours in memory, therefore
 * blocks that run at the same time read the same tokens. */
#ifndef DSVI_SELECT_PROJECT_CUH
#define DSVI_SELECT_PROJECT_CUH

#include "cuda/common/kernel.cuh"
#include "cuda/common/tensor_core.cuh"

namespace {

using namespace dsvi;

enum {
    PROJECT_WARPS = 8,
    PROJECT_THREADS = PROJECT_WARPS * WARP,
    PROJECT_BLOCKS = 3,    /* thread blocks that a multiprocessor holds at the same time */
    PROJECT_ROWS = 16,     /* rows of x that one product multiplies */
    PROJECT_FEATURES = 16, /* largest number of features of a row */
    BF16_PIECES = 3        /* BF16 numbers that together represent a float */
};

/* What project_kernel receives. A unit is what a warp handles at a time: 16 rows, or one chunk of rows. */
struct Project {
    const __nv_bfloat16 *x;
    int64_t batch_stride, token_stride, head_stride;
    int tokens, heads, features;
    int tiles;               /* number of tiles of 16 rows in a unit (what a warp handles at a time) */
    int units, slices;       /* units of a (batch, head), and the slices into which they are divided */
    const float *projection; /* (heads, 32 CHUNKS, features) */
    float *y;                /* (batch, heads, tokens or chunks, features) the output */
    bool vector_out;         /* all rows of the output y begin at addresses that allow accesses of 16 bytes */
};

/* Splits a and b into BF16_PIECES BF16 numbers each, and returns number `piece` of both, packed in one
 * word. */
__device__ __forceinline__ uint32_t project_piece(float a, float b, int piece)
{
    __nv_bfloat16 first = __float2bfloat16_rn(a), second = __float2bfloat16_rn(b);
    for (; piece > 0; piece--) {
        a -= __bfloat162float(first);
        b -= __bfloat162float(second);
        first = __float2bfloat16_rn(a);
        second = __float2bfloat16_rn(b);
    }
    return (uint32_t)__bfloat16_as_ushort(first) | (uint32_t)__bfloat16_as_ushort(second) << 16;
}

/* Computes in shared memory the fragments (operands in the register layout of tensor-core products) of the
 * head's projection matrix: (steps of 16 elements, BF16_PIECES, WARP), where 16 bytes hold the fragments of
 * both products of a step. Column n of product j is feature 4 (n / 2) + 2 j + n % 2; the rows of step s are
 * elements 32 (s / 2) + 4 (s % 2) + 8 q and the three after it. */
template <int CHUNKS>
__device__ __forceinline__ void make_fragments(const Project &p, int h, uint4 *fragments)
{
    const float *from = p.projection + (int64_t)h * 32 * CHUNKS * p.features;
    for (int n = threadIdx.x; n < 2 * CHUNKS * BF16_PIECES * WARP; n += PROJECT_THREADS) {
        int lane = n % WARP, piece = n / WARP % BF16_PIECES, step = n / WARP / BF16_PIECES, column = lane / 4;
        int element = step / 2 * 32 + step % 2 * 4 + lane % 4 * 8;
        uint32_t word[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int feature = column / 2 * 4 + i / 2 * 2 + column % 2;
            const float *at = from + (int64_t)(element + i % 2 * 2) * p.features + feature;
            bool inside = feature < p.features;
            word[i] = project_piece(inside ? at[0] : 0.f, inside ? at[p.features] : 0.f, piece);
        }
        fragments[n] = make_uint4(word[0], word[1], word[2], word[3]);
    }
}

/* The sums of a tile of 16 rows, for both products (8 features each). Products with the first BF16 piece of
 * the projection are summed separately from those with the other pieces, because the latter are small. */
struct ProjectSums {
    float first[2][4], others[2][4];
};

/* Adds to the sums the products of 16 elements of 16 rows of x with the projection. `upper` and `lower` are
 * this lane's elements of rows k and k + 8. */
__device__ __forceinline__ void add_projected_step(ProjectSums &s, uint2 upper, uint2 lower,
                                                   const uint4 *fragments)
{
#pragma unroll
    for (int piece = 0; piece < BF16_PIECES; piece++) {
        uint4 b = fragments[piece * WARP];
        float(&sum)[2][4] = piece == 0 ? s.first : s.others;
        multiply_rows(sum[0], upper.x, lower.x, upper.y, lower.y, b.x, b.y);
        multiply_rows(sum[1], upper.x, lower.x, upper.y, lower.y, b.z, b.w);
    }
}

/* Adds to the sums the products of 16 rows of x with the projection; rows past the last token count as
 * zeros. `row` is the number of this lane's first row. */
template <int CHUNKS>
__device__ __forceinline__ void add_projected_rows(const Project &p, const __nv_bfloat16 *x, int row,
                                                   const uint4 *fragments, ProjectSums &s)
{
    uint4 upper[CHUNKS], lower[CHUNKS]; /* rows k and k + 8 */
    const uint4 *from = reinterpret_cast<const uint4 *>(x + row * p.token_stride);
    const uint4 *below = reinterpret_cast<const uint4 *>(x + (row + 8) * p.token_stride);
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        upper[c] = row < p.tokens ? from[4 * c] : make_uint4(0, 0, 0, 0);
        lower[c] = row + 8 < p.tokens ? below[4 * c] : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        const uint4 *step = fragments + 2 * c * BF16_PIECES * WARP;
        add_projected_step(s, make_uint2(upper[c].x, upper[c].y), make_uint2(lower[c].x, lower[c].y), step);
        add_projected_step(s, make_uint2(upper[c].z, upper[c].w), make_uint2(lower[c].z, lower[c].w),
                           step + BF16_PIECES * WARP);
    }
}

/* Writes this lane's four features, or as many of them as exist, to a row of y. */
__device__ __forceinline__ void store_projected_row(const Project &p, float *y, int feature,
                                                    const float (&x)[4])
{
    if (p.vector_out && feature + 4 <= p.features) {
        store(y + feature, x);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (feature + i < p.features)
            y[feature + i] = x[i];
}

/* Sets x to this lane's features of row k (half 0) or row k + 8 (half 1) of the warp's 16 rows. */
__device__ __forceinline__ void load_projected_row(const ProjectSums &s, int half, float (&x)[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        x[i] = s.first[i / 2][2 * half + i % 2] + s.others[i / 2][2 * half + i % 2];
}

/* Writes this lane's features of the rows numbered `first` and first + 8 to y, if these rows exist. */
__device__ __forceinline__ void store_projected_rows(const Project &p, float *y, int first, int feature,
                                                     const ProjectSums &s)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float x[4];
        load_projected_row(s, half, x);
        if (first + 8 * half < p.tokens)
            store_projected_row(p, y + (int64_t)(first + 8 * half) * p.features, feature, x);
    }
}

/* Writes to y the mean of the projected features of `rows` rows; `s` holds their sums, distributed over the
 * lanes. */
__device__ __forceinline__ void store_projected_mean(const Project &p, float *y, int rows, int feature,
                                                     const ProjectSums &s)
{
    float x[4], below[4];
    load_projected_row(s, 0, x);
    load_projected_row(s, 1, below);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[i] += below[i];
#pragma unroll
        for (int step = 4; step < WARP;
             step *= 2) /* adds over the lanes 4 k + q for all k, which have the same features */
            x[i] += __shfl_xor_sync(0xffffffffu, x[i], step);
        x[i] /= (float)rows;
    }
    if (threadIdx.x % WARP < 4)
        store_projected_row(p, y, feature, x);
}

/* Projects rows of BF16. With MEANS, a unit is a chunk of rows and the mean of its projected rows is
 * written; otherwise a unit is 16 rows and each projected row is written. The blocks are numbered along x by
 * head (fastest), then slice, then sample of the batch. */
template <int CHUNKS, bool MEANS>
__global__ __launch_bounds__(PROJECT_THREADS,
                             PROJECT_BLOCKS) void project_kernel(const __grid_constant__ Project p)
{
    __shared__ uint4 fragments[2 * CHUNKS * BF16_PIECES * WARP];
    int lane = threadIdx.x % WARP, k = lane / 4, q = lane % 4, h = blockIdx.x % p.heads;
    int slice = blockIdx.x / p.heads % p.slices, b = blockIdx.x / p.heads / p.slices;
    int unit = (int)((int64_t)p.units * slice / p.slices) + (int)threadIdx.x / WARP;
    int end = (int)((int64_t)p.units * (slice + 1) / p.slices), of_unit = p.tiles * PROJECT_ROWS;
    const __nv_bfloat16 *x = p.x + b * p.batch_stride + h * p.head_stride + q * 8;
    float *y = p.y + ((int64_t)b * p.heads + h) * (MEANS ? p.units : p.tokens) * p.features;
    make_fragments<CHUNKS>(p, h, fragments);
    __syncthreads();
    for (; unit < end; unit += PROJECT_WARPS) {
        ProjectSums s = {};
        int first = unit * of_unit, left = p.tokens - first;
        for (int row = k; row < of_unit; row += PROJECT_ROWS)
            add_projected_rows<CHUNKS>(p, x, first + row, fragments + lane, s);
        if (MEANS)
            store_projected_mean(p, y + (int64_t)unit * p.features, left < of_unit ? left : of_unit, 4 * q,
                                 s);
        else
            store_projected_rows(p, y, first + k, 4 * q, s);
    }
}

} // namespace

#endif
