/* Rows of BF16 projected by the tensor cores: features of single rows, or means of those of a chunk of 16
 * rows or some multiple, where the mean of the projections is the projection of the mean (ops/select.h).
 *
 * A warp takes 16 rows at a time. A product is mma.m16n8k16: 16 rows by 8 features by 16 elements. The
 * projection is float; three BF16 numbers, each what the ones before leave, hold all of it, so that products
 * are exact and sums as good as float's. Lane 4 k + q reads elements 8 q ... 8 q + 7 of every 32 of rows k
 * and k + 8, 16 bytes each: which elements a fragment calls neighbours is free as long as the projection's
 * fragments agree. Of the features it gets 4 q ... 4 q + 3.
 * Heads lie side by side in memory, so blocks of threads that run at the same time take the same tokens. */
#ifndef DSVI_SELECT_PROJECT_CUH
#define DSVI_SELECT_PROJECT_CUH

#include "cuda/kernel.cuh"
#include "cuda/tensor_core.cuh"

namespace {

using namespace dsvi;

enum {
    PROJECT_WARPS = 8,
    PROJECT_THREADS = PROJECT_WARPS * WARP,
    PROJECT_BLOCKS = 3,    /* of threads that a multiprocessor holds */
    PROJECT_ROWS = 16,     /* of a product */
    PROJECT_FEATURES = 16, /* at most */
    PIECES = 3             /* BF16 numbers that make a float */
};

struct Project {
    const __nv_bfloat16 *x;
    int64_t batch_stride, token_stride, head_stride;
    int tokens, heads, features;
    int tiles;              /* of 16 rows in a unit: one, or those of a chunk */
    int units, slices;      /* of a (batch, head) */
    const float *projection; /* (heads, 32 CHUNKS, features) */
    float *y;               /* (batch, heads, tokens or units, features) */
    bool vector_out;        /* whether y takes 16 bytes at a time */
};

/* The two BF16 numbers `piece` of a and b. */
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

/* Fragments of the head's projection: (steps of 16 elements, PIECES, WARP), both products' in 16 bytes.
 * Column n of product j is feature 4 (n / 2) + 2 j + n % 2; rows of step s are elements
 * 32 (s / 2) + 4 (s % 2) + 8 q and the three after it. */
template <int CHUNKS>
__device__ __forceinline__ void make_fragments(const Project &p, int h, uint4 *fragments)
{
    const float *from = p.projection + (int64_t)h * 32 * CHUNKS * p.features;
    for (int n = threadIdx.x; n < 2 * CHUNKS * PIECES * WARP; n += PROJECT_THREADS) {
        int lane = n % WARP, piece = n / WARP % PIECES, step = n / WARP / PIECES, column = lane / 4;
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

/* Sums of a warp's tile: of both products, those with a projection's first pieces and those with the others
 * apart, since the latter are small. */
struct ProjectSums {
    float first[2][4], others[2][4];
};

/* Adds 16 elements of 16 rows. */
__device__ __forceinline__ void add_step(ProjectSums &s, uint2 upper, uint2 lower, const uint4 *fragments)
{
#pragma unroll
    for (int piece = 0; piece < PIECES; piece++) {
        uint4 b = fragments[piece * WARP];
        float(&sum)[2][4] = piece == 0 ? s.first : s.others;
        multiply_rows(sum[0], upper.x, lower.x, upper.y, lower.y, b.x, b.y);
        multiply_rows(sum[1], upper.x, lower.x, upper.y, lower.y, b.z, b.w);
    }
}

/* Adds 16 rows, as far as there are so many; `row` is this lane's first one. */
template <int CHUNKS>
__device__ __forceinline__ void add_rows(const Project &p, const __nv_bfloat16 *x, int row,
                                         const uint4 *fragments, ProjectSums &s)
{
    uint4 upper[CHUNKS], lower[CHUNKS]; /* of rows k and k + 8 */
    const uint4 *from = reinterpret_cast<const uint4 *>(x + row * p.token_stride);
    const uint4 *below = reinterpret_cast<const uint4 *>(x + (row + 8) * p.token_stride);
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        upper[c] = row < p.tokens ? from[4 * c] : make_uint4(0, 0, 0, 0);
        lower[c] = row + 8 < p.tokens ? below[4 * c] : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        const uint4 *step = fragments + 2 * c * PIECES * WARP;
        add_step(s, make_uint2(upper[c].x, upper[c].y), make_uint2(lower[c].x, lower[c].y), step);
        add_step(s, make_uint2(upper[c].z, upper[c].w), make_uint2(lower[c].z, lower[c].w),
                 step + PIECES * WARP);
    }
}

/* This lane's four features of a row of y. */
__device__ __forceinline__ void put_row(const Project &p, float *y, int feature, const float (&x)[4])
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

/* This lane's features of row k (half 0) or k + 8 (half 1). */
__device__ __forceinline__ void take_row(const ProjectSums &s, int half, float (&x)[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        x[i] = s.first[i / 2][2 * half + i % 2] + s.others[i / 2][2 * half + i % 2];
}

/* Rows of y from `first` on, of which this lane has some features of the first and of the eighth after it. */
__device__ __forceinline__ void put_rows(const Project &p, float *y, int first, int feature,
                                         const ProjectSums &s)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float x[4];
        take_row(s, half, x);
        if (first + 8 * half < p.tokens)
            put_row(p, y + (int64_t)(first + 8 * half) * p.features, feature, x);
    }
}

/* The mean of all rows that were added, `rows` of them. */
__device__ __forceinline__ void put_mean(const Project &p, float *y, int rows, int feature,
                                         const ProjectSums &s)
{
    float x[4], below[4];
    take_row(s, 0, x);
    take_row(s, 1, below);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[i] += below[i];
#pragma unroll
        for (int step = 4; step < WARP; step *= 2) /* lanes 4 k + q, for all k */
            x[i] += __shfl_xor_sync(0xffffffffu, x[i], step);
        x[i] /= (float)rows;
    }
    if (threadIdx.x % WARP < 4)
        put_row(p, y, feature, x);
}

/* MEANS: a unit is a chunk, of which the mean is put; else it is 16 rows. Grid: heads, slices of the units,
 * batch, the first fastest. */
template <int CHUNKS, bool MEANS>
__global__ __launch_bounds__(PROJECT_THREADS, PROJECT_BLOCKS) void project_kernel(
    const __grid_constant__ Project p)
{
    __shared__ uint4 fragments[2 * CHUNKS * PIECES * WARP];
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
            add_rows<CHUNKS>(p, x, first + row, fragments + lane, s);
        if (MEANS)
            put_mean(p, y + (int64_t)unit * p.features, left < of_unit ? left : of_unit, 4 * q, s);
        else
            put_rows(p, y, first + k, 4 * q, s);
    }
}

} // namespace

#endif
