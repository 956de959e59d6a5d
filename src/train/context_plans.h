/* The plans of a run whose ranks share clips (context/cp_planner.h): costs measured at start-up, plans made
 * before the first step and anew after every step that has measured what lists hold. */
#ifndef DSVI_CONTEXT_PLANS_H
#define DSVI_CONTEXT_PLANS_H

#include "context/cp_planner.h"
#include "model/dit.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvContextPlans DsvContextPlans;

typedef struct DsvContextPlansMade {
    const DsvConfig *settings;
    DsvBackend *backend;
    DsvComm *all;             /* the ranks that train together: all make the same calls, and plan alike */
    const DsvContextGroup *group;
    DsvContext *context;
    DsvSparse *sparse;        /* set up */
    DsvSparseShape sparse_shape;
    DsvCpShape shape;
    DsvSparseLog *log;        /* or NULL */
    void *log_context;
} DsvContextPlansMade;

/* Measures links, and attention where setup has not. */
DsvStatus dsvi_context_plans_create(const DsvContextPlansMade *of, DsvContextPlans **out);
void dsvi_context_plans_free(DsvContextPlans **plans);

/* What was measured. */
const DsvContextCosts *dsvi_context_plans_costs(const DsvContextPlans *plans);

/* Before each step: what the last one has measured is taken in, plans are set, and once a plan was in use it
 * is told how long attention takes and was expected to. */
DsvStatus dsvi_context_plans_step(DsvContextPlans *plans);

#ifdef __cplusplus
}
#endif
#endif
