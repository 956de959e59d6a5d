/* Who works on what, and who keeps what, among the ranks that train together.
 *
 * By their work ranks are data x context: cp_size consecutive ranks are a context group, which has the same
 * clips, noise and times, and each of its ranks a stretch of their tokens; every group has clips of its own.
 * By what they keep they are replica x shard: hsdp_shard_dim consecutive ranks are a shard group, whose ranks
 * divide what the model's state is; groups are replicas of each other. The two know nothing of one another:
 * a shard group may be a part of a context group, or several of them. cp_size=2 hsdp_shard_dim=4, 8 ranks:
 *
 *     rank            0   1   2   3   4   5   6   7
 *     clips           a   a   b   b   c   c   d   d
 *     their tokens    0   1   0   1   0   1   0   1
 *     part of state   0   1   2   3   0   1   2   3
 *
 * Consecutive ranks are those of one machine, as far as they go: what talks most lies closest. */
#ifndef DSVI_MESH_H
#define DSVI_MESH_H

#include "dist/comm.h"
#include "dsv/config.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvMesh {
    int64_t data_ranks, data_rank;       /* context groups, and this rank's */
    int64_t context_ranks, context_rank; /* ranks of a context group, and this one's place there */
    int64_t shard_ranks, shard_rank;
    int64_t replica_ranks, replica_rank; /* shard groups, and this rank's */

    /* Groups for host memory, each in the order of the ranks; NULL where a rank is alone. */
    DsvComm *all;     /* the caller's */
    DsvComm *context; /* a group of its own: its calls and those of `all` may come from two threads */
    DsvComm *shard;   /* those that divide the state with this rank; `all` itself where that is everyone */
    DsvComm *replica; /* those that keep the same part as this rank; `all` itself likewise */
} DsvMesh;

/* From cp_size, dp_size and hsdp_shard_dim; all ranks of `all` (NULL: one alone) call. DSV_E_USAGE names the
 * setting that does not suit the number of ranks. The mesh is freed before `all` is closed. */
DsvStatus dsvi_mesh_make(const DsvConfig *settings, DsvComm *all, DsvMesh *out);
void dsvi_mesh_free(DsvMesh *mesh); /* takes one of zeros */

/* One line, without newline. */
typedef void DsvMeshLine(void *context, const char *line);

/* Who does what, as a picture of a few lines: a row for each place in a context group, with the ranks there,
 * and one for each part of the state; nothing of what all ranks do alike. token_bound: (context_ranks + 1),
 * where each stretch of tokens begins. */
void dsvi_mesh_draw(const DsvMesh *mesh, const int64_t *token_bound, DsvMeshLine *line, void *context);

#ifdef __cplusplus
}
#endif
#endif
