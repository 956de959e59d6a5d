/* Measures the times of transfers between the ranks of a cp group, once at the start of a run. */
#ifndef DSVI_LINK_TIMES_H
#define DSVI_LINK_TIMES_H

#include "cp/cp.h"
#include "cp/cp_costs.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Called by all ranks of the cp group; all get the same numbers. Sets costs->link for every size of head
 * groups and sequence groups, and costs->touch and costs->beside. Times messages of several sizes, up to
 * bytes_max bytes that a rank sends or receives in a call. All groups of a kind transfer at the same time, as
 * in a step. A time is the median over calls of the slowest rank's time. Sizes for which the cp group has no
 * communicators stay unknown. Allocates 2 bytes_max of device memory (less if a rank has less free, but at
 * least 128 KiB), and frees it before the call returns. */
DsvStatus dsvi_link_times(const DsviCpGroup *group, size_t bytes_max, DsviCpCosts *costs);

#ifdef __cplusplus
}
#endif
#endif
