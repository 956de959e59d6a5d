/* Ranks that work on one task, each with memory of its own, and what they send each other.
 *
 * A DsvComm is one rank's end of a group of ranks; the other ranks are threads of this process
 * (comm_local.h) or processes started by MPI (comm_mpi.c) or connected by TCP (comm_tcp.h). NULL is a group
 * of one rank: every call below takes it, and then there is nothing to send.
 *
 * All ranks of a group make the same calls in the same order, one thread at a time; whether calls of several
 * groups may be under way at once, each by a thread of its own, dsvi_comm_at_once tells.
 *
 * A call returns when the memory it was given holds the result and may be used again. Memory is the host's,
 * or a device's where the group was made for that (DsvBackend.join): then a call comes behind all that the
 * device's stream has been given, and barrier and split are the host's group's. It is the caller's own and
 * may lie anywhere; pieces that are sent and pieces that are received must not overlap. dsvi_comm_behind and
 * dsvi_comm_begin change when device calls begin and return.
 *
 * Sums are formed element by element in the order of the ranks, each on one rank or on all alike: every rank
 * gets the same bits, and the same bits every time. They differ from those of another number of ranks by
 * rounding, and not at all where the sums are exact.
 *
 * A call fails with DSV_E_RANK when another rank has said that it failed (dsvi_comm_fail), or when one has
 * not come to the call within the group's timeout: the sentence names the rank, but for NCCL, which does not
 * know it. The group is then of no more use. */
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

typedef struct DsvComm DsvComm;

int64_t dsvi_comm_rank(const DsvComm *comm);
int64_t dsvi_comm_size(const DsvComm *comm);

/* A group for device memory wants room there before it can sum: what each rank sends towards a sum, `chunk`
 * bytes of it at a time, a multiple of 4096, on which results do not depend. The room stays the caller's;
 * groups that are never used at once may have one together. */
bool dsvi_comm_wants_room(const DsvComm *comm);
static inline size_t dsvi_comm_room_bytes(int64_t ranks, size_t chunk)
{
    return (size_t)ranks * chunk;
}
/* Of as many bytes; a group that wants none leaves it alone. */
void dsvi_comm_lend(DsvComm *comm, void *room, size_t chunk);

/* What this rank has sent to others. */
typedef struct DsvCommSent {
    uint64_t bytes;
    uint64_t messages; /* a piece of nothing is none */
} DsvCommSent;
DsvCommSent dsvi_comm_sent(const DsvComm *comm);

typedef struct DsvPiece {
    void *data;
    size_t bytes;
} DsvPiece;

/* send[r] goes to rank r, receive[r] is filled by it; (size) pieces each, of any length. What a rank sends
 * and what the other expects must be of one length. */
DsvStatus dsvi_comm_exchange(DsvComm *comm, const DsvPiece *send, const DsvPiece *receive);

/* Sends to one rank while another's message comes in: a step round a ring. */
DsvStatus dsvi_comm_swap(DsvComm *comm, int64_t to, DsvPiece send, int64_t from, DsvPiece receive);

/* The calls with `bound` work on one array of which rank r has the items bound[r] <= i < bound[r + 1]
 * (bound: size + 1 numbers that do not fall; a rank may have nothing). */

/* bound[r] = the r-th of `size` stretches of [0, n), as even as multiples of `unit` allow. */
void dsvi_comm_bounds(int64_t n, int64_t unit, int64_t size, int64_t *bound);

/* Every rank's own items to all: (size - 1) times the own part is sent. */
DsvStatus dsvi_comm_all_gather(DsvComm *comm, void *data, size_t item_bytes, const int64_t *bound);
/* The same where the own items lie at `own`, not in `data` yet. */
DsvStatus dsvi_comm_all_gather_from(DsvComm *comm, const void *own, void *data, size_t item_bytes,
                                    const int64_t *bound);
/* Every rank's own items to `root`; elsewhere `data` stays as it is. */
DsvStatus dsvi_comm_gather(DsvComm *comm, int64_t root, void *data, size_t item_bytes, const int64_t *bound);
/* To every rank its own items from `root`; elsewhere the others' stay as they are. */
DsvStatus dsvi_comm_scatter(DsvComm *comm, int64_t root, void *data, size_t item_bytes, const int64_t *bound);

/* The same where every rank has one item, number `rank` of data (size). */
DsvStatus dsvi_comm_share(DsvComm *comm, void *data, size_t item_bytes);

/* The own items become the sums over all ranks, the others stay as they are: all but the own part is sent
 * once. F32 or F64. */
DsvStatus dsvi_comm_reduce_scatter(DsvComm *comm, DsvDtype dtype, void *data, const int64_t *bound);
/* data (n) becomes the sum over all ranks. F32 or F64. */
DsvStatus dsvi_comm_all_reduce(DsvComm *comm, DsvDtype dtype, void *data, int64_t n);

/* `data` of rank `root` to all. */
DsvStatus dsvi_comm_broadcast(DsvComm *comm, int64_t root, void *data, size_t bytes);

/* Returns when all ranks have come to it. */
DsvStatus dsvi_comm_barrier(DsvComm *comm);

/* Ranks that give the same colour form a group of their own, in the order they have in this one. The new
 * group is closed before this one. */
DsvStatus dsvi_comm_split(DsvComm *comm, int64_t colour, DsvComm **out);

/* Whether groups with ranks in common may be used by several threads at once. Where not, all their calls have
 * to come in one order, which is the same on all ranks. */
bool dsvi_comm_at_once(const DsvComm *comm);

/* Of a group for device memory: puts mark number `mark` behind what the device's stream has been given so
 * far, and lets calls from now on begin once that much is done, though the stream has been given more; -1:
 * behind everything, as usual. Host memory has nothing to wait for. The first may come from another thread,
 * larger marks than any before only between calls. */
DsvStatus dsvi_comm_mark(DsvComm *comm, int64_t mark);
void dsvi_comm_behind(DsvComm *comm, int64_t mark);

/* Of a group for device memory: exchange and swap return from here on as soon as they are on their way,
 * behind what the device's stream has been given by then, until dsvi_comm_await has waited for all of them;
 * so long their memory is theirs. No other call of the group comes between. A kernel that fills the device
 * leaves no room for a transfer that is given to it later: this is how transfers go beside such kernels. Host
 * memory is exchanged at once. */
void dsvi_comm_begin(DsvComm *comm);
DsvStatus dsvi_comm_await(DsvComm *comm);
/* Between the two: what the device's stream is given from here on comes behind the first `count` exchanges
 * and swaps since dsvi_comm_begin, for which the host does not wait. */
DsvStatus dsvi_comm_follow(DsvComm *comm, int64_t count);

/* DSV_E_RANK once another rank is known to have failed or ended: for whoever waits for something else than a
 * call to return. */
DsvStatus dsvi_comm_listen(DsvComm *comm);

/* For benchmarks: called before and behind whatever the calling thread does to wait for other ranks, in every
 * group, queues of calls (comm_queue.h) included. NULL: nobody is told any more. */
typedef struct DsvCommWatch {
    DsvStatus (*waits)(void *context);
    DsvStatus (*goes_on)(void *context);
    void *context;
} DsvCommWatch;
void dsvi_comm_watch(const DsvCommWatch *watch);

/* This rank ends here, with `status` and the sentence this thread has recorded for it, before which the rank
 * is put: every call of the other ranks, in whatever group, fails with that sentence. They know of
 * DSV_E_RANK already, and DSV_OK is no failure. Returns `status`. */
DsvStatus dsvi_comm_fail(DsvComm *comm, DsvStatus status);

/* After a failure of all ranks of a program, once on each and before the group is closed. Rank 0 calls it
 * when it has reported the failure to the user. On another rank it waits until rank 0 has, and returns false
 * where rank 0 has ended without a report or is silent for five seconds: then this rank is to report. */
bool dsvi_comm_told(DsvComm *comm);

void dsvi_comm_close(DsvComm **comm);

#ifdef __cplusplus
}
#endif
#endif
