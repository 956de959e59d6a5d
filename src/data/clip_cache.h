/* Keeps decoded clips in memory, so that later windows of the same clip need no decoding.
 *
 * A clip is kept as 8-bit frames at its frame times (dsvi_clip_frame_times), scaled but not cropped. The data
 * set and the configuration alone determine which clips are kept: the shortest first, as many as fit in
 * data.cache_mb. A clip is decoded completely when one of its windows is first requested. */
#ifndef DSVI_CLIP_CACHE_H
#define DSVI_CLIP_CACHE_H

#include <stddef.h>

#include "data/dataset.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviClipCache DsviClipCache;

/* Allocates all memory of the cache. The dataset and the configuration must outlive the cache. */
DsvStatus dsvi_clip_cache_create(const DsviDataset *dataset, const DsvConfig *config, DsviClipCache **out);

/* Reads the sample's window, with the same result as dsvi_clip_read. Several threads may call at once. */
DsvStatus dsvi_clip_cache_read(DsviClipCache *cache, const DsviSampleRef *sample, float *pixels);

size_t dsvi_clip_cache_bytes(const DsviClipCache *cache);
void dsvi_clip_cache_free(DsviClipCache **cache);

#ifdef __cplusplus
}
#endif
#endif
