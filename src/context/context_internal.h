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

/* The factor of so many head ranks; NULL: they do not divide the ranks. */
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
};

/* Rows (tokens x heads) of the rank that an even plan gives most. */
int64_t dsvi_context_even_rows(const DsvContext *context, int64_t head_ranks);

#ifdef __cplusplus
}
#endif
#endif
