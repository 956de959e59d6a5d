/* Implements encode_prompts.h. The prompts are encoded like the captions of a data set with one clip. */
#include "encode/encode_prompts.h"

#include <stdio.h>

#include "encode/encode_models.h"
#include "encode/encode_texts.h"

static void prompts_log(const DsvEvents *events, DsvLogLevel level, const char *line)
{
    if (events->log)
        events->log(events->context, level, line);
}

/* Encodes the texts that the store does not have. */
static DsvStatus encode_missing(DsviEncodeModels *models, const DsviTextStore *store, DsviTexts *texts,
                                const DsvEvents *events)
{
    DsviTextEncoder encoder;
    char line[128];
    int64_t distinct = texts->count;
    dsvi_texts_drop_stored(texts, store);
    if (texts->count == 0)
        return DSV_OK;
    DSVI_TRY(dsvi_encode_models_load_text(models, dsvi_texts_rows(texts), &encoder));
    DsvStatus status = dsvi_texts_encode(texts, store, &encoder, events);
    dsvi_encode_models_free_text(models);
    DSVI_TRY(status);
    snprintf(line, sizeof line,
             "%lld of %lld distinct prompts of sampled clips encoded, the empty prompt among them",
             (long long)texts->count, (long long)distinct);
    prompts_log(events, DSV_LOG_INFO, line);
    return DSV_OK;
}

static DsvStatus collect_and_encode(DsviEncodeModels *models, const DsvEvents *events, DsviCaptions *prompts,
                                    DsviTextStore *store, DsviTexts *texts)
{
    const DsviTextIds ids = dsvi_encode_models_ids(models);
    DsviDatasetItem item = {.path = models->folder.path, .captions = *prompts};
    DsviDataset one = {.items = &item, .count = 1};
    char line[128];
    DSVI_TRY(dsvi_texts_collect(&one, &ids, store, texts)); /* enters the keys into prompts->at */
    if (texts->cut > 0) {
        snprintf(line, sizeof line, "validation.prompts: %lld prompts have more than %d ids and are cut",
                 (long long)texts->cut, DSVI_TEXT_ROWS);
        prompts_log(events, DSV_LOG_WARNING, line);
    }
    return encode_missing(models, store, texts, events);
}

DsvStatus dsvi_encode_prompts(const DsvConfig *config, DsviBackend *backend, const char *folder,
                              const DsvEvents *events, DsviCaptions *prompts, DsviTextStore *store)
{
    DsviEncodeModels models;
    DsviTexts texts = {0};
    DsvStatus status;
    DSVI_TRY_GOTO(status, dsvi_encode_models_open(config->model_path, config, backend, &models), done);
    *store = models.identity.text;
    snprintf(store->folder, sizeof store->folder, "%s", folder);
    DSVI_TRY_GOTO(status, dsvi_folder_make(folder), done);
    DSVI_TRY_GOTO(status, collect_and_encode(&models, events, prompts, store, &texts), done);
done:
    dsvi_texts_free(&texts);
    dsvi_encode_models_close(&models);
    return status;
}
