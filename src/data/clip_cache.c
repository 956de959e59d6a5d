/* See clip_cache.h. */
#include "data/clip_cache.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

/* A longer clip is never kept: its first window would wait for all of it to be decoded. */
#define KEPT_SECONDS_MAX 120.0

typedef enum KeptState {
    KEPT_NOT,   /* decoded anew for each window: no room, too long, or damaged somewhere */
    KEPT_EMPTY, /* has its room, not decoded yet */
    KEPT_FILLING,
    KEPT_FULL
} KeptState;

typedef struct KeptClip {
    KeptState state;
    int64_t frames, height, width;
    uint8_t *rgb; /* (frames, height, width, 3), inside the cache's memory */
} KeptClip;

struct DsvClipCache {
    const DsvDataset *dataset;
    const DsvConfig *settings;
    pthread_mutex_t lock;   /* over the states */
    pthread_cond_t changed; /* a clip is no longer FILLING */
    KeptClip *clips;        /* (dataset->count) */
    uint8_t *memory;
    size_t bytes;
};

static size_t clip_bytes(const KeptClip *clip)
{
    return (size_t)(3 * clip->frames * clip->height * clip->width);
}

/* What each clip would take; 0 frames: it is not to be kept. */
static void size_up(DsvClipCache *cache)
{
    const DsvConfig *settings = cache->settings;
    for (int64_t i = 0; i < cache->dataset->count; i++) {
        const DsvDatasetItem *item = &cache->dataset->items[i];
        KeptClip *clip = &cache->clips[i];
        if (item->info.seconds > KEPT_SECONDS_MAX ||
            dsvi_clip_cover(item->path, item->info.height, item->info.width, settings->height,
                            settings->width, &clip->height, &clip->width) != DSV_OK)
            continue;
        clip->frames = dsvi_clip_grid(&item->info, settings->fps);
        if (clip->frames < settings->num_frames)
            clip->frames = settings->num_frames; /* the last frame repeated, as dsvi_clip_read does */
    }
}

static int by_size(const void *a, const void *b)
{
    const KeptClip *x = *(KeptClip *const *)a, *y = *(KeptClip *const *)b;
    size_t left = clip_bytes(x), right = clip_bytes(y);
    if (left != right)
        return left < right ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* Gives room to the shortest clips: most of them fit that way, and they are decoded soonest. */
static DsvStatus share_out(DsvClipCache *cache)
{
    size_t limit = (size_t)cache->settings->data_cache_mb << 20;
    int64_t count = cache->dataset->count;
    KeptClip **order = malloc((size_t)count * sizeof *order);
    if (!order)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to order %lld clips", (long long)count);
    for (int64_t i = 0; i < count; i++)
        order[i] = &cache->clips[i];
    qsort(order, (size_t)count, sizeof *order, by_size);
    for (int64_t i = 0; i < count; i++) {
        size_t bytes = clip_bytes(order[i]);
        if (bytes == 0)
            continue;
        if (bytes > limit - cache->bytes)
            break;
        order[i]->state = KEPT_EMPTY;
        cache->bytes += bytes;
    }
    free(order);
    cache->memory = cache->bytes ? malloc(cache->bytes) : NULL;
    if (cache->bytes && !cache->memory)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %zu MiB of decoded clips: lower data.cache_mb",
                         cache->bytes >> 20);
    uint8_t *next = cache->memory;
    for (int64_t i = 0; i < count; i++) {
        if (cache->clips[i].state == KEPT_EMPTY) {
            cache->clips[i].rgb = next;
            next += clip_bytes(&cache->clips[i]);
        }
    }
    return DSV_OK;
}

DsvStatus dsvi_clip_cache_create(const DsvDataset *dataset, const DsvConfig *settings, DsvClipCache **out)
{
    DsvStatus status;
    DsvClipCache *cache = calloc(1, sizeof *cache);
    *out = NULL;
    if (!cache)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a cache of clips");
    cache->dataset = dataset;
    cache->settings = settings;
    pthread_mutex_init(&cache->lock, NULL);
    pthread_cond_init(&cache->changed, NULL);
    cache->clips = calloc((size_t)dataset->count, sizeof *cache->clips);
    if (!cache->clips) {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a cache of %lld clips", (long long)dataset->count);
        goto fail;
    }
    size_up(cache);
    DSVI_TRY_GOTO(status, share_out(cache), fail);
    *out = cache;
    return DSV_OK;
fail:
    dsvi_clip_cache_free(&cache);
    return status;
}

void dsvi_clip_cache_free(DsvClipCache **cache)
{
    DsvClipCache *c = *cache;
    if (!c)
        return;
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    free(c->clips);
    free(c->memory);
    free(c);
    *cache = NULL;
}

size_t dsvi_clip_cache_bytes(const DsvClipCache *cache)
{
    return cache->bytes;
}

/* Decodes the whole clip. One that ends or breaks before its last window could start is not kept, so that its
 * windows fail, or not, just as without a cache. */
static KeptState fill(const DsvClipCache *cache, int64_t item, const KeptClip *clip)
{
    const DsvConfig *settings = cache->settings;
    DsvClipWindow whole = {
        .start = 0,
        .fps = settings->fps,
        .frames = clip->frames,
        .height = settings->height,
        .width = settings->width,
    };
    int64_t covered;
    DsvStatus status = dsvi_clip_read_rgb(cache->dataset->items[item].path, &whole, clip->height, clip->width,
                                          clip->rgb, &covered);
    return status == DSV_OK && covered > clip->frames - settings->num_frames ? KEPT_FULL : KEPT_NOT;
}

/* KEPT_NOT or KEPT_FULL, after decoding the clip or waiting for the thread that does. */
static KeptState settle(DsvClipCache *cache, int64_t item)
{
    KeptClip *clip = &cache->clips[item];
    pthread_mutex_lock(&cache->lock);
    while (clip->state == KEPT_FILLING)
        pthread_cond_wait(&cache->changed, &cache->lock);
    if (clip->state == KEPT_EMPTY) {
        clip->state = KEPT_FILLING;
        pthread_mutex_unlock(&cache->lock);
        KeptState state = fill(cache, item, clip);
        pthread_mutex_lock(&cache->lock);
        clip->state = state;
        pthread_cond_broadcast(&cache->changed);
    }
    KeptState state = clip->state;
    pthread_mutex_unlock(&cache->lock);
    return state;
}

DsvStatus dsvi_clip_cache_read(DsvClipCache *cache, const DsvSampleRef *sample, float *pixels)
{
    const DsvClipWindow *window = &sample->window;
    const KeptClip *clip = &cache->clips[sample->item];
    if (settle(cache, sample->item) == KEPT_NOT)
        return dsvi_clip_read(cache->dataset->items[sample->item].path, window, pixels);
    int64_t first = llrint(window->start * window->fps);
    DSVI_ASSERT(first >= 0 && first + window->frames <= clip->frames);
    for (int64_t i = 0; i < window->frames; i++)
        dsvi_clip_crop(window, clip->rgb + (first + i) * 3 * clip->height * clip->width, clip->height,
                       clip->width, i, pixels);
    return DSV_OK;
}
