/* Unions of lists, for the backward pass of attention on Hopper. This pass is limited by the additions to dK
 * and dV, 1 KiB for each key of each tile (attention_list_bwd_sm90.cu). Two neighbouring groups of 64 queries
 * have most listed keys in common, so one tile of 128 queries over the union of both lists adds once where
 * two tiles of 64 queries add twice. Scores of a query and a key that only the other group lists are computed
 * and discarded.
 *
 * Measured on trained heads with lists of 5 % of the keys, groups of 64 queries in cubes and grain 8: the
 * union of two neighbouring lists has 0.55 to 0.61 times as many spans as both lists together. */
#ifndef DSVI_ATTENTION_UNION_CUH
#define DSVI_ATTENTION_UNION_CUH

#include "cuda/attention/attention_list.cuh"

namespace dsvi {

/* Returns the bytes that unions of lists of `capacity` spans take in the workspace, 0 if tiles have one group
 * each: if groups are not of 64 queries, if there is only one, or if there are so many that unions of lists
 * of half of the keys would take more than twice the memory of the F32 sums of dK and dV. */
size_t attention_union_bytes(const AttentionProblem &problem, int64_t capacity);

/* Enqueues the union of the lists of groups 2 n and 2 n + 1, for each n, to the memory at `at`. Returns in
 * *united the same problem with groups of 128 queries, whose spans have the bits LISTED_FIRST and
 * LISTED_SECOND (attention_list.cuh). */
DsvStatus attention_unite_lists(DsviStream *stream, const AttentionProblem &problem, void *at,
                                AttentionProblem *united);

} // namespace dsvi

#endif
