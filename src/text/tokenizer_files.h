/* Reads vocabularies from the two files that publish the tokenizer of UMT5. */
#ifndef DSVI_TOKENIZER_FILES_H
#define DSVI_TOKENIZER_FILES_H

#include "text/vocabulary.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSVI_TOKENIZER_BYTES_MAX = 1 << 28 }; /* bytes of a file that is read */

/* Both functions take over `data` (`bytes` bytes, then a zero), which was allocated with malloc and which
 * they may change, fill the empty *vocabulary, and name `path` in error messages. The caller frees
 * *vocabulary, also after a failure. DSV_E_FORMAT if the file is malformed, DSV_E_UNSUPPORTED if it asks for
 * something that tokenizers of UMT5 do not have, such as a normaliser or byte_fallback.
 *
 * tokenizer.json of Hugging Face's library tokenizers. */
DsvStatus dsvi_tokenizer_json(const char *path, char *data, size_t bytes, DsviVocabulary *vocabulary);
/* spiece.model, a protobuf message of sentencepiece. The vocabulary is what Hugging Face's converter makes of
 * the file: control pieces become added tokens, and <extra_id_299> to <extra_id_0> follow the pieces unless
 * the file has them. */
DsvStatus dsvi_tokenizer_spiece(const char *path, char *data, size_t bytes, DsviVocabulary *vocabulary);

#ifdef __cplusplus
}
#endif
#endif
