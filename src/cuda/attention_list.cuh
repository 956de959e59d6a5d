/* What all kernels of attention over lists share: the request as they take it, the tile of queries that a
 * block of threads works on, and where the backward pass adds up the gradients of keys.
 *
 * Queries of a group share a list, so a tile is queries of one group of one (batch, head): a group of more
 * than a tile's queries is several tiles, the last of them short. Dense attention is one group of all queries
 * whose list is all keys.
 *
 * dK and dV are sums over all tiles that attend a key. They are made in F32 in the workspace,
 *     sums (slices, 2, pairs, keys, pitch)      [.., 0, ..] dK / scale, [.., 1, ..] dV
 * pitch = D rounded up to 16, and leave it rounded once. Inside 16 columns the order is that in which a lane
 * of a tensor-core product holds them, so that it adds four at a time: number 4 t + 2 e + i is column
 * 8 e + 2 t + i. Usually there is one slice and additions are atomic; a deterministic stream has a block of
 * threads for each slice, which walks its tiles in order and adds alone.
 *
 * A faster variant for newer hardware takes the same AttentionProblem and stands beside these functions. */
#ifndef DSVI_ATTENTION_LIST_CUH
#define DSVI_ATTENTION_LIST_CUH

#include "cuda/kernel.cuh"
#include "ops/attention.h"

namespace dsvi {

struct AttentionProblem {
    int pairs, heads;       /* batch x heads; heads */
    int queries, keys, dim;
    float scale;
    int group, groups, grain; /* at most queries, keys */
    const int64_t *offsets; /* as in DsvLists; NULL: the list is all keys */
    const int32_t *runs;
    DsvHeads q, k, v, out, dout, dq, dk, dv;
    float *lse;             /* (B, N, Sq) */
    bool chunks;            /* rows of q, k, v, dout and out are whole and aligned chunks of 16 bytes */
    bool couples;           /* rows of out (forward), dq (backward) begin at multiples of two elements */
    float *sums;            /* (slices, 2, pairs, keys, pitch) */
    int pitch, slices;
    bool alone;             /* a block of threads for each slice, which nobody else adds to */
};

DsvStatus attention_forward_f32(DsvStream *stream, const AttentionProblem &problem);
DsvStatus attention_backward_f32(DsvStream *stream, const AttentionProblem &problem);
DsvStatus attention_forward_bf16(DsvStream *stream, const AttentionProblem &problem);
/* Where hopper_leaves has no reason against it. *refused: the copy engine does not take keys that lie so, and
 * blocks of them came row by row. */
DsvStatus attention_forward_sm90(DsvStream *stream, const AttentionProblem &problem, bool *refused);
/* The backward passes write dq and add to sums, which hold zeros before. */
DsvStatus attention_backward_bf16(DsvStream *stream, const AttentionProblem &problem);
/* Adds in any order, to one slice. */
DsvStatus attention_backward_sm90(DsvStream *stream, const AttentionProblem &problem);

/* Tiles of `width` queries in one (batch, head), the empty ones of a short last group among them. */
__host__ __device__ inline int tiles_of(const AttentionProblem &problem, int width)
{
    return problem.groups * ((problem.group + width - 1) / width);
}

struct Tile {
    int pair, b, h;
    int first, rows;     /* queries [first, first + rows); no rows: nothing to do */
    const int32_t *runs; /* of the list; NULL: all keys */
    int keys;            /* in the list */
};

/* Sets the tile's list to that of group `group`. */
__device__ __forceinline__ void find_list(const AttentionProblem &a, int group, Tile *tile)
{
    tile->runs = nullptr;
    tile->keys = a.keys;
    if (!a.offsets)
        return;
    const int64_t *offset = a.offsets + (int64_t)tile->pair * a.groups + group;
    int64_t count = offset[1] - offset[0], beyond = 0;
    tile->runs = a.runs + offset[0];
    if (count > 0 && a.grain > 1)
        beyond = ((int64_t)tile->runs[count - 1] + 1) * a.grain - a.keys;
    tile->keys = (int)(count * a.grain - (beyond > 0 ? beyond : 0));
}

/* Tile `number` of `width` queries of a (batch, head). */
__device__ __forceinline__ Tile tile_at(const AttentionProblem &a, int pair, int number, int width)
{
    int of_group = tiles_of(a, width) / a.groups, group = number / of_group;
    int64_t begin = (int64_t)group * a.group, first = begin + number % of_group * width;
    int64_t end = begin + a.group < a.queries ? begin + a.group : a.queries;
    Tile tile;
    tile.pair = pair;
    tile.b = pair / a.heads;
    tile.h = pair % a.heads;
    tile.first = (int)first;
    tile.rows = first >= end ? 0 : end - first < width ? (int)(end - first) : width;
    find_list(a, group, &tile);
    return tile;
}

/* Key number i of the tile's list, ascending. */
__device__ __forceinline__ int tile_key(const AttentionProblem &a, const Tile &tile, int i)
{
    return tile.runs ? tile.runs[i / a.grain] * a.grain + i % a.grain : i;
}

/* Row (b, 0, h) of a tensor. */
template <typename T> __device__ __forceinline__ T *rows_of(const DsvHeads &rows, const Tile &tile)
{
    return static_cast<T *>(rows.data) + tile.b * rows.batch_stride + tile.h * rows.head_stride;
}

/* The sums of dK, or dV, of a (batch, head) in slice `slice`. */
__device__ __forceinline__ float *sums_of(const AttentionProblem &a, int slice, bool dv, int pair)
{
    return a.sums + (((int64_t)slice * 2 + dv) * a.pairs + pair) * a.keys * a.pitch;
}

} // namespace dsvi

#endif
