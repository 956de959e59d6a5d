/* What carries the bytes of a DsvComm: the one thing a new kind of ranks has to implement. All that comm.h
 * promises beyond moving pieces, sums above all, is written once over it, in comm.c. */
#ifndef DSVI_TRANSPORT_H
#define DSVI_TRANSPORT_H

#include "dist/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* `receive` has one piece a rank, like `send`; the own ones are none of the transport's business. */
typedef struct DsvTransport {
    const char *name;
    bool at_once; /* as dsvi_comm_at_once */
    DsvStatus (*exchange)(DsvComm *comm, const DsvPiece *send, const DsvPiece *receive);
    /* A group of the ranks member[0..count), of which this one is member[rank]; all ranks of `comm` call.
     * `number` is one that no two groups share which have a rank in common. NULL: cannot be split. */
    DsvStatus (*split)(DsvComm *comm, const int64_t *member, int64_t count, int64_t rank, int64_t number,
                       DsvComm **out);
    /* As dsvi_comm_listen, also while another thread is in a call. NULL where the transport relies on another
     * group for that. */
    DsvStatus (*listen)(DsvComm *comm);
    /* The sentence reaches every rank of the program. */
    void (*fail)(DsvComm *comm, const char *sentence);
    /* As dsvi_comm_told. NULL where ranks share a process, which reports for all. */
    bool (*told)(DsvComm *comm);
    void (*close)(DsvComm *comm);

    /* NULL where the memory is the host's; elsewhere `scratch` is lent (dsvi_comm_lend). */
    /* out (n) = part[0] + part[1] + ..., of which an exchange that was begun may be bringing some; returns
     * when that is done. The parts may be written to, and `out` is one of them. */
    DsvStatus (*sum)(DsvComm *comm, DsvDtype dtype, const DsvPiece *part, void *out, int64_t n);
    DsvStatus (*copy)(DsvComm *comm, void *to, const void *from, size_t bytes);
    DsvStatus (*mark)(DsvComm *comm, int64_t mark);
    /* Until exchanges that have returned early, for the group was begun, are done. */
    DsvStatus (*await)(DsvComm *comm);
    /* Puts number `number` behind the exchanges so far; the device's stream goes on behind it. */
    DsvStatus (*number)(DsvComm *comm, int64_t number);
    DsvStatus (*follow)(DsvComm *comm, int64_t number);
} DsvTransport;

/* The head of every transport's own struct, which begins with it. */
struct DsvComm {
    const DsvTransport *transport;
    int64_t rank, size;
    double timeout_s;
    const char *call;         /* what is being done, for sentences: "all_reduce" */
    int64_t behind;           /* the mark that calls wait for; -1: for everything */
    bool begun;               /* exchanges are not waited for: dsvi_comm_begin */
    int64_t begun_count;      /* of them since then */
    int64_t *last_number;     /* of a group, of those made by this rank; all its groups share it */
    DsvCommSent sent;
    DsvPiece *send, *receive; /* (size) each */
    int64_t *bound;           /* (size + 1) */
    unsigned char *scratch;   /* (size, chunk) what others send towards a sum; NULL: none has been lent */
    size_t chunk;             /* bytes that a sum takes from each rank at once */
};

/* For transports: a zeroed comm of `bytes`, the head filled in. */
DsvStatus dsvi_comm_make(const DsvTransport *transport, size_t bytes, int64_t rank, int64_t size,
                         double timeout_s, int64_t *last_number, DsvComm **out);
void dsvi_comm_release(DsvComm *comm);

/* Tells whoever watches the calling thread (dsvi_comm_watch). One wait is not put inside another. */
DsvStatus dsvi_comm_waits(void);
DsvStatus dsvi_comm_goes_on(void);

#ifdef __cplusplus
}
#endif
#endif
