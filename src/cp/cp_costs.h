/* Costs of attention and transfers on this machine, from which cp_plan.h predicts the time of a plan.
 *
 * The costs are measured at the start of a run (link_times.h, sparse/sparse.h) or read from a file. They must
 * be the same on all ranks of a cp group, so that all ranks choose the same plan. */
#ifndef DSVI_CP_COSTS_H
#define DSVI_CP_COSTS_H

#include <stdbool.h>
#include <stdint.h>

#include "cp/head_placement.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSVI_PRICE_POINTS_MAX = 12, DSVI_DEGREES_MAX = 32, DSVI_COSTS_ABOUT_MAX = 128 };

/* A curve of y as a function of x: linear interpolation between points of ascending x. The first and last
 * line extend beyond the points, but y is never below 0. With one point y is constant; with no point y is
 * 0. */
typedef struct DsviPriceCurve {
    int64_t count;
    double x[DSVI_PRICE_POINTS_MAX], y[DSVI_PRICE_POINTS_MAX];
} DsviPriceCurve;

double dsvi_price_at(const DsviPriceCurve *curve, double x);
/* Appends a point to the curve. Ignores the point if x is not larger than the last x, or if
 * DSVI_PRICE_POINTS_MAX points exist. */
void dsvi_price_add(DsviPriceCurve *curve, double x, double y);

/* Seconds that attention takes on this machine, for one head_dim, dtype and number of queries per list. A
 * *pair* is a query and a key of one head and clip; pairs whose key is in no list are counted too. */
typedef struct DsviAttentionCost {
    double call[DSVI_PASSES];  /* seconds that do not depend on sizes in a call: forward, backward */
    double dense[DSVI_PASSES]; /* seconds per pair of query and key in dense attention: forward, backward */
    double select;             /* seconds per pair of query and key to make lists, forward only */
    DsviPriceCurve lists[DSVI_PASSES]; /* seconds per pair of query and key, by density of the lists; no
                                        * points: unknown */
} DsviAttentionCost;

/* Seconds of a transfer within groups of `ranks` ranks. A head group has consecutive ranks of the cp group. A
 * sequence group has ranks that are as far apart in the cp group as possible. A curve without points is
 * unknown. */
typedef struct DsviLinkCost {
    int64_t ranks;
    DsviPriceCurve head_exchange; /* seconds of an all-to-all in a head group, by the bytes that the busiest
                                   * rank sends or receives */
    DsviPriceCurve sequence_exchange; /* seconds of an all-to-all in a sequence group, by the bytes that the
                                       * busiest rank sends or receives */
    DsviPriceCurve sequence_swap; /* seconds of a step of ring attention, by the bytes that each rank sends */
} DsviLinkCost;

typedef struct DsviCpCosts {
    char about[DSVI_COSTS_ABOUT_MAX]; /* where the costs come from, for messages */
    bool beside;                      /* true: transfers between ranks overlap with kernels */
    double touch;                     /* seconds per byte of device memory read or written */
    DsviAttentionCost attention;
    int64_t link_count;
    DsviLinkCost link[DSVI_DEGREES_MAX];
} DsviCpCosts;

/* Returns the costs of transfers within groups of `ranks` ranks; NULL if unknown. */
const DsviLinkCost *dsvi_costs_link(const DsviCpCosts *costs, int64_t ranks);

/* Read and write a JSON file (format: cp_costs.c). dsvi_costs_read returns DSV_E_FORMAT with a message that
 * names the key if a key is missing or has a wrong value. */
DsvStatus dsvi_costs_read(const char *path, DsviCpCosts *out);
DsvStatus dsvi_costs_write(const char *path, const DsviCpCosts *costs);

#ifdef __cplusplus
}
#endif
#endif
