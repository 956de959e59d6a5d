/* Ranks as threads, for tests: the same function on each, and what it came to. */
#ifndef DSVI_TEST_LOCAL_RANKS_H
#define DSVI_TEST_LOCAL_RANKS_H

#include "dist/comm.h"

enum { RANKS_MOST = 8 };

typedef struct RankOutcome {
    DsvStatus status;
    char sentence[2048];
} RankOutcome;

/* A rank's work. Assertions of cmocka belong to the main thread: a rank answers with a status. */
typedef DsvStatus rank_fn(DsvComm *comm, void *context);

void run_ranks(int64_t size, double timeout_s, rank_fn *fn, void *context, RankOutcome *outcome);
/* As above, and all must have succeeded. */
void run_ranks_well(int64_t size, rank_fn *fn, void *context);

#endif
