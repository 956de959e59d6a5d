/* Tests that run once for each instruction set the machine offers. */
#ifndef DSVI_TESTS_LEVELS_H
#define DSVI_TESTS_LEVELS_H

#include "cpu/cpu.h"

/* The backend of the level being tested. */
extern DsvBackend level_backend;

/* Calls `run` (a cmocka group; its number of failures) for each level from `least` to the best, each in a
 * process of its own: oneDNN takes its limit once per process, and a crash then names its level. Gives the
 * exit status of the program. */
int run_levels(DsvIsa least, int (*run)(void));

#endif
