/* Implements captions.h. */
#include "data/captions.h"

#include <stdlib.h>
#include <string.h>

DsvStatus dsvi_captions_add(DsviCaptions *captions, const char *text)
{
    DsviCaption *at = realloc(captions->at, (size_t)(captions->count + 1) * sizeof *at);
    char *copy = strdup(text);
    if (at)
        captions->at = at;
    if (!at || !copy) {
        free(copy);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a caption of %zu bytes", strlen(text));
    }
    captions->at[captions->count++] = (DsviCaption){.text = copy};
    return DSV_OK;
}

DsvStatus dsvi_captions_copy(DsviCaptions *out, const DsviCaptions *captions)
{
    DsvStatus status;
    *out = (DsviCaptions){0};
    for (int64_t i = 0; i < captions->count; i++) {
        DSVI_TRY_GOTO(status, dsvi_captions_add(out, captions->at[i].text), fail);
        out->at[i].states = captions->at[i].states;
    }
    return DSV_OK;
fail:
    dsvi_captions_free(out);
    return status;
}

bool dsvi_captions_equal(const DsviCaptions *a, const DsviCaptions *b)
{
    bool equal = a->count == b->count;
    for (int64_t i = 0; equal && i < a->count; i++)
        equal = strcmp(a->at[i].text, b->at[i].text) == 0 &&
                strcmp(a->at[i].states.hex, b->at[i].states.hex) == 0;
    return equal;
}

void dsvi_captions_free(DsviCaptions *captions)
{
    for (int64_t i = 0; i < captions->count; i++)
        free(captions->at[i].text);
    free(captions->at);
    *captions = (DsviCaptions){0};
}
