/* Random key lists, for tests of operations that read key lists. */
#ifndef DSVI_TEST_RANDOM_LISTS_H
#define DSVI_TEST_RANDOM_LISTS_H

#include "ops/lists.h"

/* Allocates and fills the arrays of `lists`, whose batch, heads, queries, keys, group and grain the caller
 * has set. Each span is in each list with probability |density|: 1 gives full lists, 0 empty lists. With a
 * negative density every other list is empty. random_lists_free() releases the arrays. */
void random_lists_create(DsviLists *lists, double density, uint64_t seed);
void random_lists_free(DsviLists *lists);

#endif
