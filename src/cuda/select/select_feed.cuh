/* Feeds provide the features of candidate keys, called columns, to the loops over spans in select_walk.cuh.
 * One feed (AllSpans) provides all spans in order, the other (CountedSpans) only the sample of spans that
 * the histogram counts. A block is 32 spans, a segment is SEGMENT consecutive blocks, and a layer is one
 * candidate of each span of a block. The functions of a feed are:
 *     feed_begin         starts a slice of the spans; called before the first block of the slice
 *     feed_whole         returns how many blocks, from the first, hold complete spans only; a multiple of
 *                        SEGMENT
 *     feed_span          returns which span is in slot j of this lane in a block
 *     feed_block         begins a block; called before feed_layer returns the layers of this block
 *     feed_layer         returns the next layer of the block
 *     segment_end        returns the end of the blocks that belong to the same segment and slice as a block
 *     feed_segment       returns the next segment; only if a span is one candidate and features are one chunk
 *     segment_columns    returns the columns of the next block of a segment that feed_segment returned */
#ifndef DSVI_SELECT_FEED_CUH
#define DSVI_SELECT_FEED_CUH

#include <cuda_pipeline_primitives.h>

#include "cuda/select/select_score.cuh"
#include "ops/select_counted.h"

namespace dsvi {

/* ---- feed of all spans in order, the same for all warps of a thread block: through shared memory ---- */

struct AllSpans {};

/* Starts asynchronous copies of `count` uint4 from global to shared memory; the threads of the block divide
 * the copies among them. */
__device__ __forceinline__ void copy_in(uint4 *shared, const void *global, int count)
{
#pragma unroll 1
    for (int i = threadIdx.x; i < count; i += SCORE_THREADS)
        __pipeline_memcpy_async(shared + i, static_cast<const uint4 *>(global) + i, sizeof(uint4));
}

/* Provides the columns (features of candidate keys) of a slice of the spans, layer by layer; a layer is one
 * candidate of each span of a block. While the warps compute with one buffer in shared memory, the next
 * stage, which is t.stage layers, is loaded into the other buffer. */
struct SelectFeed {
    const uint4 *columns;   /* the next layer (one candidate of each span of a block) to load */
    int left;               /* number of layers (candidates per span) of the slice that are not loaded yet */
    const uint4 *now, *end; /* addresses in shared memory. now: this lane's columns of the next layer to read;
                               end: the end of the loaded stage */
    bool second;            /* `now` and `end` point into the second buffer */
};

/* Starts to load the next stage, which is t.stage layers of columns (features of candidate keys), into the
 * second or the first buffer. */

__device__ __forceinline__ void feed_load_stage(const SelectTiles &t, uint4 *shared, SelectFeed &f,
                                                bool second)
{
    int size = (f.left < t.stage ? f.left : t.stage) * t.depths * COLUMN_CHUNK;
    copy_in(shared + second * stage_size(t), f.columns, size);
    f.columns += size;
    f.left -= t.stage;
    __pipeline_commit();
}

/* Starts the feed of a slice of all spans. All threads of the block must call with the same pair and
 * slice. */
__device__ __forceinline__ SelectFeed feed_begin(const SelectTiles &t, const SelectPlace &at,
                                                 const AllSpans &, uint4 *shared)
{
    int64_t layer = (int64_t)(at.pair * t.blocks + at.begin) * t.layers;
    const uint4 *columns = t.columns + layer * t.depths * COLUMN_CHUNK;
    SelectFeed f = {columns, (at.end - at.begin) * t.layers, nullptr, nullptr, true};
    feed_load_stage(t, shared, f, false);
    return f;
}

/* Moves on to the next stage, which is t.stage layers of columns in one shared-memory buffer. A barrier
 * ensures that the stage has arrived for all warps, and that all warps have read the previous stage. The
 * buffer of the previous stage is then loaded with the stage that follows. */
__device__ __forceinline__ void feed_advance(const SelectTiles &t, uint4 *shared, SelectFeed &f)
{
    __pipeline_wait_prior(0);
    __syncthreads();
    if (f.left > 0)
        feed_load_stage(t, shared, f, f.second);
    f.second = !f.second;
    f.now = shared + f.second * stage_size(t) + threadIdx.x % WARP;
    f.end = f.now + stage_size(t);
}

/* Returns this lane's columns (features of candidate keys) of the next layer, or of several next layers if
 * they are in one stage; together they have `chunks` chunks of 16 features. */
__device__ __forceinline__ const uint4 *feed_next(const SelectTiles &t, uint4 *shared, int chunks,
                                                  SelectFeed &f)
{
    if (f.now >= f.end) /* also true at the first call, when `now` and `end` are NULL */
        feed_advance(t, shared, f);
    const uint4 *columns = f.now;
    f.now += chunks * COLUMN_CHUNK;
    return columns;
}

__device__ __forceinline__ int feed_whole(const SelectTiles &t, const SelectFeed &)
{
    return select_whole(t);
}

__device__ __forceinline__ int feed_span(const SelectFeed &, int block, int j)
{
    return select_span(block, j);
}

__device__ __forceinline__ void feed_block(const SelectTiles &, SelectFeed &, int) {}

__device__ __forceinline__ LayerColumns feed_layer(const SelectTiles &t, uint4 *shared, int chunks,
                                                   SelectFeed &f)
{
    const uint4 *columns = feed_next(t, shared, chunks, f);
    return {{columns, columns + WARP}};
}

template <bool SINGLE>
__device__ __forceinline__ const uint4 *feed_segment(const SelectTiles &t, uint4 *shared, SelectFeed &f)
{
    static_assert(STAGE_CHUNKS % SEGMENT == 0, "a segment must be inside one stage");
    return SINGLE ? feed_next(t, shared, SEGMENT, f) : nullptr;
}

/* Returns the end of the blocks that follow block `segment` in its segment, at most `end`, the end of the
 * slice. SINGLE, or with all spans: slices consist of whole segments. */
template <bool SINGLE> __device__ __forceinline__ int segment_end(const SelectFeed &, int segment, int)
{
    return segment + SEGMENT;
}

__device__ __forceinline__ SelectColumns segment_columns(const SelectTiles &, const SelectFeed &,
                                                         const uint4 *columns, int block)
{
    return load_columns(columns + block % SEGMENT * COLUMN_CHUNK);
}

/* ---- feed of counted spans, different ones for each warp: from global memory, not through shared memory
 * ---- */

/* Describes which spans the histogram counts (ops/select_counted.h): pairs of neighbouring spans, one pair
 * of each stratum of `stride` pairs. The columns of all spans are in memory, but the block and segment
 * numbers of this feed count the counted pairs only. In product i of a block, lanes 4 k to 4 k + 3 hold the
 * pair of stratum block * PAIRS + i * PAIRS / 2 + k, whose two spans are in slots 2 i and 2 i + 1. */
struct CountedSpans {
    uint32_t stride, turn;
    int blocks; /* number of blocks of 32 spans, of all spans, whether the histogram counts them or not */
    int heads;  /* number of heads of this rank */
    int heads_of_whole;  /* number of heads of all ranks together; 0: this rank has all heads and groups */
    const int32_t *head; /* (heads) number of each of this rank's heads among the heads of all ranks */
    int first_tile; /* (number of this rank's first group among the groups of all ranks) / DSVI_COUNTED_GROUPS
                     */
};

enum { PAIRS = COLUMNS / DSVI_COUNTED_SPANS }; /* pairs of counted spans in a block */

/* Provides the columns (features of candidate keys) of those spans whose estimates one warp adds to the
 * histogram. */
struct CountedFeed {
    const uint4 *columns; /* features of the candidate keys of the (batch, head), starting with this lane's */
    uint32_t stride, rotation, last_pair;
    LayerColumns now;    /* feed_layer: where this lane reads the next layer */
    SelectColumns ahead; /* segment_columns: features of the next block, loaded one block early */
};

/* Returns by how many pairs of spans the choice of counted spans is rotated for a warp's set of groups: see
 * dsvi_counted_rotation in ops/select_counted.h. */
__device__ __forceinline__ uint32_t counted_rotation(const CountedSpans &c, const SelectPlace &at)
{
    int pair = at.pair;
    if (c.heads_of_whole > 0)
        pair = pair / c.heads * c.heads_of_whole + c.head[pair % c.heads];
    return dsvi_counted_rotation(c.stride, c.turn, (uint32_t)pair, (uint32_t)(c.first_tile + at.set));
}

/* Returns the number of the pair of counted spans that this lane has in tensor-core product `product` of
 * block `block`. */
__device__ __forceinline__ uint32_t feed_pair(const CountedFeed &f, int block, int product)
{
    int stratum = block * PAIRS + product * (PAIRS / 2) + (int)threadIdx.x % WARP / 4;
    return dsvi_counted_pair((uint32_t)stratum, f.stride, f.rotation);
}

/* Returns how many blocks, from the first, hold complete spans only. Only blocks whose strata are complete
 * are included, because such blocks are complete for every rotation of the counted spans. */
__device__ __forceinline__ int feed_whole(const SelectTiles &t, const CountedFeed &f)
{
    int spans = t.last_layers < t.layers ? t.spans - 1 : t.spans;
    return spans / (DSVI_COUNTED_SPANS * (int)f.stride) / (PAIRS * SEGMENT) * SEGMENT;
}

__device__ __forceinline__ int feed_span(const CountedFeed &f, int block, int j)
{
    return (int)feed_pair(f, block, j / 2) * DSVI_COUNTED_SPANS + j % 2;
}

/* Returns where this lane reads its columns (features of candidate keys) of the first layer of a block of
 * counted spans. Memory has the order of all spans (select_span), in which a pair occupies slots 0 and 1, or
 * 2 and 3, of some lanes. A pair past the end of the columns is replaced by the last pair; mask_columns later
 * discards its result. */
__device__ __forceinline__ LayerColumns counted_block(const SelectTiles &t, const CountedFeed &f, int block)
{
    LayerColumns columns;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t pair = feed_pair(f, block, i);
        pair = pair < f.last_pair ? pair : f.last_pair;
        uint32_t within = pair / 2 % SEGMENT, lanes = pair / (2 * SEGMENT) % (WARP / 4);
        uint32_t from = pair / (PAIRS * SEGMENT) * SEGMENT + within;
        columns.product[i] = f.columns + (int64_t)(from * t.layers) * t.depths * COLUMN_CHUNK +
                             pair % 2 * WARP + lanes * 4;
    }
    return columns;
}

__device__ __forceinline__ CountedFeed feed_begin(const SelectTiles &t, const SelectPlace &at,
                                                  const CountedSpans &c, uint4 *)
{
    static_assert(SET_GROUPS == DSVI_COUNTED_GROUPS, "a set of groups must be a tile of select_counted.h");
    int64_t layer = (int64_t)at.pair * c.blocks * t.layers;
    CountedFeed f = {t.columns + layer * t.depths * COLUMN_CHUNK + threadIdx.x % 4,
                     c.stride,
                     counted_rotation(c, at),
                     (uint32_t)(c.blocks * PAIRS - 1),
                     {},
                     {}};
    f.ahead = load_columns(counted_block(t, f, at.begin), 0);
    return f;
}

__device__ __forceinline__ void feed_block(const SelectTiles &t, CountedFeed &f, int block)
{
    f.now = counted_block(t, f, block);
}

__device__ __forceinline__ LayerColumns feed_layer(const SelectTiles &t, uint4 *, int, CountedFeed &f)
{
    LayerColumns columns = f.now;
#pragma unroll
    for (int i = 0; i < 2; i++)
        f.now.product[i] += t.depths * COLUMN_CHUNK;
    return columns;
}

template <bool SINGLE>
__device__ __forceinline__ int feed_segment(const SelectTiles &, uint4 *, CountedFeed &)
{
    return 0;
}

template <bool SINGLE> __device__ __forceinline__ int segment_end(const CountedFeed &, int segment, int end)
{
    return SINGLE ? segment + SEGMENT : min((segment / SEGMENT + 1) * SEGMENT, end);
}

/* Returns the columns of block `block`, which were loaded before, and starts to load the block after it. */
__device__ __forceinline__ SelectColumns segment_columns(const SelectTiles &t, CountedFeed &f, int, int block)
{
    SelectColumns columns = f.ahead;
    f.ahead = load_columns(counted_block(t, f, block + 1), 0);
    return columns;
}

/* ---- functions for both feeds ---- */

/* Overwrites the estimates e of spans with number `spans` or higher, which do not exist, with the value x. */
template <typename Feed>
__device__ __forceinline__ void mask_columns(const Feed &f, int block, int spans, float x,
                                             float (&e)[SLOTS][PAIR])
{
#pragma unroll
    for (int j = 0; j < SLOTS; j++)
#pragma unroll
        for (int g = 0; g < PAIR; g++)
            e[j][g] = feed_span(f, block, j) < spans ? e[j][g] : x;
}

} // namespace dsvi

#endif
