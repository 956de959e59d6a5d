/* Ranks of a context group as threads, each with its own context of one block; and what they hold. */
#ifndef DSVI_TEST_CONTEXT_RIG_H
#define DSVI_TEST_CONTEXT_RIG_H

#include "context/context.h"
#include "dist/local_ranks.h"

enum { RIG_HEADS_MOST = 16, RIG_RANKS_MOST = 8 };

/* Opens the device of a rank, a thread of its own; closed by backend->device->close. */
typedef DsvStatus context_open_fn(int64_t rank, DsvBackend *backend);

/* One problem, the same on all ranks. */
typedef struct ContextCase {
    const DsvBackend *backend; /* of all ranks, or, with `open`, of the rank that is asked */
    int64_t ranks, batch, tokens, unit, heads, head_dim, head_ranks;
    DsvDtype act, acc;
    uint64_t seed;  /* of values and of the plan */
    bool uneven;    /* heads in random order, shared out at random; else evenly and in order */
    bool same_bits; /* an op treats heads alike however many there are */
    context_open_fn *open; /* NULL: one backend serves all ranks */
} ContextCase;

/* In words. */
const char *context_case_text(const ContextCase *c);

/* A rank's work; answers with a status, for assertions of cmocka belong to the main thread. */
typedef DsvStatus context_rank_fn(DsvContext *context, const ContextCase *c, void *shared);

/* The function on every rank, under the case's plan for block 0, and what each came to. */
void try_context(const ContextCase *c, context_rank_fn *fn, void *shared, RankOutcome *outcome);
/* All must succeed. */
void run_context(const ContextCase *c, context_rank_fn *fn, void *shared);

/* Every case there is a point in trying: all ways of writing 1 to 4 ranks, ragged tokens, uneven heads. */
void for_context_cases(const DsvBackend *backend, void (*fn)(const ContextCase *c));

/* Element `i` of tensor number `which` of (B, S, N, D), standard normal. */
double context_value(const ContextCase *c, int which, int64_t i);
/* The rows that a rank has of it, in `dtype`: its tokens of all heads, or, with `heads_form`, the tokens of
 * its head group of its own heads. */
void context_fill(const DsvContext *context, const ContextCase *c, DsvDtype dtype, int which, bool heads_form,
                  void *to);

#endif
