/** @file
 * Callbacks by which the library reports while it works. The library itself never prints. */
#ifndef DSV_EVENTS_H
#define DSV_EVENTS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** How serious a log line is. Errors are not logged: they are the DsvStatus of the call. */
typedef enum DsvLogLevel {
    DSV_LOG_INFO,   /**< what happens in a normal run */
    DSV_LOG_WARNING /**< what a user may have to act on; the work continues */
} DsvLogLevel;

/** How far a long piece of work is. Numbers that do not apply are 0 or NaN. */
typedef struct DsvProgress {
    const char *unit;    /**< name of one piece of the work: "step", "window", ... */
    int64_t done;        /**< pieces of work done */
    int64_t total;       /**< pieces of work in all */
    double seconds_left; /**< estimated time until the work is done */
    double loss;         /**< training: loss of the last step, mean over the samples of all ranks */
    double grad_norm;    /**< training: L2 norm of all gradients before clipping */
    double lr;           /**< training: learning rate of the last step */
    double step_ms;      /**< training: wall time of the last step, milliseconds; encoding: mean of a piece */
    double tokens_per_s; /**< training: tokens of all ranks a second */
    double peak_share;   /**< training: model FLOP/s as a fraction of what a GEMM reached at start-up */
    double density; /**< training: fraction of keys that a query attends to, mean over blocks; 1 in a dense
                       block */
    int64_t sparse_blocks; /**< training: transformer blocks with sparse attention, over key lists */
    int64_t blocks;        /**< training: transformer blocks of the model */
    /** Training: fraction of the exact attention (softmax) weights that falls on listed keys, as last
     * measured, mean over sparse blocks; NaN while no block is sparse. */
    double captured_mass;
    /** Training with a tail: relative error of attention's output over lists and tail, as last measured, mean
     * over sparse blocks; NaN while no block is sparse; 0 without a tail. */
    double output_error;
    uint64_t memory_bytes; /**< memory in use: resident memory on the CPU, device memory on a GPU */
    bool dense_finish;     /**< training: all blocks attend densely, because the dense finish has begun */
} DsvProgress;

/** The callbacks of a program. Each may be NULL. They come from the thread that made the call, between
 * steps. */
typedef struct DsvEvents {
    /** Handed to every callback; the library does not look at it. */
    void *context;
    /** Receives one line without a newline. The line is valid during the callback only. */
    void (*log)(void *context, DsvLogLevel level, const char *line);
    /** Receives the state of the work. `progress` is valid during the callback only. */
    void (*progress)(void *context, const DsvProgress *progress);
    /** Asked between steps. Once it returns true, the call saves its work and returns DSV_E_INTERRUPTED. */
    bool (*stop)(void *context);
} DsvEvents;

#ifdef __cplusplus
}
#endif
#endif
