/* A latent cache: a folder of encoded windows of clips, with index.json (options, items, hashes) and one
 * safetensors file for each window. */
#ifndef DSVI_LATENT_CACHE_H
#define DSVI_LATENT_CACHE_H

#include <stdbool.h>

#include "base/fs.h"
#include "base/safetensors.h"
#include "data/clip.h"
#include "dsv/config.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviLatentCache DsviLatentCache;

/* Returns whether the folder contains the index of a latent cache. */
bool dsvi_latent_cache_is(const char *folder);

/* Opens a cache for writing: creates the folder and reads an existing index. Fails with DSV_E_USAGE, naming
 * the option, if the cache was made with other options (size, frames, rate, codec). */
DsvStatus dsvi_latent_cache_create(const char *folder, const DsvConfig *config, DsviLatentCache **out);
/* The clip from which a window is taken. */
typedef struct DsviLatentSource {
    const char *path, *text; /* text: the caption, or NULL */
    DsviFileStamp stamp;     /* size and time of last change of the clip's file when the clip was decoded */
} DsviLatentSource;

/* Removes the windows of all sources whose files have changed (by their stamps) since the windows were
 * encoded. Calls `report` once for each such source. */
DsvStatus dsvi_latent_cache_drop_changed(DsviLatentCache *cache, const DsviLatentSource *sources,
                                         int64_t count,
                                         void (*tell)(void *context, const char *path, int64_t windows),
                                         void *context);
/* Returns whether the window of the source is in the cache and its file has the recorded hash. */
bool dsvi_latent_cache_has(const DsviLatentCache *cache, const char *source, const DsviClipWindow *window);
/* Writes one window; several threads may call at once. */
DsvStatus dsvi_latent_cache_put(DsviLatentCache *cache, const DsviLatentSource *source,
                                const DsviClipWindow *window, const int64_t shape[4], const float *latent);
/* Writes the index atomically. A process that writes windows calls this function from time to time; closing
   the cache calls it too. */
DsvStatus dsvi_latent_cache_flush(DsviLatentCache *cache);

/* Opens a cache for reading. `config` is checked as in dsvi_latent_cache_create, unless NULL. */
DsvStatus dsvi_latent_cache_open(const char *folder, const DsvConfig *config, DsviLatentCache **out);
int64_t dsvi_latent_cache_count(const DsviLatentCache *cache);
const char *dsvi_latent_cache_file(const DsviLatentCache *cache, int64_t item);
const char *dsvi_latent_cache_source(const DsviLatentCache *cache, int64_t item);
const char *dsvi_latent_cache_text(const DsviLatentCache *cache, int64_t item); /* NULL if there is no
                                                                                 * caption */

/* Fails with DSV_E_FORMAT, naming the file, if an item's file does not have the hash recorded in the
 * index. */
DsvStatus dsvi_latent_cache_check(const DsviLatentCache *cache, int64_t item);

/* Reads one cached latent. Fails if the file's hash or its number of elements is wrong; `latent` may then
 * contain anything. */
DsvStatus dsvi_latent_read(const char *file, int64_t elements, float *latent);

void dsvi_latent_cache_close(DsviLatentCache **cache);

#ifdef __cplusplus
}
#endif
#endif
