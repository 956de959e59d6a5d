/* dsv_ranks_*: loads MPI, which is a library of its own: dsv works without, and few of its uses want it. */
#include "dsv/ranks.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "api/ranks.h"
#include "dist/comm_mpi.h"
#include "dist/transport.h"

#define MPI_LIBRARY "libdsv_mpi.so"

/* Once loaded it stays. Open MPI's own parts look for its names among those of the program: RTLD_GLOBAL. */
static DsvStatus load_mpi(const DsvMpi **mpi)
{
    void *handle = dlopen(MPI_LIBRARY, RTLD_NOW | RTLD_GLOBAL);
    if (!handle)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "started by MPI, but dsv's part for it could not be loaded: %s",
                         dlerror());
    *mpi = dlsym(handle, DSVI_MPI_SYMBOL);
    if (!*mpi)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s is no part of dsv", MPI_LIBRARY);
    if (strcmp((*mpi)->version, DSV_VERSION) != 0 || (*mpi)->comm_bytes != sizeof(DsvComm))
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s belongs to another build of dsv, version %s, not %s",
                         MPI_LIBRARY, (*mpi)->version, DSV_VERSION);
    return DSV_OK;
}

DsvStatus dsv_ranks_join(const DsvConfig *config, DsvRanks **out)
{
    const DsvMpi *mpi = NULL;
    DsvRanks *ranks = calloc(1, sizeof *ranks);
    *out = NULL;
    if (!ranks)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to join other ranks");
    DsvStatus status = load_mpi(&mpi);
    if (status == DSV_OK)
        status = mpi->join(config->rank_timeout, dsvi_status_record, &ranks->comm);
    if (status != DSV_OK) {
        free(ranks);
        return status;
    }
    *out = ranks;
    return DSV_OK;
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
