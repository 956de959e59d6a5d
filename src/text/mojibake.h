/* Repairs text that was decoded with the wrong encoding, by the rules of ftfy.fix_encoding. */
#ifndef DSVI_MOJIBAKE_H
#define DSVI_MOJIBAKE_H

#include <stdbool.h>

#include "text/code_points.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Replaces *text by the repaired text. Text that shows no sign of a wrong encoding stays as it is. */
DsvStatus dsvi_mojibake_repair(DsviCodePoints *text);

/* Returns whether the text has a sequence of characters that real text hardly has, such as an accented letter
 * before a currency sign. */
bool dsvi_mojibake_is_bad(const uint32_t *text, size_t count);
/* Returns the length of the sequence from text[at] on that looks like UTF-8 decoded with a single-byte
 * encoding; 0 if none begins there. */
size_t dsvi_mojibake_span(const uint32_t *text, size_t count, size_t at);

#ifdef __cplusplus
}
#endif
#endif
