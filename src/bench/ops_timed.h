/* Measures how long operations take, for benchmarks. Each operation that is launched on the device's main
 * stream is enclosed by two marks (like CUDA events), and its time is added to the sum of its kind. The host
 * does not wait for the device until the sums are requested. */
#ifndef DSVI_OPS_TIMED_H
#define DSVI_OPS_TIMED_H

#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum DsviOpKind {
    DSVI_KIND_GEMM, /* matrix products and column sums */
    DSVI_KIND_ATTENTION_FWD,
    DSVI_KIND_ATTENTION_BWD,
    DSVI_KIND_SELECT,      /* making key lists, the op profile, and the predictor */
    DSVI_KIND_ELEMENTWISE, /* norms and other operations that read the activations once */
    DSVI_KIND_OPTIMIZER,
    DSVI_KIND_TRANSFER, /* packing and unpacking messages between ranks */
    DSVI_KIND_WAIT,     /* waiting for other ranks (dsvi_ops_time_waits) */
    DSVI_KIND_COUNT
} DsviOpKind;

#define DSVI_KINDS_ALL ((1u << DSVI_KIND_COUNT) - 1)

/* Replaces the operations in the table of `backend` by timed ones and clears all sums. Only one backend can
 * be timed at a time, because the state is global. */
void dsvi_ops_time_enable(DsviBackend *backend);
/* Sets the sums of seconds of all kinds of operations to 0. */
void dsvi_ops_time_reset(void);
/* Pauses or resumes timing. While timing is paused, no timing marks are recorded; a mark costs the device
 * some microseconds. Initially, timing is not paused. */
void dsvi_ops_time_pause(bool paused);
/* Selects which kinds are timed; bit 1 << kind stands for a kind. Other kinds record no marks and have sum 0.
 * Initially all kinds are timed. */
void dsvi_ops_time_kinds(unsigned kinds);
/* Switches timing of DSVI_KIND_WAIT on or off. DSVI_KIND_WAIT measures for how long the device's stream is
 * idle because the calling thread waits for other ranks. The caller must switch it off before the backend is
 * closed. */
void dsvi_ops_time_waits(bool timed);
/* Returns the seconds of each kind since the last reset. Waits for the device. */
DsvStatus dsvi_ops_time_spent(double spent[DSVI_KIND_COUNT]);

#ifdef __cplusplus
}
#endif
#endif
