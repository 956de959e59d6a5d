/** @file
 * Several processes that train one model together. Each process is a rank with its own part of every
 * batch.
 *
 * mpirun, srun, torchrun or any other launcher starts the processes, all with the same options. Each
 * process joins, trains and leaves: dsv_ranks_join(), dsv_train_ranks(), dsv_ranks_leave(). */
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

/** The connection of this process with all other ranks. dsv_ranks_join() makes it, dsv_ranks_leave() frees
 * it. */
typedef struct DsvRanks DsvRanks;

/** Limits of a job over TCP, where every rank is connected with every other. */
enum {
    DSV_RANKS_MAX = 16384 /**< the most ranks of a job */
};

/** What the launcher told this process. */
typedef struct DsvRanksPlace {
    int64_t rank;      /**< number of this process, from 0 */
    int64_t size;      /**< ranks of the job, 1 to DSV_RANKS_MAX */
    char address[256]; /**< host name or address of rank 0's machine; rank 0 listens there */
    int port;          /**< TCP port at which rank 0 listens, 1 to 65535 */
    /** The job key: equal on all ranks of a job and different for other jobs. Ranks prove to each other
     * that they know it and never send it, so that a secret key keeps strangers out. "": only the port
     * tells jobs apart. */
    char job[512];
} DsvRanksPlace;

/** Joins the processes that were started with this one. Call it once in the life of a process.
 * @param config rank_timeout says how long ranks wait for each other
 * @param place  the ranks meet over TCP; NULL: over MPI (mpirun, srun --mpi=pmix)
 * @param events may be NULL. While ranks meet over TCP, `log` receives as warnings which ranks are missing
 *     and which connections of strangers were dropped.
 * @param out    set to the new object, which the caller owns; NULL on failure
 * @return DSV_E_RANK if a rank is missing, ended before all had met, or declined; DSV_E_UNSUPPORTED for
 *     MPI in a build without MPI; DSV_E_USAGE for an impossible `place` */
DsvStatus dsv_ranks_join(const DsvConfig *config, const DsvRanksPlace *place, const DsvEvents *events,
                         DsvRanks **out);

/** Tells the other ranks that this process cannot begin; call it in place of dsv_ranks_join(), which then
 * fails on the others with `sentence`. It takes a few seconds at most.
 * @param place    as for dsv_ranks_join(); not NULL
 * @param sentence why this process cannot begin */
void dsv_ranks_decline(const DsvRanksPlace *place, const char *sentence);

/** Which rank this process is. Rank 0 writes files and reports.
 * @param ranks of this process
 * @return the number of this rank, from 0 */
int64_t dsv_ranks_rank(const DsvRanks *ranks);

/** How many ranks there are.
 * @param ranks of this process
 * @return 1 or more */
int64_t dsv_ranks_size(const DsvRanks *ranks);

/** Trains as dsv_train(); all ranks call it with the same options. A failure on one rank fails the call on
 * all ranks.
 * @param ranks   of this process; NULL: one process trains alone, as dsv_train() does
 * @param config  equal on all ranks, but for options that concern a rank's own machine, such as threads
 * @param events  may be NULL. `log` receives warnings on every rank and all other lines on rank 0;
 *     `progress` is called on rank 0; `stop` on any rank stops all.
 * @param summary filled on rank 0; may be NULL
 * @return as dsv_train(); DSV_E_RANK if another rank failed. The sentence of rank 0 names the rank and the
 *     step. */
DsvStatus dsv_train_ranks(DsvRanks *ranks, const DsvConfig *config, const DsvEvents *events,
                          DsvTrainSummary *summary);

/** Decides who reports a failure. After a call of all ranks has failed, call it once on each rank before it
 * leaves. Rank 0 calls dsv_ranks_told after it has reported the failure; on another rank the call waits until
 * rank 0 has reported.
 * @param ranks of this process
 * @return false if rank 0 ended without a report or has been silent for thirty seconds: this rank should
 *     then report its own sentence */
bool dsv_ranks_told(DsvRanks *ranks);

/** Leaves the other ranks and frees the object.
 * @param ranks set to NULL */
void dsv_ranks_leave(DsvRanks **ranks);

#ifdef __cplusplus
}
#endif
#endif
