/* See local_ranks.h. */
#include "local_ranks.h"

#include <pthread.h>

#include "dist/comm_local.h"
#include "test.h"

typedef struct Rank {
    pthread_t thread;
    DsviComm *comm;
    rank_fn *fn;
    void *context;
    RankOutcome *outcome;
} Rank;

static void *work(void *argument)
{
    Rank *rank = argument;
    RankOutcome *outcome = rank->outcome;
    outcome->status = rank->fn(rank->comm, rank->context);
    snprintf(outcome->sentence, sizeof outcome->sentence, "%s", outcome->status ? dsv_error_message() : "");
    dsvi_comm_close(&rank->comm);
    return NULL;
}

void run_ranks(int64_t size, double timeout_s, rank_fn *fn, void *context, RankOutcome *outcome)
{
    DsviComm *comm[RANKS_MAX];
    Rank rank[RANKS_MAX];
    assert_true(size <= RANKS_MAX);
    assert_ok(dsvi_comm_local_create(size, timeout_s, comm));
    for (int64_t r = 0; r < size; r++) {
        rank[r] = (Rank){.comm = comm[r], .fn = fn, .context = context, .outcome = &outcome[r]};
        assert_int_equal(pthread_create(&rank[r].thread, NULL, work, &rank[r]), 0);
    }
    for (int64_t r = 0; r < size; r++)
        pthread_join(rank[r].thread, NULL);
}

void run_ranks_well(int64_t size, rank_fn *fn, void *context)
{
    RankOutcome outcome[RANKS_MAX];
    run_ranks(size, 60, fn, context, outcome);
    for (int64_t r = 0; r < size; r++)
        if (outcome[r].status != DSV_OK)
            fail_msg("rank %lld of %lld: %s", (long long)r, (long long)size, outcome[r].sentence);
}

bool gpus_were_joined(const RankOutcome outcome[2])
{
    for (int r = 0; r < 2; r++)
        if (outcome[r].status == DSV_E_UNSUPPORTED ||
            strstr(outcome[r].sentence, "ncclCommInitRank: NCCL failed")) {
            fprintf(stderr, "SKIPPED: %s\n", outcome[r].sentence);
            return false;
        }
    return true;
}
