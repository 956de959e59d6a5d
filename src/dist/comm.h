/* Communication between ranks: collectives and messages, as in MPI.
 *
 * A DsviComm is one rank's handle of a group of ranks (a communicator). The other ranks are threads of this
 * process (comm_local.h), processes started by MPI (comm_mpi.c) or processes connected by TCP (comm_tcp.h).
 * NULL is a valid handle of a group of one rank: every call accepts it.
 *
 * All ranks of a group make the same calls in the same order. One thread at a time uses a handle;
 * dsvi_comm_is_concurrent returns whether several threads may use different groups at the same time.
 *
 * Host and device groups. A group works on host memory, or on the memory of a device if DsviBackend.join made
 * it. A call of a device group starts after all work that was in the device's stream when the call was made;
 * dsvi_comm_start_after changes this. dsvi_comm_barrier and dsvi_comm_split need a host group. A call returns
 * when its result is in memory and all its buffers may be reused; dsvi_comm_begin_async changes this. The
 * caller owns all buffers; sent and received buffers must not overlap.
 *
 * Sums are formed element by element in the order of the ranks. All ranks get the same bits, in every run.
 * Another number of ranks gives other rounding.
 *
 * A call fails with DSV_E_RANK if another rank has reported a failure (dsvi_comm_fail), or if a rank does not
 * make the call within the group's timeout. The message names the rank, except with NCCL, which does not know
 * it. After DSV_E_RANK the group can only be closed. */
#ifndef DSVI_COMM_H
#define DSVI_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviComm DsviComm;

int64_t dsvi_comm_rank(const DsviComm *comm);
int64_t dsvi_comm_size(const DsviComm *comm);

/* Workspace for sums. A sum receives `chunk` bytes from each rank at a time, adds them, and continues with
 * the next chunk. Host groups allocate this workspace themselves; a device group needs device memory for it
 * from its caller before the first dsvi_comm_reduce_scatter or dsvi_comm_all_reduce. */

/* Returns whether the group needs dsvi_comm_set_workspace before it can sum: true for device groups. */
bool dsvi_comm_needs_workspace(const DsviComm *comm);
/* Bytes of workspace that a group of `ranks` ranks needs for chunks of `chunk` bytes. */
static inline size_t dsvi_comm_workspace_bytes(int64_t ranks, size_t chunk)
{
    return (size_t)ranks * chunk;
}
/* Sets the workspace of a device group: dsvi_comm_workspace_bytes(size, chunk) bytes at `workspace`. `chunk`
 * is a multiple of 4096; results do not depend on it. The caller keeps ownership; groups that never work at
 * the same time may share one workspace. Ignored for host groups. */
void dsvi_comm_set_workspace(DsviComm *comm, void *workspace, size_t chunk);

/* Traffic that this rank has sent to other ranks of the group. */
typedef struct DsviCommSent {
    uint64_t bytes;
    uint64_t messages; /* number of messages, without empty messages */
} DsviCommSent;
DsviCommSent dsvi_comm_sent(const DsviComm *comm);

/* A buffer that is sent or received. */
typedef struct DsviPiece {
    void *data;
    size_t bytes;
} DsviPiece;

/* All-to-all with any lengths (MPI_Alltoallv): send[r] goes to rank r, receive[r] comes from rank r. Both
 * arrays have one piece for each rank, this rank included. A rank must send as many bytes as the other rank
 * expects. */
DsvStatus dsvi_comm_exchange(DsviComm *comm, const DsviPiece *send, const DsviPiece *receive);

/* Sends to one rank while receiving from another (MPI_Sendrecv), such as one step around a ring. */
DsvStatus dsvi_comm_send_receive(DsviComm *comm, int64_t to, DsviPiece send, int64_t from, DsviPiece receive);

/* In the calls with `bound`, `data` is an array that is divided among the ranks: the local items of rank r
 * are bound[r] <= i < bound[r + 1]. `bound` has size + 1 numbers in ascending order; a rank may have no
 * items. */

/* Divides n items among `size` ranks, as evenly as multiples of `unit` allow, and writes size + 1 bounds. */
void dsvi_comm_even_bounds(int64_t n, int64_t unit, int64_t size, int64_t *bound);

/* Sends every rank's local items to all ranks. Each rank sends (size - 1) times its local items. */
DsvStatus dsvi_comm_all_gather(DsviComm *comm, void *data, size_t item_bytes, const int64_t *bound);
/* As dsvi_comm_all_gather, but takes the local items from `local`; they are copied into `data` too. */
DsvStatus dsvi_comm_all_gather_from(DsviComm *comm, const void *local, void *data, size_t item_bytes,
                                    const int64_t *bound);
/* As dsvi_comm_all_gather with one item per rank: data (size), of which item `rank` is local. */
DsvStatus dsvi_comm_all_gather_one(DsviComm *comm, void *data, size_t item_bytes);
/* Sends every rank's local items to rank `root`. On other ranks `data` does not change. */
DsvStatus dsvi_comm_gather(DsviComm *comm, int64_t root, void *data, size_t item_bytes, const int64_t *bound);
/* Sends the items of rank `root` to the ranks to which they are local. On other ranks only the local items of
 * `data` change. */
DsvStatus dsvi_comm_scatter(DsviComm *comm, int64_t root, void *data, size_t item_bytes,
                            const int64_t *bound);

/* Replaces the local items by their sums over all ranks; the other items do not change. F32 or F64. Each rank
 * sends all items that are not local once. */
DsvStatus dsvi_comm_reduce_scatter(DsviComm *comm, DsviDtype dtype, void *data, const int64_t *bound);
/* Replaces data (n) by its sum over all ranks. F32 or F64. */
DsvStatus dsvi_comm_all_reduce(DsviComm *comm, DsviDtype dtype, void *data, int64_t n);

/* Copies `data` of rank `root` to all ranks. */
DsvStatus dsvi_comm_broadcast(DsviComm *comm, int64_t root, void *data, size_t bytes);

/* Waits until all ranks of the group have called dsvi_comm_barrier. */
DsvStatus dsvi_comm_barrier(DsviComm *comm);

/* Makes new groups (MPI_Comm_split): the ranks that pass the same colour form one group, in the order of
 * their ranks in `comm`. Close the new group before `comm`. */
DsvStatus dsvi_comm_split(DsviComm *comm, int64_t colour, DsviComm **out);

/* Returns whether several threads may at the same time use different groups that have ranks in common. If
 * not, all calls of such groups must be made in one order that is the same on all ranks. */
bool dsvi_comm_is_concurrent(const DsviComm *comm);

/* Marks let a call of a device group start before the device's stream is idle. A mark is a point in the
 * device's stream, like a CUDA event. dsvi_comm_record_mark records mark number `mark` (0, 1, ...; numbers
 * may be reused) after all work that is in the stream now. After dsvi_comm_start_after(comm, mark), the
 * group's calls wait only for the work before this mark, even if more work is enqueued when they are made;
 * after dsvi_comm_start_after(comm, -1) they wait for all work in the stream again. Both functions do nothing
 * for a host group.
 *
 * dsvi_comm_record_mark may be called by another thread than the group's calls. The exception is a number
 * above all earlier ones: then no call of the group may be running. */
DsvStatus dsvi_comm_record_mark(DsviComm *comm, int64_t mark);
void dsvi_comm_start_after(DsviComm *comm, int64_t mark);

/* Asynchronous transfers of a device group. Between dsvi_comm_begin_async and dsvi_comm_wait_async, exchange
 * and swap return as soon as they are enqueued, ordered after the work that is then in the device's stream;
 * dsvi_comm_wait_async waits for all of them. Until then the caller must not touch their buffers, or make
 * other calls of the group. Enqueue transfers before the kernels that they should overlap with: a kernel that
 * fills the device leaves no free multiprocessor for a transfer that is enqueued later. A host group
 * completes every transfer at once. */
void dsvi_comm_begin_async(DsviComm *comm);
DsvStatus dsvi_comm_wait_async(DsviComm *comm);
/* Between dsvi_comm_begin_async and dsvi_comm_wait_async: orders all later work of the device's stream after
 * the first `count` exchanges and swaps since dsvi_comm_begin_async. The host does not wait. */
DsvStatus dsvi_comm_stream_wait(DsviComm *comm, int64_t count);

/* Returns DSV_E_RANK if another rank is known to have failed or ended. For code that waits for something
 * other than a call of the group. */
DsvStatus dsvi_comm_check_failure(DsviComm *comm);

/* Hooks for benchmarks: called before and after the calling thread waits for other ranks, in any group and in
 * queues of calls (comm_queue.h). NULL removes them. They apply to the calling thread only. */
typedef struct DsviCommWaitHooks {
    DsvStatus (*before_wait)(void *context);
    DsvStatus (*after_wait)(void *context);
    void *context;
} DsviCommWaitHooks;
void dsvi_comm_set_wait_hooks(const DsviCommWaitHooks *watch);

/* Reports to all other ranks that this rank ends with `status`: their calls, in all groups, then fail with
 * DSV_E_RANK and this thread's recorded message, prefixed with "rank R: ". Nothing is sent if `status` is
 * DSV_OK, or if it is DSV_E_RANK, because the other ranks already know the failure that caused DSV_E_RANK.
 * Returns `status`. */
DsvStatus dsvi_comm_fail(DsviComm *comm, DsvStatus status);

/* Decides which rank reports a failure to the user. After a failure of all ranks, each rank calls this
 * function once, before it closes the group. Rank 0 first reports the failure, then calls. On other ranks the
 * function waits until rank 0 has reported; it returns false if rank 0 ended without a report or is silent
 * for DSVI_COMM_REPORT_S, and the calling rank must then report its own message. */
#define DSVI_COMM_REPORT_S 30.0 /* in seconds; an overloaded machine can stop a rank for several seconds */
bool dsvi_comm_await_report(DsviComm *comm);

void dsvi_comm_close(DsviComm **comm); /* *comm may be NULL and becomes NULL */

#ifdef __cplusplus
}
#endif
#endif
