/* Processes that train one model together: each is a rank, with its own part of every batch.
 *
 * The processes are started by mpirun, srun, torchrun or whatever else starts processes, all with the same
 * arguments; each joins, trains and leaves. dsv_train_ranks is dsv_train on all of them. */
#ifndef DSV_RANKS_H
#define DSV_RANKS_H

#include <stdbool.h>
#include <stdint.h>

#include "dsv/config.h"
#include "dsv/events.h"
#include "dsv/status.h"
#include "dsv/train.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvRanks DsvRanks;

/* A job has at most so many ranks over TCP, where each is connected with every other. */
enum { DSV_RANKS_MAX = 16384 };

/* What a process was told by whatever started it. */
typedef struct DsvRanksPlace {
    int64_t rank, size;
    char address[256]; /* of rank 0's machine; rank 0 listens at this address, */
    int port;          /* at this port, 1 to 65535 */
    /* The job's word: the same on all ranks of the job, on no other job's. Ranks prove to each other that
     * they know it, and do not send it: a secret word keeps strangers out. "": only the port tells jobs
     * apart. */
    char job[512];
} DsvRanksPlace;

/* Joins the processes that were started with this one; once in the life of a process. They meet over TCP, or
 * over MPI where `place` is NULL (mpirun, srun --mpi=pmix; DSV_E_UNSUPPORTED where dsv was built without it).
 * `config` says how long ranks wait for each other (rank_timeout). While ranks meet over TCP, `events->log`
 * (`events` may be NULL) hears as warnings which ranks are missing and which calls of strangers were dropped.
 * A rank that ends before all have met ends the call on the others. */
DsvStatus dsv_ranks_join(const DsvConfig *config, const DsvRanksPlace *place, const DsvEvents *events,
                         DsvRanks **out);

/* In place of dsv_ranks_join, by a process that cannot begin: dsv_ranks_join fails on the others with
 * `sentence`. Takes a few seconds at most. */
void dsv_ranks_decline(const DsvRanksPlace *place, const char *sentence);

/* From 0; rank 0 writes files and reports. */
int64_t dsv_ranks_rank(const DsvRanks *ranks);
int64_t dsv_ranks_size(const DsvRanks *ranks);

/* As dsv_train, called by all ranks. `events->log` hears warnings on every rank and all else on rank 0,
 * where alone there is progress and `summary` is filled. `events->stop` on any rank stops all. A failure on
 * one rank fails the call on all; the sentence of rank 0 names the rank and the step. */
DsvStatus dsv_train_ranks(DsvRanks *ranks, const DsvConfig *config, const DsvEvents *events,
                          DsvTrainSummary *summary);

/* After a call of all ranks has failed, once on each rank and before it leaves. Rank 0 calls it when it has
 * reported the failure. On another rank it waits until rank 0 has, and returns false where rank 0 has ended
 * without a report, or is silent for five seconds: then this rank should report its own sentence. */
bool dsv_ranks_told(DsvRanks *ranks);

void dsv_ranks_leave(DsvRanks **ranks);

#ifdef __cplusplus
}
#endif
#endif
