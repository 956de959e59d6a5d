/* A transport moves the bytes of a DsviComm: threads, TCP, MPI or NCCL. A new transport implements
 * DsviTransport; comm.c implements the rest of comm.h, sums included, with the functions of DsviTransport. */
#ifndef DSVI_TRANSPORT_H
#define DSVI_TRANSPORT_H

#include "dist/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviTransport {
    const char *name; /* for messages: "TCP" */
    bool at_once;     /* result of dsvi_comm_is_concurrent */
    /* Sends send[r] to rank r and fills receive[r] from rank r, for every rank r except this one; comm.c has
     * copied the local piece already. A device transport returns at once if
     * comm->begun is set. */
    DsvStatus (*exchange)(DsviComm *comm, const DsviPiece *send, const DsviPiece *receive);
    /* Makes a group of the ranks member[0] to member[count - 1]; this rank is member[rank]. All ranks of
     * `comm` call. No two groups with a rank in common have the same `number`. NULL: groups cannot be
     * split. */
    DsvStatus (*split)(DsviComm *comm, const int64_t *member, int64_t count, int64_t rank, int64_t number,
                       DsviComm **out);
    /* Implements dsvi_comm_check_failure; may be called while another thread is in a call of the group. NULL:
     * the transport cannot receive failure messages; the ranks' host group receives them. */
    DsvStatus (*listen)(DsviComm *comm);
    /* Sends the message `sentence` of a failure to all ranks of the program. */
    void (*fail)(DsviComm *comm, const char *sentence);
    /* Implements dsvi_comm_await_report. NULL: all ranks are threads of one process, which reports once. */
    bool (*told)(DsviComm *comm);
    void (*close)(DsviComm *comm);

    /* The functions below are NULL in transports for host memory. In transports for device memory
     * comm->scratch is the workspace that was set with dsvi_comm_set_workspace. */

    /* out (n) = part[0] + part[1] + ... in this order, part[r] from rank r; returns when the sum is done. An
     * exchange may still be filling the parts: the sum waits for it. `out` is one of the parts; all parts may
     * be overwritten. */
    DsvStatus (*sum)(DsviComm *comm, DsviDtype dtype, const DsviPiece *part, void *out, int64_t n);
    DsvStatus (*copy)(DsviComm *comm, void *to, const void *from, size_t bytes);
    DsvStatus (*mark)(DsviComm *comm, int64_t mark); /* implements dsvi_comm_record_mark */
    /* Waits for the exchanges that returned at once because comm->begun was set. */
    DsvStatus (*await)(DsviComm *comm);
    /* Records event `number` after the exchanges enqueued so far. */
    DsvStatus (*number)(DsviComm *comm, int64_t number);
    /* Makes the device's stream wait for event `number`. */
    DsvStatus (*follow)(DsviComm *comm, int64_t number);
} DsviTransport;

/* First member of every transport's own struct. */
struct DsviComm {
    const DsviTransport *transport;
    int64_t rank, size;
    double timeout_s;
    const char *call; /* name of the current call, for messages: "all_reduce" */
    int64_t behind;   /* calls wait for this mark (dsvi_comm_start_after); -1: for all work in the stream */
    bool begun;       /* exchanges return before they are done (dsvi_comm_begin_async) */
    int64_t begun_count;  /* exchanges and swaps since dsvi_comm_begin_async */
    int64_t *last_number; /* highest group number so far on this rank; shared by its groups */
    DsviCommSent sent;
    DsviPiece *send, *receive; /* (size) each: arguments of exchanges that comm.c makes */
    int64_t *bound;            /* (size + 1) bounds that comm.c computes */
    unsigned char *scratch;    /* (size, chunk) workspace of sums; NULL: not set yet */
    size_t chunk;              /* bytes that a sum receives from each rank at a time */
};

/* For transports: allocates a struct of `bytes` bytes that begins with a DsviComm, initialises the DsviComm
 * and clears the rest. */
DsvStatus dsvi_comm_alloc(const DsviTransport *transport, size_t bytes, int64_t rank, int64_t size,
                          double timeout_s, int64_t *last_number, DsviComm **out);
void dsvi_comm_free(DsviComm *comm);

/* Call the calling thread's hooks (dsvi_comm_set_wait_hooks) before and after a wait for other ranks. Waits
 * must not be nested. */
DsvStatus dsvi_comm_wait_begins(void);
DsvStatus dsvi_comm_wait_ends(void);

#ifdef __cplusplus
}
#endif
#endif
