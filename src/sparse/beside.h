/* Items of work done beside the caller's own by threads of their own: it hands them over and goes on, while
 * the pool of compute threads (base/threads.h) stays free. */
#ifndef DSVI_BESIDE_H
#define DSVI_BESIDE_H

#include <stdint.h>

#include "base/status.h"

typedef struct DsvBeside DsvBeside;

/* Does one item. Several run at once, each as another worker: 0 <= worker < threads. */
typedef void dsvi_beside_fn(void *context, int64_t item, int worker);

/* `room`: items that may be under way or waiting at once. */
DsvStatus dsvi_beside_create(int threads, int64_t room, dsvi_beside_fn *fn, void *context, DsvBeside **out);

/* Items [first, first + count) are done some time before dsvi_beside_wait returns. */
void dsvi_beside_add(DsvBeside *beside, int64_t first, int64_t count);

/* Until no item is left: what they wrote may be read. */
void dsvi_beside_wait(DsvBeside *beside);

/* Ends the threads, after all items; *beside becomes NULL. NULL is fine. */
void dsvi_beside_free(DsvBeside **beside);

#endif
