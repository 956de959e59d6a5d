/* See reducer.h. Where groups cannot be used by several threads at once, and the caller's thread may be using
 * another one, buckets are summed when they are ready, and not beside the caller's work. */
#include "dist/reducer.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct DsvReducer {
    DsvComm *comm;
    const DsvShard *shard;
    float *grad;
    bool beside;          /* the caller's work */
    pthread_t thread;

    pthread_mutex_t lock; /* over what follows */
    pthread_cond_t news;
    int64_t *queue;       /* (buckets) in the order in which they became ready */
    int64_t ready, done;  /* how many of them */
    bool stop;
    DsvStatus status;
    char sentence[DSVI_MESSAGE_BYTES];
};

static DsvStatus reduce(const DsvReducer *r, int64_t bucket)
{
    dsvi_comm_behind(r->comm, bucket);
    return dsvi_comm_reduce_scatter(r->comm, DSV_F32, r->grad, dsvi_shard_bound(r->shard, bucket));
}

/* With the lock; the first is the one that counts. */
static void note_failure(DsvReducer *r, DsvStatus status)
{
    if (status == DSV_OK || r->status != DSV_OK)
        return;
    r->status = status;
    snprintf(r->sentence, sizeof r->sentence, "%s", dsv_error_message());
}

/* After a failure the rest is let pass: the group is of no more use. */
static void *work(void *argument)
{
    DsvReducer *r = argument;
    pthread_mutex_lock(&r->lock);
    while (!r->stop) {
        if (r->done == r->ready) {
            pthread_cond_wait(&r->news, &r->lock);
            continue;
        }
        int64_t bucket = r->queue[r->done];
        bool sound = r->status == DSV_OK;
        pthread_mutex_unlock(&r->lock);
        DsvStatus status = sound ? reduce(r, bucket) : DSV_OK;
        pthread_mutex_lock(&r->lock);
        note_failure(r, status);
        r->done++;
        pthread_cond_broadcast(&r->news);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

DsvStatus dsvi_reducer_create(DsvComm *comm, bool others, const DsvShard *shard, float *grad,
                              DsvReducer **out)
{
    DsvReducer *r = calloc(1, sizeof *r);
    *out = NULL;
    if (r)
        r->queue = calloc((size_t)shard->buckets, sizeof *r->queue);
    if (!r || !r->queue) {
        free(r);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to sum gradients over ranks");
    }
    r->comm = comm;
    r->shard = shard;
    r->grad = grad;
    r->beside = !others || dsvi_comm_at_once(comm);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->news, NULL);
    int error = pthread_create(&r->thread, NULL, work, r);
    if (error) {
        pthread_mutex_destroy(&r->lock);
        pthread_cond_destroy(&r->news);
        free(r->queue);
        free(r);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "cannot start the thread that sums gradients: %s", strerror(error));
    }
    *out = r;
    return DSV_OK;
}

void dsvi_reducer_free(DsvReducer **reducer)
{
    DsvReducer *r = *reducer;
    if (!r)
        return;
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    pthread_cond_broadcast(&r->news);
    pthread_mutex_unlock(&r->lock);
    pthread_join(r->thread, NULL);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->news);
    free(r->queue);
    free(r);
    *reducer = NULL;
}

static void reduce_now(DsvReducer *r, int64_t bucket)
{
    DsvStatus status = r->status;
    if (status == DSV_OK)
        status = dsvi_comm_reduce_scatter(r->comm, DSV_F32, r->grad, dsvi_shard_bound(r->shard, bucket));
    note_failure(r, status);
}

void dsvi_reducer_ready(DsvReducer *r, int64_t bucket)
{
    if (!r->beside) {
        reduce_now(r, bucket);
        return;
    }
    DsvStatus status = dsvi_comm_mark(r->comm, bucket);
    pthread_mutex_lock(&r->lock);
    note_failure(r, status);
    DSVI_ASSERT(r->ready < r->shard->buckets);
    r->queue[r->ready++] = bucket;
    pthread_cond_broadcast(&r->news);
    pthread_mutex_unlock(&r->lock);
}

DsvStatus dsvi_reducer_wait(DsvReducer *r)
{
    pthread_mutex_lock(&r->lock);
    while (r->done < r->ready)
        pthread_cond_wait(&r->news, &r->lock);
    DsvStatus status = r->status;
    r->ready = r->done = 0;
    r->status = DSV_OK;
    dsvi_comm_behind(r->comm, -1);
    pthread_mutex_unlock(&r->lock);
    return status == DSV_OK ? DSV_OK : dsvi_fail_adopt(status, r->sentence);
}
