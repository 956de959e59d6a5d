/* Ranks that are processes started by MPI (mpirun, srun --mpi=pmix).
 *
 * MPI is loaded when it is asked for: comm_mpi.c is made into libdsv_mpi.so where MPI is found at build time,
 * and that exports one object, DSVI_MPI_SYMBOL. It holds its own copy of what it needs of dsv's lower layers;
 * `join` makes it record failures where the loading library does. */
#ifndef DSVI_COMM_MPI_H
#define DSVI_COMM_MPI_H

#include "dist/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DSVI_MPI_SYMBOL "dsvi_mpi"

typedef struct DsvMpi {
    const char *version; /* DSV_VERSION it was built with */
    size_t comm_bytes;   /* sizeof(DsvComm) there: a mark of headers that agree */
    /* All ranks that were started together; once in the life of a process. */
    DsvStatus (*join)(double timeout_s, DsvStatusRecordOfThread *record, DsvComm **out);
} DsvMpi;

#ifdef __cplusplus
}
#endif
#endif
