/* The tokenizer of UMT5: a sentencepiece unigram model without Unicode normalisation. It gives the ids of
 * Hugging Face's tokenizer.json, also where sentencepiece alone gives others: it replaces a run of unknown
 * characters by one id, knows texts such as </s> as ids, and adds scores in double. */
#ifndef DSVI_TOKENIZER_H
#define DSVI_TOKENIZER_H

#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DSVI_TEXT_ROWS \
    512 /* largest number of ids of a prompt in the Wan pipelines, the end token included */

typedef struct DsviTokenizer DsviTokenizer;

/* Opens the tokenizer of `path`: a tokenizer folder (tokenizer.json, otherwise spiece.model), one of these
 * files, or a safetensors file with the bytes of spiece.model in a U8 tensor spiece_model. The caller closes
 * *out; it is NULL after a failure. */
DsvStatus dsvi_tokenizer_open(const char *path, DsviTokenizer **out);
void dsvi_tokenizer_close(DsviTokenizer **tokenizer); /* *tokenizer may be NULL and becomes NULL */

/* Cleans `text` (text_clean.h), and writes its ids to `ids` (limit), with the end token last, which is 1 in
 * published files. Longer texts are cut to `limit` >= 1 ids, the end token kept. *cut: the number of ids that
 * were cut off. Several threads may call with one tokenizer. */
DsvStatus dsvi_tokenizer_encode(const DsviTokenizer *tokenizer, const char *text, int64_t limit, int32_t *ids,
                                int64_t *count, int64_t *cut);

#ifdef __cplusplus
}
#endif
#endif
