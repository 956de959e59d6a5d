/* A folder of encoded windows: index.json (settings, items, hashes) and one safetensors file each. */
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

typedef struct DsvLatentCache DsvLatentCache;

/* True when the folder holds a latent cache's index. */
bool dsvi_latent_cache_is(const char *folder);

/* Opens for writing: makes the folder, reads what is there. A cache made under other settings (size,
 * frames, rate, codec) is DSV_E_USAGE and names the setting. */
DsvStatus dsvi_latent_cache_create(const char *folder, const DsvConfig *settings, DsvLatentCache **out);
/* What a window is cut from. */
typedef struct DsvLatentSource {
    const char *path, *text; /* text: the caption, or NULL */
    DsvFileStamp stamp;      /* of the file when it was decoded */
} DsvLatentSource;

/* Drops the windows of those sources whose files were others, by their stamps, when they were cut; `tell`
 * hears of each such source once. */
DsvStatus dsvi_latent_cache_drop_changed(DsvLatentCache *cache, const DsvLatentSource *sources, int64_t count,
                                         void (*tell)(void *context, const char *path, int64_t windows),
                                         void *context);
/* Whether (source file, window) is there with the right hash. */
bool dsvi_latent_cache_has(const DsvLatentCache *cache, const char *source, const DsvClipWindow *window);
/* Writes one item; several threads may call at once. */
DsvStatus dsvi_latent_cache_put(DsvLatentCache *cache, const DsvLatentSource *source,
                                const DsvClipWindow *window, const int64_t shape[4], const float *latent);
/* Writes the index (atomically). Called now and then, and by close. */
DsvStatus dsvi_latent_cache_flush(DsvLatentCache *cache);

/* Opens for reading; settings are checked as above, unless NULL. */
DsvStatus dsvi_latent_cache_open(const char *folder, const DsvConfig *settings, DsvLatentCache **out);
int64_t dsvi_latent_cache_count(const DsvLatentCache *cache);
const char *dsvi_latent_cache_file(const DsvLatentCache *cache, int64_t item);
const char *dsvi_latent_cache_source(const DsvLatentCache *cache, int64_t item);
const char *dsvi_latent_cache_text(const DsvLatentCache *cache, int64_t item); /* NULL: none */

/* Whether an item's file is as the index says; DSV_E_FORMAT names it. */
DsvStatus dsvi_latent_cache_check(const DsvLatentCache *cache, int64_t item);

/* One cached latent, checked against its hash and the wanted number of elements. On failure `latent` may hold
 * anything. */
DsvStatus dsvi_latent_read(const char *file, int64_t elements, float *latent);

void dsvi_latent_cache_close(DsvLatentCache **cache);

#ifdef __cplusplus
}
#endif
#endif
