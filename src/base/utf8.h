/* UTF-8 (RFC 3629): what text from files and users has to be. */
#ifndef DSVI_UTF8_H
#define DSVI_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The character that `text` begins with, into *code; returns its bytes, at most `room`, or 0 where they are
 * no character (overlong, a surrogate, above U+10FFFF, cut short; or room is 0). */
size_t dsvi_utf8_decode(const char *text, size_t room, uint32_t *code);

bool dsvi_utf8_valid(const char *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
