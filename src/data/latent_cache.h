/* A latent cache: a folder of encoded windows of clips, with index.json (options, models, items, hashes), one
 * safetensors file for each window, and a file in text/ for each distinct caption. */
#ifndef DSVI_LATENT_CACHE_H
#define DSVI_LATENT_CACHE_H

#include <stdbool.h>

#include "base/safetensors.h"
#include "data/clip.h"
#include "data/latent_index.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviLatentCache DsviLatentCache;

/* Returns whether the folder contains the index of a latent cache. */
bool dsvi_latent_cache_is(const char *folder);
/* Returns whether dsv encode has written to the folder, and it has no index that dsvi_latent_cache_is knows.
 */
bool dsvi_latent_cache_lacks_index(const char *folder);

/* Opens a cache for writing: creates the folder and reads an existing index. `model` tells which models
 * encode (its text.folder is not used); NULL: none. Fails with DSV_E_USAGE if the cache was made with other
 * options (rate, codec and, without data.buckets, the size; the sentence names the option), another VAE or
 * another text encoder. A cache without text states may get some. */
DsvStatus dsvi_latent_cache_create(const char *folder, const DsvConfig *config, const DsviLatentModel *model,
                                   DsviLatentCache **out);
/* Returns the models that made the cache; text.folder is where the text states are. Valid while the cache is
 * open. */
const DsviLatentModel *dsvi_latent_cache_model(const DsviLatentCache *cache);

/* The clip from which a window is taken. */
typedef struct DsviLatentSource {
    const char *path;
    const DsviCaptions *captions; /* NULL: none */
    const char *image;   /* a picture that belongs to the clip and is part of its contents; NULL: none */
    DsviFileStamp stamp; /* size and time of last change of the clip's file before it is decoded, with
                          * `image` the sum of both sizes and the later time */
    DsviHashKey content; /* hash of the file's bytes, and of the picture's; may be unknown */
    int64_t repeats;     /* how often an epoch uses each window; 0 stands for 1 */
} DsviLatentSource;

/* Sets the contents of those sources whose files the index, or the folder's file of hashes (clip_hashes.h),
 * knows with the same path and stamp, so that their bytes need not be read again. */
DsvStatus dsvi_latent_cache_recall(const DsviLatentCache *cache, DsviLatentSource *sources, int64_t count);

/* Keeps the contents of the sources (count) in the folder's file of hashes at once, so that a process that
 * ends before their windows are in the index does not lose them. */
DsvStatus dsvi_latent_cache_remember(const DsviLatentCache *cache, DsviLatentSource *const *sources,
                                     int64_t count);

typedef enum DsviLatentChange {
    DSVI_LATENT_DROPPED, /* the clip's bytes have changed: its windows are dropped */
    DSVI_LATENT_MOVED,   /* the windows of a clip that is gone belong to a clip of the same bytes */
    DSVI_LATENT_SHARED   /* the windows of another clip of the same bytes are used for this clip, too */
} DsviLatentChange;

/* Receives one line for each source that an update has changed, and the number of its windows. */
typedef void dsvi_latent_change_fn(void *context, const char *path, DsviLatentChange change, int64_t windows);

/* Brings the entries of the sources up to date: stamps, contents and captions. Windows of a source whose
 * contents differ are dropped (or whose stamp differs, if the index has no contents). A source without
 * entries takes over those of a clip with the same contents. No two sources may have one path. */
DsvStatus dsvi_latent_cache_update(DsviLatentCache *cache, const DsviLatentSource *sources, int64_t count,
                                   dsvi_latent_change_fn *tell, void *context);
/* Returns whether the window of the source is in the cache and its file has the recorded hash. */
bool dsvi_latent_cache_has(const DsviLatentCache *cache, const char *source, const DsviClipWindow *window);
/* Returns whether the folder has the window's file although the index does not: an earlier process ended
 * before it wrote the index. The window is then entered. Needs a source with known contents, because the
 * file's name is a hash of everything on which the latent depends. Several threads may call at once. */
bool dsvi_latent_cache_recover(DsviLatentCache *cache, const DsviLatentSource *source,
                               const DsviClipWindow *window, const int64_t shape[4]);
/* Writes one window: its latent, followed by the states of its pictures if the cache's model has them.
 * Several threads may call at once. */
DsvStatus dsvi_latent_cache_put(DsviLatentCache *cache, const DsviLatentSource *source,
                                const DsviClipWindow *window, const int64_t shape[4], const float *latent);
/* Writes the index atomically. A process that writes windows calls this function from time to time; closing
   the cache calls it too. */
DsvStatus dsvi_latent_cache_flush(DsviLatentCache *cache);

/* Opens a cache for reading. `config` is checked as in dsvi_latent_cache_create, unless NULL. */
DsvStatus dsvi_latent_cache_open(const char *folder, const DsvConfig *config, DsviLatentCache **out);
int64_t dsvi_latent_cache_count(const DsviLatentCache *cache);
const char *dsvi_latent_cache_file(const DsviLatentCache *cache, int64_t item);
/* Returns the size of an item's window in pixels. */
DsviClipSize dsvi_latent_cache_size(const DsviLatentCache *cache, int64_t item);
const char *dsvi_latent_cache_source(const DsviLatentCache *cache, int64_t item);
int64_t dsvi_latent_cache_repeats(const DsviLatentCache *cache, int64_t item);
const DsviCaptions *dsvi_latent_cache_captions(const DsviLatentCache *cache, int64_t item);

/* Fails with DSV_E_FORMAT, naming the file, if an item's file does not have the hash recorded in the
 * index. */
DsvStatus dsvi_latent_cache_check(const DsviLatentCache *cache, int64_t item);

/* Reads one cached latent, followed by the states of pictures that the file has; `elements` counts both.
 * Fails if the file's hash or its number of elements is wrong; `latent` may then contain anything. */
DsvStatus dsvi_latent_read(const char *file, int64_t elements, float *latent);

void dsvi_latent_cache_close(DsviLatentCache **cache);

#ifdef __cplusplus
}
#endif
#endif
