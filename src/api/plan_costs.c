/* What attention and links cost, for dsv_plan: measured by ranks, each on its own device; or by one process,
 * attention by all threads of the CPU, and links between ranks that are threads. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/backend.h"
#include "api/plan_parts.h"
#include "base/thread_start.h"
#include "context/link_times.h"
#include "dist/comm_local.h"
#include "sparse/cost.h"

enum { BYTES_MOST = 1 << 26, BYTES_OF_THREADS_MOST = 1 << 24, RANKS_MOST = 16 };
#define TIMEOUT_S 600

typedef struct Rank {
    const DsvBackend *backend;
    DsvComm *comm;
    DsvContextCosts costs;
    pthread_t thread;
    DsvStatus status;
    char sentence[DSVI_MESSAGE_BYTES];
} Rank;

static void *time_links(void *argument)
{
    Rank *rank = argument;
    DsvContextGroup *group;
    rank->status = dsvi_context_group_create(rank->backend, rank->comm, 0, &group);
    if (rank->status == DSV_OK)
        rank->status = dsvi_link_times(group, BYTES_OF_THREADS_MOST, &rank->costs);
    dsvi_context_group_close(&group);
    rank->status = dsvi_comm_fail(rank->comm, rank->status);
    snprintf(rank->sentence, sizeof rank->sentence, "%s", rank->status ? dsv_error_message() : "");
    dsvi_comm_close(&rank->comm);
    return NULL;
}

/* All ranks that were started are waited for; the first that failed speaks. */
static DsvStatus run_ranks(Rank *rank, int64_t ranks)
{
    DsvStatus status = DSV_OK;
    int64_t started = 0;
    while (started < ranks && dsvi_thread_start(&rank[started].thread, time_links, &rank[started]) == 0)
        started++;
    for (int64_t r = started; r < ranks; r++) {
        DSVI_FAIL(DSV_E_NO_MEMORY, "no thread for rank %lld of %lld", (long long)r, (long long)ranks);
        rank[r].status = dsvi_comm_fail(rank[r].comm, DSV_E_NO_MEMORY);
        snprintf(rank[r].sentence, sizeof rank[r].sentence, "%s", dsv_error_message());
        dsvi_comm_close(&rank[r].comm);
    }
    for (int64_t r = 0; r < started; r++)
        pthread_join(rank[r].thread, NULL);
    for (int64_t r = ranks - 1; r >= 0; r--)
        if (rank[r].status != DSV_OK)
            status = dsvi_fail_adopt(rank[r].status, rank[r].sentence);
    return status;
}

static DsvStatus links(const DsvBackend *backend, int64_t ranks, DsvContextCosts *costs)
{
    DsvComm *comm[RANKS_MOST];
    if (ranks > RANKS_MOST)
        return DSVI_FAIL(DSV_E_USAGE, "links of more than %d ranks are not timed here: a table of costs is "
                         "wanted", RANKS_MOST);
    Rank *rank = calloc((size_t)ranks, sizeof *rank);
    if (!rank)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %lld ranks", (long long)ranks);
    DsvStatus status = dsvi_comm_local_create(ranks, TIMEOUT_S, comm);
    for (int64_t r = 0; r < ranks && status == DSV_OK; r++) {
        rank[r].backend = backend;
        rank[r].comm = comm[r];
        rank[r].costs = *costs;
    }
    if (status == DSV_OK)
        status = run_ranks(rank, ranks);
    if (status == DSV_OK)
        *costs = rank[0].costs;
    free(rank);
    return status;
}

static DsvStatus attention(DsvBackend *backend, const DsvConfig *config, const DsvSparseShape *model,
                           const char *how, DsvContextCosts *costs)
{
    DsvCostFound found;
    memset(costs, 0, sizeof *costs);
    snprintf(costs->about, sizeof costs->about, "%s; %s", backend->device->name, how);
    DSVI_TRY(dsvi_cost_measure(backend, config, model, &found));
    costs->attention = found.attention;
    return DSV_OK;
}

DsvStatus dsvi_plan_costs_here(const DsvConfig *config, const DsvSparseShape *model, int64_t ranks,
                               DsvContextCosts *costs)
{
    DsvBackend backend;
    if (strcmp(config->device, "cpu") != 0)
        return DSVI_FAIL(DSV_E_USAGE, "links between devices are timed by ranks: with device=%s start so "
                         "many of them, or give a table of costs", config->device);
    DSVI_TRY(dsvi_backend_open(config, &backend));
    DsvStatus status = attention(&backend, config, model, "ranks are its threads", costs);
    if (status == DSV_OK)
        status = links(&backend, ranks, costs);
    dsvi_backend_close(&backend);
    return status;
}

static DsvStatus measure_as_rank(DsvComm *comm, const DsvBackend *backend, DsvContextCosts *costs)
{
    DsvContextGroup *group;
    DSVI_TRY(dsvi_comm_broadcast(comm, 0, costs, sizeof *costs));
    DSVI_TRY(dsvi_context_group_create(backend, comm, 0, &group));
    DsvStatus status = dsvi_link_times(group, BYTES_MOST, costs);
    dsvi_context_group_close(&group);
    return status;
}

DsvStatus dsvi_plan_costs_of_ranks(DsvComm *comm, const DsvConfig *config, const DsvSparseShape *model,
                                   DsvContextCosts *costs)
{
    DsvBackend backend;
    char how[32];
    snprintf(how, sizeof how, "%lld ranks", (long long)dsvi_comm_size(comm));
    DsvStatus status = dsvi_backend_open_rank(config, comm, &backend);
    if (status == DSV_OK)
        status = attention(&backend, config, model, how, costs);
    if (status == DSV_OK)
        status = measure_as_rank(comm, &backend, costs);
    dsvi_backend_close(&backend);
    return status;
}
