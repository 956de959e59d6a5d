/* Tests that run once for each instruction set of the machine. */
#ifndef DSVI_TESTS_LEVELS_H
#define DSVI_TESTS_LEVELS_H

#include "cpu/cpu.h"

/* The CPU backend of the instruction set under test. */
extern DsviBackend level_backend;

/* Calls `run`, which returns a number of failures, for each instruction set from `least` to the machine's
 * best, each in a separate process: oneDNN reads its instruction-set limit once per process, and a crash can
 * be reported with the name of the instruction set. Returns the exit status for main(). */
int run_levels(DsviIsa least, int (*run)(void));

#endif
