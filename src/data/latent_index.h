/* Converts the index of a latent cache (latent_cache.c) to JSON and back. */
#ifndef DSVI_LATENT_INDEX_H
#define DSVI_LATENT_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/captions.h"
#include "data/clip_sizes.h"
#include "data/latent_file.h"
#include "data/text_states.h"
#include "dsv/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The models that made a latent cache. */
typedef struct DsviLatentModel {
    DsviHashKey vae;    /* identity of the VAE; unknown if the codec is none */
    DsviDtype vae_type; /* in which the VAE computed: F32 or BF16 */
    bool condition;     /* a stored window has the channels of the latent, then the mask and the encoded
                         * picture that an image-to-video transformer takes as further channels */
    DsviHashKey image_encoder; /* identity of the encoder of the windows' pictures; "": their files hold no
                                * states of pictures */
    DsviImageStates image; /* of a window: those of its first frame or, if the model takes two pictures, of
                            * its first and its last frame */
    DsviTextStore text;    /* the index does not store its folder */
} DsviLatentModel;

typedef struct DsviLatentEntry {
    char *source;          /* path of the clip; any bytes except 0 */
    DsviCaptions captions; /* of the clip; any bytes except 0 */
    int64_t repeats;       /* how often an epoch uses the window, 1 or more */
    DsviFileStamp stamp;   /* stamp of the source; {0, NAN}: unknown */
    DsviHashKey content;   /* of the source's bytes, when it had this stamp */
    double start, crop_x, crop_y;
    DsviClipSize size; /* of the window in pixels */
    char *file;        /* the window's file: a file name or a path */
    uint64_t checksum;
    int64_t shape[4];
} DsviLatentEntry;

/* The value of "format" at the start of every version of an index. */
extern const char dsvi_latent_index_format[];

/* Upper bounds of the bytes of an index without entries, and of one entry. */
size_t dsvi_latent_index_head_bytes(void);
size_t dsvi_latent_index_entry_bytes(const DsviLatentEntry *entry);

/* Returns the index as text, which the caller frees, or NULL if memory is lacking. */
char *dsvi_latent_index_text(const DsvConfig *config, const DsviLatentModel *model,
                             DsviLatentEntry *const *entries, int64_t count);

/* Stores the models in *model, and calls `add` for each entry of the index file. `add` must copy what it
 * keeps; entry->file is a plain file name. Fails with DSV_E_USAGE, naming the option, if the index was made
 * with options other than `config` (NULL: any options are accepted; with data.buckets any sizes are), and
 * with DSV_E_FORMAT if the index is malformed or its checksum is wrong. */
DsvStatus dsvi_latent_index_read(const char *path, size_t bytes_max, const DsvConfig *config,
                                 DsviLatentModel *model,
                                 DsvStatus (*add)(void *context, const DsviLatentEntry *entry),
                                 void *context);

#ifdef __cplusplus
}
#endif
#endif
