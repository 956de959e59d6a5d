/* Implements encode_windows.h. A ring of slots holds the windows that are in work; window n uses slot n mod
 * slots. A slot goes through these states; the thread that is named takes it from one to the next:
 *
 *     free --decoding thread--> reading --> read --calling thread--> encoding --> encoded
 *     encoded --decoding thread--> writing --> done --calling thread--> free
 *
 * With a parallel encoder the decoding thread does all steps from reading to done. Pixels take most of the
 * memory, so they have a pool of their own: a slot has pixels from reading until it is encoded. Outcomes are
 * reported in order, whatever the order in which windows become done. */
#include "encode/encode_windows.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/host.h"
#include "base/thread_start.h"
#include "data/dataset.h"
#include "data/picture.h"

#define FLUSH_SECONDS 10.0 /* between two writes of the index, because each rewrites all of it */

typedef enum SlotState { FREE, READING, READ, ENCODING, ENCODED, WRITING, DONE } SlotState;

typedef struct EncodeSlot {
    SlotState state;
    DsvStatus status;
    DsviWindowOutcome outcome;
    char message[DSVI_MESSAGE_BYTES]; /* of a failure */
    float *pixels;                    /* from the pool, or NULL */
    float *latent;
} EncodeSlot;

typedef struct WindowsJob {
    const DsviEncodeWindowsArgs *args;
    const DsviWindowEncoder *encoder;
    int64_t slot_count, latent_elements;
    float *pixels, *latents; /* all of them */
    pthread_t *threads;
    int started;

    pthread_mutex_t lock; /* protects the fields below, and the slots' states */
    pthread_cond_t work;  /* signalled when a decoding thread may have something to do */
    pthread_cond_t ready; /* signalled when the calling thread may have something to do */
    EncodeSlot *slots;
    float **pool; /* (pooled) unused pixels */
    int64_t pooled;
    int64_t claimed, handled; /* windows that were begun, and whose outcome was reported */
    bool stop;                /* no window is begun or encoded any more */
    bool flushing;
    double flushed; /* clock when the index was last written */
    DsvStatus flush_status;
    char flush_message[DSVI_MESSAGE_BYTES];
    DsviEncodeTimes times;
    double first; /* clock when the first window was read that the cache did not have; NAN: none yet */
} WindowsJob;

static EncodeSlot *slot_of(const WindowsJob *job, int64_t window)
{
    return &job->slots[window % job->slot_count];
}

/* Returns the first window in work whose slot has this state, or -1. */
static int64_t window_in_state(const WindowsJob *job, SlotState state)
{
    for (int64_t window = job->handled; window < job->claimed; window++)
        if (slot_of(job, window)->state == state)
            return window;
    return -1;
}

/* Stores the failure of the calling thread in the slot. */
static void slot_fail(EncodeSlot *slot, DsvStatus status)
{
    slot->status = status;
    snprintf(slot->message, sizeof slot->message, "%s", dsv_error_message());
}

/* ---- Steps, without the lock ---- */

/* Reads the pixels of a window and, if the encoder takes it, the picture after them. */
static DsvStatus read_pixels(const DsviWindowEncoder *encoder, const DsviEncodeWindow *w, float *pixels)
{
    enum { COLOURS = 3 };
    size_t frame = (size_t)(w->window.height * w->window.width), frames = (size_t)w->window.frames;
    float *picture = pixels + COLOURS * frames * frame;
    int64_t height, width;
    DSVI_TRY(dsvi_clip_read(w->source->path, &w->window, pixels));
    if (!encoder->pictures)
        return DSV_OK;
    if (w->source->image)
        return dsvi_picture_read(w->source->image, w->window.height, w->window.width, picture, &height,
                                 &width);
    for (size_t c = 0; c < COLOURS; c++)
        memcpy(picture + c * frame, pixels + c * frames * frame, frame * sizeof *picture);
    return DSV_OK;
}

/* Reads the pixels of a window that the cache does not have. Returns the next state of the slot. */
static SlotState read_window(WindowsJob *job, int64_t window, EncodeSlot *slot)
{
    const DsviEncodeWindow *w = &job->args->windows[window];
    slot->status = DSV_OK;
    slot->outcome = DSVI_WINDOW_ENCODED;
    if (dsvi_latent_cache_has(job->args->cache, w->source->path, &w->window) ||
        dsvi_latent_cache_recover(job->args->cache, w->source, &w->window, job->encoder->shapes[w->size])) {
        slot->outcome = DSVI_WINDOW_KEPT;
        return DONE;
    }
    DsvStatus status = read_pixels(job->encoder, w, slot->pixels);
    if (status == DSV_OK)
        return READ;
    slot_fail(slot, status);
    if (dsvi_dataset_is_broken(status)) {
        slot->status = DSV_OK;
        slot->outcome = DSVI_WINDOW_UNREADABLE;
    }
    return DONE;
}

static SlotState encode_one_window(WindowsJob *job, int64_t window, EncodeSlot *slot, double *busy)
{
    double start = dsvi_clock_seconds();
    DsvStatus status = job->encoder->encode(job->encoder->context, job->args->windows[window].size,
                                            slot->pixels, slot->latent);
    *busy = dsvi_clock_seconds() - start;
    if (status == DSV_OK)
        return ENCODED;
    slot_fail(slot, status);
    return DONE;
}

static void write_window(WindowsJob *job, int64_t window, EncodeSlot *slot)
{
    const DsviEncodeWindow *w = &job->args->windows[window];
    DsvStatus status = dsvi_latent_cache_put(job->args->cache, w->source, &w->window,
                                             job->encoder->shapes[w->size], slot->latent);
    if (status != DSV_OK)
        slot_fail(slot, status);
}

/* ---- Decoding threads ---- */

static void return_pixels(WindowsJob *job, EncodeSlot *slot)
{
    if (slot->pixels)
        job->pool[job->pooled++] = slot->pixels;
    slot->pixels = NULL;
}

/* Enters the result of a step, with the lock held. */
static void windows_advance(WindowsJob *job, EncodeSlot *slot, SlotState state)
{
    slot->state = state;
    if (state == ENCODED || state == DONE)
        return_pixels(job, slot);
    pthread_cond_signal(&job->ready);
    pthread_cond_broadcast(&job->work);
}

/* Begins the next window: reads it, and encodes and writes it, too, if the encoder is parallel. Called with
 * the lock held, which is released meanwhile. */
static void windows_begin_next(WindowsJob *job)
{
    int64_t window = job->claimed++;
    double busy = 0;
    EncodeSlot *slot = slot_of(job, window);
    slot->state = READING;
    slot->pixels = job->pool[--job->pooled];
    pthread_mutex_unlock(&job->lock);
    double start = dsvi_clock_seconds();
    SlotState state = read_window(job, window, slot);
    bool was_read = state == READ;
    if (was_read && job->encoder->parallel) {
        state = encode_one_window(job, window, slot, &busy);
        if (state == ENCODED)
            write_window(job, window, slot);
        state = DONE;
    }
    pthread_mutex_lock(&job->lock);
    if (was_read && !(job->first <= start))
        job->first = start;
    job->times.busy += busy;
    windows_advance(job, slot, state);
}

static void windows_write(WindowsJob *job, int64_t window)
{
    EncodeSlot *slot = slot_of(job, window);
    slot->state = WRITING;
    pthread_mutex_unlock(&job->lock);
    write_window(job, window, slot);
    pthread_mutex_lock(&job->lock);
    windows_advance(job, slot, DONE);
}

static void windows_flush(WindowsJob *job)
{
    job->flushing = true;
    pthread_mutex_unlock(&job->lock);
    DsvStatus status = dsvi_latent_cache_flush(job->args->cache);
    pthread_mutex_lock(&job->lock);
    if (status != DSV_OK && job->flush_status == DSV_OK) {
        job->flush_status = status;
        snprintf(job->flush_message, sizeof job->flush_message, "%s", dsv_error_message());
    }
    job->flushed = dsvi_clock_seconds();
    job->flushing = false;
    pthread_cond_signal(&job->ready);
}

static void *windows_thread(void *context)
{
    WindowsJob *job = context;
    pthread_mutex_lock(&job->lock);
    for (;;) {
        int64_t encoded = window_in_state(job, ENCODED);
        bool room = job->claimed < job->args->count && job->claimed - job->handled < job->slot_count;
        if (encoded >= 0)
            windows_write(job, encoded);
        else if (!job->flushing && dsvi_clock_seconds() - job->flushed > FLUSH_SECONDS)
            windows_flush(job);
        else if (job->stop)
            break;
        else if (room && job->pooled > 0)
            windows_begin_next(job);
        else
            pthread_cond_wait(&job->work, &job->lock);
    }
    pthread_mutex_unlock(&job->lock);
    return NULL;
}

/* ---- The calling thread ---- */

/* first: job->first, NAN if no window was encoded yet */
static void windows_progress(const WindowsJob *job, double first)
{
    int64_t encoded = job->times.encoded;
    DsvProgress progress = {.unit = "window", .done = job->handled, .total = job->args->count};
    double each = encoded ? (dsvi_clock_seconds() - first) / (double)encoded : NAN;
    progress.step_ms = encoded ? 1e3 * each : 0;
    progress.seconds_left = each * (double)(progress.total - progress.done);
    if (job->args->events->progress)
        job->args->events->progress(job->args->events->context, &progress);
}

/* Reports the outcome of a window that is done. Called with the lock held, which is released meanwhile: the
 * slot belongs to the calling thread. */
static DsvStatus windows_handle(WindowsJob *job, EncodeSlot *slot)
{
    const DsviEncodeWindowsArgs *args = job->args;
    const DsvEvents *events = args->events;
    DsvStatus status = DSV_OK;
    if (job->flush_status != DSV_OK)
        return dsvi_fail_adopt(job->flush_status, job->flush_message);
    if (slot->status != DSV_OK)
        return dsvi_fail_adopt(slot->status, slot->message);
    job->times.encoded += slot->outcome == DSVI_WINDOW_ENCODED;
    int64_t window = job->handled;
    pthread_mutex_unlock(&job->lock);
    args->outcome(args->context, window, slot->outcome,
                  slot->outcome == DSVI_WINDOW_UNREADABLE ? slot->message : NULL);
    pthread_mutex_lock(&job->lock);
    slot->state = FREE;
    job->handled++;
    double first = job->first;
    pthread_cond_broadcast(&job->work);
    pthread_mutex_unlock(&job->lock);
    windows_progress(job, first);
    if (job->handled < args->count && events->stop && events->stop(events->context))
        status = DSVI_FAIL(DSV_E_INTERRUPTED, "stopped after %lld of %lld windows; the same command goes on",
                           (long long)job->handled, (long long)args->count);
    pthread_mutex_lock(&job->lock);
    return status;
}

static void windows_encode(WindowsJob *job, int64_t window)
{
    double busy;
    EncodeSlot *slot = slot_of(job, window);
    slot->state = ENCODING;
    pthread_mutex_unlock(&job->lock);
    SlotState state = encode_one_window(job, window, slot, &busy);
    pthread_mutex_lock(&job->lock);
    job->times.busy += busy;
    windows_advance(job, slot, state);
}

static DsvStatus windows_run(WindowsJob *job)
{
    DsvStatus status = DSV_OK;
    pthread_mutex_lock(&job->lock);
    while (job->handled < job->args->count && status == DSV_OK) {
        EncodeSlot *next = slot_of(job, job->handled);
        int64_t read = window_in_state(job, READ);
        if (job->claimed > job->handled && next->state == DONE)
            status = windows_handle(job, next);
        else if (read >= 0)
            windows_encode(job, read);
        else
            pthread_cond_wait(&job->ready, &job->lock);
    }
    job->stop = true;
    pthread_cond_broadcast(&job->work);
    pthread_mutex_unlock(&job->lock);
    return status;
}

static DsvStatus windows_allocate(WindowsJob *job)
{
    const DsviEncodeWindowsArgs *args = job->args;
    size_t ahead = (size_t)args->ahead;
    job->slot_count = 2 * (args->ahead + args->threads);
    for (int64_t i = 0; i < job->encoder->size_count; i++) {
        const int64_t *shape = job->encoder->shapes[i];
        int64_t elements = shape[0] * shape[1] * shape[2] * shape[3] + job->encoder->states;
        job->latent_elements = elements > job->latent_elements ? elements : job->latent_elements;
    }
    job->pixels = malloc(ahead * (size_t)job->encoder->pixels * sizeof(float));
    job->latents = malloc((size_t)(job->slot_count * job->latent_elements) * sizeof(float));
    job->slots = calloc((size_t)job->slot_count, sizeof *job->slots);
    job->pool = calloc(ahead, sizeof *job->pool);
    job->threads = calloc((size_t)args->threads, sizeof *job->threads);
    if (!job->pixels || !job->latents || !job->slots || !job->pool || !job->threads)
        return DSVI_FAIL(
            DSV_E_NO_MEMORY,
            "no memory for the frames of %lld windows of %.1f GiB: lower threads or data.workers",
            (long long)args->ahead, (double)job->encoder->pixels * sizeof(float) / 1073741824.0);
    for (int64_t i = 0; i < job->slot_count; i++)
        job->slots[i].latent = job->latents + i * job->latent_elements;
    for (; job->pooled < args->ahead; job->pooled++)
        job->pool[job->pooled] = job->pixels + job->pooled * job->encoder->pixels;
    return DSV_OK;
}

static DsvStatus windows_start(WindowsJob *job)
{
    int error = 0;
    while (job->started < job->args->threads && error == 0) {
        error = dsvi_thread_start(&job->threads[job->started], windows_thread, job);
        job->started += error == 0;
    }
    return job->started > 0
               ? DSV_OK
               : DSVI_FAIL(DSV_E_NO_MEMORY, "cannot start a decoding thread: %s", strerror(error));
}

DsvStatus dsvi_encode_windows(const DsviEncodeWindowsArgs *args, DsviEncodeTimes *times)
{
    DsvStatus status;
    WindowsJob job = {.args = args, .encoder = args->encoder, .first = NAN};
    double worked = args->encoder->worked ? args->encoder->worked(args->encoder->context) : 0;
    job.flushed = dsvi_clock_seconds();
    pthread_mutex_init(&job.lock, NULL);
    pthread_cond_init(&job.work, NULL);
    pthread_cond_init(&job.ready, NULL);
    DSVI_TRY_GOTO(status, windows_allocate(&job), done);
    DSVI_TRY_GOTO(status, windows_start(&job), done);
    status = windows_run(&job);
done:
    for (int i = 0; i < job.started; i++)
        pthread_join(job.threads[i], NULL);
    if (status == DSV_OK || status == DSV_E_INTERRUPTED) {
        DsvStatus flushed = dsvi_latent_cache_flush(args->cache);
        status = flushed == DSV_OK ? status : flushed;
    }
    if (args->encoder->worked)
        job.times.busy = args->encoder->worked(args->encoder->context) - worked;
    job.times.seconds = job.times.encoded ? dsvi_clock_seconds() - job.first : 0;
    *times = job.times;
    pthread_cond_destroy(&job.ready);
    pthread_cond_destroy(&job.work);
    pthread_mutex_destroy(&job.lock);
    free(job.pixels);
    free(job.latents);
    free(job.slots);
    free(job.pool);
    free(job.threads);
    return status;
}
