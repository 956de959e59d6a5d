/* Compares every call of DsviComm with plain loops, in uneven sizes, and checks the bytes sent. The cases run
 * on ranks that are threads (test_comm.c, test_comm_tcp.c) and on MPI processes (comm_under_mpi.c). */
#ifndef DSVI_TEST_COMM_CASES_H
#define DSVI_TEST_COMM_CASES_H

#include "dist/comm.h"

typedef struct CommCase {
    const char *name;
    DsvStatus (*run)(DsviComm *comm, void *ignored);
} CommCase;

/* The last entry has name NULL. */
extern const CommCase comm_cases[];

/* Rank 0 of two expects one byte more than rank 1 sends: every transport must report an error. */
DsvStatus comm_lengths_differ(DsviComm *comm, void *ignored);

#endif
