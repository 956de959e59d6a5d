/* What the files that implement latent_cache.h share. */
#ifndef DSVI_LATENT_CACHE_INTERNAL_H
#define DSVI_LATENT_CACHE_INTERNAL_H

#include <pthread.h>

#include "data/latent_cache.h"

#ifdef __cplusplus
extern "C" {
#endif

struct DsviLatentCache {
    char folder[DSVI_PATH_MAX], index[DSVI_PATH_MAX];
    DsvConfig config; /* only the options that the index records */
    DsviLatentModel model;
    bool writes;
    int writer_lock;      /* lock of the folder; -1: not held */
    pthread_mutex_t lock; /* protects the fields below */
    /* In this struct, the field `file` of an entry is a path; in the index file it is a plain file name. */
    DsviLatentEntry **entries;
    int64_t count, room;
    DsviLatentEntry **table; /* (table_size) hash table of the entries by source and window, with open
                                addressing */
    size_t table_size;       /* a power of two, at least twice the count */
    size_t text_bytes;       /* upper bound of the bytes of the entries as text */
    bool changed;            /* entries changed since the index was written */
};

/* The functions below need the lock of a cache that several threads use. */

/* Returns the table slot of the entry of `source` with the place and size of `window`, whose other fields are
 * not read, or the empty slot where the entry belongs. NULL if there is no table yet. */
DsviLatentEntry **dsvi_latent_cache_slot(const DsviLatentCache *cache, const char *source,
                                         const DsviLatentEntry *window);
/* Inserts a deep copy of the entry. It replaces the entry of the same window, or is appended. */
DsvStatus dsvi_latent_cache_insert(DsviLatentCache *cache, const DsviLatentEntry *entry);
/* Makes the table anew after entries were removed from the list or have other sources. Of two entries of one
 * window, the first stays. */
void dsvi_latent_cache_rebuild(DsviLatentCache *cache);
void dsvi_latent_entry_free(DsviLatentEntry *entry);
/* Returns source->repeats, at least 1. */
static inline int64_t dsvi_latent_source_repeats(const DsviLatentSource *source)
{
    return source->repeats > 1 ? source->repeats : 1;
}
DsvStatus dsvi_latent_cache_no_memory(const DsviLatentCache *cache);

#ifdef __cplusplus
}
#endif
#endif
