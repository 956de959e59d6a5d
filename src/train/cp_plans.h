/* Chooses how the ranks that share clips divide attention (parallel plans, cp/cp_planner.h). Costs are
 * measured at start-up. Plans are made before the first step, and again after every step in which the sparse
 * layer has taken exact measurements. */
#ifndef DSVI_CP_PLANS_H
#define DSVI_CP_PLANS_H

#include "cp/cp_planner.h"
#include "model/dit/dit.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviCpPlans DsviCpPlans;

/* Arguments of dsvi_cp_plans_create. The caller keeps ownership; all objects must outlive the result. */
typedef struct DsviCpPlansArgs {
    const DsvConfig *settings;
    DsviBackend *backend;
    DsviComm *all; /* all ranks of the run; all make the same calls and get the same plans */
    const DsviCpGroup *group;
    DsviCp *cp;
    DsviSparse *sparse; /* after dsvi_sparse_measure */
    DsviSparseShape sparse_shape;
    DsviCpShape shape;
    DsviSparseLog *log; /* receives measured costs and changed plans; or NULL */
    void *log_context;
} DsviCpPlansArgs;

/* Measures the time of transfers between ranks, and of attention if dsvi_sparse_measure has not. Takes device
 * memory for the time of the call. */
DsvStatus dsvi_cp_plans_create(const DsviCpPlansArgs *args, DsviCpPlans **out);
void dsvi_cp_plans_free(DsviCpPlans **plans);

/* Returns the costs measured by dsvi_cp_plans_create; valid as long as `plans`. */
const DsviCpCosts *dsvi_cp_plans_costs(const DsviCpPlans *plans);

/* Called before each step by all ranks. Makes plans from the latest measurements and applies them. In the
 * step that follows, attention is timed; the next call logs this time next to the expected time. */
DsvStatus dsvi_cp_plans_step(DsviCpPlans *plans);

#ifdef __cplusplus
}
#endif
#endif
