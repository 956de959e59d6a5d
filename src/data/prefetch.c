/* See prefetch.h.
 *
 *        claimed                                 delivered
 *           |                                        |
 *     ... | 14 | 13 | 12 | 11 | 10 |  9 |  8 | 7 | 6 | ...      samples, newest left
 *           ^  in work ^   done   ^  in work  ^ done
 *
 * The n-th sample lives in slot n mod slots. Workers claim numbers in order while fewer than `slots` lie
 * between the two marks; dsvi_prefetch_next takes them in order, however their work ends. */
#include "data/prefetch.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread_start.h"
#include "data/clip_cache.h"
#include "data/latent_cache.h"

/* An item that could not be used for a sample. */
typedef struct Broken {
    int64_t item;
    char *line;
    struct Broken *next;
} Broken;

typedef struct Slot {
    bool done;
    DsvStatus status;
    char *message;       /* of status, when it is not DSV_OK */
    Broken *broken;      /* met on the way to this sample, newest first */
    int64_t passed_over; /* how many those were */
    const char *text;
    float *latent; /* (latent_elements) */
} Slot;

typedef struct Worker {
    struct DsvPrefetch *prefetch;
    pthread_t thread;
    float *pixels; /* (3, num_frames, height, width); NULL for cached latents */
} Worker;

struct DsvPrefetch {
    const DsvDataset *dataset;
    const DsvConfig *settings;
    DsvSampleSeries series;
    int64_t latent_elements;
    dsvi_encode_fn *encode;
    void *encode_context;
    void (*warn)(void *context, const char *line);
    void *warn_context;
    DsvClipCache *cache; /* NULL for cached latents */

    pthread_mutex_t lock; /* over what follows, but for the contents of claimed slots */
    pthread_cond_t room;  /* a slot was taken, or it is time to stop */
    pthread_cond_t ready; /* a slot is done */
    bool stop;
    uint64_t claimed, delivered;
    int64_t slot_count;
    Slot *slots;
    float *latents; /* (slot_count, latent_elements) */

    int64_t worker_count, started;
    Worker *workers;
    float *pixels; /* (worker_count, 3, num_frames, height, width) */
    size_t bytes;
    unsigned char *warned; /* (dataset->count): the item has been reported; by dsvi_prefetch_next alone */
};

/* Notes the failure this thread has just met. */
static DsvStatus note_broken(Slot *slot, int64_t item)
{
    Broken *broken = malloc(sizeof *broken);
    char *line = strdup(dsv_error_message());
    if (!broken || !line) {
        free(broken);
        free(line);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to report a broken item");
    }
    *broken = (Broken){item, line, slot->broken};
    slot->broken = broken;
    return DSV_OK;
}

static DsvStatus read_item(const Worker *worker, const DsvSampleRef *ref, float *latent)
{
    const DsvPrefetch *p = worker->prefetch;
    if (p->dataset->latents)
        return dsvi_latent_read(p->dataset->items[ref->item].path, p->latent_elements, latent);
    return dsvi_clip_cache_read(p->cache, ref, worker->pixels);
}

static uint64_t number_of(const DsvSampleSeries *series, uint64_t index)
{
    return series->first + index / series->run * series->stride + index % series->run;
}

/* Sample `number` into its slot, or what takes its place where it cannot be read. */
static DsvStatus prepare(const Worker *worker, uint64_t number, Slot *slot)
{
    const DsvPrefetch *p = worker->prefetch;
    int64_t tries = dsvi_dataset_tries(p->dataset);
    for (slot->passed_over = 0; slot->passed_over < tries; slot->passed_over++) {
        DsvSampleRef ref = dsvi_dataset_sample_again(p->dataset, p->settings, number, slot->passed_over);
        DsvStatus status = read_item(worker, &ref, slot->latent);
        if (status == DSV_OK) {
            slot->text = p->dataset->items[ref.item].text;
            return p->dataset->latents ? DSV_OK : p->encode(p->encode_context, worker->pixels, slot->latent);
        }
        if (!dsvi_dataset_is_broken(status))
            return status;
        DSVI_TRY(note_broken(slot, ref.item));
    }
    return DSVI_FAIL(DSV_E_NOT_FOUND, "%lld windows in a row cannot be read, the last: %s", (long long)tries,
                     slot->broken->line);
}

static void *work(void *context)
{
    const Worker *worker = context;
    DsvPrefetch *p = worker->prefetch;
    pthread_mutex_lock(&p->lock);
    while (!p->stop) {
        if (p->claimed - p->delivered >= (uint64_t)p->slot_count) {
            pthread_cond_wait(&p->room, &p->lock);
            continue;
        }
        uint64_t index = p->claimed++;
        Slot *slot = &p->slots[index % (uint64_t)p->slot_count];
        pthread_mutex_unlock(&p->lock);
        DsvStatus status = prepare(worker, number_of(&p->series, index), slot);
        if (status != DSV_OK)
            slot->message = strdup(dsv_error_message());
        pthread_mutex_lock(&p->lock);
        slot->status = status;
        slot->done = true;
        pthread_cond_signal(&p->ready);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* Reports, oldest first, the broken items of a slot that have not been reported, and forgets them. */
static void report_broken(DsvPrefetch *p, Broken **list)
{
    Broken *broken = *list;
    if (!broken)
        return;
    report_broken(p, &broken->next);
    if (!p->warned[broken->item] && p->warn)
        p->warn(p->warn_context, broken->line);
    p->warned[broken->item] = 1;
    free(broken->line);
    free(broken);
    *list = NULL;
}

DsvStatus dsvi_prefetch_next(DsvPrefetch *p, float *latent, const char **text, int64_t *passed_over)
{
    pthread_mutex_lock(&p->lock);
    Slot *slot = &p->slots[p->delivered % (uint64_t)p->slot_count];
    while (!slot->done)
        pthread_cond_wait(&p->ready, &p->lock);
    pthread_mutex_unlock(&p->lock);

    report_broken(p, &slot->broken);
    if (slot->status != DSV_OK) /* it stays there: no later sample can come before it */
        return dsvi_fail_adopt(slot->status, slot->message ? slot->message : "out of memory");
    memcpy(latent, slot->latent, (size_t)p->latent_elements * sizeof *latent);
    *text = slot->text;
    *passed_over = slot->passed_over;

    pthread_mutex_lock(&p->lock);
    slot->done = false;
    p->delivered++;
    pthread_cond_signal(&p->room);
    pthread_mutex_unlock(&p->lock);
    return DSV_OK;
}

size_t dsvi_prefetch_bytes(const DsvPrefetch *prefetch)
{
    return prefetch->bytes;
}

/* About ten frames were seen to be held by the decoding of one H.264 clip of 1280 x 720: those that others
 * refer to, those waiting for their turn, and the packets and tables around them. */
enum { DECODER_FRAMES = 10 };

/* What a decoder takes for the largest clip, for the preview of memory; 4:2:0 chroma, 8 bits. */
static size_t decoder_bytes(const DsvDataset *dataset)
{
    int64_t largest = 0;
    for (int64_t i = 0; i < dataset->count; i++) {
        int64_t pixels = dataset->items[i].info.width * dataset->items[i].info.height;
        if (pixels > largest)
            largest = pixels;
    }
    return (size_t)(DECODER_FRAMES * largest * 3 / 2);
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Numbers that a worker holds: the frames of a sample. */
static size_t worker_pixels(const DsvDataset *dataset, const DsvConfig *settings)
{
    return dataset->latents ? 0 : (size_t)(3 * settings->num_frames * settings->height * settings->width);
}

int64_t dsvi_prefetch_workers(const DsvDataset *dataset, const DsvConfig *settings, int64_t slots,
                              int64_t latent_elements, const DsvPrefetchShare *share)
{
    enum { WORKERS_MOST = 8 };
    size_t pixels = worker_pixels(dataset, settings), ring = (size_t)(slots * latent_elements);
    int64_t spare = share->computes ? 1 : smaller(share->cores / share->ranks - 1, WORKERS_MOST);
    int64_t workers = smaller(settings->data_workers > 0 ? settings->data_workers : spare, slots);
    uint64_t most = share->memory / 2 / sizeof(float) / (uint64_t)share->ranks;
    if (settings->data_workers > 0)
        return workers;
    while (workers > 1 && share->memory > 0 && ring + (size_t)workers * pixels > most)
        workers--;
    return workers > 1 ? workers : 1;
}

static DsvStatus allocate(DsvPrefetch *p)
{
    const DsvConfig *settings = p->settings;
    size_t frames = worker_pixels(p->dataset, settings);
    size_t slots = (size_t)p->slot_count, workers = (size_t)p->worker_count;
    size_t latent = (size_t)p->latent_elements, pixels = workers * frames;
    p->slots = calloc(slots, sizeof *p->slots);
    p->workers = calloc(workers, sizeof *p->workers);
    p->warned = calloc((size_t)p->dataset->count, 1);
    p->latents = malloc(slots * latent * sizeof(float));
    p->pixels = pixels ? malloc(pixels * sizeof(float)) : NULL;
    if (!p->slots || !p->workers || !p->warned || !p->latents || (pixels && !p->pixels))
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to hold %lld latents ahead: lower data.prefetch",
                         (long long)p->slot_count);
    for (size_t i = 0; i < slots; i++)
        p->slots[i].latent = p->latents + i * latent;
    for (size_t i = 0; i < workers; i++) {
        p->workers[i].prefetch = p;
        p->workers[i].pixels = pixels ? p->pixels + i * frames : NULL;
    }
    p->bytes = (slots * latent + pixels) * sizeof(float);
    if (!p->dataset->latents) {
        DSVI_TRY(dsvi_clip_cache_create(p->dataset, settings, &p->cache));
        p->bytes += dsvi_clip_cache_bytes(p->cache) + workers * decoder_bytes(p->dataset);
    }
    return DSV_OK;
}

DsvStatus dsvi_prefetch_start(const DsvDataset *dataset, const DsvConfig *settings,
                              DsvSampleSeries series, int64_t workers, int64_t slots,
                              int64_t latent_elements, dsvi_encode_fn *encode, void *encode_context,
                              void (*warn)(void *context, const char *line), void *warn_context,
                              DsvPrefetch **out)
{
    DsvStatus status;
    DsvPrefetch *p = calloc(1, sizeof *p);
    *out = NULL;
    if (!p)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to prepare samples ahead");
    *p = (DsvPrefetch){
        .dataset = dataset,
        .settings = settings,
        .series = series,
        .latent_elements = latent_elements,
        .encode = encode,
        .encode_context = encode_context,
        .warn = warn,
        .warn_context = warn_context,
        .slot_count = slots,
        .worker_count = smaller(workers, slots),
    };
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->room, NULL);
    pthread_cond_init(&p->ready, NULL);
    DSVI_TRY_GOTO(status, allocate(p), fail);
    for (; p->started < p->worker_count; p->started++) {
        int error = dsvi_thread_start(&p->workers[p->started].thread, work, &p->workers[p->started]);
        if (error) {
            status = DSVI_FAIL(DSV_E_NO_MEMORY, "cannot start decoding thread %lld of %lld: %s",
                               (long long)p->started + 1, (long long)p->worker_count, strerror(error));
            goto fail;
        }
    }
    *out = p;
    return DSV_OK;
fail:
    dsvi_prefetch_stop(&p);
    return status;
}

static void free_slot(Slot *slot)
{
    while (slot->broken) {
        Broken *next = slot->broken->next;
        free(slot->broken->line);
        free(slot->broken);
        slot->broken = next;
    }
    free(slot->message);
}

void dsvi_prefetch_stop(DsvPrefetch **prefetch)
{
    DsvPrefetch *p = *prefetch;
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->room);
    pthread_mutex_unlock(&p->lock);
    for (int64_t i = 0; i < p->started; i++)
        pthread_join(p->workers[i].thread, NULL);
    for (int64_t i = 0; p->slots && i < p->slot_count; i++)
        free_slot(&p->slots[i]);
    dsvi_clip_cache_free(&p->cache);
    pthread_cond_destroy(&p->ready);
    pthread_cond_destroy(&p->room);
    pthread_mutex_destroy(&p->lock);
    free(p->slots);
    free(p->workers);
    free(p->warned);
    free(p->latents);
    free(p->pixels);
    free(p);
    *prefetch = NULL;
}
