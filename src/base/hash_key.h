/* 128-bit XXH3 hashes that identify contents, as 32 hexadecimal digits. They tell files apart, but give no
 * protection against a file that was made to collide. */
#ifndef DSVI_HASH_KEY_H
#define DSVI_HASH_KEY_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSVI_HASH_KEY_DIGITS = 32 };

typedef struct DsviHashKey {
    char hex[DSVI_HASH_KEY_DIGITS + 1]; /* small letters; "": unknown */
} DsviHashKey;

/* Returns the key of `bytes` bytes. */
DsviHashKey dsvi_hash_key_of(const void *data, size_t bytes);

/* Returns whether both keys are known and equal. */
bool dsvi_hash_key_same(const DsviHashKey *a, const DsviHashKey *b);

/* Reads a key from a text. Returns false, and sets the key to unknown, unless the text is 32 hexadecimal
 * digits. */
bool dsvi_hash_key_read(const char *text, DsviHashKey *out);

/* Computes the key of all bytes of a file. */
DsvStatus dsvi_file_hash_key(const char *path, DsviHashKey *out);

/* Computes the key of a file's size and of samples of its bytes: its first and last MiB and 256 pieces of
 * 4 KiB, evenly spread; of all bytes if the file has at most 16 MiB. It tells files of weights apart without
 * reading gigabytes. */
DsvStatus dsvi_file_sample_key(const char *path, DsviHashKey *out);

#ifdef __cplusplus
}
#endif
#endif
