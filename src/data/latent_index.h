/* The index of a latent cache as text: what latent_cache.c keeps in memory, to JSON and back. */
#ifndef DSVI_LATENT_INDEX_H
#define DSVI_LATENT_INDEX_H

#include <stddef.h>
#include <stdint.h>

#include "base/fs.h"
#include "base/status.h"
#include "dsv/config.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvLatentEntry {
    char *source, *text; /* text: the caption, NULL for none; any bytes but 0 */
    DsvFileStamp stamp;  /* of the source; {0, NAN}: not known */
    double start, crop_x, crop_y;
    char *file; /* the window's file: its name, or a path that ends in it */
    uint64_t checksum;
    int64_t shape[4];
} DsvLatentEntry;

/* What an index begins with, of whatever version. */
extern const char dsvi_latent_index_format[];

/* Bytes that an index of no entries, and each entry, have at most. */
size_t dsvi_latent_index_head_bytes(void);
size_t dsvi_latent_index_entry_bytes(const DsvLatentEntry *entry);

/* The index as text, to be given to free(). NULL: no memory. */
char *dsvi_latent_index_text(const DsvConfig *settings, DsvLatentEntry *const *entries, int64_t count);

/* Hands each entry of the index file to `add`, which copies what it keeps; `file` is a plain name then.
 * Settings other than those wanted (NULL: any will do) are DSV_E_USAGE and named, a malformed index or one
 * that does not have its checksum DSV_E_FORMAT. */
DsvStatus dsvi_latent_index_read(const char *path, size_t bytes_max, const DsvConfig *settings,
                                 DsvStatus (*add)(void *context, const DsvLatentEntry *entry), void *context);

#ifdef __cplusplus
}
#endif
#endif
