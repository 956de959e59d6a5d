/* How the portable kernels of attention, which work on tiles in shared memory (common/tensor_tile.cuh),
 * gather the rows of a tile, weigh scores and store products. */
#ifndef DSVI_ATTENTION_TILE_CUH
#define DSVI_ATTENTION_TILE_CUH

#include "cuda/attention/attention_tail.cuh"
#include "cuda/common/tensor_tile.cuh"

namespace dsvi {

constexpr float LOG2E = 1.44269504088896f;

/* Begins to copy `count` rows of a tensor to a tile of ROWS rows in shared memory: rows token[0], ...,
 * token[count - 1], or first, ..., first + count - 1 if token is NULL. Tile rows from `count` on and columns
 * from D on become 0. The rows have arrived after wait_copies and a barrier. Each thread copies the same
 * chunk of several rows. */
template <int COLUMNS, int ROWS, int THREADS>
__device__ __forceinline__ void gather_rows(const AttentionProblem &a, const DsviHeads &rows,
                                            const Tile &tile, const int *token, int first, int count,
                                            uint32_t to)
{
    constexpr int CHUNKS = COLUMNS / 8, WIDE = CHUNKS <= 4 ? 4 : CHUNKS <= 8 ? 8 : CHUNKS <= 16 ? 16 : 32;
    constexpr int LINES = THREADS / WIDE;
    static_assert(ROWS % LINES == 0 || ROWS < LINES, "threads go over a tile in whole lines");
    int line = threadIdx.x / WIDE, chunk = threadIdx.x % WIDE;
    const __nv_bfloat16 *from = rows_of<__nv_bfloat16>(rows, tile) + chunk * 8;
    if (chunk >= CHUNKS || line >= ROWS)
        return;
    if (!a.chunks) {
#pragma unroll 1
        for (int row = line; row < ROWS; row += LINES) {
            int64_t number = row >= count ? 0 : token ? token[row] : first + row;
            copy_elements(to + chunk_at<COLUMNS>(row, chunk), from + number * rows.token_stride,
                          row < count ? a.dim - chunk * 8 : 0);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < (ROWS + LINES - 1) / LINES; i++) {
        int row = line + i * LINES;
        bool there = row < count && chunk * 8 < a.dim;
        int64_t number = !there ? 0 : token ? token[row] : first + row;
        copy_chunk(to + chunk_at<COLUMNS>(row, chunk), from + number * rows.token_stride, there);
    }
}

/* Approximates exp(x): exactly 1 at 0 and 0 at -inf; NaN stays NaN. */
__device__ __forceinline__ float exp_weight(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * LOG2E));
    return y;
}

/* Multiplies by the scale and rounds. */
template <int N> __device__ __forceinline__ void scale_scores(float (&s)[N][4], float scale)
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[n][i] = __fmul_rn(s[n][i], scale);
}

/* Adds the biases of a tail to scores of a tensor-core product. `row` is the first of the product's 16 rows
 * of queries, `key` the first of its 8 N keys. */
template <int N>
__device__ __forceinline__ void add_biases(const AttentionProblem &a, int pair, int row, int key,
                                           float (&s)[N][4])
{
    int lane = threadIdx.x % WARP, column = lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int64_t line = tail_line(a, pair, row + 8 * half + lane / 4);
#pragma unroll
        for (int n = 0; n < N; n++) {
            int first = key + 8 * n;
            float *two = &s[n][2 * half];
            if (a.tail.biases) {
                const float *bias = a.tail.biases + line + first + column;
                two[0] += bias[0];
                two[1] += bias[1];
            } else {
                uint32_t bits = a.tail.bits[line + first / 32] >> (first % 32 + column);
                two[0] = bits & 1 ? two[0] : -INFINITY;
                two[1] = bits & 2 ? two[1] : -INFINITY;
            }
        }
    }
}

/* Stores, times `factor` and rounded to T, the columns that this lane holds of one row of a tensor-core
 * product. A lane holds two rows: `half` is 0 for row lane / 4 and 1 for row lane / 4 + 8. */
template <int N, typename T>
__device__ __forceinline__ void store_products(T *row, int dim, bool couples, float factor,
                                               const float (&sum)[N][4], int half)
{
    int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < N; n++) {
        int d = 8 * n + column;
        float x[2] = {sum[n][2 * half] * factor, sum[n][2 * half + 1] * factor};
        if (d >= dim)
            continue;
        if (couples) {
            store(row + d, x);
        } else {
            row[d] = from_float<T>(x[0]);
            row[d + 1] = from_float<T>(x[1]);
        }
    }
}

} // namespace dsvi

#endif
