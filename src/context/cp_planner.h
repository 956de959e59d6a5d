/* The plans of a context's blocks, made at start-up and made anew when sparsity has moved. */
#ifndef DSVI_CP_PLANNER_H
#define DSVI_CP_PLANNER_H

#include "context/cp_plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvCpPlanner DsvCpPlanner;

/* One line without newline. */
typedef void DsvCpLog(void *context, const char *line);

/* Of `shape` batch, head_dim, element, feature, group, backward, recompute and memory_most are read; the rest
 * is the context's. Costs are copied; they must be the same on all ranks of the group. The context must
 * outlive the planner. `log` may be NULL. */
DsvStatus dsvi_cp_planner_create(DsvContext *context, const DsvContextCosts *costs, const DsvCpShape *shape,
                                 DsvCpLog *log, void *log_context, DsvCpPlanner **out);
void dsvi_cp_planner_free(DsvCpPlanner **planner);

/* block (blocks): what is known of each now, the same on all ranks. Sets the context's plans, and logs a line
 * for every one that changes (one for several blocks in a row of which it would say the same); the first time
 * for all of them. Nobody may be inside a block's attention. */
DsvStatus dsvi_cp_planner_update(DsvCpPlanner *planner, const DsvCpBlock *block);

/* What the block's present plan is expected to take. */
const DsvCpTimes *dsvi_cp_planner_expected(const DsvCpPlanner *planner, int64_t block);
/* seconds (blocks): what attention of each block took in a step, with all that is sent for it, of the slowest
 * rank. Logs how that compares with what was expected: in all, and of the block that is furthest off. */
void dsvi_cp_planner_compare(const DsvCpPlanner *planner, const double *seconds);

#ifdef __cplusplus
}
#endif
#endif
