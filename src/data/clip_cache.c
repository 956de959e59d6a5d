/* Implements clip_cache.h: keeps decoded clips in memory. */
#include "data/clip_cache.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#include "data/dataset_sizes.h"

/* Longer clips are never kept, because their first window would have to wait until the whole clip is
 * decoded. */
#define KEPT_SECONDS_MAX 120.0

typedef enum KeptState {
    KEPT_NOT,   /* not kept: each window is decoded again, because the clip does not fit, is too long or is
                 * damaged */
    KEPT_EMPTY, /* has memory, but is not decoded yet */
    KEPT_FILLING,
    KEPT_FULL
} KeptState;

typedef struct KeptClip {
    KeptState state;
    int64_t first, frames, height, width; /* frame times `first` and following */
    uint8_t *rgb;                         /* (frames, height, width, 3), part of the cache's memory */
} KeptClip;

struct DsviClipCache {
    const DsviDataset *dataset;
    const DsvConfig *config;
    pthread_mutex_t lock;   /* protects the states */
    pthread_cond_t changed; /* signalled when a clip is no longer FILLING */
    KeptClip *clips;        /* (dataset->count) */
    uint8_t *memory;
    size_t bytes;
};

static size_t clip_bytes(const KeptClip *clip)
{
    return (size_t)(3 * clip->frames * clip->height * clip->width);
}

/* Computes how many frames of which size each clip has if it is kept. 0 frames mean that the clip is not
 * kept. */
static void compute_clip_sizes(DsviClipCache *cache)
{
    const DsvConfig *config = cache->config;
    for (int64_t i = 0; i < cache->dataset->count; i++) {
        const DsviDatasetItem *item = &cache->dataset->items[i];
        const DsviClipSize size = dsvi_dataset_size(cache->dataset, config, i);
        KeptClip *clip = &cache->clips[i];
        if (item->info.seconds > KEPT_SECONDS_MAX ||
            dsvi_clip_cover(item->path, item->info.height, item->info.width, size.height, size.width,
                            &clip->height, &clip->width) != DSV_OK)
            continue;
        clip->frames = dsvi_clip_frame_times(&item->info, config->fps);
        clip->first = cache->dataset->fixed ? item->start : 0;
        if (clip->frames < size.frames || cache->dataset->fixed)
            clip->frames = size.frames; /* the last frame is repeated, as by dsvi_clip_read */
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

/* Assigns memory to the shortest clips, because this keeps the most clips and they are decoded fastest. */
static DsvStatus assign_clip_memory(DsviClipCache *cache)
{
    size_t limit = (size_t)cache->config->data_cache_mb << 20;
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

DsvStatus dsvi_clip_cache_create(const DsviDataset *dataset, const DsvConfig *config, DsviClipCache **out)
{
    DsvStatus status;
    DsviClipCache *cache = calloc(1, sizeof *cache);
    *out = NULL;
    if (!cache)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a cache of clips");
    cache->dataset = dataset;
    cache->config = config;
    pthread_mutex_init(&cache->lock, NULL);
    pthread_cond_init(&cache->changed, NULL);
    cache->clips = calloc((size_t)dataset->count, sizeof *cache->clips);
    if (!cache->clips) {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a cache of %lld clips", (long long)dataset->count);
        goto fail;
    }
    compute_clip_sizes(cache);
    DSVI_TRY_GOTO(status, assign_clip_memory(cache), fail);
    *out = cache;
    return DSV_OK;
fail:
    dsvi_clip_cache_free(&cache);
    return status;
}

void dsvi_clip_cache_free(DsviClipCache **cache)
{
    DsviClipCache *c = *cache;
    if (!c)
        return;
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    free(c->clips);
    free(c->memory);
    free(c);
    *cache = NULL;
}

size_t dsvi_clip_cache_bytes(const DsviClipCache *cache)
{
    return cache->bytes;
}

/* Decodes the whole clip. A clip that ends or is damaged before its last window could start is not kept, so
 * that its windows succeed or fail exactly as without a cache. */
static KeptState clip_cache_fill(const DsviClipCache *cache, int64_t item, const KeptClip *clip)
{
    const DsvConfig *config = cache->config;
    const DsviClipSize size = dsvi_dataset_size(cache->dataset, config, item);
    DsviClipWindow whole = {
        .start = (double)clip->first / config->fps,
        .fps = config->fps,
        .frames = clip->frames,
        .height = size.height,
        .width = size.width,
    };
    int64_t covered;
    DsvStatus status = dsvi_clip_read_rgb(cache->dataset->items[item].path, &whole, clip->height, clip->width,
                                          clip->rgb, &covered);
    return status == DSV_OK && covered > clip->frames - size.frames ? KEPT_FULL : KEPT_NOT;
}

/* Returns KEPT_NOT or KEPT_FULL, after decoding the clip or waiting for the thread that decodes it. */
static KeptState clip_cache_settle(DsviClipCache *cache, int64_t item)
{
    KeptClip *clip = &cache->clips[item];
    pthread_mutex_lock(&cache->lock);
    while (clip->state == KEPT_FILLING)
        pthread_cond_wait(&cache->changed, &cache->lock);
    if (clip->state == KEPT_EMPTY) {
        clip->state = KEPT_FILLING;
        pthread_mutex_unlock(&cache->lock);
        KeptState state = clip_cache_fill(cache, item, clip);
        pthread_mutex_lock(&cache->lock);
        clip->state = state;
        pthread_cond_broadcast(&cache->changed);
    }
    KeptState state = clip->state;
    pthread_mutex_unlock(&cache->lock);
    return state;
}

DsvStatus dsvi_clip_cache_read(DsviClipCache *cache, const DsviSampleRef *sample, float *pixels)
{
    const DsviClipWindow *window = &sample->window;
    const KeptClip *clip = &cache->clips[sample->item];
    if (clip_cache_settle(cache, sample->item) == KEPT_NOT)
        return dsvi_clip_read(cache->dataset->items[sample->item].path, window, pixels);
    int64_t first = llrint(window->start * window->fps) - clip->first;
    DSVI_ASSERT(first >= 0 && first + window->frames <= clip->frames);
    for (int64_t i = 0; i < window->frames; i++)
        dsvi_clip_crop(window, clip->rgb + (first + i) * 3 * clip->height * clip->width, clip->height,
                       clip->width, i, pixels);
    return DSV_OK;
}
