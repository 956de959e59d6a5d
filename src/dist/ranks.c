/* Implements dsv/ranks.h. MPI support is a separate library, which is loaded only when MPI started the
 * ranks. */
#include "dsv/ranks.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "base/config_abi.h"
#include "dist/ranks.h"
#include "dist/comm_mpi.h"
#include "dist/comm_tcp.h"
#include "dist/transport.h"

#define MPI_LIBRARY "libdsv_mpi.so"

/* Loads libdsv_mpi.so, which is never unloaded. RTLD_GLOBAL: Open MPI's plugins look up its symbols in the
 * global namespace of the program. */
static DsvStatus load_mpi(const DsviMpi **mpi)
{
    void *handle = dlopen(MPI_LIBRARY, RTLD_NOW | RTLD_GLOBAL);
    if (!handle)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "started by MPI, but dsv's part for it could not be loaded: %s",
                         dlerror());
    *mpi = dlsym(handle, DSVI_MPI_SYMBOL);
    if (!*mpi)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s is no part of dsv", MPI_LIBRARY);
    if (strcmp((*mpi)->version, DSV_VERSION) != 0 || (*mpi)->comm_bytes != sizeof(DsviComm))
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s belongs to another build of dsv, version %s, not %s",
                         MPI_LIBRARY, (*mpi)->version, DSV_VERSION);
    return DSV_OK;
}

static DsvStatus join_mpi(double timeout_s, DsviComm **out)
{
    const DsviMpi *mpi = NULL;
    DSVI_TRY(load_mpi(&mpi));
    return mpi->join(timeout_s, dsvi_status_record, out);
}

static DsvStatus check_place(const DsvRanksPlace *place)
{
    if (place->size < 1 || place->size > DSV_RANKS_MAX)
        return DSVI_FAIL(DSV_E_USAGE, "%lld ranks: expected 1 to %d", (long long)place->size, DSV_RANKS_MAX);
    if (place->rank < 0 || place->rank >= place->size)
        return DSVI_FAIL(DSV_E_USAGE, "there is no rank %lld of %lld", (long long)place->rank,
                         (long long)place->size);
    if (place->port < 1 || place->port > 65535)
        return DSVI_FAIL(DSV_E_USAGE, "rank 0 at port %d of %s: expected a port from 1 to 65535", place->port,
                         place->address);
    return DSV_OK;
}

static void log_ranks_warning(void *context, const char *line)
{
    const DsvEvents *events = context;
    if (events && events->log)
        events->log(events->context, DSV_LOG_WARNING, line);
}

static DsviMeeting meeting_of(const DsvRanksPlace *place, double timeout_s, const DsvEvents *events)
{
    return (DsviMeeting){
        .rank = place->rank,
        .size = place->size,
        .address = place->address,
        .port = place->port,
        .job_key = place->job,
        .timeout_s = timeout_s,
        .log = log_ranks_warning,
        .context = (void *)events,
    };
}

static DsvStatus join_tcp(const DsvRanksPlace *place, double timeout_s, const DsvEvents *events,
                          DsviComm **out)
{
    DSVI_TRY(check_place(place));
    DsviMeeting meeting = meeting_of(place, timeout_s, events);
    return dsvi_comm_tcp_create(&meeting, out);
}

DsvStatus dsv_ranks_join(const DsvConfig *config, const DsvRanksPlace *place, const DsvEvents *events,
                         DsvRanks **out)
{
    DSVI_TRY(dsvi_config_check_abi(config));
    double timeout_s = config->rank_timeout;
    DsvRanks *ranks = calloc(1, sizeof *ranks);
    *out = NULL;
    if (!ranks)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to join other ranks");
    DsvStatus status = place ? join_tcp(place, timeout_s, events, &ranks->comm)
                             : join_mpi(timeout_s, &ranks->comm);
    if (status != DSV_OK) {
        free(ranks);
        return status;
    }
    *out = ranks;
    return DSV_OK;
}

void dsv_ranks_decline(const DsvRanksPlace *place, const char *sentence)
{
    if (check_place(place) != DSV_OK)
        return;
    DsviMeeting meeting = meeting_of(place, 0, NULL);
    dsvi_tcp_mesh_decline(&meeting, sentence);
}

bool dsv_ranks_told(DsvRanks *ranks)
{
    return dsvi_comm_await_report(ranks->comm);
}

int64_t dsv_ranks_rank(const DsvRanks *ranks)
{
    return dsvi_comm_rank(ranks->comm);
}

int64_t dsv_ranks_size(const DsvRanks *ranks)
{
    return dsvi_comm_size(ranks->comm);
}

void dsv_ranks_leave(DsvRanks **ranks)
{
    if (!*ranks)
        return;
    dsvi_comm_close(&(*ranks)->comm);
    free(*ranks);
    *ranks = NULL;
}
