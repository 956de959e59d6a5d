/* Implements wan_texts.h. */
#include "pipeline/wan_texts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory_limit.h"
#include "base/safetensors.h"
#include "model/dit/dit.h"
#include "model/umt5/umt5.h"
#include "text/tokenizer.h"

enum { LINE_BYTES = 256 };

static void warn_about_cut(const DsvEvents *events, int64_t text, int64_t cut)
{
    char line[LINE_BYTES];
    snprintf(line, sizeof line, "prompt %lld has %lld ids, the model takes %d: the last %lld are cut off",
             (long long)text + 1, (long long)cut + DSVI_TEXT_ROWS, DSVI_TEXT_ROWS, (long long)cut);
    if (cut > 0 && events->log)
        events->log(events->context, DSV_LOG_WARNING, line);
}

static DsvStatus wan_texts_no_memory(int64_t count)
{
    return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the rows of %lld texts", (long long)count);
}

/* Fills out->ids and out->first. */
static DsvStatus tokenize(const DsviWanFolder *folder, const char *const *texts, const DsvEvents *events,
                          DsviWanTexts *out)
{
    DsvStatus status = DSV_OK;
    DsviTokenizer *tokenizer = NULL;
    DSVI_TRY(dsvi_tokenizer_open(folder->part[DSVI_WAN_TOKENIZER], &tokenizer));
    for (int64_t i = 0; i < out->count; i++) {
        int64_t count = 0, cut = 0;
        status = dsvi_tokenizer_encode(tokenizer, texts[i], DSVI_TEXT_ROWS, out->ids + out->first[i], &count,
                                       &cut);
        if (status != DSV_OK) {
            status = dsvi_fail_prefix(status, "prompt %lld", (long long)i + 1);
            break;
        }
        out->first[i + 1] = out->first[i] + count;
        warn_about_cut(events, i, cut);
    }
    dsvi_tokenizer_close(&tokenizer);
    return status;
}

/* Fills out->states. */
static DsvStatus encode_ids(DsviBackend *backend, const DsvConfig *settings, const DsviWanFolder *folder,
                            DsviWanTexts *out)
{
    DsvStatus status = DSV_OK;
    DsviUmt5 *encoder = NULL;
    int64_t rows = out->first[out->count];
    int64_t longest = 0;
    int64_t *lengths = malloc((size_t)out->count * sizeof *lengths);
    if (!lengths)
        return wan_texts_no_memory(out->count);
    for (int64_t i = 0; i < out->count; i++) {
        lengths[i] = out->first[i + 1] - out->first[i];
        longest = lengths[i] > longest ? lengths[i] : longest;
    }
    DsviUmt5Options options = {.act = dsvi_dit_act(settings),
                               .rows = dsvi_umt5_rows(rows, longest),
                               .memory_bytes = dsvi_memory_limit(settings)};
    DSVI_TRY_GOTO(status, dsvi_umt5_open(backend, folder->part[DSVI_WAN_TEXT_ENCODER], &options, &encoder),
                  done);
    out->dim = dsvi_umt5_config(encoder)->d_model;
    out->states = malloc((size_t)rows * (size_t)out->dim * sizeof *out->states);
    status = out->states ? dsvi_umt5_encode(encoder, out->count, lengths, out->ids, out->states)
                         : wan_texts_no_memory(out->count);
    dsvi_umt5_close(&encoder);
done:
    free(lengths);
    return status;
}

DsvStatus dsvi_wan_texts_encode(DsviBackend *backend, const DsvConfig *settings, const DsviWanFolder *folder,
                                const char *const *texts, int64_t count, const DsvEvents *events,
                                DsviWanTexts *out)
{
    *out = (DsviWanTexts){.count = count};
    DSVI_TRY(dsvi_wan_folder_require(folder, DSVI_WAN_TOKENIZER));
    DSVI_TRY(dsvi_wan_folder_require(folder, DSVI_WAN_TEXT_ENCODER));
    out->first = calloc((size_t)count + 1, sizeof *out->first);
    out->ids = malloc((size_t)count * DSVI_TEXT_ROWS * sizeof *out->ids);
    if (!out->first || !out->ids)
        return wan_texts_no_memory(count);
    DSVI_TRY(tokenize(folder, texts, events, out));
    return encode_ids(backend, settings, folder, out);
}

/* Finds the hidden states of one text in a file; *rows is 0 if they are missing and not required. */
static DsvStatus find_states(const DsviSafetensors *file, const char *name, bool required, int64_t dim,
                             const DsviStoredTensor **out, int64_t *rows)
{
    const DsviStoredTensor *tensor = dsvi_safetensors_find(file, name);
    bool batch = tensor && tensor->ndim == 3;
    const int64_t shape[3] = {batch ? 1 : -1, batch ? -1 : dim, dim};
    *rows = 0;
    if (!tensor && !required)
        return DSV_OK;
    DSVI_TRY(dsvi_safetensors_require_floating(file, name, batch ? 3 : 2, shape, out));
    *rows = (*out)->shape[batch ? 1 : 0];
    return DSV_OK;
}

DsvStatus dsvi_wan_texts_read(const char *path, int64_t dim, DsviWanTexts *out)
{
    DsvStatus status;
    DsviSafetensors *file;
    const DsviStoredTensor *tensor[2] = {NULL, NULL};
    int64_t rows[2];
    *out = (DsviWanTexts){.dim = dim};
    DSVI_TRY(dsvi_safetensors_open(path, &file));
    DSVI_TRY_GOTO(status, find_states(file, "encoder_hidden_states", true, dim, &tensor[0], &rows[0]), done);
    DSVI_TRY_GOTO(
        status, find_states(file, "negative_encoder_hidden_states", false, dim, &tensor[1], &rows[1]), done);
    out->count = tensor[1] ? 2 : 1;
    out->first = calloc((size_t)out->count + 1, sizeof *out->first);
    out->states = malloc((size_t)((rows[0] + rows[1]) * dim + 1) * sizeof *out->states);
    if (!out->first || !out->states) {
        status = wan_texts_no_memory(out->count);
        goto done;
    }
    for (int64_t i = 0; i < out->count; i++) {
        out->first[i + 1] = out->first[i] + rows[i];
        dsvi_convert(DSVI_F32, out->states + out->first[i] * dim, tensor[i]->dtype, tensor[i]->data,
                     tensor[i]->count);
    }
done:
    dsvi_safetensors_close(&file);
    return status;
}

void dsvi_wan_texts_free(DsviWanTexts *texts)
{
    free(texts->first);
    free(texts->ids);
    free(texts->states);
    memset(texts, 0, sizeof *texts);
}

DsvStatus dsvi_wan_texts_rows(const DsviWanTexts *texts, int64_t i, int64_t text_len, int64_t dim,
                              float *rows)
{
    int64_t first = texts->first[i], count = texts->first[i + 1] - first;
    if (texts->dim != dim || count > text_len)
        return DSVI_FAIL(
            DSV_E_SHAPE,
            "the text states are %lld rows of %lld, the transformer takes at most %lld rows of %lld",
            (long long)count, (long long)texts->dim, (long long)text_len, (long long)dim);
    memset(rows, 0, (size_t)(text_len * dim) * sizeof *rows);
    memcpy(rows, texts->states + first * dim, (size_t)(count * dim) * sizeof *rows);
    return DSV_OK;
}
