/* Text states: the rows that a text encoder computes for a caption, one file for each distinct text. A file
 * holds the tensor `states` (rows, dim), without padding, under the name of its key, which is a hash of the
 * text's ids, the encoder and the dtype. */
#ifndef DSVI_TEXT_STATES_H
#define DSVI_TEXT_STATES_H

#include "base/dtype.h"
#include "base/fs.h"
#include "base/hash_key.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where the states of one latent cache are, and what all of them have in common. */
typedef struct DsviTextStore {
    char folder[DSVI_PATH_MAX]; /* "": there are no text states */
    DsviHashKey encoder;        /* identity of the text encoder */
    DsviHashKey empty;          /* key of the states of the empty prompt */
    DsviDtype dtype;            /* F32 or BF16 */
    int64_t dim;                /* elements of a row */
} DsviTextStore;

/* Returns the key of the text with these ids. */
DsviHashKey dsvi_text_states_key(const DsviTextStore *store, const int32_t *ids, int64_t count);

/* Returns whether the file with this key is there and whole. Verifies its checksum. */
bool dsvi_text_states_has(const DsviTextStore *store, const DsviHashKey *key);

/* Fails unless the file with this key is there and has all of its bytes, as far as the header tells. */
DsvStatus dsvi_text_states_probe(const DsviTextStore *store, const DsviHashKey *key);

/* Writes rows (count, store->dim) F32 in the store's dtype. The folder must exist. DSV_E_DIVERGED if a number
 * is not finite. */
DsvStatus dsvi_text_states_write(const DsviTextStore *store, const DsviHashKey *key, int64_t count,
                                 const float *rows);

/* Reads *count rows (store->dim) as F32 into `rows`, which has room for `rows_max`. Fails with
 * DSV_E_NOT_FOUND; DSV_E_SHAPE if the file has more rows or another dim; DSV_E_FORMAT if it is damaged or was
 * written under another key. `rows` may then contain anything. */
DsvStatus dsvi_text_states_read(const DsviTextStore *store, const DsviHashKey *key, int64_t rows_max,
                                float *rows, int64_t *count);

#ifdef __cplusplus
}
#endif
#endif
