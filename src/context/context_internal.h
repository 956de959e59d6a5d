/* What the sources of this folder share. */
#ifndef DSVI_CONTEXT_INTERNAL_H
#define DSVI_CONTEXT_INTERNAL_H

#include "context/context.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One way of writing the ranks as sequence_ranks x head_ranks, and this rank's groups in it; NULL: alone. */
typedef struct Factor {
    int64_t head_ranks, sequence_ranks;
    DsvComm *head_host, *head_device, *sequence_host, *sequence_device;
} Factor;

struct DsvContextGroup {
    const DsvBackend *backend;
    DsvComm *host, *device;
    int64_t rank, size;
    int64_t factors;
    Factor *factor; /* (factors) by rising head_ranks */
};

/* The factor of so many head ranks; NULL: they do not divide the ranks, or no plan will have as many. */
const Factor *dsvi_context_factor(const DsvContextGroup *group, int64_t head_ranks);

typedef struct Block {
    DsvContextPlan plan;     /* its arrays are the two below */
    int32_t *placement;      /* (heads) */
    int64_t *bound;          /* (ranks + 1) */
    int64_t *sequence_bound; /* (ranks + 1) */
} Block;

struct DsvContext {
    DsvContextGroup *group;
    DsvContextShape shape;
    int64_t *bound;           /* (ranks + 1) */
    Block *block;             /* (blocks) */
    DsvPiece *send, *receive; /* (ranks) each, of an exchange under way */
    int64_t *elements;        /* (ranks + 1) of a sum under way */
};

/* Whether plans may have this factor. */
bool dsvi_context_allows(const DsvContext *context, const Factor *factor);
/* Tokens of the longest stretch that a head group has. */
int64_t dsvi_context_longest(const DsvContext *context, int64_t head_ranks);

/* ---- dense attention ---- */

/* The pieces of a call's workspace. Rows are what a rank has at most, rows_most x D. */
typedef struct Room {
    void *q, *k, *v, *out, *dout, *dq, *dk, *dv; /* heads forms, rows act; NULL with one head rank */
    void *staging;                               /* of moves */
    void *keys[2], *values[2];                   /* of others, rows act: what is attended, and what comes */
    void *part_out, *part_lse;                   /* of a stretch of keys, rows act and acc */
    void *sum;                                   /* of stretches so far, rows acc */
    void *part_dk, *part_dv;                     /* rows act */
    void *sum_dk[2], *sum_dv[2];                 /* rows acc: what is sent, and what comes */
    void *sum_dq;                                /* rows acc */
    void *op;                                    /* of attention itself */
    size_t op_bytes;
} Room;

/* A call under way. */
typedef struct Attend {
    const DsvContext *c;
    int64_t block;
    DsvContextPart part;
    Room room;
    DsvContextAttention heads; /* with the tensors in heads form: (B, T, N_own, D) */
} Attend;

/* Attention of all own queries and `keys` keys, by the ordinary op: tensors of keys and what of the queries
 * is to be overwritten are the caller's to set. */
DsvAttentionArgs dsvi_context_op_args(const Attend *a, int64_t keys);
DsvStatus dsvi_context_ring_fwd(const Attend *a);
DsvStatus dsvi_context_ring_bwd(const Attend *a);

#ifdef __cplusplus
}
#endif
#endif
