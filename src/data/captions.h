/* The captions of a clip. */
#ifndef DSVI_CAPTIONS_H
#define DSVI_CAPTIONS_H

#include <stdint.h>

#include "base/hash_key.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviCaption {
    char *text;
    DsviHashKey states; /* key of its text states (text_states.h); unknown without a text encoder */
} DsviCaption;

/* A list that owns its texts. All bytes 0: an empty list. */
typedef struct DsviCaptions {
    DsviCaption *at;
    int64_t count;
} DsviCaptions;

/* Appends a copy of the text, with unknown states. Fails with DSV_E_NO_MEMORY. */
DsvStatus dsvi_captions_add(DsviCaptions *captions, const char *text);
/* Makes *out, which is overwritten, a copy. Fails with DSV_E_NO_MEMORY; *out is then empty. */
DsvStatus dsvi_captions_copy(DsviCaptions *out, const DsviCaptions *captions);
bool dsvi_captions_equal(const DsviCaptions *a, const DsviCaptions *b);
/* Frees the texts; the list is then empty. */
void dsvi_captions_free(DsviCaptions *captions);

#ifdef __cplusplus
}
#endif
#endif
