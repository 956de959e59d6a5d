/* What the files of dsv_plan share. */
#ifndef DSVI_PLAN_PARTS_H
#define DSVI_PLAN_PARTS_H

#include "context/cp_plan.h"
#include "dsv/plan.h"
#include "sparse/sparse.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Choices made without looking. */
enum { DSV_NAIVE_HEADS, DSV_NAIVE_TOKENS, DSV_NAIVE_ALL_KEYS, DSV_NAIVES };

typedef struct DsvPlannedBlock {
    DsvCpBlock known;
    double *density;          /* (heads) */
    DsvCpChoice choice;
    double naive[DSV_NAIVES]; /* seconds; INFINITY: cannot be */
} DsvPlannedBlock;

typedef struct DsvPlanned {
    const DsvConfig *config;
    DsvSparseShape model;     /* what attention looks like in it */
    DsvCpShape shape;
    int64_t *bound;           /* (ranks + 1) of shape */
    DsvContextCosts costs;
    DsvPlannedBlock *block;   /* (model.blocks) */
    double *density;          /* (blocks, heads) */
    int32_t *placement;       /* (blocks, heads) */
    int64_t *plan_bound;      /* (blocks, ranks + 1) */
} DsvPlanned;

/* plan_costs.c: measured by the ranks of `comm`, all of which call and get the same; and by this process
 * alone, on the CPU. */
DsvStatus dsvi_plan_costs_of_ranks(DsvComm *comm, const DsvConfig *config, const DsvSparseShape *model,
                                   DsvContextCosts *costs);
DsvStatus dsvi_plan_costs_here(const DsvConfig *config, const DsvSparseShape *model, int64_t ranks,
                               DsvContextCosts *costs);
/* plan_picture.c */
void dsvi_plan_draw(const DsvPlanned *planned, DsvLine *line, void *context);
DsvStatus dsvi_plan_write(const DsvPlanned *planned, const char *path);

#ifdef __cplusplus
}
#endif
#endif
