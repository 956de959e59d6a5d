/* Tests that want a GPU. */
#ifndef DSVI_TESTS_GPU_H
#define DSVI_TESTS_GPU_H

#include "ops/ops.h"

/* The backend being tested. */
extern DsvBackend gpu_backend;

/* Calls `run` (cmocka groups; their number of failures) on the GPU as it is by default and in deterministic
 * mode. Gives the exit status of the program; where there is no GPU that of a skipped test, and says why. */
int run_on_gpu(int (*run)(void));

#endif
