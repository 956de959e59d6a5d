/* Declarations shared by plan_api.c, plan_costs.c and plan_picture.c, which implement dsv_plan. */
#ifndef DSVI_PLAN_PARTS_H
#define DSVI_PLAN_PARTS_H

#include "cp/cp_plan.h"
#include "dsv/plan.h"
#include "sparse/sparse.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Simple plans with which the chosen plan is compared. NAIVE_HEADS divides the heads in order. NAIVE_TOKENS
 * divides the tokens, and ranks exchange only keys that lists name. NAIVE_ALL_KEYS divides the tokens, and
 * ranks exchange all keys. */
enum { DSVI_NAIVE_HEADS, DSVI_NAIVE_TOKENS, DSVI_NAIVE_ALL_KEYS, DSVI_NAIVES };

typedef struct DsviPlannedBlock {
    DsviCpBlock known; /* density (fraction of keys listed) of each head's lists, and spread of the lists, in
                        * this block */
    double *density;   /* (heads); part of DsviPlanned.density */
    DsviCpChoice choice;       /* the chosen plan */
    double naive[DSVI_NAIVES]; /* expected seconds of each simple plan; INFINITY if the plan is impossible */
} DsviPlannedBlock;

typedef struct DsviPlanned {
    const DsvConfig *config;
    DsviSparseShape model; /* shape of the model's attention */
    DsviCpShape shape;
    int64_t *bound; /* (ranks + 1) first token of each rank; shape.bound points to it */
    DsviCpCosts costs;
    DsviPlannedBlock *block; /* (model.blocks) */
    double *density;         /* (blocks, heads) */
    int32_t *placement;      /* (blocks, heads) arrays of the chosen plans */
    int64_t *plan_bound;     /* (blocks, ranks + 1) arrays of the chosen plans */
} DsviPlanned;

/* In plan_costs.c. Measures costs of attention and of transfers on the ranks of `comm`, each on its own
 * device. Called by all ranks, which get the same result. */
DsvStatus dsvi_plan_costs_of_ranks(DsviComm *comm, const DsvConfig *config, const DsviSparseShape *model,
                                   DsviCpCosts *costs);
/* Measures costs of attention and of transfers in this process, on the CPU. The `ranks` ranks are threads. */
DsvStatus dsvi_plan_costs_here(const DsvConfig *config, const DsviSparseShape *model, int64_t ranks,
                               DsviCpCosts *costs);
/* In plan_picture.c. Writes the plan as a table to `line`. */
void dsvi_plan_draw(const DsviPlanned *planned, DsvLine *line, void *context);
/* Writes the plan as JSON to `path`. */
DsvStatus dsvi_plan_write(const DsviPlanned *planned, const char *path);

#ifdef __cplusplus
}
#endif
#endif
