/* The format of latent_index.h and its checksum; latent_index_write.c writes an index and latent_index_read.c
 * reads it. An index is
 *
 *     {"format": "dsv-latent-cache", "version": 4,
 *      "settings": {"num_frames": ..., "height": ..., ..., "codec.temporal_levels": ...},
 *      "model": {"vae": 32 hex digits, "vae_type": "BF16", "condition": true, if windows have one,
 *                "image_encoder": 32 hex digits, "image_rows": ..., "image_dim": ..., if windows have states,
 *                "text_encoder": 32 hex digits, "text_type": "BF16", "text_dim": ..., "empty": key},
 *      "items": [{"source": ..., "source_bytes": ..., "source_modified": ..., "source_xxh3": 32 hex digits,
 *                 "start": ..., "crop_x": ..., "crop_y": ..., "size": [frames, height, width],
 *                 "file": name in the folder, "xxh3": 16 hex digits, "shape": [C, F, H, W],
 *                 "captions": [{"text": ..., "states": key}, ...], "escaped": true, if they are,
 *                 "repeats": ..., unless it is 1}, ...],
 *      "xxh3": 16 hex digits}
 *
 * The parts of "model" are missing if the cache was made without a VAE or without a text encoder, and so are
 * the keys of text states. JSON is UTF-8, but file names may contain any bytes: in an item that is `escaped`,
 * bytes above 0x7f and "%" in source and captions are written as %XX. The checksum at the end covers the
 * models and the values of the items, so that reformatting the file does not invalidate it.
 *
 * An item without "size" has num_frames, height and width of the settings. Version 3, in which no item
 * repeats, and version 2, in which moreover all items are without "size", are written if that is so, and
 * read, too.
 *
 * Version 1 is read, too: an item has one caption, "text", or none, and neither "source_xxh3" nor "model"
 * exist. Indexes of dsv 0.1 have no checksum, and the oldest lack source_bytes and source_modified. */
#include "data/latent_index_internal.h"

#include <math.h>
#include <string.h>

#include <xxhash.h>

const char dsvi_latent_index_format[] = "dsv-latent-cache";

/* The levels are options of the codec haar alone. */
int dsvi_latent_index_options(const DsvConfig *c, const char *codec,
                              DsviLatentIndexOption out[DSVI_LATENT_INDEX_OPTIONS])
{
    enum { LEVELS = 2 };
    const DsviLatentIndexOption options[DSVI_LATENT_INDEX_OPTIONS] = {
        {"num_frames", (double)c->num_frames},
        {"height", (double)c->height},
        {"width", (double)c->width},
        {"fps", c->fps},
        {"codec.spatial_levels", (double)c->codec_spatial_levels},
        {"codec.temporal_levels", (double)c->codec_temporal_levels},
    };
    memcpy(out, options, sizeof options);
    return strcmp(codec, "haar") == 0 ? DSVI_LATENT_INDEX_OPTIONS : DSVI_LATENT_INDEX_OPTIONS - LEVELS;
}

const char *dsvi_latent_index_name_of(const DsviLatentEntry *e)
{
    const char *slash = strrchr(e->file, '/');
    return slash ? slash + 1 : e->file;
}

static uint64_t hash_text(const char *text, uint64_t seed)
{
    return text ? XXH3_64bits_withSeed(text, strlen(text) + 1, seed) : XXH3_64bits_withSeed("", 0, seed);
}

static uint64_t hash_captions(const DsviCaptions *captions, uint64_t seed)
{
    seed = XXH3_64bits_withSeed(&captions->count, sizeof captions->count, seed);
    for (int64_t i = 0; i < captions->count; i++) {
        seed = hash_text(captions->at[i].text, seed);
        seed = hash_text(captions->at[i].states.hex, seed);
    }
    return seed;
}

uint64_t dsvi_latent_index_hash_entry(const DsviLatentEntry *e, int version, uint64_t seed)
{
    const bool stamped = !isnan(e->stamp.modified);
    const double numbers[5] = {stamped ? (double)e->stamp.bytes : -1, stamped ? e->stamp.modified : -1,
                               e->start, e->crop_x, e->crop_y};
    seed = hash_text(e->source, seed);
    if (version == DSVI_LATENT_INDEX_ONE_TEXT) {
        seed = hash_text(e->captions.count ? e->captions.at[0].text : NULL, seed);
    } else {
        seed = hash_captions(&e->captions, seed);
        seed = hash_text(e->content.hex, seed);
    }
    if (version >= DSVI_LATENT_INDEX_VERSION)
        seed = XXH3_64bits_withSeed(&e->size, sizeof e->size, seed);
    if (version >= DSVI_LATENT_INDEX_REPEATS)
        seed = XXH3_64bits_withSeed(&e->repeats, sizeof e->repeats, seed);
    seed = hash_text(dsvi_latent_index_name_of(e), seed);
    seed = XXH3_64bits_withSeed(numbers, sizeof numbers, seed);
    seed = XXH3_64bits_withSeed(e->shape, sizeof e->shape, seed);
    return XXH3_64bits_withSeed(&e->checksum, sizeof e->checksum, seed);
}

uint64_t dsvi_latent_index_hash_model(const DsviLatentModel *model)
{
    const int64_t numbers[3] = {model->vae_type, model->text.dtype, model->text.dim};
    uint64_t seed = hash_text(model->vae.hex, 0);
    seed = hash_text(model->text.encoder.hex, seed);
    seed = hash_text(model->text.empty.hex, seed);
    if (model->condition)
        seed = hash_text(DSVI_LATENT_INDEX_CONDITION, seed);
    if (model->image_encoder.hex[0]) {
        seed = hash_text(model->image_encoder.hex, seed);
        seed = XXH3_64bits_withSeed(&model->image, sizeof model->image, seed);
    }
    return XXH3_64bits_withSeed(numbers, sizeof numbers, seed);
}
