/* Tiles of BF16 in shared memory and their products on tensor cores, for the portable kernels of attention
 * over lists, forward and backward. They use the instructions of every GPU from Ampere on: mma.sync m16n8k16,
 * ldmatrix and cp.async.
 *
 * A tile has contiguous rows of COLUMNS elements, a multiple of 16. The 16-byte chunks of a row are permuted,
 * depending on the row's number, so that chunks of the same column of eight rows are in different banks:
 * neither ldmatrix nor the stores of products have bank conflicts.
 *
 * Products work on blocks of 16 rows and 16 columns, which a warp loads from shared memory with one ldmatrix.
 * Each lane passes the address of one row of eight elements, in one of two orders:
 *     lanes_down      rows 0-15 of columns 0-7, then rows 0-15 of columns 8-15: for a block that is the left
 *                     factor, or whose transpose is the right factor
 *     lanes_across    rows 0-7 of both halves, then rows 8-15: for a right factor with one row for each
 *                     column of the product, or a block whose transpose is the left factor
 * A 16 x 8 product is in four registers of each lane: rows lane / 4 and lane / 4 + 8, columns 2 (lane % 4)
 * and 2 (lane % 4) + 1 of both rows. */
#ifndef DSVI_ATTENTION_TILE_CUH
#define DSVI_ATTENTION_TILE_CUH

#include "cuda/attention/attention_list.cuh"
#include "cuda/common/tensor_core.cuh"

namespace dsvi {

/* Bytes of shared memory that a thread block may use on every supported GPU, minus 512 bytes for static
 * variables. */
constexpr int SHARED_LEAST = 99 * 1024 - 512;
constexpr float LOG2E = 1.44269504088896f;

/* Byte offset of chunk `chunk` of row `row` in a tile. */
template <int COLUMNS> __device__ __forceinline__ int chunk_at(int row, int chunk)
{
    constexpr int CHUNKS = COLUMNS / 8;
    int turn = CHUNKS % 8 == 0 ? row & 7 : CHUNKS % 4 == 0 ? row >> 1 & 3 : row >> 2 & 1;
    return (row * CHUNKS + (chunk ^ turn)) * 16;
}

/* Begins to copy 16 bytes from global to shared memory. If `there` is false, nothing is read and zeros are
 * written. */
__device__ __forceinline__ void copy_chunk(uint32_t to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0)
                 : "memory");
}

/* Waits until all copies of this thread have arrived. */
__device__ __forceinline__ void wait_copies()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

__device__ __forceinline__ uint32_t element_bits(const __nv_bfloat16 *from, int d, int count)
{
    return d < count ? *reinterpret_cast<const unsigned short *>(from + d) : 0u;
}

/* Copies `count` BF16 elements, at most 8, from global memory at any alignment to a 16-byte chunk of shared
 * memory, and sets the rest of the chunk to 0. The copy is complete when the function returns. */
__device__ __forceinline__ void copy_elements(uint32_t to, const __nv_bfloat16 *from, int count)
{
    uint32_t x[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        x[i] = element_bits(from, 2 * i, count) | element_bits(from, 2 * i + 1, count) << 16;
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]),
                 "r"(x[3])
                 : "memory");
}

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

/* What a lane passes to ldmatrix: `row` is the shared-memory address of the lane's row in the first 16 x 16
 * block of a tile; `turn` is combined by XOR with a column's byte offset, because the chunks of a row are
 * permuted. */
struct Lanes {
    uint32_t row, turn;
};

template <int COLUMNS> __device__ __forceinline__ Lanes lanes_at(uint32_t tile, int row, int chunk)
{
    Lanes lanes;
    lanes.row = tile + row * COLUMNS * 2;
    lanes.turn = (uint32_t)chunk_at<COLUMNS>(row, chunk) - row * COLUMNS * 2;
    return lanes;
}

/* Returns the lane's addresses for ldmatrix in the order "lanes_down" (top of this file), for 16 x 16 blocks
 * that begin at row `row` of the tile, a multiple of 8. */
template <int COLUMNS> __device__ __forceinline__ Lanes lanes_down(uint32_t tile, int row)
{
    int lane = threadIdx.x % WARP;
    return lanes_at<COLUMNS>(tile, row + lane % 16, lane / 16);
}

template <int COLUMNS> __device__ __forceinline__ Lanes lanes_across(uint32_t tile, int row)
{
    int lane = threadIdx.x % WARP;
    return lanes_at<COLUMNS>(tile, row + lane % 8 + lane / 16 * 8, lane / 8 % 2);
}

/* Returns the address that this lane passes to ldmatrix for the 16 x 16 block that begins `row` rows (a
 * multiple of 8) further and at column `column` (a multiple of 16). */
template <int COLUMNS> __device__ __forceinline__ uint32_t block_at(Lanes lanes, int row, int column)
{
    return lanes.row + row * COLUMNS * 2 + ((uint32_t)(column * 2) ^ lanes.turn);
}

__device__ __forceinline__ void load_block(uint32_t (&x)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(at)
                 : "memory");
}

__device__ __forceinline__ void load_block_transposed(uint32_t (&x)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(at)
                 : "memory");
}

/* sum += a b, where a is 16 x 16 and b 16 x 8. */
__device__ __forceinline__ void multiply_add(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                 "{%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* sum (16 M x 8 N) = A B^T over DIM columns; `a` is lanes_down of A's tile, `b` lanes_across of B's. The dot
 * product of the same two rows has the same bits at any position in A and B. */
template <int DIM, int M, int N>
__device__ __forceinline__ void multiply_rows(float (&sum)[M][N][4], Lanes a, Lanes b)
{
#pragma unroll
    for (int n = 0; n < M * N * 4; n++)
        sum[n / 4 / N][n / 4 % N][n % 4] = 0;
#pragma unroll
    for (int d = 0; d < DIM; d += 16) {
        uint32_t left[M][4];
#pragma unroll
        for (int i = 0; i < M; i++)
            load_block(left[i], block_at<DIM>(a, 16 * i, d));
#pragma unroll
        for (int j = 0; j < N; j += 2) {
            uint32_t right[4];
            load_block(right, block_at<DIM>(b, 8 * j, d));
#pragma unroll
            for (int i = 0; i < M; i++) {
                multiply_add(sum[i][j], left[i], right[0], right[1]);
                multiply_add(sum[i][j + 1], left[i], right[2], right[3]);
            }
        }
    }
}

/* sum (16 M x 8 N) += A B for the 16 rows of B from `row` on and its columns from `column` on; `left` is A,
 * `b` lanes_down of B's tile. */
template <int DIM, int M, int N>
__device__ __forceinline__ void multiply_add_block(float (&sum)[M][N][4], const uint32_t (&left)[M][4],
                                                   Lanes b, int row, int column)
{
#pragma unroll
    for (int j = 0; j < N; j += 2) {
        uint32_t right[4];
        load_block_transposed(right, block_at<DIM>(b, row, column + 8 * j));
#pragma unroll
        for (int i = 0; i < M; i++) {
            multiply_add(sum[i][j], left[i], right[0], right[1]);
            multiply_add(sum[i][j + 1], left[i], right[2], right[3]);
        }
    }
}

/* Approximates exp(x): exactly 1 at 0 and 0 at -inf; NaN stays NaN. */
__device__ __forceinline__ float exp_weight(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * LOG2E));
    return y;
}

/* Stores, times `factor` and in BF16, the columns that this lane holds of one row of a tensor-core product. A
 * lane holds two rows: `half` is 0 for row lane / 4 and 1 for row lane / 4 + 8. */
template <int N>
__device__ __forceinline__ void store_products(__nv_bfloat16 *row, int dim, bool couples, float factor,
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
            row[d] = from_float<__nv_bfloat16>(x[0]);
            row[d + 1] = from_float<__nv_bfloat16>(x[1]);
        }
    }
}

} // namespace dsvi

#endif
