/* Text states of captions: every distinct text once, and always the empty prompt. */
#ifndef DSVI_ENCODE_TEXTS_H
#define DSVI_ENCODE_TEXTS_H

#include "data/dataset.h"
#include "dsv/events.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Converts texts to ids. */
typedef struct DsviTextIds {
    void *context;
    int64_t limit; /* largest number of ids of a text */
    /* Writes the ids of `text` to ids (limit); *cut: number of ids that were left out. Several threads call
     * at once. */
    DsvStatus (*ids)(void *context, const char *text, int32_t *ids, int64_t *count, int64_t *cut);
} DsviTextIds;

/* Computes text states. */
typedef struct DsviTextEncoder {
    void *context;
    int64_t rows; /* largest number of ids of one call, at least the limit of a text */
    /* Computes the states of `count` texts, whose ids follow one another: hidden (sum of lengths, dim) F32.
     */
    DsvStatus (*encode)(void *context, int64_t count, const int64_t *lengths, const int32_t *ids,
                        float *hidden);
} DsviTextEncoder;

/* The distinct texts of a data set. All bytes 0: none. */
typedef struct DsviTexts {
    struct DsviText *at;
    int64_t count;
    int64_t cut;      /* number of captions that were longer than the limit */
    int64_t cut_item; /* item of the data set with the first of them */
} DsviTexts;

/* Computes the ids of all captions, stores the keys of their states in the captions and the key of the empty
 * prompt in store->empty, and lists the distinct texts. Frees nothing of *out after a failure: the caller
 * frees it with dsvi_texts_free. */
DsvStatus dsvi_texts_collect(DsviDataset *dataset, const DsviTextIds *ids, DsviTextStore *store,
                             DsviTexts *out);
void dsvi_texts_free(DsviTexts *texts);
/* Returns the number of ids of all texts together. */
int64_t dsvi_texts_rows(const DsviTexts *texts);

/* Removes the texts whose states the store has already. */
void dsvi_texts_drop_stored(DsviTexts *texts, const DsviTextStore *store);

/* Computes and stores the states of all texts. `stop` is asked after each call of the encoder: then the
 * result is DSV_E_INTERRUPTED, and what was computed is stored. */
DsvStatus dsvi_texts_encode(const DsviTexts *texts, const DsviTextStore *store,
                            const DsviTextEncoder *encoder, const DsvEvents *events);

#ifdef __cplusplus
}
#endif
#endif
