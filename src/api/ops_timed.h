/* An op table that keeps time: each wrapped op adds what it took to the sum of its kind. For benchmarks. */
#ifndef DSVI_OPS_TIMED_H
#define DSVI_OPS_TIMED_H

#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum DsvOpKind { /* the rest of the ops is not timed */
    DSV_KIND_GEMM,
    DSV_KIND_ATTENTION_FWD,
    DSV_KIND_ATTENTION_BWD,
    DSV_KIND_SELECT,
    DSV_KIND_COUNT
} DsvOpKind;

/* Wraps the table of `backend` in place and sets all sums to 0. One backend at a time. */
void dsvi_ops_time(DsvBackend *backend);
void dsvi_ops_time_reset(void);
/* Seconds since the last reset. */
double dsvi_ops_time_spent(DsvOpKind kind);

#ifdef __cplusplus
}
#endif
#endif
