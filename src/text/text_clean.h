/* Cleans a prompt as the Wan pipelines do before they tokenize it. */
#ifndef DSVI_TEXT_CLEAN_H
#define DSVI_TEXT_CLEAN_H

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DSVI_TEXT_BYTES_MAX 999999 /* bytes of the longest text */

/* Returns in *out the cleaned text, which the caller frees: the rules of Python's ftfy.fix_text, HTML
 * entities replaced twice, white space trimmed and its runs replaced by one space. DSV_E_FORMAT if `text` is
 * not UTF-8, is longer than DSVI_TEXT_BYTES_MAX, or nests HTML entities
 * (&amp;amp;...) deeper than any real text. */
DsvStatus dsvi_text_clean(const char *text, char **out);

#ifdef __cplusplus
}
#endif
#endif
