/* What transfers between the ranks of a context group take: measured once, at start-up. */
#ifndef DSVI_LINK_TIMES_H
#define DSVI_LINK_TIMES_H

#include "context/context.h"
#include "context/context_costs.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Fills costs->link, for every degree of the group's ranks: messages of several sizes up to bytes_most (that
 * a rank sends or receives in a call), in all groups of a kind at once as in a step; of each call the slowest
 * rank's time, of several calls the median. Degrees that the group is not made for stay unknown. Fills
 * costs->touch and beside too. All ranks of the group call, and get the same numbers. Takes twice bytes_most
 * of device memory, or as much as every rank has left, at least 128 KiB, and gives it back. */
DsvStatus dsvi_link_times(const DsvContextGroup *group, size_t bytes_most, DsvContextCosts *costs);

#ifdef __cplusplus
}
#endif
#endif
