/* Lists for tests of what reads lists. */
#ifndef DSVI_TEST_RANDOM_LISTS_H
#define DSVI_TEST_RANDOM_LISTS_H

#include "ops/lists.h"

/* Allocates and fills lists whose batch, heads, queries, keys, group and grain are set: each run is in each
 * list with probability |density|, so that 1 gives full lists and 0 empty ones; a negative density leaves
 * every other list empty. */
void random_lists_create(DsvLists *lists, double density, uint64_t seed);
void random_lists_free(DsvLists *lists);

#endif
