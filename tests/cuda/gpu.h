/* Tests that want a GPU. */
#ifndef DSVI_TESTS_GPU_H
#define DSVI_TESTS_GPU_H

#include "ops/ops.h"

/* The backend being tested. */
extern DsvBackend gpu_backend;

/* The main of a test program: calls `run` (cmocka groups; their number of failures) on the GPU as it is by
 * default and in deterministic mode. Gives the exit status of the program; where there is no GPU that of a
 * skipped test, and says why.
 *     test_NAME [TESTS [MODE]]     only the tests that match a pattern with * and ?, in one mode alone:
 *                                  `default` or `deterministic` */
int run_on_gpu(int (*run)(void), int argc, char **argv);

#endif
