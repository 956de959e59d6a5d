/* How the library talks to a program while it works. It never prints; it calls back.
 * Callbacks come from the thread that made the call, between steps. Any may be NULL. */
#ifndef DSV_EVENTS_H
#define DSV_EVENTS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum DsvLogLevel { DSV_LOG_INFO, DSV_LOG_WARNING } DsvLogLevel;

/* Where a long piece of work stands. Numbers that do not apply are 0 or NaN. */
typedef struct DsvProgress {
    const char *unit;         /* "step", "clip", ... */
    int64_t done, total;
    double seconds_left;      /* estimate */
    /* training only */
    double loss, grad_norm, lr;
    double step_ms, tokens_per_s;
    double peak_share;        /* model FLOP/s as a share of what a GEMM reached at start-up */
    double density;           /* keys attended / keys, mean over blocks, dense ones counted as 1 */
    int64_t sparse_blocks, blocks;
    double captured_mass;     /* exact, last measured, mean over sparse blocks; NaN while there are none */
    uint64_t memory_bytes;    /* in use: resident on the CPU, of the device's memory on a GPU */
} DsvProgress;

typedef struct DsvEvents {
    void *context;
    /* One line without a newline. */
    void (*log)(void *context, DsvLogLevel level, const char *line);
    void (*progress)(void *context, const DsvProgress *progress);
    /* Asked between steps; true: finish up, save, return DSV_E_INTERRUPTED. */
    bool (*stop)(void *context);
} DsvEvents;

#ifdef __cplusplus
}
#endif
#endif
