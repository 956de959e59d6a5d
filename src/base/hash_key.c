/* Implements hash_key.h. A file is read with pread in pieces of one MiB at most. */
#include "base/hash_key.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/fs.h"

enum {
    BLOCK = 1 << 20, /* bytes that are read at once, and of each end of a sampled file */
    WHOLE_MAX = 16,  /* blocks up to which a sampled file is read whole */
    SAMPLES = 256,   /* pieces between both ends of a sampled file */
    SAMPLE_BYTES = 4096
};

static DsviHashKey hash_key_text(XXH128_hash_t hash)
{
    DsviHashKey key;
    snprintf(key.hex, sizeof key.hex, "%016" PRIx64 "%016" PRIx64, (uint64_t)hash.high64,
             (uint64_t)hash.low64);
    return key;
}

DsviHashKey dsvi_hash_key_of(const void *data, size_t bytes)
{
    return hash_key_text(XXH3_128bits(data, bytes));
}

bool dsvi_hash_key_same(const DsviHashKey *a, const DsviHashKey *b)
{
    return a->hex[0] && strcmp(a->hex, b->hex) == 0;
}

bool dsvi_hash_key_read(const char *text, DsviHashKey *out)
{
    out->hex[0] = 0;
    if (!text || strlen(text) != DSVI_HASH_KEY_DIGITS ||
        strspn(text, "0123456789abcdef") != DSVI_HASH_KEY_DIGITS)
        return false;
    memcpy(out->hex, text, sizeof out->hex);
    return true;
}

/* A file whose bytes are being hashed. */
typedef struct Hashing {
    const char *path;
    int file;
    unsigned char *block; /* (BLOCK) */
    XXH3_state_t *state;
} Hashing;

/* Adds the bytes [from, from + bytes) to the hash; fewer if the file ends before. Stores in *got how many. */
static DsvStatus hash_key_add(Hashing *h, uint64_t from, size_t bytes, size_t *got)
{
    *got = 0;
    while (*got < bytes) {
        ssize_t n = pread(h->file, h->block + *got, bytes - *got, (off_t)(from + *got));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return DSVI_FAIL(DSV_E_IO, "%s: cannot read it: %s", h->path, strerror(errno));
        if (n == 0)
            break;
        *got += (size_t)n;
    }
    XXH3_128bits_update(h->state, h->block, *got);
    return DSV_OK;
}

static DsvStatus hash_key_whole(Hashing *h)
{
    uint64_t from = 0;
    for (size_t got = BLOCK; got == BLOCK; from += got)
        DSVI_TRY(hash_key_add(h, from, BLOCK, &got));
    return DSV_OK;
}

static DsvStatus hash_key_samples(Hashing *h, uint64_t size)
{
    size_t got;
    if (size <= (uint64_t)WHOLE_MAX * BLOCK)
        return hash_key_whole(h);
    XXH3_128bits_update(h->state, &size, sizeof size);
    DSVI_TRY(hash_key_add(h, 0, BLOCK, &got));
    for (uint64_t i = 1; i <= SAMPLES; i++)
        DSVI_TRY(hash_key_add(h, size / (SAMPLES + 1) * i, SAMPLE_BYTES, &got));
    return hash_key_add(h, size - BLOCK, BLOCK, &got);
}

static DsvStatus hash_key_file(const char *path, bool sampled, DsviHashKey *out)
{
    DsvStatus status;
    uint64_t size;
    Hashing h = {.path = path};
    out->hex[0] = 0;
    DSVI_TRY(dsvi_file_size(path, &size));
    h.file = open(path, O_RDONLY | O_CLOEXEC);
    if (h.file < 0)
        return DSVI_FAIL(errno == ENOENT ? DSV_E_NOT_FOUND : DSV_E_IO, "%s: cannot open it: %s", path,
                         strerror(errno));
    h.block = malloc(BLOCK);
    h.state = XXH3_createState();
    if (!h.block || !h.state) {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory to compute its hash", path);
        goto done;
    }
    XXH3_128bits_reset(h.state);
    DSVI_TRY_GOTO(status, sampled ? hash_key_samples(&h, size) : hash_key_whole(&h), done);
    *out = hash_key_text(XXH3_128bits_digest(h.state));
done:
    XXH3_freeState(h.state);
    free(h.block);
    close(h.file);
    return status;
}

DsvStatus dsvi_file_hash_key(const char *path, DsviHashKey *out)
{
    return hash_key_file(path, false, out);
}

DsvStatus dsvi_file_sample_key(const char *path, DsviHashKey *out)
{
    return hash_key_file(path, true, out);
}
