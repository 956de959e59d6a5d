/* Repairs of bytes that are nearly UTF-8, before they are decoded. */
#ifndef DSVI_MOJIBAKE_BYTES_H
#define DSVI_MOJIBAKE_BYTES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Memory that the next two functions need for `count` bytes of text, and the size to which they may grow. */
static inline size_t dsvi_bytes_room(size_t count)
{
    return 6 * count + 1;
}

/* Puts back bytes 0xa0 that have become spaces, where the bytes around a space look like UTF-8. Works in
 * place on the first `count` of dsvi_bytes_room(count) bytes, and returns how many there are then. */
size_t dsvi_bytes_restore_a0(unsigned char *bytes, size_t count);

/* Replaces sequences of UTF-8 in which bytes are lost (0x1a, or one question mark) by U+FFFD. In place, as
 * dsvi_bytes_restore_a0. */
size_t dsvi_bytes_replace_lossy(unsigned char *bytes, size_t count);

/* Decodes zero in two bytes, or a pair of surrogates in six. Returns their length, 0 if neither begins here.
 */
size_t dsvi_bytes_variant(const unsigned char *bytes, size_t room, uint32_t *code);

#ifdef __cplusplus
}
#endif
#endif
