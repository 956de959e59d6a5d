/* Keeps the plans of all blocks up to date: chooses them at the start of a run, and again when the densities
 * of the lists have changed. */
#ifndef DSVI_CP_PLANNER_H
#define DSVI_CP_PLANNER_H

#include "cp/cp_plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviCpPlanner DsviCpPlanner;

/* Receives one line of the log about plans, without a newline. `context` is log_context of
 * dsvi_cp_planner_create. */
typedef void DsviCpLog(void *context, const char *line);

/* Creates a planner. The fields ranks, tokens, heads, bound, head_ranks and rows_max of `shape` are ignored
 * and taken from `cp`. Costs are copied; they must be the same on all ranks of the cp group. `cp` must
 * outlive the planner. `log` may be NULL. */
DsvStatus dsvi_cp_planner_create(DsviCp *cp, const DsviCpCosts *costs, const DsviCpShape *shape,
                                 DsviCpLog *log, void *log_context, DsviCpPlanner **out);
void dsvi_cp_planner_free(DsviCpPlanner **planner);

/* Chooses and sets the plan of every block from `block` (blocks), which must be the same on all ranks. Logs a
 * line for every plan that changes; consecutive blocks with the same text get one line. The first call logs
 * all plans. Must not be called while attention of a block is running. */
DsvStatus dsvi_cp_planner_update(DsviCpPlanner *planner, const DsviCpBlock *block);

/* Returns the predicted times of the block's present plan. */
const DsviCpTimes *dsvi_cp_planner_expected(const DsviCpPlanner *planner, int64_t block);
/* Logs measured against predicted times: the sum over blocks, and the block with the largest ratio between
 * the two. seconds (blocks): measured seconds per step of each block's attention, including transfers, on the
 * slowest rank. */
void dsvi_cp_planner_compare(const DsviCpPlanner *planner, const double *seconds);

#ifdef __cplusplus
}
#endif
#endif
