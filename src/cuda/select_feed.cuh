/* Feeds: where a walk over runs (select_walk.cuh) reads the features of its candidate keys, its columns. One
 * feed gives all runs in order, the other gives only the runs that the histogram counts. A stretch is STRETCH
 * consecutive blocks of columns. The functions of a feed:
 *     feed_begin       is called before the first block of a slice
 *     feed_whole       returns how many blocks, from the first, hold complete runs only; whole stretches
 *     feed_run         returns which run is in slot j of this lane in a block
 *     feed_layer       returns the next layer of the slice's blocks
 *     feed_stretch     returns the next stretch; only where a run is one candidate and features are one chunk
 *     stretch_columns  returns the columns of that stretch's next block */
#ifndef DSVI_SELECT_FEED_CUH
#define DSVI_SELECT_FEED_CUH

#include <cuda_pipeline_primitives.h>

#include "cuda/select_score.cuh"
#include "ops/select_counted.h"

namespace dsvi {

/* ---- all runs in order, the same for all warps of a block of threads: through shared memory ---- */

struct AllRuns {};

__device__ __forceinline__ void copy_in(uint4 *shared, const void *global, int count)
{
#pragma unroll 1
    for (int i = threadIdx.x; i < count; i += SCORE_THREADS)
        __pipeline_memcpy_async(shared + i, static_cast<const uint4 *>(global) + i, sizeof(uint4));
}

/* Layers of the slice's blocks, one after the other; stages come one ahead of the arithmetic. */
struct SelectFeed {
    const uint4 *columns;   /* of the layer to ask for next */
    int left;               /* layers to ask for */
    const uint4 *now, *end; /* in shared memory: this lane's next layer to read, and the end of the stage */
    bool second;            /* whether `now` and `end` are in the second of two buffers */
};

__device__ __forceinline__ void feed_ask(const SelectTiles &t, uint4 *shared, SelectFeed &f, bool second)
{
    int size = (f.left < t.stage ? f.left : t.stage) * t.depths * COLUMN_CHUNK;
    copy_in(shared + second * stage_size(t), f.columns, size);
    f.columns += size;
    f.left -= t.stage;
    __pipeline_commit();
}

/* All threads of the block share pair and slice. */
__device__ __forceinline__ SelectFeed feed_begin(const SelectTiles &t, const SelectPlace &at,
                                                 const AllRuns &, uint4 *shared)
{
    int64_t layer = (int64_t)(at.pair * t.blocks + at.begin) * t.layers;
    const uint4 *columns = t.columns + layer * t.depths * COLUMN_CHUNK;
    SelectFeed f = {columns, (at.end - at.begin) * t.layers, nullptr, nullptr, true};
    feed_ask(t, shared, f, false);
    return f;
}

/* After the barrier the current stage has arrived for all warps, and all warps have read the previous stage,
 * whose buffer the next stage overwrites. */
__device__ __forceinline__ void feed_turn(const SelectTiles &t, uint4 *shared, SelectFeed &f)
{
    __pipeline_wait_prior(0);
    __syncthreads();
    if (f.left > 0)
        feed_ask(t, shared, f, f.second);
    f.second = !f.second;
    f.now = shared + f.second * stage_size(t) + threadIdx.x % WARP;
    f.end = f.now + stage_size(t);
}

/* This lane's columns of the next layer, or layers of one stage, of `chunks` chunks. */
__device__ __forceinline__ const uint4 *feed_next(const SelectTiles &t, uint4 *shared, int chunks,
                                                  SelectFeed &f)
{
    if (f.now >= f.end) /* both are NULL at first */
        feed_turn(t, shared, f);
    const uint4 *columns = f.now;
    f.now += chunks * COLUMN_CHUNK;
    return columns;
}

__device__ __forceinline__ int feed_whole(const SelectTiles &t, const SelectFeed &)
{
    return select_whole(t);
}

__device__ __forceinline__ int feed_run(const SelectFeed &, int block, int j)
{
    return select_run(block, j);
}

__device__ __forceinline__ LayerColumns feed_layer(const SelectTiles &t, uint4 *shared, int chunks,
                                                   SelectFeed &f)
{
    const uint4 *columns = feed_next(t, shared, chunks, f);
    return {{columns, columns + WARP}};
}

template <bool SINGLE>
__device__ __forceinline__ const uint4 *feed_stretch(const SelectTiles &t, uint4 *shared, SelectFeed &f)
{
    static_assert(STAGE_CHUNKS % STRETCH == 0, "a stretch lies in one stage");
    return SINGLE ? feed_next(t, shared, STRETCH, f) : nullptr;
}

__device__ __forceinline__ SelectColumns stretch_columns(const SelectTiles &, const SelectFeed &,
                                                         const uint4 *columns, int block)
{
    return load_columns(columns + block % STRETCH * COLUMN_CHUNK);
}

/* ---- counted runs, others for each warp: straight from the cache ---- */

/* The columns of all runs are in memory; blocks and stretches number the counted pairs of runs among them.
 * In product i, lanes 4 k to 4 k + 3 hold the pair of stratum block * PAIRS + i * PAIRS / 2 + k: its two runs
 * are in slots 2 i and 2 i + 1. */
struct CountedRuns {
    uint32_t stride, turn;
    int blocks;          /* of columns of all runs */
    int heads;           /* of these lists; pairs are numbered in the whole */
    int heads_of_whole;  /* 0: these are the whole */
    const int32_t *head; /* (heads) in the whole */
    int first_tile;
};

enum { PAIRS = COLUMNS / DSVI_COUNTED_RUNS }; /* of a block */

struct CountedFeed {
    const uint4 *columns; /* of the (batch, head), from this lane's features on */
    uint32_t stride, rotation, last_pair;
    int block, layer;     /* to take next */
    SelectColumns ahead;  /* columns of the next block, loaded one block early */
};

/* The rotation of a warp's set of groups: dsvi_select_rotation. */
__device__ __forceinline__ uint32_t counted_rotation(const CountedRuns &c, const SelectPlace &at)
{
    int pair = at.pair;
    if (c.heads_of_whole > 0)
        pair = pair / c.heads * c.heads_of_whole + c.head[pair % c.heads];
    return dsvi_counted_rotation(c.stride, c.turn, (uint32_t)pair, (uint32_t)(c.first_tile + at.set));
}

__device__ __forceinline__ uint32_t feed_pair(const CountedFeed &f, int block, int product)
{
    int stratum = block * PAIRS + product * (PAIRS / 2) + (int)threadIdx.x % WARP / 4;
    return dsvi_counted_pair((uint32_t)stratum, f.stride, f.rotation);
}

/* Strata that are whole for every rotation. */
__device__ __forceinline__ int feed_whole(const SelectTiles &t, const CountedFeed &f)
{
    int runs = t.last_layers < t.layers ? t.runs - 1 : t.runs;
    return runs / (DSVI_COUNTED_RUNS * (int)f.stride) / (PAIRS * STRETCH) * STRETCH;
}

__device__ __forceinline__ int feed_run(const CountedFeed &f, int block, int j)
{
    return (int)feed_pair(f, block, j / 2) * DSVI_COUNTED_RUNS + j % 2;
}

/* A pair is slots 0 and 1, or 2 and 3, of some lanes in the order of all runs: select_run. */
__device__ __forceinline__ LayerColumns counted_layer(const SelectTiles &t, const CountedFeed &f, int block,
                                                      int layer)
{
    LayerColumns columns;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t pair = feed_pair(f, block, i);
        pair = pair < f.last_pair ? pair : f.last_pair;
        uint32_t within = pair / 2 % STRETCH, lanes = pair / (2 * STRETCH) % (WARP / 4);
        uint32_t from = pair / (PAIRS * STRETCH) * STRETCH + within;
        columns.product[i] = f.columns + (int64_t)(from * t.layers + layer) * t.depths * COLUMN_CHUNK +
                             pair % 2 * WARP + lanes * 4;
    }
    return columns;
}

__device__ __forceinline__ CountedFeed feed_begin(const SelectTiles &t, const SelectPlace &at,
                                                  const CountedRuns &c, uint4 *)
{
    static_assert(SET_GROUPS == DSVI_COUNTED_GROUPS, "a set of groups is a tile");
    int64_t layer = (int64_t)at.pair * c.blocks * t.layers;
    CountedFeed f = {t.columns + layer * t.depths * COLUMN_CHUNK + threadIdx.x % 4, c.stride,
                     counted_rotation(c, at), (uint32_t)(c.blocks * PAIRS - 1), at.begin, 0, {}};
    f.ahead = load_columns(counted_layer(t, f, at.begin, 0), 0);
    return f;
}

__device__ __forceinline__ LayerColumns feed_layer(const SelectTiles &t, uint4 *, int, CountedFeed &f)
{
    LayerColumns columns = counted_layer(t, f, f.block, f.layer);
    f.layer = f.layer + 1 < t.layers ? f.layer + 1 : 0;
    f.block += f.layer == 0;
    return columns;
}

template <bool SINGLE>
__device__ __forceinline__ int feed_stretch(const SelectTiles &, uint4 *, CountedFeed &)
{
    return 0;
}

/* Each block is asked for while the block before it is taken. */
__device__ __forceinline__ SelectColumns stretch_columns(const SelectTiles &t, CountedFeed &f, int,
                                                         int block)
{
    SelectColumns columns = f.ahead;
    f.ahead = load_columns(counted_layer(t, f, block + 1, 0), 0);
    return columns;
}

/* ---- either ---- */

/* Columns of runs from number `runs` on get `x`. */
template <typename Feed>
__device__ __forceinline__ void mask_columns(const Feed &f, int block, int runs, float x,
                                             float (&e)[SLOTS][PAIR])
{
#pragma unroll
    for (int j = 0; j < SLOTS; j++)
#pragma unroll
        for (int g = 0; g < PAIR; g++)
            e[j][g] = feed_run(f, block, j) < runs ? e[j][g] : x;
}

} // namespace dsvi

#endif
