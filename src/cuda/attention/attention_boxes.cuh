/* How the Hopper kernels copy blocks of keys to shared memory when lists consist of blocks: TMA copies boxes
 * of 64 consecutive rows and 64 columns, to the same places to which attention_gather.cuh copies single rows.
 * A list whose grain is a multiple of BOX_ROWS consists of blocks of BOX_ROWS keys. Only the block with the
 * last of all keys may be short: TMA fills rows after the last key, and columns from D on, with zeros.
 *
 * TMA writes through the async proxy, through which wgmma reads, so no fence of proxies is needed. */
#ifndef DSVI_ATTENTION_BOXES_CUH
#define DSVI_ATTENTION_BOXES_CUH

#include "cuda/attention/attention_gather.cuh"
#include "cuda/common/tensor_map.cuh"

namespace dsvi::hopper {

constexpr int BOX_ROWS = 64, BOX_COLUMNS = 64;

/* TMA descriptors of k and v, tensors (batch, keys, heads, D). */
struct BoxMaps {
    CUtensorMap k, v;
};

/* Returns whether lists consist of blocks of BOX_ROWS keys. */
inline bool spans_are_boxes(const AttentionProblem &a)
{
    return !a.spans || a.grain % BOX_ROWS == 0;
}

/* Returns the first key of the block of BOX_ROWS keys that begins at position i of the tile's key list; i is
 * a multiple of BOX_ROWS. If i is past the end of the list, returns the first key of the list's last block.
 */
__device__ __forceinline__ int block_at(const AttentionProblem &a, const Tile &tile, int i)
{
    return listed_key(a, fetch_listed(a, tile, min(i, (tile.keys - 1) / BOX_ROWS * BOX_ROWS)));
}

/* Enqueues copies of ROWS rows to shared memory: BOX_ROWS rows from each of rows[0], rows[1] ... Called by
 * one thread, which also arrives at the barrier, with the number of bytes to expect. */
template <int DIM, int ROWS>
__device__ __forceinline__ void copy_blocks(const CUtensorMap *map, const Tile &tile,
                                            const int (&rows)[ROWS / BOX_ROWS], uint32_t to, uint32_t barrier)
{
    barrier_arrive_expecting(barrier, ROWS * DIM * 2);
#pragma unroll
    for (int n = 0; n < ROWS / BOX_ROWS; n++)
#pragma unroll
        for (int column = 0; column < DIM; column += BOX_COLUMNS)
            copy_box(to + (column / BOX_COLUMNS * ROWS + n * BOX_ROWS) * LINE_BYTES, map, column, tile.h,
                     rows[n], tile.b, barrier);
}

namespace {

/* Makes the TMA descriptor of one tensor with boxes of BOX_ROWS tokens; `tokens` is a.queries or a.keys.
 * Returns false when TMA does not support its strides or address. */
inline bool make_map(MapEncoder encode, const AttentionProblem &a, const DsviHeads &rows, int tokens,
                     CUtensorMap *map)
{
    int batch = a.pairs / a.heads;
    cuuint64_t sizes[4] = {(cuuint64_t)a.dim, (cuuint64_t)a.heads, (cuuint64_t)tokens, (cuuint64_t)batch};
    int64_t strides[3] = {a.heads > 1 ? rows.head_stride : a.dim, rows.token_stride,
                          batch > 1 ? rows.batch_stride : rows.token_stride};
    cuuint64_t pitches[3];
    cuuint32_t box[4] = {BOX_COLUMNS, 1, BOX_ROWS, 1}, steps[4] = {1, 1, 1, 1};
    for (int i = 0; i < 3; i++) {
        if (strides[i] <= 0)
            return false;
        pitches[i] = 2 * (cuuint64_t)strides[i];
    }
    return encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, rows.data, sizes, pitches, box, steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* Makes the descriptors of k and v; returns false when TMA does not support one of them. */
inline bool make_box_maps(const AttentionProblem &a, BoxMaps *maps)
{
    MapEncoder encode = find_encoder();
    return encode && make_map(encode, a, a.k, a.keys, &maps->k) && make_map(encode, a, a.v, a.keys, &maps->v);
}

} // namespace

} // namespace dsvi::hopper

#endif
