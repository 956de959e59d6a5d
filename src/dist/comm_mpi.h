/* Ranks that are processes started by MPI (mpirun, srun --mpi=pmix).
 *
 * comm_mpi.c is built into the plugin libdsv_mpi.so if MPI is found at build time. dsv loads the plugin at
 * run time, when MPI started the process (ranks.c). The plugin exports one object, DSVI_MPI_SYMBOL, of type
 * DsviMpi. It contains its own copy of dsv's lower layers; `join` makes it record failures in the loading
 * library. */
#ifndef DSVI_COMM_MPI_H
#define DSVI_COMM_MPI_H

#include "dist/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DSVI_MPI_SYMBOL "dsvi_mpi"

typedef struct DsviMpi {
    const char *version; /* DSV_VERSION of the plugin's build */
    size_t comm_bytes;   /* sizeof(DsviComm) in the plugin: differs if it was built from other headers */
    /* Makes the group of all ranks that were started together. A process may call it once. */
    DsvStatus (*join)(double timeout_s, DsviStatusRecordOfThread *record, DsviComm **out);
} DsviMpi;

#ifdef __cplusplus
}
#endif
#endif
