/* Tiles of BF16 in shared memory and their products on tensor cores, with the instructions of every GPU from
 * Ampere on: mma.sync m16n8k16, ldmatrix and cp.async.
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
#ifndef DSVI_TENSOR_TILE_CUH
#define DSVI_TENSOR_TILE_CUH

#include "cuda/common/kernel.cuh"
#include "cuda/common/tensor_core.cuh"

namespace dsvi {

/* Bytes of shared memory that a thread block may use on every supported GPU, minus 512 bytes for static
 * variables. */
constexpr int SHARED_LEAST = 99 * 1024 - 512;

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

/* Like copy_chunk, but also stores the bytes in the L1 cache, for chunks that other threads of the block copy
 * soon. */
__device__ __forceinline__ void copy_shared_chunk(uint32_t to, const void *from, bool there)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0)
                 : "memory");
}

/* Closes a group of copies of this thread, so that wait_for_copies can wait for this group. */
__device__ __forceinline__ void close_copies()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until all groups of copies of this thread but the LATER newest have arrived. */
template <int LATER> __device__ __forceinline__ void wait_for_copies()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory");
}

/* Waits until all copies of this thread have arrived. */
__device__ __forceinline__ void wait_copies()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Stores 16 bytes to shared memory. */
__device__ __forceinline__ void store_chunk(uint32_t to, const uint32_t (&x)[4])
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]),
                 "r"(x[3])
                 : "memory");
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
    store_chunk(to, x);
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

} // namespace dsvi

#endif
