/* Lists turned about, for attention's backward pass where lists are of blocks of 128 keys: for each block the
 * groups of queries that list it. What its kernels share, and what they keep in the op's workspace.
 *
 * Queries are taken 64 at a time, a tile: of one group, whose size is a multiple of 64 (or there is one group
 * only). The last tile of a (batch, head) may be short. dQ is a sum over all blocks of keys that a tile
 * attends. It is made in F32,
 *     sums (pairs, tiles, 4, 16, 32, 4)
 * in the order in which a tensor-core product holds it: of warp w, column group j and lane l the four floats
 *     row 16 w + l / 4, columns 8 j + l % 4 * 2 and the next;      row 8 further, the same columns
 * so that a tile's rows are one piece of memory, and go through shared memory without conflicts.
 *
 *     queries (pairs, tiles, 2, 64)    lse and delta; beyond the last query infinity and 0
 *     groups (pairs, blocks, groups)   of each block as many as it counts, ascending
 *     counts (pairs, blocks)
 *     order (pairs x blocks)           the blocks that some group lists, in the order they are worked on
 *     listed (1)                       how many those are */
#ifndef DSVI_ATTENTION_TURNED_CUH
#define DSVI_ATTENTION_TURNED_CUH

#include "cuda/attention_list.cuh"

namespace dsvi {

constexpr int BLOCK_KEYS = 128, TILE_QUERIES = 64, TILE_COLUMNS = 128;
constexpr int TILE_FLOATS = TILE_QUERIES * TILE_COLUMNS;

struct Turned {
    int blocks, tiles; /* of a (batch, head) */
    int of_group;      /* tiles, the last group may have fewer */
    int of_run;        /* blocks, the last run may have fewer */
    float *sums, *queries;
    uint16_t *groups;
    int *counts, *order, *listed;
};

/* Whether runs of lists are whole blocks of keys, as far as there are keys. */
inline bool runs_are_blocks(const AttentionProblem &problem)
{
    return problem.grain % BLOCK_KEYS == 0 || problem.grain == problem.keys;
}

/* Why lists of such runs may not be turned about, by their shapes; NULL: they may. */
const char *attention_turned_leaves(const DsvStream *stream, const AttentionProblem &problem);
size_t attention_turned_bytes(const AttentionProblem &problem);
Turned attention_turned_at(const AttentionProblem &problem);

/* Enqueues the lists turned about and the order of the blocks; `heads` is the order of the (batch, head)s, on
 * the device (NULL: as they are numbered). dk and dv of blocks that nobody lists become 0. */
DsvStatus attention_turn_lists(DsvStream *stream, const AttentionProblem &problem, const Turned &turned,
                               const int *heads);
/* Enqueues dq, from its sums. */
DsvStatus attention_finish_queries(DsvStream *stream, const AttentionProblem &problem, const Turned &turned);

/* Where attention_turned_leaves has no reason against it: writes dq, dk and dv, its workspace problem.sums.
 * Enqueues nothing and makes *served false where the copy engine does not take the tensors as they lie. */
DsvStatus attention_backward_turned(DsvStream *stream, const AttentionProblem &problem, bool *served);

} // namespace dsvi

#endif
