/* Decodes and validates UTF-8 (RFC 3629), the encoding of all text from files and users. */
#ifndef DSVI_UTF8_H
#define DSVI_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Decodes the first character of the `room` bytes at `text` to *code. Returns the character's bytes, or 0 if
 * the bytes are no character: an overlong form, a surrogate, above U+10FFFF, truncated, or room is 0. */
size_t dsvi_utf8_decode(const char *text, size_t room, uint32_t *code);

bool dsvi_utf8_valid(const char *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
