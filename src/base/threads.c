/* The pool of compute threads: POSIX threads that look for work for a moment and then sleep.
 *
 * Not OpenMP's own pool: its threads spin for milliseconds after each loop, and on a machine whose cores are
 * also decoding clips, or shared with other programs, they then spin against the work itself. Libraries that
 * bring OpenMP along (oneDNN) are only called from inside a loop here, one thread each, so that this pool is
 * the only one. */
#include "base/threads.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include <omp.h>

#include "base/host.h"
#include "base/thread_start.h"

enum { THREADS_MOST = 1024, LOOKS_BEFORE_SLEEP = 2000 };

typedef struct Loop {
    dsvi_range_fn *fn;
    void *context;
    int64_t n, grain, pieces;
} Loop;

static struct {
    pthread_mutex_t busy;  /* held from the beginning to the end of a shared loop */
    pthread_mutex_t sleep; /* guards the two conditions */
    pthread_cond_t work, done;
    pthread_t thread[THREADS_MOST];
    int started; /* threads beside the caller */
    Loop loop;
    _Atomic int64_t next_piece;
    atomic_int unfinished; /* workers that still have to leave the current loop */
    atomic_uint number;    /* of the current loop: changes when there is work */
    atomic_bool stop;
} pool = {.busy = PTHREAD_MUTEX_INITIALIZER,
          .sleep = PTHREAD_MUTEX_INITIALIZER,
          .work = PTHREAD_COND_INITIALIZER,
          .done = PTHREAD_COND_INITIALIZER};

static atomic_int wanted; /* 0: neither set nor asked for yet */

static int usable_cores(void)
{
    int count = dsvi_usable_cores();
    return count < THREADS_MOST ? count : THREADS_MOST;
}

int dsvi_threads_count(void)
{
    int count = atomic_load(&wanted);
    if (count == 0) { /* once for all: worker numbers must stay below it */
        count = usable_cores();
        atomic_store(&wanted, count);
    }
    return count;
}

static void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Takes pieces of the current loop until there are none. */
static void run_pieces(int worker)
{
    const Loop *loop = &pool.loop;
    for (;;) {
        int64_t piece = atomic_fetch_add(&pool.next_piece, 1);
        if (piece >= loop->pieces)
            return;
        int64_t begin = piece * loop->grain;
        loop->fn(loop->context, begin, piece + 1 < loop->pieces ? begin + loop->grain : loop->n, worker);
    }
}

/* Waits for a loop other than `seen`; returns its number. */
static unsigned await_work(unsigned seen)
{
    for (int look = 0; look < LOOKS_BEFORE_SLEEP; look++) {
        if (atomic_load(&pool.number) != seen)
            return atomic_load(&pool.number);
        pause_briefly();
    }
    pthread_mutex_lock(&pool.sleep);
    while (atomic_load(&pool.number) == seen)
        pthread_cond_wait(&pool.work, &pool.sleep);
    pthread_mutex_unlock(&pool.sleep);
    return atomic_load(&pool.number);
}

static void await_workers(void)
{
    for (int look = 0; look < LOOKS_BEFORE_SLEEP; look++) {
        if (atomic_load(&pool.unfinished) == 0)
            return;
        pause_briefly();
    }
    pthread_mutex_lock(&pool.sleep);
    while (atomic_load(&pool.unfinished) > 0)
        pthread_cond_wait(&pool.done, &pool.sleep);
    pthread_mutex_unlock(&pool.sleep);
}

/* Starts a loop, or the end of all loops, for the sleeping and the looking alike. */
static void announce(void)
{
    atomic_store(&pool.unfinished, pool.started);
    atomic_fetch_add(&pool.number, 1);
    pthread_mutex_lock(&pool.sleep);
    pthread_cond_broadcast(&pool.work);
    pthread_mutex_unlock(&pool.sleep);
}

typedef struct Start {
    int worker;
    unsigned seen;
} Start;

static Start start[THREADS_MOST];

static void *work(void *argument)
{
    const Start *mine = argument;
    int worker = mine->worker;
    unsigned seen = mine->seen;
    omp_set_num_threads(1); /* of this thread alone */
    for (;;) {
        seen = await_work(seen);
        bool stop = atomic_load(&pool.stop);
        if (!stop)
            run_pieces(worker);
        if (atomic_fetch_sub(&pool.unfinished, 1) == 1) {
            pthread_mutex_lock(&pool.sleep);
            pthread_cond_signal(&pool.done);
            pthread_mutex_unlock(&pool.sleep);
        }
        if (stop)
            return NULL;
    }
}

static void stop_workers(void)
{
    if (pool.started == 0)
        return;
    atomic_store(&pool.stop, true);
    announce();
    for (int i = 0; i < pool.started; i++)
        pthread_join(pool.thread[i], NULL);
    atomic_store(&pool.stop, false);
    pool.started = 0;
}

/* A thread the system refuses is a thread less: slower, not wrong. */
static void start_workers(int count)
{
    unsigned seen = atomic_load(&pool.number);
    while (pool.started < count) {
        start[pool.started] = (Start){.worker = pool.started + 1, .seen = seen};
        if (dsvi_thread_start(&pool.thread[pool.started], work, &start[pool.started]) != 0)
            return;
        pool.started++;
    }
}

void dsvi_threads_set(int count)
{
    int usable = count > 0 ? count : usable_cores();
    pthread_mutex_lock(&pool.busy);
    stop_workers();
    atomic_store(&wanted, usable < THREADS_MOST ? usable : THREADS_MOST);
    pthread_mutex_unlock(&pool.busy);
}

/* All pieces on this thread, in order. What a library called from fn makes of idle threads must not show. */
static void run_alone(const Loop *loop)
{
    int outside = omp_get_max_threads();
    omp_set_num_threads(1);
    for (int64_t piece = 0; piece < loop->pieces; piece++) {
        int64_t begin = piece * loop->grain;
        loop->fn(loop->context, begin, piece + 1 < loop->pieces ? begin + loop->grain : loop->n, 0);
    }
    omp_set_num_threads(outside);
}

static void run_shared(const Loop *loop)
{
    int outside = omp_get_max_threads();
    start_workers(dsvi_threads_count() - 1);
    pool.loop = *loop;
    atomic_store(&pool.next_piece, 0);
    omp_set_num_threads(1);
    announce();
    run_pieces(0);
    await_workers();
    omp_set_num_threads(outside);
}

void dsvi_parallel_for(int64_t n, int64_t grain, dsvi_range_fn *fn, void *context)
{
    if (n <= 0)
        return;
    if (grain < 1)
        grain = 1;
    Loop loop = {fn, context, n, grain, n / grain + (n % grain != 0)};
    /* A loop inside a loop, or beside one of another thread, finds the pool busy and does its own work. */
    if (loop.pieces == 1 || dsvi_threads_count() == 1 || pthread_mutex_trylock(&pool.busy) != 0) {
        run_alone(&loop);
        return;
    }
    run_shared(&loop);
    pthread_mutex_unlock(&pool.busy);
}
