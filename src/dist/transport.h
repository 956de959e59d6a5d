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
    DsvStatus (*exchange)(DsvComm *comm, const DsvPiece *send, const DsvPiece *receive);
    /* A group of the ranks member[0..count), this one among them; all ranks of `comm` call. `number` is one
     * that no two groups share which have a rank in common. */
    DsvStatus (*split)(DsvComm *comm, const int64_t *member, int64_t count, int64_t number, DsvComm **out);
    /* The sentence reaches every rank of the program. */
    void (*fail)(DsvComm *comm, const char *sentence);
    void (*close)(DsvComm *comm);
} DsvTransport;

/* The head of every transport's own struct, which begins with it. */
struct DsvComm {
    const DsvTransport *transport;
    int64_t rank, size;
    double timeout_s;
    const char *call;         /* what is being done, for sentences: "all_reduce" */
    int64_t *last_number;     /* of a group, of those made by this rank; all its groups share it */
    DsvCommSent sent;
    DsvPiece *send, *receive; /* (size) each */
    int64_t *bound;           /* (size + 1) */
    unsigned char *scratch;   /* (size, DSV_COMM_CHUNK) what others send towards a sum */
};

enum { DSV_COMM_CHUNK = 1 << 18 };

/* For transports: a zeroed comm of `bytes`, the head filled in. */
DsvStatus dsvi_comm_make(const DsvTransport *transport, size_t bytes, int64_t rank, int64_t size,
                         double timeout_s, int64_t *last_number, DsvComm **out);
void dsvi_comm_release(DsvComm *comm);

#ifdef __cplusplus
}
#endif
#endif
