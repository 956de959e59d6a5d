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

#define EXPECTED(condition)                                                                                \
    ((condition) ? DSV_OK : DSVI_FAIL(DSV_E_INTERNAL, "%s:%d: %s", __FILE__, __LINE__, #condition))
#define MUST(condition) DSVI_TRY(EXPECTED(condition))
/* In a function with a `status` and a label `done`. */
#define EXPECT(condition) DSVI_TRY_GOTO(status, EXPECTED(condition), done)

void run_ranks(int64_t size, double timeout_s, rank_fn *fn, void *context, RankOutcome *outcome);
/* As above, and all must have succeeded. */
void run_ranks_well(int64_t size, rank_fn *fn, void *context);

/* Whether two ranks, each with a GPU, could be joined; else says why not, as a reason to skip. */
bool gpus_were_joined(const RankOutcome outcome[2]);

#endif
