/* Blocks of keys on their way to shared memory on Hopper, where lists are of blocks (attention_gather.cuh has
 * the rest): the copy engine brings 64 consecutive rows of 64 columns at once, to the same places as rows
 * come that are gathered one by one. A list whose grain is a multiple of BOX_ROWS is blocks of so many keys,
 * of which the very last may be short: rows past the last key, and columns past D, are zeros.
 *
 * The engine writes by the async proxy, by which wgmma reads: what it brings needs no fence. */
#ifndef DSVI_ATTENTION_BOXES_CUH
#define DSVI_ATTENTION_BOXES_CUH

#include "cuda/attention_gather.cuh"

namespace dsvi::hopper {

constexpr int BOX_ROWS = 64, BOX_COLUMNS = 64;

/* Tensors (batch, keys, heads, D) as the copy engine takes them. */
struct BoxMaps {
    CUtensorMap k, v;
};

/* Whether a tile's list is of blocks: steps of it, which begin at multiples of BOX_ROWS, then are so too. */
inline bool lists_blocks(const AttentionProblem &a)
{
    return !a.runs || a.grain % BOX_ROWS == 0;
}

/* The first key of the block that begins at number i of the list; past its end that of its last block. */
__device__ __forceinline__ int block_at(const AttentionProblem &a, const Tile &tile, int i)
{
    return listed_key(a, fetch_listed(a, tile, min(i, (tile.keys - 1) / BOX_ROWS * BOX_ROWS)));
}

/* ROWS rows to shared memory, BOX_ROWS each from rows[0], rows[1] .. on, for one thread. Arrives at the
 * barrier, too. */
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

using MapEncoder = decltype(&cuTensorMapEncodeTiled);

/* The driver's function, without linking to the driver; NULL where it has none. */
inline MapEncoder find_encoder()
{
    void *entry = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                                         cudaEnableDefault, &result);
    if (error != cudaSuccess)
        cudaGetLastError(); /* it is not for the next launch to tell */
    if (error != cudaSuccess || result != cudaDriverEntryPointSuccess)
        return nullptr;
    return reinterpret_cast<MapEncoder>(entry);
}

/* `tokens`: a.queries or a.keys. */
inline bool make_map(MapEncoder encode, const AttentionProblem &a, const DsvHeads &rows, int tokens,
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

/* False: the engine does not take tensors that lie so. */
inline bool make_maps(const AttentionProblem &a, BoxMaps *maps)
{
    MapEncoder encode = find_encoder();
    return encode && make_map(encode, a, a.k, a.keys, &maps->k) &&
           make_map(encode, a, a.v, a.keys, &maps->v);
}

} // namespace

} // namespace dsvi::hopper

#endif
