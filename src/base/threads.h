/* The pool of compute threads, one per process. Decoding threads (src/data) do not belong to it. */
#ifndef DSVI_THREADS_H
#define DSVI_THREADS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Sets the number of compute threads of this process, the calling thread included; 0 means one per usable
 * core. Waits for a parallel loop of another thread to finish. */
void dsvi_threads_set(int count);
int dsvi_threads_count(void);

/* Processes items [begin, end). `worker` is the number of the thread, 0 <= worker < dsvi_threads_count(). */
typedef void dsvi_range_fn(void *context, int64_t begin, int64_t end, int worker);

/* Calls fn for the items [0, n) in pieces of `grain` items (the last may be shorter) and returns when all are
 * done. Pieces are assigned to threads dynamically, but their borders are fixed: results are reproducible if
 * no piece's result depends on `worker`. Inside fn, omp_get_max_threads() is 1, so that libraries with OpenMP
 * (oneDNN) use only the calling thread. A call from inside fn, or during a parallel loop of another thread,
 * processes all pieces on the calling thread, as worker 0. */
void dsvi_parallel_for(int64_t n, int64_t grain, dsvi_range_fn *fn, void *context);

#ifdef __cplusplus
}
#endif
#endif
