/* One rank of a group started by mpirun, for test_processes.sh: comm_under_mpi LIBRARY WHAT, where WHAT is
 *     cases    compares every call with plain loops (comm_cases.h)
 *     killed   rank 1 kills itself
 *     first    rank 0 kills itself
 *     late     rank 1 does not make the call that rank 0 waits for
 *     fails    rank 1 reports a failure (dsvi_comm_fail)
 * Rank 0 prints the failure; other ranks print it if rank 0 does not. */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm_cases.h"
#include "dist/comm_mpi.h"

static DsvStatus run_cases(DsviComm *comm)
{
    for (const CommCase *c = comm_cases; c->name; c++) {
        DSVI_TRY(c->run(comm, NULL));
        if (dsvi_comm_rank(comm) == 0)
            printf("%s on %d ranks\n", c->name, (int)dsvi_comm_size(comm));
    }
    return DSV_OK;
}

static DsvStatus run(DsviComm *comm, const char *what)
{
    if (strcmp(what, "cases") == 0)
        return run_cases(comm);
    DSVI_TRY(dsvi_comm_barrier(comm));
    if (dsvi_comm_rank(comm) == 1 && strcmp(what, "killed") == 0)
        raise(SIGKILL);
    if (dsvi_comm_rank(comm) == 0 && strcmp(what, "first") == 0)
        raise(SIGKILL);
    if (dsvi_comm_rank(comm) == 1 && strcmp(what, "late") == 0)
        sleep(60);
    if (dsvi_comm_rank(comm) == 1 && strcmp(what, "fails") == 0)
        return DSVI_FAIL(DSV_E_IO, "the disk is full");
    return dsvi_comm_barrier(comm);
}

int main(int argc, char **argv)
{
    DsviComm *comm = NULL;
    void *library = argc == 3 ? dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL) : NULL;
    const DsviMpi *mpi = library ? dlsym(library, DSVI_MPI_SYMBOL) : NULL;
    if (!mpi) {
        fprintf(stderr, "usage: comm_under_mpi LIBRARY WHAT; %s\n", argc == 3 ? dlerror() : "");
        return 2;
    }
    DsvStatus status = mpi->join(strcmp(argv[2], "late") == 0 ? 1 : 60, dsvi_status_record, &comm);
    if (status == DSV_OK)
        status = dsvi_comm_fail(comm, run(comm, argv[2]));
    if (status != DSV_OK && (dsvi_comm_rank(comm) == 0 || !dsvi_comm_await_report(comm))) {
        printf("%s\n", dsv_error_message());
        fflush(stdout);
    }
    if (status != DSV_OK && dsvi_comm_rank(comm) == 0)
        dsvi_comm_await_report(comm);
    dsvi_comm_close(&comm);
    return status == DSV_OK ? 0 : 1;
}
