/* Windows for the tests of the latent cache. */
#ifndef DSVI_TEST_LATENT_CACHE_CASE_H
#define DSVI_TEST_LATENT_CACHE_CASE_H

#include "base/scratch.h"
#include "data/latent_cache.h"

enum { NUMBERS = 2 * 3 * 4 * 5 };
static const int64_t SHAPE[4] = {2, 3, 4, 5};

static inline DsvConfig make_settings(void)
{
    DsvConfig settings;
    dsv_config_defaults(&settings);
    settings.fps = 29.97;
    return settings;
}

static inline DsviClipWindow window_at(double start)
{
    return (DsviClipWindow){.start = start,
                            .fps = 29.97,
                            .frames = 17,
                            .height = 128,
                            .width = 128,
                            .crop_x = 0.5,
                            .crop_y = 0.5};
}

static inline void fill(float latent[NUMBERS], double start)
{
    for (int i = 0; i < NUMBERS; i++)
        latent[i] = (float)(start * 1000 + i);
}

static inline DsvStatus put(DsviLatentCache *cache, const char *path, const char *text, double start)
{
    float latent[NUMBERS];
    DsviClipWindow window = window_at(start);
    DsviCaption caption;
    memset(&caption, 0, sizeof caption);
    caption.text = (char *)text;
    const DsviCaptions captions = {&caption, text ? 1 : 0};
    DsviLatentSource source;
    memset(&source, 0, sizeof source);
    source.path = path;
    source.captions = &captions;
    source.stamp = (DsviFileStamp){1000, 1.7e9 + 0.1};
    fill(latent, start);
    return dsvi_latent_cache_put(cache, &source, &window, SHAPE, latent);
}

/* Returns the first caption of an item, or NULL. */
static inline const char *text_of(const DsviLatentCache *cache, int64_t item)
{
    const DsviCaptions *captions = dsvi_latent_cache_captions(cache, item);
    return captions->count ? captions->at[0].text : NULL;
}

static inline bool has(const DsviLatentCache *cache, const char *source, double start)
{
    DsviClipWindow window = window_at(start);
    return dsvi_latent_cache_has(cache, source, &window);
}

#endif
