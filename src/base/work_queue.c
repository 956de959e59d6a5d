/* See work_queue.h. Threads take items from one array in order. */
#include "base/work_queue.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread_start.h"

typedef struct Worker {
    DsviWorkQueue *queue;
    pthread_t thread;
    int number;
} Worker;

struct DsviWorkQueue {
    dsvi_work_queue_fn *fn;
    void *context;
    pthread_mutex_t mutex; /* guards all fields below */
    pthread_cond_t change;
    int64_t capacity, added, taken, done; /* counts of items since the queue was last empty */
    int64_t *item;                        /* (capacity) */
    bool ending;
    int started;
    Worker worker[];
};

static void *work_queue_thread(void *context)
{
    const Worker *worker = context;
    DsviWorkQueue *q = worker->queue;
    pthread_mutex_lock(&q->mutex);
    while (q->taken < q->added || !q->ending) {
        if (q->taken == q->added) {
            pthread_cond_wait(&q->change, &q->mutex);
            continue;
        }
        int64_t item = q->item[q->taken++];
        pthread_mutex_unlock(&q->mutex);
        q->fn(q->context, item, worker->number);
        pthread_mutex_lock(&q->mutex);
        if (++q->done == q->added)
            pthread_cond_broadcast(&q->change);
    }
    pthread_mutex_unlock(&q->mutex);
    return NULL;
}

DsvStatus dsvi_work_queue_create(int threads, int64_t capacity, dsvi_work_queue_fn *fn, void *context,
                                 DsviWorkQueue **out)
{
    DsviWorkQueue *q = calloc(1, sizeof *q + (size_t)threads * sizeof(Worker));
    int64_t *item = calloc((size_t)capacity, sizeof *item);
    int error = 0;
    if (!q || !item) {
        free(q);
        free(item);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a work queue of %d threads", threads);
    }
    q->fn = fn;
    q->context = context;
    q->item = item;
    q->capacity = capacity;
    pthread_mutex_init(&q->mutex, NULL);
    pthread_cond_init(&q->change, NULL);
    while (q->started < threads && error == 0) {
        Worker *worker = &q->worker[q->started];
        *worker = (Worker){.queue = q, .number = q->started};
        error = dsvi_thread_start(&worker->thread, work_queue_thread, worker);
        q->started += error == 0;
    }
    if (q->started == 0) {
        dsvi_work_queue_free(&q);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "cannot start a thread: %s", strerror(error));
    }
    *out = q;
    return DSV_OK;
}

void dsvi_work_queue_add(DsviWorkQueue *q, int64_t first, int64_t count)
{
    pthread_mutex_lock(&q->mutex);
    if (q->done == q->added)
        q->added = q->taken = q->done = 0;
    DSVI_ASSERT(count <= q->capacity - q->added);
    for (int64_t i = 0; i < count; i++)
        q->item[q->added++] = first + i;
    pthread_cond_broadcast(&q->change);
    pthread_mutex_unlock(&q->mutex);
}

void dsvi_work_queue_wait(DsviWorkQueue *q)
{
    pthread_mutex_lock(&q->mutex);
    while (q->done < q->added)
        pthread_cond_wait(&q->change, &q->mutex);
    pthread_mutex_unlock(&q->mutex);
}

void dsvi_work_queue_free(DsviWorkQueue **queue)
{
    DsviWorkQueue *q = *queue;
    if (!q)
        return;
    pthread_mutex_lock(&q->mutex);
    q->ending = true;
    pthread_cond_broadcast(&q->change);
    pthread_mutex_unlock(&q->mutex);
    for (int i = 0; i < q->started; i++)
        pthread_join(q->worker[i].thread, NULL);
    pthread_cond_destroy(&q->change);
    pthread_mutex_destroy(&q->mutex);
    free(q->item);
    free(q);
    *queue = NULL;
}
