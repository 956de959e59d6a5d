/* An op table that keeps time: each op given to the device's own stream leaves marks there before and behind
 * it, and what it took is added to the sum of its kind. For benchmarks; nothing waits until a sum is asked
 * for. */
#ifndef DSVI_OPS_TIMED_H
#define DSVI_OPS_TIMED_H

#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum DsvOpKind {
    DSV_KIND_GEMM,          /* column sums too */
    DSV_KIND_ATTENTION_FWD,
    DSV_KIND_ATTENTION_BWD,
    DSV_KIND_SELECT,        /* profile and predictor too */
    DSV_KIND_ELEMENTWISE,   /* norms and whatever goes over the activations once */
    DSV_KIND_OPTIMIZER,
    DSV_KIND_TRANSFER,      /* what packs and unpacks messages to other ranks */
    DSV_KIND_WAIT,          /* see dsvi_ops_time_waits */
    DSV_KIND_COUNT
} DsvOpKind;

#define DSVI_KINDS_ALL ((1u << DSV_KIND_COUNT) - 1)

/* Wraps the table of `backend` in place and sets all sums to 0. One backend at a time. */
void dsvi_ops_time(DsvBackend *backend);
void dsvi_ops_time_reset(void);
/* Paused, ops leave no marks, each of which takes the device some microseconds; it begins unpaused. */
void dsvi_ops_time_pause(bool paused);
/* Kinds that are timed, each a bit 1 << kind: ops of others leave no marks and sum to 0. All are at first. */
void dsvi_ops_time_kinds(unsigned kinds);
/* Whether waits of the calling thread for other ranks are a kind too: for how long they keep the device's
 * stream from going on. To be ended before the backend is closed. */
void dsvi_ops_time_waits(bool timed);
/* Seconds of each kind since the last reset. */
DsvStatus dsvi_ops_time_spent(double spent[DSV_KIND_COUNT]);

#ifdef __cplusplus
}
#endif
#endif
