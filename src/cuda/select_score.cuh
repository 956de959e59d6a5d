/* Scores of selection, tile by tile: what select_histogram and select_lists share, so that both see the very
 * same e_gr (ops/select.h).
 *
 * A register tile is 8 rows (proxies) by 256 columns (runs), a warp's own: a lane has all rows of 8 columns.
 * Rows: a group takes `ROWS` (4 or 8) rows in each of `parts` tiles, so that 8 / ROWS neighbouring groups, a
 * set, share a tile; rows without a proxy weigh nothing. A warp owns a set, a block of threads WARPS sets.
 * Columns: runs stand in blocks of 256; a run of several candidates has as many layers, each with one
 * candidate of every run. Lane l has runs l, l + 32 ... l + 224 of a block, so that a ballot over the j-th of
 * them is word j of a list's bits. In memory run 32 j + l is at (j / 4) 128 + 4 l + j % 4: a lane reads four
 * at once.
 * Features pass in chunks of DEPTH through shared memory, the next chunk on its way while this one is used.
 * Rows are scaled by log2 e, so that everything is a power of two: e = sum of weight 2^(score - lse). */
#ifndef DSVI_SELECT_SCORE_CUH
#define DSVI_SELECT_SCORE_CUH

#include <cuda_pipeline_primitives.h>

#include "cuda/kernel.cuh"

namespace dsvi {

enum {
    TILE_ROWS = 8,
    COLUMNS = 256, /* of a block */
    SLOTS = COLUMNS / WARP, /* columns of a lane; also words of a block's bits */
    DEPTH = 16,
    WARPS = 8,
    SCORE_THREADS = WARPS * WARP,
    TILE_FLOATS = DEPTH * TILE_ROWS,   /* of a row tile's chunk */
    COLUMN_FLOATS = DEPTH * COLUMNS,   /* of a column block's chunk */
    SCORE_UNROLL = 1, /* more, and registers run out */
    SCORE_SHARED = 2 * (COLUMN_FLOATS + WARPS * TILE_FLOATS) * (int)sizeof(float)
};

/* What a kernel of scores walks over. */
struct SelectTiles {
    const float *columns; /* (pairs, blocks, layers, depths, DEPTH, COLUMNS) candidates; zeros for none */
    const float *rows;    /* (pairs, sets, parts, depths, DEPTH, TILE_ROWS) proxies times scale log2 e */
    const float *terms;   /* (pairs, sets, parts, 2, TILE_ROWS) -lse log2 e, then weights */
    int runs;             /* columns that there are */
    int last_layers;      /* candidates of the last run */
    int blocks, layers, depths, parts;
    int sets;             /* of a (batch, head), whole blocks of threads */
    int slices;           /* into which the blocks of columns are cut, for more blocks of threads */
};

/* The tile of a warp: its set, and blocks [begin, end) of columns. */
struct SelectPlace {
    int pair, set, slice;
    int begin, end;
};

__device__ __forceinline__ SelectPlace select_place(const SelectTiles &t, int64_t number)
{
    SelectPlace at;
    int row_blocks = t.sets / WARPS;
    int64_t row_block = number / t.slices;
    at.slice = (int)(number % t.slices);
    at.pair = (int)(row_block / row_blocks);
    at.set = (int)(row_block % row_blocks) * WARPS + threadIdx.x / WARP;
    at.begin = (int)((int64_t)at.slice * t.blocks / t.slices);
    at.end = (int)((int64_t)(at.slice + 1) * t.blocks / t.slices);
    return at;
}

/* Brings chunks into shared memory, one step ahead of the arithmetic. There are two buffers of columns and
 * two of rows; a chunk that the next step needs again stays where it is. It is few numbers, for registers are
 * full. */
struct SelectFeed {
    int layer;       /* chunk of columns with which the layer of the step that is on its way begins */
    int tile;        /* first of this warp's in rows and terms */
    int part, depth; /* of that step */
    int steps;       /* left, with that one */
};

__device__ __forceinline__ void copy_four(float *shared, const float *global)
{
    __pipeline_memcpy_async(shared, global, 4 * sizeof(float));
}

/* The buffers of that step: floats from the beginning of shared memory. Where a layer is one chunk, chunks
 * follow one another and their numbers alternate; elsewhere each step has a chunk of its own. */
__device__ __forceinline__ int feed_columns_at(const SelectTiles &t, const SelectFeed &f)
{
    return (t.depths == 1 ? f.layer & 1 : f.steps & 1) * COLUMN_FLOATS;
}

__device__ __forceinline__ int feed_rows_at(const SelectTiles &t, const SelectFeed &f)
{
    return 2 * COLUMN_FLOATS + (t.parts * t.depths == 1 ? 0 : f.steps & 1) * WARPS * TILE_FLOATS;
}

/* Asks for rows; where the same ones serve all steps, only the first time. */
__device__ __forceinline__ void feed_rows(const SelectTiles &t, float *shared, const SelectFeed &f)
{
    int64_t chunk = (int64_t)(f.tile + f.part) * t.depths + f.depth;
    copy_four(shared + feed_rows_at(t, f) + 4 * threadIdx.x,
              t.rows + chunk * TILE_FLOATS + threadIdx.x % WARP * 4);
}

__device__ __forceinline__ void feed_columns(const SelectTiles &t, float *shared, const SelectFeed &f)
{
    const float *from = t.columns + (int64_t)(f.layer + f.depth) * COLUMN_FLOATS + 4 * threadIdx.x;
    float *to = shared + feed_columns_at(t, f) + 4 * threadIdx.x;
#pragma unroll
    for (int i = 0; i < COLUMN_FLOATS; i += 4 * SCORE_THREADS)
        copy_four(to + i, from + i);
}

/* On to the next step. */
__device__ __forceinline__ void feed_advance(const SelectTiles &t, SelectFeed &f)
{
    f.steps--;
    if (++f.depth < t.depths)
        return;
    f.depth = 0;
    if (++f.part < t.parts)
        return;
    f.part = 0;
    f.layer += t.depths;
}

__device__ __forceinline__ SelectFeed feed_begin(const SelectTiles &t, const SelectPlace &at, float *shared)
{
    SelectFeed f;
    f.layer = (at.pair * t.blocks + at.begin) * t.layers * t.depths;
    f.tile = (at.pair * t.sets + at.set) * t.parts;
    f.part = f.depth = 0;
    f.steps = (at.end - at.begin) * t.layers * t.parts * t.depths;
    feed_columns(t, shared, f);
    feed_rows(t, shared, f);
    __pipeline_commit();
    return f;
}

/* acc += the products of the step that is on its way. The barrier tells that it has arrived for all warps and
 * that all have done with the step before, whose buffers the next one may then overwrite. */
__device__ __forceinline__ void score_step(const SelectTiles &t, float *shared, SelectFeed &f,
                                           float (&acc)[TILE_ROWS][SLOTS])
{
    const float *columns = shared + feed_columns_at(t, f) + threadIdx.x % WARP * 4;
    const float *rows = shared + feed_rows_at(t, f) + threadIdx.x / WARP * TILE_FLOATS;
    __pipeline_wait_prior(0);
    __syncthreads();
    feed_advance(t, f);
    if (f.steps > 0 && (t.depths > 1 || f.part == 0))
        feed_columns(t, shared, f);
    if (f.steps > 0 && t.parts * t.depths > 1)
        feed_rows(t, shared, f);
    __pipeline_commit();
#pragma unroll SCORE_UNROLL
    for (int r = 0; r < DEPTH; r++) {
        float a[TILE_ROWS], b[SLOTS];
#pragma unroll
        for (int i = 0; i < 8; i += 4) {
            *reinterpret_cast<float4 *>(a + i) = *reinterpret_cast<const float4 *>(rows + r * TILE_ROWS + i);
            *reinterpret_cast<float4 *>(b + i) =
                *reinterpret_cast<const float4 *>(columns + r * COLUMNS + i / 4 * (COLUMNS / 2));
        }
#pragma unroll
        for (int i = 0; i < TILE_ROWS; i++)
#pragma unroll
            for (int j = 0; j < SLOTS; j++)
                acc[i][j] = fmaf(a[i], b[j], acc[i][j]);
    }
}

/* 2^x to 2 units in the last place; below 2^-126 it is zero. */
__device__ __forceinline__ float exp2_near(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* The run in slot j of this lane. */
__device__ __forceinline__ int select_run(int block, int j)
{
    return block * COLUMNS + j * WARP + threadIdx.x % WARP;
}

/* Where scores start: 0, or -inf in columns without a candidate in this layer. */
__device__ __forceinline__ void column_starts(const SelectTiles &t, int block, int layer,
                                              float (&start)[SLOTS])
{
    int runs = layer < t.last_layers ? t.runs : t.runs - 1;
#pragma unroll
    for (int j = 0; j < SLOTS; j++)
        start[j] = select_run(block, j) < runs ? 0.f : -INFINITY;
}

/* e += the weighted powers of one tile's rows, whose scores start with their terms. */
template <int ROWS>
__device__ __forceinline__ void add_tile(const SelectTiles &t, float *shared, SelectFeed &f, int block,
                                         int layer, int part, float (&e)[TILE_ROWS / ROWS][SLOTS])
{
    float acc[TILE_ROWS][SLOTS], start[SLOTS];
    const float *terms = t.terms + (int64_t)(f.tile + part) * 2 * TILE_ROWS;
    column_starts(t, block, layer, start);
#pragma unroll
    for (int i = 0; i < TILE_ROWS; i++)
#pragma unroll
        for (int j = 0; j < SLOTS; j++)
            acc[i][j] = start[j] + terms[i];
    for (int depth = 0; depth < t.depths; depth++)
        score_step(t, shared, f, acc);
#pragma unroll
    for (int i = 0; i < TILE_ROWS; i++)
#pragma unroll
        for (int j = 0; j < SLOTS; j++)
            e[i / ROWS][j] = fmaf(terms[TILE_ROWS + i], exp2_near(acc[i][j]), e[i / ROWS][j]);
}

/* Calls take(sink, block, e) for each block of columns, e[g][j] the estimate of group g of the set for the
 * run in slot j; it is zero where there is no such group or run. */
template <int ROWS, typename Sink>
__device__ __forceinline__ void walk_estimates(const SelectTiles &t, const SelectPlace &at, float *shared,
                                               Sink &sink)
{
    SelectFeed f = feed_begin(t, at, shared);
    for (int block = at.begin; block < at.end; block++) {
        float e[TILE_ROWS / ROWS][SLOTS] = {};
        for (int layer = 0; layer < t.layers; layer++)
            for (int part = 0; part < t.parts; part++)
                add_tile<ROWS>(t, shared, f, block, layer, part, e);
        take(sink, block, e);
    }
}

} // namespace dsvi

#endif
