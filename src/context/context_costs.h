/* What attention and transfers cost on this machine: the numbers a plan is made from (cp_plan.h).
 *
 * Measured at start-up (link_times.h, sparse.h) or read from a file; plain data, the same on all ranks of a
 * context group, so that all plan alike. */
#ifndef DSVI_CONTEXT_COSTS_H
#define DSVI_CONTEXT_COSTS_H

#include <stdbool.h>
#include <stdint.h>

#include "context/head_placement.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSV_PRICE_POINTS_MOST = 12, DSV_DEGREES_MOST = 32, DSV_COSTS_ABOUT_MOST = 128 };

/* y by x: straight lines through the points, x rising; the outer lines go on, though never below 0. One
 * point: y is the same everywhere; none: 0. */
typedef struct DsvPriceCurve {
    int64_t count;
    double x[DSV_PRICE_POINTS_MOST], y[DSV_PRICE_POINTS_MOST];
} DsvPriceCurve;

double dsvi_price_at(const DsvPriceCurve *curve, double x);
/* Points are added with rising x. Past the most it is ignored. */
void dsvi_price_add(DsvPriceCurve *curve, double x, double y);

/* Seconds of attention for one head size, dtype and group of queries. A pair is a query and a key of one
 * head and clip, whether a list holds the key or not. */
typedef struct DsvAttentionCost {
    double call[DSV_PASSES];         /* s, what a call takes however little it attends: forward, backward */
    double dense[DSV_PASSES];        /* s a pair */
    double select;                   /* s a pair: making lists, forward only */
    DsvPriceCurve lists[DSV_PASSES]; /* s a pair, by density of the lists; no points: not known */
} DsvAttentionCost;

/* Seconds of a transfer in groups of `ranks`. A head group is ranks that follow one another in the context
 * group; those of a sequence group are as far apart as they can be. A curve without points: not known. */
typedef struct DsvLinkCost {
    int64_t ranks;
    DsvPriceCurve head_exchange; /* s of an all-to-all, by bytes that the busiest rank sends or receives */
    DsvPriceCurve sequence_exchange;
    DsvPriceCurve sequence_swap; /* s of a ring's step, by bytes that each rank passes on */
} DsvLinkCost;

typedef struct DsvContextCosts {
    char about[DSV_COSTS_ABOUT_MOST]; /* where the numbers are from */
    bool beside;                      /* transfers run beside kernels */
    double touch;                     /* s a byte of device memory that is read or written */
    DsvAttentionCost attention;
    int64_t link_count;
    DsvLinkCost link[DSV_DEGREES_MOST];
} DsvContextCosts;

/* The links of groups of so many ranks; NULL: not known. */
const DsvLinkCost *dsvi_costs_link(const DsvContextCosts *costs, int64_t ranks);

/* As JSON. Reading: DSV_E_FORMAT names the key that is missing or no number. */
DsvStatus dsvi_costs_read(const char *path, DsvContextCosts *out);
DsvStatus dsvi_costs_write(const char *path, const DsvContextCosts *costs);

#ifdef __cplusplus
}
#endif
#endif
