/* Measures costs of attention and of transfers between ranks, for dsv_plan: either by ranks, each on its own
 * device, or by one process on the CPU, where all threads compute attention and the ranks are threads. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "plan/plan_parts.h"
#include "base/thread_start.h"
#include "cp/link_times.h"
#include "dist/comm_local.h"
#include "sparse/cost.h"

/* Largest messages in bytes whose transfer is timed: between processes (BYTES_MAX), and between threads
 * (BYTES_OF_THREADS_MAX). */
enum { BYTES_MAX = 1 << 26, BYTES_OF_THREADS_MAX = 1 << 24 };
enum { RANKS_MAX = 16 }; /* maximum number of ranks that may run as threads of this process */
#define TIMEOUT_S 600

/* A rank that runs as a thread of this process. */
typedef struct Rank {
    const DsviBackend *backend;
    DsviComm *comm;
    DsviCpCosts costs;
    pthread_t thread;
    DsvStatus status;
    char sentence[DSVI_MESSAGE_BYTES]; /* error message */
} Rank;

static void *time_links(void *argument)
{
    Rank *rank = argument;
    DsviCpGroup *group;
    rank->status = dsvi_cp_group_create(rank->backend, rank->comm, 0, &group);
    if (rank->status == DSV_OK)
        rank->status = dsvi_link_times(group, BYTES_OF_THREADS_MAX, &rank->costs);
    dsvi_cp_group_close(&group);
    rank->status = dsvi_comm_fail(rank->comm, rank->status);
    snprintf(rank->sentence, sizeof rank->sentence, "%s", rank->status ? dsv_error_message() : "");
    dsvi_comm_close(&rank->comm);
    return NULL;
}

/* Runs time_links on all ranks and waits for them. Returns the failure of the failed rank with the lowest
 * number. */
static DsvStatus run_rank_threads(Rank *rank, int64_t ranks)
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

static DsvStatus measure_links(const DsviBackend *backend, int64_t ranks, DsviCpCosts *costs)
{
    DsviComm *comm[RANKS_MAX];
    if (ranks > RANKS_MAX)
        return DSVI_FAIL(DSV_E_USAGE,
                         "links of more than %d ranks are not timed here: give a table of "
                         "costs",
                         RANKS_MAX);
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
        status = run_rank_threads(rank, ranks);
    if (status == DSV_OK)
        *costs = rank[0].costs;
    free(rank);
    return status;
}

static DsvStatus measure_attention(DsviBackend *backend, const DsvConfig *config,
                                   const DsviSparseShape *model, const char *how, DsviCpCosts *costs)
{
    DsviCostFound found;
    memset(costs, 0, sizeof *costs);
    snprintf(costs->about, sizeof costs->about, "%s; %s", backend->device->name, how);
    DSVI_TRY(dsvi_cost_measure(backend, config, model, &found));
    costs->attention = found.attention;
    return DSV_OK;
}

static DsvStatus refuse_gpu(const DsvConfig *config)
{
    return DSVI_FAIL(DSV_E_USAGE,
                     "links between devices are timed by ranks: with device=%s start so many of them, or "
                     "give a table of costs",
                     config->device);
}

DsvStatus dsvi_plan_costs_here(const DsvConfig *config, const DsviSparseShape *model, int64_t ranks,
                               DsviCpCosts *costs)
{
    DsviBackend backend;
    if (strcmp(config->device, "cuda") == 0) /* also where no GPU is */
        return refuse_gpu(config);
    DSVI_TRY(dsvi_backend_open(config, &backend));
    DsvStatus status = backend.device->kind == DSVI_DEVICE_CPU
                           ? measure_attention(&backend, config, model, "ranks are its threads", costs)
                           : refuse_gpu(config);
    if (status == DSV_OK)
        status = measure_links(&backend, ranks, costs);
    dsvi_backend_close(&backend);
    return status;
}

static DsvStatus measure_links_of_ranks(DsviComm *comm, const DsviBackend *backend, DsviCpCosts *costs)
{
    DsviCpGroup *group;
    DSVI_TRY(dsvi_comm_broadcast(comm, 0, costs, sizeof *costs));
    DSVI_TRY(dsvi_cp_group_create(backend, comm, 0, &group));
    DsvStatus status = dsvi_link_times(group, BYTES_MAX, costs);
    dsvi_cp_group_close(&group);
    return status;
}

DsvStatus dsvi_plan_costs_of_ranks(DsviComm *comm, const DsvConfig *config, const DsviSparseShape *model,
                                   DsviCpCosts *costs)
{
    DsviBackend backend;
    char how[32];
    snprintf(how, sizeof how, "%lld ranks", (long long)dsvi_comm_size(comm));
    DsvStatus status = dsvi_backend_open_rank(config, comm, &backend);
    if (status == DSV_OK)
        status = measure_attention(&backend, config, model, how, costs);
    if (status == DSV_OK)
        status = measure_links_of_ranks(comm, &backend, costs);
    dsvi_backend_close(&backend);
    return status;
}
