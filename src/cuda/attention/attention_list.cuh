/* Definitions that all kernels of attention over lists use: the problem, the tile of queries that a thread
 * block processes, and the F32 sums to which the backward pass adds the gradients of keys and values.
 *
 * The queries of a group share one key list, so a tile contains queries of one group of one (batch, head).
 * A group with more queries than a tile has several tiles, of which the last may be short. Dense attention is
 * the case of one group that contains all queries and whose list contains all keys.
 *
 * dK and dV of a key are sums over all tiles that attend to the key. Kernels accumulate them in F32 in the
 * workspace of the operation,
 *     sums (slices, 2, pairs, keys, pitch)      [.., 0, ..] dK / scale, [.., 1, ..] dV
 * with pitch = D rounded up to 16; a last kernel rounds them once to the type of dk and dv. Every 16 columns
 * are stored in the order in which a lane holds them after a tensor-core product, so that a lane adds four
 * neighbouring floats: element 4 t + 2 e + i is column 8 e + 2 t + i. Usually there is one slice, to which
 * thread blocks add atomically. On a deterministic stream each slice has one thread block, which processes
 * its tiles in order and is the only one to add to the slice. */
#ifndef DSVI_ATTENTION_LIST_CUH
#define DSVI_ATTENTION_LIST_CUH

#include "cuda/common/kernel.cuh"
#include "ops/attention.h"

namespace dsvi {

/* An entry of a key list is the number of a span, which is less than 2^30. Two bits above are used by unions
 * of lists (attention_union.cuh) and are 0 in all other lists. */
constexpr uint32_t LISTED_FIRST = 1u << 30, LISTED_SECOND = 1u << 31, SPAN_BITS = LISTED_FIRST - 1;

/* What a tail has besides the other fields of AttentionProblem (attention_tail.cuh). */
struct AttentionTail {
    /* Of the arrays `bits`, `biases` and `counts` two are NULL. */
    const uint32_t *bits;  /* (pairs, groups, pitch) bit j % 32 of word j / 32 is set if the list of the group
                            * does not name key j */
    const float *biases;   /* (pairs, groups, pitch) log n_gr */
    const uint8_t *counts; /* key tails on Hopper: (pairs, groups, pitch) n_gr, run r at tail_place(r) */
    const float *delta;    /* (pairs, queries) D_c; backward only */
    int groups, rows_per_group, pitch;
    /* The backward pass on Hopper reads the same bits for 64 queries at once: (pairs, tiles, padded keys),
     * bit i of a word belongs to query i of the tile, and `padded` is the number of keys rounded up. */
    const uint64_t *columns;
    int padded;
    /* The forward pass on Hopper divides the keys into parts of part_keys keys, the last of which may be
     * short: out is (pairs, parts, queries, pitch of out) and lse (pairs, parts, queries). */
    int parts, part_keys;
    /* Key tails on Hopper, forward: (pairs, queries) lse of the lists, replaced by the lse of the whole. */
    float *lists_lse;
    /* Key tails on Hopper, backward: the tiles of queries are divided into slices of so many tiles, and
     * `sums` has a slice for each. */
    int slice_tiles;
};

struct AttentionProblem {
    int pairs, heads; /* pairs = batch x heads */
    int queries, keys, dim;
    float scale;
    int group, groups, grain; /* as in DsviLists; group is at most queries, grain at most keys */
    const int64_t *offsets;   /* as in DsviLists; NULL: every list contains all keys */
    const int32_t *spans;     /* as in DsviLists */
    bool united; /* backward on Hopper: a group is two groups of 64 queries, its list is the union of their
                  * lists, and the bits LISTED_FIRST and LISTED_SECOND of an entry of `spans` say which of the
                  * two lists it */
    DsviHeads q, k, v, out, dout, dq, dk, dv;
    float *lse;   /* (B, N, Sq) log of the sum of exp(scores) of each query */
    bool chunks;  /* rows of q, k and v (in a backward pass also of out and dout) consist of whole 16-byte
                     chunks at multiples of 16 bytes */
    bool couples; /* rows of out (forward) or dq (backward) begin at multiples of two elements, so that pairs
                   * can be stored together */
    float *sums;  /* (slices, 2, pairs, keys, pitch) */
    int pitch, slices;
    bool alone; /* each slice of `sums` has one thread block that adds to it, so additions need no atomics */
    AttentionTail tail; /* read by the kernels of a tail only */
};

/* Fails with DSV_E_UNSUPPORTED if the kernels do not take these types or so many keys and queries. */
DsvStatus attention_list_supports(const DsviAttentionArgs *args);

DsvStatus attention_forward_f32(DsviStream *stream, const AttentionProblem &problem);
DsvStatus attention_backward_f32(DsviStream *stream, const AttentionProblem &problem);
DsvStatus attention_forward_bf16(DsviStream *stream, const AttentionProblem &problem);
/* Call only when hopper_declines of attention_list.cu returns NULL. Sets *refused where lists consist of
 * blocks of keys, but TMA does not support the strides or address of k or v: rows are then copied one by
 * one. */
DsvStatus attention_forward_sm90(DsviStream *stream, const AttentionProblem &problem, bool *refused);
/* The backward passes write dq and add to `sums`, which the caller has set to zero. */
DsvStatus attention_backward_bf16(DsviStream *stream, const AttentionProblem &problem);
/* Call only when hopper_declines_backward of attention_list.cu returns NULL: the kernel adds to one slice, in
 * no fixed order. */
DsvStatus attention_backward_sm90(DsviStream *stream, const AttentionProblem &problem);

/* The F32 sums of dK and dV. attention_sums_bytes returns their bytes for `pairs` (batch, head)s;
 * attention_place_sums sets the fields of *problem that say where the sums are and how kernels add to them;
 * attention_clear_sums enqueues their clearing. attention_finish_sums enqueues their conversion to the rows
 * of dk and dv. If `run` is positive, each key stands for `run` of `tokens` tokens (the last one for fewer):
 * its sums are divided among the tokens, and added to what dk and dv contain. */
size_t attention_sums_bytes(const DsviStream *stream, int64_t pairs, int64_t keys, int64_t dim);
void attention_place_sums(const DsviStream *stream, void *at, AttentionProblem *problem);
DsvStatus attention_clear_sums(DsviStream *stream, const AttentionProblem &problem);
DsvStatus attention_finish_sums(DsviStream *stream, const AttentionProblem &problem, DsviDtype act,
                                int64_t run, int64_t tokens);

/* Returns whether the address, the length and all strides of the rows are multiples of `bytes`. */
inline bool heads_aligned(const DsviHeads *rows, int64_t dim, size_t size, size_t bytes)
{
    return (uintptr_t)rows->data % bytes == 0 && (size_t)dim * size % bytes == 0 &&
           (size_t)rows->batch_stride * size % bytes == 0 && (size_t)rows->token_stride * size % bytes == 0 &&
           (size_t)rows->head_stride * size % bytes == 0;
}

inline int64_t smaller_of(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Why a kernel that copies tensors by TMA did not serve a call. */
constexpr const char *NO_TMA = "TMA does not support these strides or addresses";

inline int round_up(int64_t n, int unit)
{
    return (int)(ceil_div(n, unit) * unit);
}

/* Number of tiles of `width` queries of one (batch, head), including empty tiles of a short last group. */
__host__ __device__ inline int tiles_of(const AttentionProblem &problem, int width)
{
    return problem.groups * ((problem.group + width - 1) / width);
}

struct Tile {
    int pair, b, h;       /* pair = b * heads + h */
    int first, rows;      /* queries [first, first + rows); an empty tile has rows = 0 */
    const int32_t *spans; /* the key list; NULL: all keys */
    int keys;             /* number of keys in the list */
};

/* Sets tile->spans and tile->keys to the key list of group `group` of queries of the tile's (batch, head). */
__device__ __forceinline__ void find_list(const AttentionProblem &a, int group, Tile *tile)
{
    tile->spans = nullptr;
    tile->keys = a.keys;
    if (!a.offsets)
        return;
    const int64_t *offset = a.offsets + (int64_t)tile->pair * a.groups + group;
    int64_t count = offset[1] - offset[0], beyond = 0;
    tile->spans = a.spans + offset[0];
    if (count > 0 && a.grain > 1)
        beyond = ((int64_t)(tile->spans[count - 1] & SPAN_BITS) + 1) * a.grain - a.keys;
    tile->keys = (int)(count * a.grain - (beyond > 0 ? beyond : 0));
}

/* Tile number `number`, of `width` queries, of (batch, head) `pair`. */
__device__ __forceinline__ Tile tile_at(const AttentionProblem &a, int pair, int number, int width)
{
    int tiles_per_group = tiles_of(a, width) / a.groups, group = number / tiles_per_group;
    int64_t begin = (int64_t)group * a.group, first = begin + number % tiles_per_group * width;
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

/* Index of the i-th key of the tile's list. */
__device__ __forceinline__ int tile_key(const AttentionProblem &a, const Tile &tile, int i)
{
    return tile.spans ? tile.spans[i / a.grain] * a.grain + i % a.grain : i;
}

/* Address of the row of token 0, in a tensor (B, S, N, D), of the tile's (batch, head). */
template <typename T> __device__ __forceinline__ T *rows_of(const DsviHeads &rows, const Tile &tile)
{
    return static_cast<T *>(rows.data) + tile.b * rows.batch_stride + tile.h * rows.head_stride;
}

/* Address of the F32 sums (keys, pitch) of dK, or of dV, of (batch, head) `pair` in slice (copy of the sums)
 * `slice`. */
__device__ __forceinline__ float *sums_of(const AttentionProblem &a, int slice, bool dv, int pair)
{
    return a.sums + (((int64_t)slice * 2 + dv) * a.pairs + pair) * a.keys * a.pitch;
}

} // namespace dsvi

#endif
