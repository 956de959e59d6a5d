/* Every call of a comm held against plain loops, in ragged sizes, with the bytes it must have sent. The cases
 * run on ranks that are threads (test_comm.c) and on processes of MPI (comm_under_mpi.c). */
#ifndef DSVI_TEST_COMM_CASES_H
#define DSVI_TEST_COMM_CASES_H

#include "dist/comm.h"

typedef struct CommCase {
    const char *name;
    DsvStatus (*run)(DsvComm *comm, void *ignored);
} CommCase;

/* Ends with one that has no name. */
extern const CommCase comm_cases[];

/* Of two ranks the first wants a byte more than the second sends: no transport lets that pass. */
DsvStatus comm_lengths_differ(DsvComm *comm, void *ignored);

#endif
