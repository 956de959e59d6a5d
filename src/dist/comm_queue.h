/* A queue of communication calls that a background thread makes, one after the other, in the order in which
 * they were put.
 *
 * While calls are queued or running, the caller must not use their groups. As with direct calls, all ranks of
 * a group must put the same calls in the same order. */
#ifndef DSVI_COMM_QUEUE_H
#define DSVI_COMM_QUEUE_H

#include "dist/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviCommQueue DsviCommQueue;

/* One task for the queue: makes calls of a group. `item` is chosen by the caller. */
typedef DsvStatus DsviCommTask(void *context, int64_t item);

/* `capacity`: tasks that may be queued or running at the same time. With background == false the queue has no
 * thread, and dsvi_comm_queue_put runs the task itself: for groups that must not be used while the caller
 * uses others (dsvi_comm_is_concurrent). */
DsvStatus dsvi_comm_queue_create(int64_t capacity, bool background, DsviCommQueue **out);
/* *queue may be NULL and becomes NULL. All tasks must be done. */
void dsvi_comm_queue_free(DsviCommQueue **queue);

/* Queues a task. Returns its number, 1, 2, ..., for dsvi_comm_queue_wait. */
int64_t dsvi_comm_queue_put(DsviCommQueue *queue, DsviCommTask *work, void *context, int64_t item);

/* Waits until task `number` and all earlier tasks are done. Returns the first failure since the last
 * dsvi_comm_queue_finish; tasks after a failed task are dropped, because its group is unusable. */
DsvStatus dsvi_comm_queue_wait(DsviCommQueue *queue, int64_t number);
/* Waits for all tasks, returns the first failure, and resets it. */
DsvStatus dsvi_comm_queue_finish(DsviCommQueue *queue);

#ifdef __cplusplus
}
#endif
#endif
