/* The one pool of compute threads. Decoding threads (src/data) are plain threads of their own. */
#ifndef DSVI_THREADS_H
#define DSVI_THREADS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Sets the number of compute threads for calls from this process; 0 means one per usable core. */
void dsvi_threads_set(int count);
int dsvi_threads_count(void);

/* Work on items [begin, end) by the worker with this number (0 <= worker < dsvi_threads_count()). */
typedef void dsvi_range_fn(void *context, int64_t begin, int64_t end, int worker);

/* Calls fn over [0, n) in pieces of `grain` items (the last may be shorter), handed out as workers
 * become free; returns when all are done. Which worker gets which piece is not fixed, piece borders
 * are: results are reproducible as long as no piece's result depends on the worker's number.
 * Inside fn a worker is alone: a library that brings OpenMP (oneDNN) finds one thread there. A call from
 * inside fn, or while another thread's call is under way, is done by its caller alone. */
void dsvi_parallel_for(int64_t n, int64_t grain, dsvi_range_fn *fn, void *context);

#ifdef __cplusplus
}
#endif
#endif
