/* Decoded clips kept in memory, so that later windows of the same clip need no decoding.
 *
 * A clip is kept as the 8-bit frames of its grid (clip.h), scaled but not cropped. Which clips are kept is a
 * function of the data set and the settings alone: the shortest first, as many as data.cache_mb holds. Each
 * is decoded whole when a window of it is first asked for. */
#ifndef DSVI_CLIP_CACHE_H
#define DSVI_CLIP_CACHE_H

#include <stddef.h>

#include "data/dataset.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvClipCache DsvClipCache;

/* Allocates all the memory it will ever hold. The data set must outlive it. */
DsvStatus dsvi_clip_cache_create(const DsvDataset *dataset, const DsvConfig *settings, DsvClipCache **out);

/* As dsvi_clip_read of the sample's item and window, with the same bytes; several threads may call. */
DsvStatus dsvi_clip_cache_read(DsvClipCache *cache, const DsvSampleRef *sample, float *pixels);

size_t dsvi_clip_cache_bytes(const DsvClipCache *cache);
void dsvi_clip_cache_free(DsvClipCache **cache);

#ifdef __cplusplus
}
#endif
#endif
