/* What the files that implement latent_index.h share. */
#ifndef DSVI_LATENT_INDEX_INTERNAL_H
#define DSVI_LATENT_INDEX_INTERNAL_H

#include "data/latent_index.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    DSVI_LATENT_INDEX_REPEATS = 4, /* version in which items may repeat */
    DSVI_LATENT_INDEX_VERSION = 3,
    DSVI_LATENT_INDEX_ONE_SIZE = 2, /* version in which all windows have one size */
    DSVI_LATENT_INDEX_ONE_TEXT = 1, /* version in which an item has one caption */
    DSVI_LATENT_INDEX_HEX = 16,     /* digits of a checksum */
    DSVI_LATENT_INDEX_OPTIONS = 6
};

/* Keys of the index. */
#define DSVI_LATENT_INDEX_CODEC "codec.name"
#define DSVI_LATENT_INDEX_XXH3 "xxh3"
#define DSVI_LATENT_INDEX_CONDITION "condition"
#define DSVI_LATENT_INDEX_REPEATED "repeats"

/* An option that the index records. */
typedef struct DsviLatentIndexOption {
    const char *key;
    double value;
} DsviLatentIndexOption;

/* Lists the options on which the latents of a codec depend, sizes first, and returns their number. */
int dsvi_latent_index_options(const DsvConfig *config, const char *codec,
                              DsviLatentIndexOption out[DSVI_LATENT_INDEX_OPTIONS]);

/* Returns the name of the window's file without its folder. */
const char *dsvi_latent_index_name_of(const DsviLatentEntry *entry);

/* Returns the checksum of all entries up to and including this one in an index of this version; `seed` is the
 * checksum of the previous entries. */
uint64_t dsvi_latent_index_hash_entry(const DsviLatentEntry *entry, int version, uint64_t seed);
/* Returns the checksum with which those of the entries begin. */
uint64_t dsvi_latent_index_hash_model(const DsviLatentModel *model);

#ifdef __cplusplus
}
#endif
#endif
