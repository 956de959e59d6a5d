/* Calls of a group of ranks that are made beside the work of the thread which asks for them: a thread of its
 * own makes them one after the other, in the order in which they were put.
 *
 * While anything is under way, the groups that the calls use are the queue's. As with the calls themselves,
 * all ranks of a group put the same in the same order. */
#ifndef DSVI_COMM_QUEUE_H
#define DSVI_COMM_QUEUE_H

#include "dist/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvCommQueue DsvCommQueue;

/* What the thread is to do, with an argument of the caller's choice. */
typedef DsvStatus DsvCommWork(void *context, int64_t item);

/* With room for so many pieces of work that have been put and are not done. beside == false: there is no
 * thread, and what is put is done at once; for groups that must not be used while the caller uses others
 * (dsvi_comm_at_once). */
DsvStatus dsvi_comm_queue_create(int64_t room, bool beside, DsvCommQueue **out);
void dsvi_comm_queue_free(DsvCommQueue **queue); /* takes NULL in it; not while anything is under way */

/* Returns, without waiting for it, with the number by which to wait for it; numbers grow, from 1. */
int64_t dsvi_comm_queue_put(DsvCommQueue *queue, DsvCommWork *work, void *context, int64_t item);

/* Waits until piece `number` and all before it are done. Fails as the first that has failed since the queue
 * was last finished; once one has, those behind it are dropped, for the group is of no more use. */
DsvStatus dsvi_comm_queue_wait(DsvCommQueue *queue, int64_t number);
/* The same for all that was put. */
DsvStatus dsvi_comm_queue_finish(DsvCommQueue *queue);

#ifdef __cplusplus
}
#endif
#endif
