/* Processes that train one model together: each is a rank, with its own part of every batch.
 *
 * The processes are started by mpirun, srun, torchrun or whatever else starts processes, all with the same
 * arguments; each joins, trains and leaves. dsv_train_ranks is dsv_train on all of them. */
#ifndef DSV_RANKS_H
#define DSV_RANKS_H

#include <stdint.h>

#include "dsv/config.h"
#include "dsv/events.h"
#include "dsv/status.h"
#include "dsv/train.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvRanks DsvRanks;

/* Where one process stands, told by what started it. */
typedef struct DsvRanksPlace {
    int64_t rank, size;
    char address[256]; /* the machine of rank 0, */
    int port;          /* which listens there */
} DsvRanksPlace;

/* Joins the processes that were started with this one; once in the life of a process. They meet over TCP, or
 * over MPI where `place` is NULL (mpirun, srun --mpi=pmix); that is DSV_E_UNSUPPORTED where dsv was built
 * without MPI. `config` says how long ranks wait for each other (rank_timeout). */
DsvStatus dsv_ranks_join(const DsvConfig *config, const DsvRanksPlace *place, DsvRanks **out);
/* From 0; rank 0 writes files and tells. */
int64_t dsv_ranks_rank(const DsvRanks *ranks);
int64_t dsv_ranks_size(const DsvRanks *ranks);

/* As dsv_train, called by all ranks. `events->log` hears warnings on every rank and all else on rank 0,
 * where alone there is progress and `summary` is filled. `events->stop` on any rank stops all. A failure on
 * one rank fails the call on all; the sentence of rank 0 names the rank and the step. */
DsvStatus dsv_train_ranks(DsvRanks *ranks, const DsvConfig *config, const DsvEvents *events,
                          DsvTrainSummary *summary);

/* Waits for the others, which leave too; after a failure no longer than it takes rank 0 to leave, or a few
 * seconds. */
void dsv_ranks_leave(DsvRanks **ranks);

#ifdef __cplusplus
}
#endif
#endif
