/* See comm_queue.h. */
#include "dist/comm_queue.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread_start.h"
#include "dist/transport.h"

typedef struct Piece {
    DsvCommWork *work;
    void *context;
    int64_t item;
} Piece;

struct DsvCommQueue {
    bool beside;
    pthread_t thread;     /* where beside */

    pthread_mutex_t lock; /* over what follows */
    pthread_cond_t news;
    Piece *piece;         /* (room) number n at n % room */
    int64_t room;
    int64_t put, done;    /* numbers of the last */
    bool stop;
    DsvStatus status;
    char sentence[DSVI_MESSAGE_BYTES];
};

/* With the lock; the first is the one that counts. */
static void note_failure(DsvCommQueue *q, DsvStatus status)
{
    if (status == DSV_OK || q->status != DSV_OK)
        return;
    q->status = status;
    snprintf(q->sentence, sizeof q->sentence, "%s", dsv_error_message());
}

/* With the lock, but for the time that the next piece of work takes. */
static void do_next(DsvCommQueue *q)
{
    Piece piece = q->piece[(q->done + 1) % q->room];
    bool sound = q->status == DSV_OK;
    pthread_mutex_unlock(&q->lock);
    DsvStatus status = sound ? piece.work(piece.context, piece.item) : DSV_OK;
    pthread_mutex_lock(&q->lock);
    note_failure(q, status);
    q->done++;
    pthread_cond_broadcast(&q->news);
}

static void *work(void *argument)
{
    DsvCommQueue *q = argument;
    pthread_mutex_lock(&q->lock);
    while (!q->stop) {
        if (q->done < q->put)
            do_next(q);
        else
            pthread_cond_wait(&q->news, &q->lock);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

DsvStatus dsvi_comm_queue_create(int64_t room, bool beside, DsvCommQueue **out)
{
    DsvCommQueue *q = calloc(1, sizeof *q);
    *out = NULL;
    if (q)
        q->piece = calloc((size_t)room, sizeof *q->piece);
    if (!q || !q->piece) {
        free(q);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for what ranks send beside their work");
    }
    q->room = room;
    q->beside = beside;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->news, NULL);
    int error = beside ? dsvi_thread_start(&q->thread, work, q) : 0;
    if (error) {
        pthread_mutex_destroy(&q->lock);
        pthread_cond_destroy(&q->news);
        free(q->piece);
        free(q);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "cannot start the thread that talks to other ranks: %s",
                         strerror(error));
    }
    *out = q;
    return DSV_OK;
}

void dsvi_comm_queue_free(DsvCommQueue **queue)
{
    DsvCommQueue *q = *queue;
    if (!q)
        return;
    pthread_mutex_lock(&q->lock);
    q->stop = true;
    pthread_cond_broadcast(&q->news);
    pthread_mutex_unlock(&q->lock);
    if (q->beside)
        pthread_join(q->thread, NULL);
    pthread_mutex_destroy(&q->lock);
    pthread_cond_destroy(&q->news);
    free(q->piece);
    free(q);
    *queue = NULL;
}

int64_t dsvi_comm_queue_put(DsvCommQueue *q, DsvCommWork *piece_work, void *context, int64_t item)
{
    pthread_mutex_lock(&q->lock);
    DSVI_ASSERT(q->put - q->done < q->room);
    int64_t number = ++q->put;
    q->piece[number % q->room] = (Piece){piece_work, context, item};
    pthread_cond_broadcast(&q->news);
    if (!q->beside)
        do_next(q);
    pthread_mutex_unlock(&q->lock);
    return number;
}

/* With the lock. */
static DsvStatus await(DsvCommQueue *q, int64_t number)
{
    while (q->done < number)
        pthread_cond_wait(&q->news, &q->lock);
    return q->status == DSV_OK ? DSV_OK : dsvi_fail_adopt(q->status, q->sentence);
}

DsvStatus dsvi_comm_queue_wait(DsvCommQueue *q, int64_t number)
{
    DSVI_TRY(dsvi_comm_waits());
    pthread_mutex_lock(&q->lock);
    DsvStatus status = await(q, number);
    pthread_mutex_unlock(&q->lock);
    return status == DSV_OK ? dsvi_comm_goes_on() : status;
}

DsvStatus dsvi_comm_queue_finish(DsvCommQueue *q)
{
    DSVI_TRY(dsvi_comm_waits());
    pthread_mutex_lock(&q->lock);
    DsvStatus status = await(q, q->put);
    q->status = DSV_OK;
    pthread_mutex_unlock(&q->lock);
    return status == DSV_OK ? dsvi_comm_goes_on() : status;
}
