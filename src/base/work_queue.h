/* Background threads that process a queue of items while the caller continues. They are separate from the
 * pool of compute threads (base/threads.h). */
#ifndef DSVI_WORK_QUEUE_H
#define DSVI_WORK_QUEUE_H

#include <stdint.h>

#include "base/status.h"

typedef struct DsviWorkQueue DsviWorkQueue;

/* Processes one item. Several threads call this function at the same time; `worker` is the number of the
 * thread, 0 <= worker < threads. */
typedef void dsvi_work_queue_fn(void *context, int64_t item, int worker);

/* Starts `threads` threads, or fewer if the system refuses some. `capacity` is the number of items that may
 * be added between two times at which the queue is empty. DSV_E_NO_MEMORY if no thread could be started. */
DsvStatus dsvi_work_queue_create(int threads, int64_t capacity, dsvi_work_queue_fn *fn, void *context,
                                 DsviWorkQueue **out);

/* Adds the items first, first + 1, ..., first + count - 1 and returns at once. */
void dsvi_work_queue_add(DsviWorkQueue *queue, int64_t first, int64_t count);

/* Returns when all added items are processed; the caller then sees what their functions wrote. */
void dsvi_work_queue_wait(DsviWorkQueue *queue);

/* Ends the threads after they have processed all added items. *queue may be NULL and becomes NULL. */
void dsvi_work_queue_free(DsviWorkQueue **queue);

#endif
