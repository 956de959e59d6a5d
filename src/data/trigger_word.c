/* Implements trigger_word.h. */
#include "data/trigger_word.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static DsvStatus put_before(DsviCaption *caption, const char *word)
{
    size_t room = strlen(word) + strlen(caption->text) + 2;
    if (strstr(caption->text, word))
        return DSV_OK;
    char *text = malloc(room);
    if (!text)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a caption of %zu bytes", room);
    snprintf(text, room, "%s %s", word, caption->text);
    free(caption->text);
    caption->text = text;
    return DSV_OK;
}

static DsvStatus put_before_all(DsviDatasetItem *item, const char *word)
{
    if (item->captions.count == 0)
        return dsvi_captions_add(&item->captions, word);
    for (int64_t i = 0; i < item->captions.count; i++)
        DSVI_TRY(put_before(&item->captions.at[i], word));
    return DSV_OK;
}

static DsvStatus check_item(const DsviDatasetItem *item, const char *word)
{
    const DsviCaptions *captions = &item->captions;
    const char *lacking = captions->count == 0 ? "" : NULL;
    for (int64_t i = 0; i < captions->count && !lacking; i++)
        if (!strstr(captions->at[i].text, word))
            lacking = captions->at[i].text;
    if (!lacking)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_USAGE,
                     "data.trigger_word is '%s', and the caption '%.80s' of %s in the latent cache does not "
                     "contain it: encode the clips again with this trigger word",
                     word, lacking, item->source);
}

DsvStatus dsvi_trigger_word_apply(DsviDataset *dataset, const char *word)
{
    for (int64_t i = 0; word[0] && i < dataset->count; i++) {
        DsviDatasetItem *item = &dataset->items[i];
        DSVI_TRY(dataset->latents ? check_item(item, word) : put_before_all(item, word));
    }
    return DSV_OK;
}
