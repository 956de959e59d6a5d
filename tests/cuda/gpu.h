/* Main program of the tests that need a GPU. */
#ifndef DSVI_TESTS_GPU_H
#define DSVI_TESTS_GPU_H

#include "ops/ops.h"

/* The CUDA backend under test. */
extern DsviBackend gpu_backend;

/* Calls `run`, which runs cmocka groups and returns the number of failures, with the GPU in default mode and
 * then in deterministic mode. Returns the exit status for main(). Without a GPU, prints the reason and
 * returns the status of a skipped test. Arguments of the program:
 *     test_NAME [TESTS [MODE]]     runs only the tests that match the pattern TESTS (with * and ?), only in
 *                                  mode MODE: `default` or `deterministic` */
int run_on_gpu(int (*run)(void), int argc, char **argv);

#endif
