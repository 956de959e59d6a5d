/* See beside.h. */
#include "sparse/beside.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread_start.h"

typedef struct Worker {
    DsvBeside *beside;
    pthread_t thread;
    int number;
} Worker;

struct DsvBeside {
    dsvi_beside_fn *fn;
    void *context;
    pthread_mutex_t mutex; /* holds all below */
    pthread_cond_t change;
    int64_t room, added, taken, done; /* items, since there were none */
    int64_t *item;                    /* (room) */
    bool ending;
    int started;
    Worker worker[];
};

static void *work(void *context)
{
    const Worker *worker = context;
    DsvBeside *b = worker->beside;
    pthread_mutex_lock(&b->mutex);
    while (b->taken < b->added || !b->ending) {
        if (b->taken == b->added) {
            pthread_cond_wait(&b->change, &b->mutex);
            continue;
        }
        int64_t item = b->item[b->taken++];
        pthread_mutex_unlock(&b->mutex);
        b->fn(b->context, item, worker->number);
        pthread_mutex_lock(&b->mutex);
        if (++b->done == b->added)
            pthread_cond_broadcast(&b->change);
    }
    pthread_mutex_unlock(&b->mutex);
    return NULL;
}

DsvStatus dsvi_beside_create(int threads, int64_t room, dsvi_beside_fn *fn, void *context, DsvBeside **out)
{
    DsvBeside *b = calloc(1, sizeof *b + (size_t)threads * sizeof(Worker));
    int64_t *item = calloc((size_t)room, sizeof *item);
    int error = 0;
    if (!b || !item) {
        free(b);
        free(item);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %d threads beside the others", threads);
    }
    b->fn = fn;
    b->context = context;
    b->item = item;
    b->room = room;
    pthread_mutex_init(&b->mutex, NULL);
    pthread_cond_init(&b->change, NULL);
    while (b->started < threads && error == 0) {
        Worker *worker = &b->worker[b->started];
        *worker = (Worker){.beside = b, .number = b->started};
        error = dsvi_thread_start(&worker->thread, work, worker);
        b->started += error == 0;
    }
    if (b->started == 0) {
        dsvi_beside_free(&b);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "cannot start a thread: %s", strerror(error));
    }
    *out = b;
    return DSV_OK;
}

void dsvi_beside_add(DsvBeside *b, int64_t first, int64_t count)
{
    pthread_mutex_lock(&b->mutex);
    if (b->done == b->added)
        b->added = b->taken = b->done = 0;
    DSVI_ASSERT(count <= b->room - b->added);
    for (int64_t i = 0; i < count; i++)
        b->item[b->added++] = first + i;
    pthread_cond_broadcast(&b->change);
    pthread_mutex_unlock(&b->mutex);
}

void dsvi_beside_wait(DsvBeside *b)
{
    pthread_mutex_lock(&b->mutex);
    while (b->done < b->added)
        pthread_cond_wait(&b->change, &b->mutex);
    pthread_mutex_unlock(&b->mutex);
}

void dsvi_beside_free(DsvBeside **beside)
{
    DsvBeside *b = *beside;
    if (!b)
        return;
    pthread_mutex_lock(&b->mutex);
    b->ending = true;
    pthread_cond_broadcast(&b->change);
    pthread_mutex_unlock(&b->mutex);
    for (int i = 0; i < b->started; i++)
        pthread_join(b->worker[i].thread, NULL);
    pthread_cond_destroy(&b->change);
    pthread_mutex_destroy(&b->mutex);
    free(b->item);
    free(b);
    *beside = NULL;
}
