/* Division of the ranks into groups: which rank works on which clips and tokens, and which rank keeps which
 * part of the model's state.
 *
 * For work the mesh is data parallelism x context parallelism. cp_size consecutive ranks are a
 * context-parallel group: they have the same clips, noise and noise levels, and each has a range of the
 * tokens. Other groups have other clips. For state the mesh is replica x shard. hsdp_shard_dim consecutive
 * ranks are a shard group: they divide weights, gradients and optimizer state; each shard group has a full
 * copy. The two divisions are independent: a shard group may be a part of a context-parallel group, or
 * contain several. Example with 8 ranks, cp_size=2 and hsdp_shard_dim=4:
 *
 *     rank            0   1   2   3   4   5   6   7
 *     clips           a   a   b   b   c   c   d   d
 *     their tokens    0   1   0   1   0   1   0   1
 *     part of state   0   1   2   3   0   1   2   3
 *
 * Consecutive ranks usually run on one machine, so that the ranks of a group have fast links. */
#ifndef DSVI_MESH_H
#define DSVI_MESH_H

#include "dist/comm.h"
#include "dsv/config.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviMesh {
    int64_t data_ranks, data_rank;       /* number of context-parallel groups; which one this rank is in */
    int64_t cp_ranks, cp_rank;           /* ranks of a context-parallel group, and this rank's index in it */
    int64_t shard_ranks, shard_rank;     /* ranks of a shard group, and this rank's index in it */
    int64_t replica_ranks, replica_rank; /* number of shard groups; which one this rank is in */

    /* Groups for host memory, each in the order of the ranks. NULL: a group of one rank. */
    DsviComm *all;     /* all ranks; owned by the caller */
    DsviComm *cp;      /* context-parallel group; never `all`, because two threads may use the two */
    DsviComm *shard;   /* shard group of this rank; `all` itself if it has all ranks */
    DsviComm *replica; /* ranks that keep the same shard as this rank; `all` itself if all ranks keep it */
} DsviMesh;

/* Returns how many of `ranks` share a clip: cp_size, or what follows from dp_size if cp_size is 0. */
int64_t dsvi_mesh_cp_ranks(const DsvConfig *config, int64_t ranks);

/* Makes the mesh from cp_size, dp_size and hsdp_shard_dim. All ranks of `all` call (NULL: one rank).
 * DSV_E_USAGE names the option that does not fit the number of ranks. Free the mesh before closing `all`. */
DsvStatus dsvi_mesh_make(const DsvConfig *config, DsviComm *all, DsviMesh *out);
void dsvi_mesh_free(DsviMesh *mesh); /* accepts a zeroed mesh */

/* Receives one line of text without newline. */
typedef void DsviMeshLine(void *context, const char *line);

/* Describes the mesh in a few lines: one line for each range of tokens, with the ranks that have this range,
 * and one for each shard of the state, with its ranks. Divisions that are the same on all ranks are left out.
 * token_bound (cp_ranks + 1): first token of each range, then the end. */
void dsvi_mesh_describe(const DsviMesh *mesh, const int64_t *token_bound, DsviMeshLine *line, void *context);

#ifdef __cplusplus
}
#endif
#endif
