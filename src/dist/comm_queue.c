/* See comm_queue.h. */
#include "dist/comm_queue.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread_start.h"
#include "dist/transport.h"

typedef struct CommTask {
    DsviCommTask *work;
    void *context;
    int64_t item;
} CommTask;

struct DsviCommQueue {
    bool background;
    pthread_t thread; /* the background thread, if the queue has one */

    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t news;
    CommTask *task; /* (capacity) ring buffer: task number n is at index n % capacity */
    int64_t capacity;
    int64_t put, done; /* numbers of the task put last, and of the task done last */
    bool stop;
    DsvStatus status;
    char sentence[DSVI_MESSAGE_BYTES];
};

/* Keeps the first failure. Called with the lock. */
static void note_failure(DsviCommQueue *q, DsvStatus status)
{
    if (status == DSV_OK || q->status != DSV_OK)
        return;
    q->status = status;
    snprintf(q->sentence, sizeof q->sentence, "%s", dsv_error_message());
}

/* Runs the next task, or drops it after a failure. Called with the lock, which is released meanwhile. */
static void run_next_task(DsviCommQueue *q)
{
    CommTask task = q->task[(q->done + 1) % q->capacity];
    bool usable = q->status == DSV_OK;
    pthread_mutex_unlock(&q->lock);
    DsvStatus status = usable ? task.work(task.context, task.item) : DSV_OK;
    pthread_mutex_lock(&q->lock);
    note_failure(q, status);
    q->done++;
    pthread_cond_broadcast(&q->news);
}

static void *comm_queue_thread(void *argument)
{
    DsviCommQueue *q = argument;
    pthread_mutex_lock(&q->lock);
    while (!q->stop) {
        if (q->done < q->put)
            run_next_task(q);
        else
            pthread_cond_wait(&q->news, &q->lock);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

DsvStatus dsvi_comm_queue_create(int64_t capacity, bool background, DsviCommQueue **out)
{
    DsviCommQueue *q = calloc(1, sizeof *q);
    *out = NULL;
    if (q)
        q->task = calloc((size_t)capacity, sizeof *q->task);
    if (!q || !q->task) {
        free(q);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a queue of calls to other ranks");
    }
    q->capacity = capacity;
    q->background = background;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->news, NULL);
    int error = background ? dsvi_thread_start(&q->thread, comm_queue_thread, q) : 0;
    if (error) {
        pthread_mutex_destroy(&q->lock);
        pthread_cond_destroy(&q->news);
        free(q->task);
        free(q);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "cannot start the thread that calls other ranks: %s",
                         strerror(error));
    }
    *out = q;
    return DSV_OK;
}

void dsvi_comm_queue_free(DsviCommQueue **queue)
{
    DsviCommQueue *q = *queue;
    if (!q)
        return;
    pthread_mutex_lock(&q->lock);
    q->stop = true;
    pthread_cond_broadcast(&q->news);
    pthread_mutex_unlock(&q->lock);
    if (q->background)
        pthread_join(q->thread, NULL);
    pthread_mutex_destroy(&q->lock);
    pthread_cond_destroy(&q->news);
    free(q->task);
    free(q);
    *queue = NULL;
}

int64_t dsvi_comm_queue_put(DsviCommQueue *q, DsviCommTask *work, void *context, int64_t item)
{
    pthread_mutex_lock(&q->lock);
    DSVI_ASSERT(q->put - q->done < q->capacity);
    int64_t number = ++q->put;
    q->task[number % q->capacity] = (CommTask){work, context, item};
    pthread_cond_broadcast(&q->news);
    if (!q->background)
        run_next_task(q);
    pthread_mutex_unlock(&q->lock);
    return number;
}

/* Waits for task `number` and returns the first failure. Called with the lock. */
static DsvStatus comm_queue_await(DsviCommQueue *q, int64_t number)
{
    while (q->done < number)
        pthread_cond_wait(&q->news, &q->lock);
    return q->status == DSV_OK ? DSV_OK : dsvi_fail_adopt(q->status, q->sentence);
}

DsvStatus dsvi_comm_queue_wait(DsviCommQueue *q, int64_t number)
{
    DSVI_TRY(dsvi_comm_wait_begins());
    pthread_mutex_lock(&q->lock);
    DsvStatus status = comm_queue_await(q, number);
    pthread_mutex_unlock(&q->lock);
    return status == DSV_OK ? dsvi_comm_wait_ends() : status;
}

DsvStatus dsvi_comm_queue_finish(DsviCommQueue *q)
{
    DSVI_TRY(dsvi_comm_wait_begins());
    pthread_mutex_lock(&q->lock);
    DsvStatus status = comm_queue_await(q, q->put);
    q->status = DSV_OK;
    pthread_mutex_unlock(&q->lock);
    return status == DSV_OK ? dsvi_comm_wait_ends() : status;
}
