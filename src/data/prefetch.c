/* Implements prefetch.h: a ring of slots, each of which holds one sample.
 *
 *        claimed                                 delivered
 *           |                                        |
 *     ... | 14 | 13 | 12 | 11 | 10 |  9 |  8 | 7 | 6 | ...      samples, newest left
 *           ^  in work ^   done   ^  in work  ^ done
 *
 * The n-th sample uses slot n mod slots. Workers claim numbers in order while claimed - delivered is below
 * `slots`. dsvi_prefetch_next takes samples in order, whatever the order in which workers finish. */
#include "data/prefetch.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread_start.h"
#include "data/clip_cache.h"
#include "data/dataset_sizes.h"
#include "data/latent_cache.h"
#include "data/latent_tier.h"

/* An item that could not be read for a sample. */
typedef struct Broken {
    int64_t item;
    char *line;
    struct Broken *next;
} Broken;

typedef struct Slot {
    bool done;
    DsvStatus status;
    char *message;       /* error message, if status is not DSV_OK */
    Broken *broken;      /* unreadable items before this sample was found, newest first */
    int64_t elements;    /* of the latent */
    int64_t passed_over; /* number of unreadable windows */
    const char *caption;
    float *latent; /* (latent_elements) */
    float *text;   /* (text_rows, dataset->text.dim); NULL: text states are not read */
    int64_t text_rows;
} Slot;

typedef struct Worker {
    struct DsviPrefetch *prefetch;
    pthread_t thread;
    float *pixels; /* (3, frames, height, width) of the largest size; NULL for cached latents */
} Worker;

struct DsviPrefetch {
    const DsviDataset *dataset;
    const DsvConfig *config;
    DsviSampleSeries series;
    dsvi_sample_number_fn *number; /* or NULL */
    void *number_context;
    int64_t latent_elements;
    const int64_t *size_elements; /* or NULL */
    int64_t text_rows;            /* largest number of text states of a sample; 0: none are read */
    dsvi_encode_fn *encode;
    void *encode_context;
    void (*warn)(void *context, const char *line);
    void *warn_context;
    DsviClipCache *cache; /* NULL for cached latents */
    DsviLatentTier *tier; /* cached latents in memory; NULL: none are kept */

    pthread_mutex_t lock; /* protects the fields below, except the contents of claimed slots */
    pthread_cond_t room;  /* signalled when a slot became free or `stop` was set */
    pthread_cond_t ready; /* signalled when the sample of a slot is ready */
    bool stop;
    uint64_t claimed, delivered;
    int64_t slot_count;
    Slot *slots;
    float *latents; /* (slot_count, latent_elements) */
    float *texts;   /* (slot_count, text_rows, dataset->text.dim) or NULL */

    int64_t worker_count, started;
    Worker *workers;
    float *pixels; /* (worker_count, floats of the largest window) */
    size_t bytes;
    int64_t replaced; /* samples that took the place of unreadable ones; used only by dsvi_prefetch_next */
    unsigned char *warned; /* (dataset->count): the item was reported; used only by dsvi_prefetch_next */
};

/* Adds the last error of this thread to the slot's broken items. */
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

/* Reads the latent of a sample. place: what the tier decided for the sample; NULL: the sample is a
 * replacement, of which the tier does not know. */
static DsvStatus read_latent(const DsviPrefetch *p, const DsviSampleRef *ref, const DsviLatentPlace *place,
                             Slot *slot)
{
    const char *file = p->dataset->items[ref->item].path;
    return place ? dsvi_latent_tier_read(p->tier, *place, file, slot->elements, slot->latent)
                 : dsvi_latent_read(file, slot->elements, slot->latent);
}

static DsvStatus prefetch_read_item(const Worker *worker, const DsviSampleRef *ref,
                                    const DsviLatentPlace *place, Slot *slot)
{
    const DsviPrefetch *p = worker->prefetch;
    slot->text_rows = 0;
    slot->elements = p->size_elements ? p->size_elements[p->dataset->items[ref->item].size]
                                      : p->latent_elements;
    if (p->dataset->latents) /* first, because the tier waits for each of its decisions */
        DSVI_TRY(read_latent(p, ref, place, slot));
    if (slot->text)
        DSVI_TRY(dsvi_dataset_text_states(p->dataset, ref->item, ref->caption, p->text_rows, slot->text,
                                          &slot->text_rows));
    return p->dataset->latents ? DSV_OK : dsvi_clip_cache_read(p->cache, ref, worker->pixels);
}

static uint64_t prefetch_sample_number(const DsviPrefetch *p, uint64_t index)
{
    const DsviSampleSeries *series = &p->series;
    if (p->number)
        return p->number(p->number_context, index);
    return series->first + index / series->run * series->stride + index % series->run;
}

/* Fails because all windows that could be tried for a sample are unreadable; `last`: why the last one is. */
static DsvStatus nothing_readable(const DsviDataset *dataset, int64_t tries, const char *last)
{
    const char *advice = dataset->latents ? "; delete such files and encode the clips again" : "";
    if (dataset->latents && tries < DSVI_DATASET_TRIES_MAX)
        return DSVI_FAIL(DSV_E_NOT_FOUND, "none of the %lld windows%s can be read, the last: %s%s",
                         (long long)tries, dataset->order ? " of the sample's size" : "", last, advice);
    return DSVI_FAIL(DSV_E_NOT_FOUND, "%lld windows in a row cannot be read, the last: %s%s",
                     (long long)tries, last, advice);
}

/* Prepares sample `number`, or its replacement if the sample cannot be read, in its slot. place: as in
 * read_latent. */
static DsvStatus prefetch_prepare(const Worker *worker, uint64_t number, const DsviLatentPlace *place,
                                  Slot *slot)
{
    const DsviPrefetch *p = worker->prefetch;
    int64_t tries = dsvi_dataset_tries(p->dataset, dsvi_dataset_sample(p->dataset, p->config, number).item);
    for (slot->passed_over = 0; slot->passed_over < tries; slot->passed_over++) {
        DsviSampleRef ref = dsvi_dataset_sample_again(p->dataset, p->config, number, slot->passed_over);
        DsvStatus status = prefetch_read_item(worker, &ref, slot->passed_over == 0 ? place : NULL, slot);
        if (status == DSV_OK) {
            slot->caption = ref.caption < 0 ? NULL
                                            : p->dataset->items[ref.item].captions.at[ref.caption].text;
            return p->dataset->latents ? DSV_OK
                                       : p->encode(p->encode_context, p->dataset->items[ref.item].size,
                                                   worker->pixels, slot->latent);
        }
        if (!dsvi_dataset_is_broken(status))
            return status;
        DSVI_TRY(note_broken(slot, ref.item));
    }
    return nothing_readable(p->dataset, tries, slot->broken->line);
}

static void *prefetch_work(void *context)
{
    const Worker *worker = context;
    DsviPrefetch *p = worker->prefetch;
    pthread_mutex_lock(&p->lock);
    while (!p->stop) {
        if (p->claimed - p->delivered >= (uint64_t)p->slot_count) {
            pthread_cond_wait(&p->room, &p->lock);
            continue;
        }
        uint64_t index = p->claimed++;
        Slot *slot = &p->slots[index % (uint64_t)p->slot_count];
        DsviLatentPlace place;
        if (p->tier)
            place = dsvi_latent_tier_plan(p->tier);
        pthread_mutex_unlock(&p->lock);
        DsvStatus status = prefetch_prepare(worker, prefetch_sample_number(p, index), p->tier ? &place : NULL,
                                            slot);
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

/* Reports the broken items of a slot that were not reported yet, oldest first, and frees the list. */
static void report_broken(DsviPrefetch *p, Broken **list)
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

DsvStatus dsvi_prefetch_next(DsviPrefetch *p, DsviSample *sample)
{
    pthread_mutex_lock(&p->lock);
    Slot *slot = &p->slots[p->delivered % (uint64_t)p->slot_count];
    while (!slot->done)
        pthread_cond_wait(&p->ready, &p->lock);
    pthread_mutex_unlock(&p->lock);

    report_broken(p, &slot->broken);
    p->replaced += slot->status == DSV_OK && slot->passed_over > 0;
    if (slot->status != DSV_OK) /* `done` stays set, so that every later call returns this failure too */
        return dsvi_fail_adopt(slot->status, slot->message ? slot->message : "out of memory");
    memcpy(sample->latent, slot->latent, (size_t)slot->elements * sizeof *sample->latent);
    if (slot->text)
        memcpy(sample->text, slot->text,
               (size_t)(slot->text_rows * p->dataset->text.dim) * sizeof *sample->text);
    sample->text_rows = slot->text_rows;
    sample->caption = slot->caption;
    sample->passed_over = slot->passed_over;

    pthread_mutex_lock(&p->lock);
    slot->done = false;
    p->delivered++;
    pthread_cond_signal(&p->room);
    pthread_mutex_unlock(&p->lock);
    return DSV_OK;
}

int64_t dsvi_prefetch_replaced(const DsviPrefetch *p)
{
    return p->replaced;
}

size_t dsvi_prefetch_bytes(const DsviPrefetch *prefetch)
{
    return prefetch->bytes;
}

/* A decoder held about ten frames in a measurement with an H.264 clip of 1280 x 720: reference frames, frames
 * that wait for output, and the packets and tables around them. */
enum { DECODER_FRAMES = 10 };

/* Returns the estimated bytes of a decoder for the largest clip, for the memory plan; 4:2:0 chroma, 8
 * bits. */
static size_t decoder_bytes(const DsviDataset *dataset)
{
    int64_t largest = 0;
    for (int64_t i = 0; i < dataset->count; i++) {
        int64_t pixels = dataset->items[i].info.width * dataset->items[i].info.height;
        if (pixels > largest)
            largest = pixels;
    }
    return (size_t)(DECODER_FRAMES * largest * 3 / 2);
}

static int64_t prefetch_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Returns the number of floats that a worker needs for the frames of a sample. */
static size_t worker_pixels(const DsviDataset *dataset, const DsvConfig *config)
{
    int64_t most = 0;
    for (int64_t i = 0; i < dataset->count && !dataset->latents; i++) {
        DsviClipSize size = dsvi_dataset_size(dataset, config, i);
        int64_t pixels = 3 * size.frames * size.height * size.width;
        most = pixels > most ? pixels : most;
    }
    return (size_t)most;
}

int64_t dsvi_prefetch_workers(const DsviDataset *dataset, const DsvConfig *config, int64_t slots,
                              int64_t latent_elements, const DsviPrefetchResources *share)
{
    enum { WORKERS_MAX = 8 };
    size_t pixels = worker_pixels(dataset, config), ring = (size_t)(slots * latent_elements);
    int64_t spare = share->computes ? 1 : prefetch_min(share->cores / share->ranks - 1, WORKERS_MAX);
    int64_t workers = prefetch_min(config->data_workers > 0 ? config->data_workers : spare, slots);
    uint64_t limit = share->memory / 2 / sizeof(float) / (uint64_t)share->ranks;
    if (config->data_workers > 0)
        return workers;
    while (workers > 1 && share->memory > 0 && ring + (size_t)workers * pixels > limit)
        workers--;
    return workers > 1 ? workers : 1;
}

static int64_t item_of_sample(void *context, uint64_t index)
{
    const DsviPrefetch *p = context;
    return dsvi_dataset_sample(p->dataset, p->config, prefetch_sample_number(p, index)).item;
}

static int64_t elements_of_item(void *context, int64_t item)
{
    const DsviPrefetch *p = context;
    return p->size_elements ? p->size_elements[p->dataset->items[item].size] : p->latent_elements;
}

/* Creates the tier of latents in memory, of at most data.cache_mb. */
static DsvStatus make_tier(DsviPrefetch *p)
{
    enum { AHEAD_MAX = 1 << 18 };
    size_t most = (size_t)p->config->data_cache_mb << 20, all = 0;
    const DsviLatentTierArgs args = {.bytes_max = most,
                                     .items = p->dataset->count,
                                     .ahead = prefetch_min(2 * p->dataset->count, AHEAD_MAX),
                                     .item_of = item_of_sample,
                                     .elements_of = elements_of_item,
                                     .context = p};
    if (most == 0)
        return DSV_OK;
    for (int64_t i = 0; i < p->dataset->count; i++)
        all += (size_t)elements_of_item(p, i) * sizeof(float);
    p->bytes += all < most ? all : most;
    return dsvi_latent_tier_create(&args, &p->tier);
}

static DsvStatus prefetch_allocate(DsviPrefetch *p)
{
    const DsvConfig *config = p->config;
    size_t frames = worker_pixels(p->dataset, config);
    size_t slots = (size_t)p->slot_count, workers = (size_t)p->worker_count;
    size_t latent = (size_t)p->latent_elements, pixels = workers * frames;
    size_t text = (size_t)(p->text_rows * p->dataset->text.dim);
    p->slots = calloc(slots, sizeof *p->slots);
    p->workers = calloc(workers, sizeof *p->workers);
    p->warned = calloc((size_t)p->dataset->count, 1);
    p->latents = malloc(slots * latent * sizeof(float));
    p->pixels = pixels ? malloc(pixels * sizeof(float)) : NULL;
    p->texts = text ? malloc(slots * text * sizeof(float)) : NULL;
    if (!p->slots || !p->workers || !p->warned || !p->latents || (pixels && !p->pixels) ||
        (text && !p->texts))
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to hold %lld latents ahead: lower data.prefetch",
                         (long long)p->slot_count);
    for (size_t i = 0; i < slots; i++) {
        p->slots[i].latent = p->latents + i * latent;
        p->slots[i].text = text ? p->texts + i * text : NULL;
    }
    for (size_t i = 0; i < workers; i++) {
        p->workers[i].prefetch = p;
        p->workers[i].pixels = pixels ? p->pixels + i * frames : NULL;
    }
    p->bytes = (slots * (latent + text) + pixels) * sizeof(float);
    if (p->dataset->latents)
        DSVI_TRY(make_tier(p));
    if (!p->dataset->latents) {
        DSVI_TRY(dsvi_clip_cache_create(p->dataset, config, &p->cache));
        p->bytes += dsvi_clip_cache_bytes(p->cache) + workers * decoder_bytes(p->dataset);
    }
    return DSV_OK;
}

DsvStatus dsvi_prefetch_start(const DsviPrefetchArgs *args, DsviPrefetch **out)
{
    DsvStatus status;
    DsviPrefetch *p = calloc(1, sizeof *p);
    *out = NULL;
    if (!p)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to prepare samples ahead");
    *p = (DsviPrefetch){
        .dataset = args->dataset,
        .config = args->config,
        .series = args->series,
        .number = args->number,
        .number_context = args->number_context,
        .size_elements = args->size_elements,
        .latent_elements = args->latent_elements,
        .text_rows = args->text_rows,
        .encode = args->encode,
        .encode_context = args->encode_context,
        .warn = args->warn,
        .warn_context = args->warn_context,
        .slot_count = args->slots,
        .worker_count = prefetch_min(args->workers, args->slots),
    };
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->room, NULL);
    pthread_cond_init(&p->ready, NULL);
    DSVI_TRY_GOTO(status, prefetch_allocate(p), fail);
    for (; p->started < p->worker_count; p->started++) {
        int error = dsvi_thread_start(&p->workers[p->started].thread, prefetch_work, &p->workers[p->started]);
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

void dsvi_prefetch_stop(DsviPrefetch **prefetch)
{
    DsviPrefetch *p = *prefetch;
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
    dsvi_latent_tier_free(&p->tier);
    pthread_cond_destroy(&p->ready);
    pthread_cond_destroy(&p->room);
    pthread_mutex_destroy(&p->lock);
    free(p->slots);
    free(p->workers);
    free(p->warned);
    free(p->latents);
    free(p->texts);
    free(p->pixels);
    free(p);
    *prefetch = NULL;
}
