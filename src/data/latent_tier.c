/* Implements latent_tier.h. `coming` is a ring of the samples from the next one to `ahead` further ones, each
 * with its latent and the sample that uses this latent next. Each decision adds samples at the end of the
 * ring until the ring is full. */
#include "data/latent_tier.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "data/latent_cache.h"

/* No sample of the ring uses the latent. */
#define NEVER UINT64_MAX

/* Largest number of samples that a decision adds to the ring. The first decisions know fewer samples than the
 * later ones, but none takes long: other threads wait for it. */
enum { STEP = 64 };

typedef struct Coming {
    int64_t item;
    uint64_t next; /* number of the sample that uses the latent next, or NEVER */
} Coming;

typedef struct Kept {
    float *data; /* (elements), NULL: not kept */
    size_t bytes;
    uint64_t next; /* sample that uses the latent next */
    uint64_t last; /* newest sample of the ring that uses the latent, or NEVER */
    int64_t users; /* threads that read or write `data`: it must stay */
    enum { LOADING, READY, FAILED } state;
} Kept;

struct DsviLatentTier {
    DsviLatentTierArgs args;
    pthread_mutex_t lock; /* protects the fields below, except the data of latents with users */
    pthread_cond_t loaded;
    uint64_t sample; /* number of the next sample */
    uint64_t filled; /* samples that were added to the ring */
    Coming *coming;  /* (ahead + 1) */
    Kept *items;     /* (items) */
    int64_t *kept;   /* (kept_count) latents that are in memory, without order; room for all */
    int64_t kept_count, hits;
    size_t bytes;
};

static Coming *at(const DsviLatentTier *tier, uint64_t sample)
{
    return &tier->coming[sample % (uint64_t)(tier->args.ahead + 1)];
}

/* Adds one sample to the ring. */
static void look_ahead(DsviLatentTier *tier)
{
    uint64_t sample = tier->filled++;
    Coming *coming = at(tier, sample);
    *coming = (Coming){tier->args.item_of(tier->args.context, sample), NEVER};
    Kept *item = &tier->items[coming->item];
    if (item->last != NEVER && item->last >= tier->sample)
        at(tier, item->last)->next = sample;
    if (item->data && item->next == NEVER)
        item->next = sample;
    item->last = sample;
}

/* Returns the place in `kept` of the latent that nobody uses and whose next use is farthest, if farther than
 * `next`; -1: there is none. */
static int64_t farthest(const DsviLatentTier *tier, uint64_t next)
{
    int64_t found = -1;
    for (int64_t i = 0; i < tier->kept_count; i++) {
        const Kept *item = &tier->items[tier->kept[i]];
        if (item->users == 0 && item->next > next) {
            found = i;
            next = item->next;
        }
    }
    return found;
}

/* Frees the latent at a place in `kept`. */
static void drop(DsviLatentTier *tier, int64_t place)
{
    Kept *item = &tier->items[tier->kept[place]];
    free(item->data);
    item->data = NULL;
    tier->bytes -= item->bytes;
    tier->kept[place] = tier->kept[--tier->kept_count];
}

/* Makes room for a latent that is used again by sample `next`. Returns false if what it would replace is used
 * earlier. */
static bool make_room(DsviLatentTier *tier, size_t bytes, uint64_t next)
{
    while (tier->bytes + bytes > tier->args.bytes_max) {
        int64_t place = farthest(tier, next);
        if (place < 0)
            return false;
        drop(tier, place);
    }
    return true;
}

/* Keeps memory for the latent that is used now and by sample `next`, if it is worth its place. A latent that
 * no sample of the ring uses is kept only where memory is free: a later sample may use it. */
static bool keep(DsviLatentTier *tier, int64_t number, uint64_t next)
{
    Kept *item = &tier->items[number];
    size_t bytes = (size_t)tier->args.elements_of(tier->args.context, number) * sizeof *item->data;
    if (bytes > tier->args.bytes_max || !make_room(tier, bytes, next))
        return false;
    item->data = malloc(bytes);
    if (!item->data)
        return false;
    item->bytes = bytes;
    item->state = LOADING;
    tier->bytes += bytes;
    tier->kept[tier->kept_count++] = number;
    return true;
}

DsviLatentPlace dsvi_latent_tier_plan(DsviLatentTier *tier)
{
    pthread_mutex_lock(&tier->lock);
    for (int i = 0; i < STEP && tier->filled <= tier->sample + (uint64_t)tier->args.ahead; i++)
        look_ahead(tier);
    const Coming now = *at(tier, tier->sample++);
    DsviLatentPlace place = {now.item, DSVI_LATENT_HIT};
    Kept *item = &tier->items[now.item];
    if (!item->data)
        place.way = keep(tier, now.item, now.next) ? DSVI_LATENT_LOAD : DSVI_LATENT_DIRECT;
    tier->hits += place.way == DSVI_LATENT_HIT;
    if (place.way != DSVI_LATENT_DIRECT) {
        item->users++;
        item->next = now.next;
    }
    pthread_mutex_unlock(&tier->lock);
    return place;
}

/* Ends the use of a latent; `state` is its new state. A latent that could not be read leaves its place to
 * others once nobody waits for it. */
static void release(DsviLatentTier *tier, Kept *item, int state)
{
    int64_t place = 0, number = item - tier->items;
    pthread_mutex_lock(&tier->lock);
    item->state = state;
    item->users--;
    while (state == FAILED && item->users == 0 && tier->kept[place] != number)
        place++;
    if (state == FAILED && item->users == 0)
        drop(tier, place);
    pthread_cond_broadcast(&tier->loaded);
    pthread_mutex_unlock(&tier->lock);
}

DsvStatus dsvi_latent_tier_read(DsviLatentTier *tier, DsviLatentPlace place, const char *file,
                                int64_t elements, float *latent)
{
    Kept *item = &tier->items[place.item];
    if (place.way == DSVI_LATENT_DIRECT)
        return dsvi_latent_read(file, elements, latent);
    bool load = place.way == DSVI_LATENT_LOAD;
    pthread_mutex_lock(&tier->lock);
    while (!load && item->state == LOADING)
        pthread_cond_wait(&tier->loaded, &tier->lock);
    load = load || item->state == FAILED; /* perhaps the file can be read now */
    if (load)
        item->state = LOADING;
    pthread_mutex_unlock(&tier->lock);
    DsvStatus status = load ? dsvi_latent_read(file, elements, latent) : DSV_OK;
    if (load && status == DSV_OK)
        memcpy(item->data, latent, item->bytes);
    else if (!load)
        memcpy(latent, item->data, item->bytes);
    release(tier, item, status == DSV_OK ? READY : FAILED);
    return status;
}

int64_t dsvi_latent_tier_hits(const DsviLatentTier *tier)
{
    return tier->hits;
}

DsvStatus dsvi_latent_tier_create(const DsviLatentTierArgs *args, DsviLatentTier **out)
{
    DsviLatentTier *tier = calloc(1, sizeof *tier);
    *out = tier;
    if (tier) {
        tier->args = *args;
        pthread_mutex_init(&tier->lock, NULL);
        pthread_cond_init(&tier->loaded, NULL);
        tier->coming = calloc((size_t)args->ahead + 1, sizeof *tier->coming);
        tier->items = calloc((size_t)args->items, sizeof *tier->items);
        tier->kept = calloc((size_t)args->items, sizeof *tier->kept);
    }
    if (!tier || !tier->coming || !tier->items || !tier->kept) {
        dsvi_latent_tier_free(out);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a list of %lld latents", (long long)args->items);
    }
    for (int64_t i = 0; i < args->items; i++)
        tier->items[i].last = NEVER;
    return DSV_OK;
}

void dsvi_latent_tier_free(DsviLatentTier **out)
{
    DsviLatentTier *tier = *out;
    if (!tier)
        return;
    for (int64_t i = 0; tier->items && i < tier->args.items; i++)
        free(tier->items[i].data);
    pthread_cond_destroy(&tier->loaded);
    pthread_mutex_destroy(&tier->lock);
    free(tier->coming);
    free(tier->items);
    free(tier->kept);
    free(tier);
    *out = NULL;
}
