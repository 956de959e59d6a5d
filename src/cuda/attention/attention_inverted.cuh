/* Inverted (key-major) lists, for the backward pass of attention on Hopper where lists consist of blocks of
 * 128 keys: for each block of keys, the groups of queries that list it. This file has the definitions that
 * the kernels of this backward pass use, and the layout of their workspace.
 *
 * A tile has 64 queries of one group. The size of a group is a multiple of 64, or there is only one group.
 * The last tile of a (batch, head) may be short. dQ of a tile is a sum over all blocks of keys that the tile
 * attends to. It is accumulated in F32,
 *     sums (pairs, tiles, 4, 16, 32, 4)
 * in the order in which a tensor-core product holds it. The four floats of warp w, column group j and lane l
 * are
 *     row 16 w + l / 4, columns 8 j + l % 4 * 2 and the next;      row 8 further, the same columns
 * so a tile's rows are contiguous, and pass through shared memory without bank conflicts.
 *
 *     queries (pairs, tiles, 2, 64)    lse and delta; after the last query infinity and 0
 *     groups (pairs, blocks, groups)   the groups that list a block, ascending; counts says how many
 *     counts (pairs, blocks)
 *     order (pairs x blocks)           the blocks that at least one group lists, in the order of processing
 *     listed (1)                       number of these blocks */
#ifndef DSVI_ATTENTION_INVERTED_CUH
#define DSVI_ATTENTION_INVERTED_CUH

#include "cuda/attention/attention_tail.cuh"

namespace dsvi {

constexpr int BLOCK_KEYS = 128, TILE_QUERIES = 64, TILE_COLUMNS = 128;
constexpr int TILE_FLOATS = TILE_QUERIES * TILE_COLUMNS;

struct Inverted {
    int blocks, tiles;     /* numbers of key blocks and of query tiles of one (batch, head) */
    int tiles_per_group;   /* tiles in a group; the last group may have fewer */
    int blocks_per_span;   /* number of blocks of 128 keys in a span of keys; the last span may have fewer
                              blocks */
    int all;               /* blocks of keys of all (batch, head)s */
    float *sums, *queries; /* these and the following pointers are to arrays in device memory, which the top
                              of this file describes */
    uint16_t *groups;
    int *counts, *order, *listed;
};

/* Returns whether spans of the lists consist of whole blocks of keys (the block with the last key may be
 * short). */
inline bool spans_are_blocks(const AttentionProblem &problem)
{
    return problem.grain % BLOCK_KEYS == 0 || problem.grain == problem.keys;
}

/* Returns why the key-major backward pass does not support the shapes of this problem, whose lists consist of
 * whole blocks of keys; NULL if they are supported. */
const char *attention_inverted_declines(const DsviStream *stream, const AttentionProblem &problem);
/* attention_inverted_bytes returns the bytes of workspace that the key-major backward pass needs,
 * attention_inverted_at the addresses of its buffers in the workspace that begins at problem.sums. */
size_t attention_inverted_bytes(const AttentionProblem &problem);
Inverted attention_inverted_at(const AttentionProblem &problem);

/* Enqueues the inversion of the lists and the sorting of the blocks. `heads` is the order of the (batch,
 * head)s, in device memory (NULL: ascending). Sets dk and dv of blocks that no group lists to 0. */
DsvStatus attention_invert_lists(DsviStream *stream, const AttentionProblem &problem,
                                 const Inverted &inverted, const int *heads);
/* Enqueues the conversion of the F32 sums of dQ in the workspace to dq: in BF16, in a query tail in F32; in a
 * key tail they are added to what dq contains. */
DsvStatus attention_finish_queries(DsviStream *stream, const AttentionProblem &problem,
                                   const Inverted &inverted, TailKind kind);

/* The key-major backward pass: writes dq, dk and dv, with its workspace at problem.sums. Call only when
 * attention_inverted_declines returns NULL. Enqueues nothing and sets *served to false where TMA does not
 * support the strides or address of a tensor. */
DsvStatus attention_backward_inverted(DsviStream *stream, const AttentionProblem &problem, bool *served);

} // namespace dsvi

#endif
