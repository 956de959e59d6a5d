/* Texts to ids, and ids to hidden states of the text encoder, which is loaded for the call and then freed.
 */
#ifndef DSVI_WAN_TEXTS_H
#define DSVI_WAN_TEXTS_H

#include "dsv/config.h"
#include "dsv/events.h"
#include "model/umt5/umt5.h"
#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviWanTexts {
    int64_t count, dim; /* texts; width of a row */
    int64_t *first;     /* (count + 1) text i has the rows first[i] to first[i + 1] - 1 */
    int32_t *ids;       /* (rows) with the end token of each text last */
    float *states;      /* (rows, dim) */
} DsviWanTexts;

/* Cleans and tokenizes `count` texts, at least 1; out->states remains NULL. Texts of more than DSVI_TEXT_ROWS
 * ids are cut, with a warning. Messages name texts by their line in `file` or, if it is NULL, by number; text
 * `negative`, if there is one of this number, is called the negative prompt.
 * Release *out with dsvi_wan_texts_free, also after a failure. */
DsvStatus dsvi_wan_texts_tokenize(const char *tokenizer_path, const char *const *texts, int64_t count,
                                  int64_t negative, const char *file, const DsvEvents *events,
                                  DsviWanTexts *out);
/* Returns the options with which dsvi_wan_texts_encode opens the text encoder: memory_gib limits its memory.
 */
DsviUmt5Options dsvi_wan_texts_options(const DsviWanTexts *texts, const DsvConfig *settings);
/* Computes the states of tokenized texts. The encoder is freed before the function returns. events: receives
 * progress and is asked whether to stop; NULL: none. */
DsvStatus dsvi_wan_texts_encode(DsviBackend *backend, const DsvConfig *settings, const char *encoder_path,
                                const DsvEvents *events, DsviWanTexts *texts);
/* Reads encoder_hidden_states and, if the file has it, negative_encoder_hidden_states, each (rows, dim) or
 * (1, rows, dim), as texts 0 and 1 without ids. */
DsvStatus dsvi_wan_texts_read(const char *path, int64_t dim, DsviWanTexts *out);
void dsvi_wan_texts_free(DsviWanTexts *texts);

/* Writes what the transformer gets for text i: its rows, then rows of zeros. rows: (text_len, dim).
 * DSV_E_SHAPE if the text has more rows or another width. */
DsvStatus dsvi_wan_texts_rows(const DsviWanTexts *texts, int64_t i, int64_t text_len, int64_t dim,
                              float *rows);

#ifdef __cplusplus
}
#endif
#endif
