/* Runs the ranks of a cp group as threads, each with its own DsviCp of one block, and generates test
 * tensors. */
#ifndef DSVI_TEST_CP_RIG_H
#define DSVI_TEST_CP_RIG_H

#include "cp/cp.h"
#include "dist/local_ranks.h"

enum { RIG_HEADS_MAX = 16, RIG_RANKS_MAX = 8 };

/* Opens the device of a rank; called on the thread of this rank. Closed by backend->device->close. */
typedef DsvStatus cp_open_fn(int64_t rank, DsviBackend *backend);

/* One test case, the same on all ranks. */
typedef struct CpCase {
    const DsviBackend *backend; /* of all ranks; if `open` is set, of the calling rank */
    int64_t ranks, batch, tokens, unit, heads, head_dim, head_ranks;
    DsviDtype act, acc;
    uint64_t seed;    /* seed of values and of the plan */
    bool uneven;      /* heads in random order and random numbers; else in order and equal numbers */
    bool same_bits;   /* the attention op computes each head independently of the number of heads */
    cp_open_fn *open; /* NULL: one backend serves all ranks */
} CpCase;

/* Returns a description of the case for messages; overwritten by the next call. */
const char *cp_case_text(const CpCase *c);

/* The work of one rank. Returns a status, because cmocka assertions may be used on the main thread only. */
typedef DsvStatus cp_rank_fn(DsviCp *cp, const CpCase *c, void *shared);

/* Runs fn on every rank with the case's plan for block 0, and writes what each rank returned to outcome
 * (ranks). */
void try_cp(const CpCase *c, cp_rank_fn *fn, void *shared, RankOutcome *outcome);
/* The same; fails if a rank fails. */
void run_cp(const CpCase *c, cp_rank_fn *fn, void *shared);

/* Calls fn for all factorisations of 1 to 4 ranks, with tokens that ranks cannot divide equally, and with
 * uneven numbers of heads. */
void for_cp_cases(const DsviBackend *backend, void (*fn)(const CpCase *c));

/* Returns element i of test tensor `which`, (B, S, N, D), normally distributed with variance 1. */
double cp_value(const CpCase *c, int which, int64_t i);
/* Writes the part of this tensor that a rank has, in `dtype`: its tokens and all heads, or with `heads_form`
 * its head group's tokens and its heads. */
void cp_fill(const DsviCp *cp, const CpCase *c, DsviDtype dtype, int which, bool heads_form, void *to);

#endif
