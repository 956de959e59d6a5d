/* The pool of compute threads: POSIX threads that spin for a moment when they have no work, and then sleep.
 *
 * OpenMP's pool is not used because its threads spin for milliseconds after each loop: they would take CPU
 * time from threads that decode clips, and from other programs. Libraries that use OpenMP (oneDNN) are called
 * only from inside a loop of this pool, with one thread each, so that no second pool exists. */
#include "base/threads.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include <omp.h>

#include "base/host.h"
#include "base/thread_start.h"

enum { THREADS_MAX = 1024, SPINS_BEFORE_SLEEP = 2000 };

typedef struct Loop {
    dsvi_range_fn *fn;
    void *context;
    int64_t n, grain, pieces;
} Loop;

static struct {
    pthread_mutex_t busy;  /* held during a parallel loop, and while the pool is changed */
    pthread_mutex_t sleep; /* guards the two condition variables */
    pthread_cond_t work, done;
    pthread_t thread[THREADS_MAX];
    int started; /* running threads, without the thread that calls dsvi_parallel_for */
    Loop loop;
    _Atomic int64_t next_piece;
    atomic_int unfinished; /* threads that have not finished the current loop */
    atomic_uint number;    /* number of the current loop; a new number wakes the threads */
    atomic_bool stop;
} pool = {.busy = PTHREAD_MUTEX_INITIALIZER,
          .sleep = PTHREAD_MUTEX_INITIALIZER,
          .work = PTHREAD_COND_INITIALIZER,
          .done = PTHREAD_COND_INITIALIZER};

static atomic_int requested; /* number of threads, the caller included; 0: not decided yet */

static int usable_cores(void)
{
    int count = dsvi_usable_cores();
    return count < THREADS_MAX ? count : THREADS_MAX;
}

int dsvi_threads_count(void)
{
    int count = atomic_load(&requested);
    if (count == 0) { /* the first answer stays valid, because callers allocate arrays of this size, indexed
                         by worker */
        count = usable_cores();
        atomic_store(&requested, count);
    }
    return count;
}

static void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Processes pieces of the current loop until none are left. */
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

/* Waits until the current loop has another number than `seen`; returns the new number. */
static unsigned await_loop(unsigned seen)
{
    for (int spin = 0; spin < SPINS_BEFORE_SLEEP; spin++) {
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
    for (int spin = 0; spin < SPINS_BEFORE_SLEEP; spin++) {
        if (atomic_load(&pool.unfinished) == 0)
            return;
        pause_briefly();
    }
    pthread_mutex_lock(&pool.sleep);
    while (atomic_load(&pool.unfinished) > 0)
        pthread_cond_wait(&pool.done, &pool.sleep);
    pthread_mutex_unlock(&pool.sleep);
}

/* Wakes all threads, sleeping and spinning, for a new loop or for shutdown (pool.stop). */
static void wake_workers(void)
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

static Start start[THREADS_MAX];

static void *pool_thread(void *argument)
{
    const Start *mine = argument;
    int worker = mine->worker;
    unsigned seen = mine->seen;
    omp_set_num_threads(1); /* applies to the calling thread only */
    for (;;) {
        seen = await_loop(seen);
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
    wake_workers();
    for (int i = 0; i < pool.started; i++)
        pthread_join(pool.thread[i], NULL);
    atomic_store(&pool.stop, false);
    pool.started = 0;
}

/* Starts the pool's threads. If the system refuses a thread, the pool works with fewer threads: slower, but
   correct. */
static void start_workers(int count)
{
    unsigned seen = atomic_load(&pool.number);
    while (pool.started < count) {
        start[pool.started] = (Start){.worker = pool.started + 1, .seen = seen};
        if (dsvi_thread_start(&pool.thread[pool.started], pool_thread, &start[pool.started]) != 0)
            return;
        pool.started++;
    }
}

void dsvi_threads_set(int count)
{
    int usable = count > 0 ? count : usable_cores();
    pthread_mutex_lock(&pool.busy);
    stop_workers();
    atomic_store(&requested, usable < THREADS_MAX ? usable : THREADS_MAX);
    pthread_mutex_unlock(&pool.busy);
}

/* Processes all pieces on the calling thread, in order. OpenMP in libraries is limited to one thread here
 * too, so that their results do not depend on whether a loop runs in parallel. */
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

static void run_parallel(const Loop *loop)
{
    int outside = omp_get_max_threads();
    start_workers(dsvi_threads_count() - 1);
    pool.loop = *loop;
    atomic_store(&pool.next_piece, 0);
    omp_set_num_threads(1);
    wake_workers();
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
    /* A nested loop, or a second loop of another thread, finds the pool busy and runs on its caller. */
    if (loop.pieces == 1 || dsvi_threads_count() == 1 || pthread_mutex_trylock(&pool.busy) != 0) {
        run_alone(&loop);
        return;
    }
    run_parallel(&loop);
    pthread_mutex_unlock(&pool.busy);
}
