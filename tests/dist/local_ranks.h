/* Runs ranks as threads, for tests: the same function on each rank, and its result. */
#ifndef DSVI_TEST_LOCAL_RANKS_H
#define DSVI_TEST_LOCAL_RANKS_H

#include "dist/comm.h"

enum { RANKS_MAX = 8 };

typedef struct RankOutcome {
    DsvStatus status;
    char sentence[2048];
} RankOutcome;

/* The work of one rank. Returns a status, because cmocka assertions may be used on the main thread only. */
typedef DsvStatus rank_fn(DsviComm *comm, void *context);

#define EXPECTED(condition) \
    ((condition) ? DSV_OK : DSVI_FAIL(DSV_E_INTERNAL, "%s:%d: %s", __FILE__, __LINE__, #condition))
#define MUST(condition) DSVI_TRY(EXPECTED(condition))
/* Goes to the label `done` with an error in `status` if the condition is false. */
#define EXPECT(condition) DSVI_TRY_GOTO(status, EXPECTED(condition), done)

void run_ranks(int64_t size, double timeout_s, rank_fn *fn, void *context, RankOutcome *outcome);
/* The same; the test fails if a rank fails. */
void run_ranks_well(int64_t size, rank_fn *fn, void *context);

/* Returns whether two ranks, each with a GPU, were connected; else prints why, as the reason to skip the
 * test. */
bool gpus_were_joined(const RankOutcome outcome[2]);

#endif
