/* Implements wan_texts.h. */
#include "pipeline/wan_texts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/host.h"
#include "base/memory_limit.h"
#include "base/safetensors.h"
#include "model/dit/dit.h"
#include "text/tokenizer.h"

enum { LINE_BYTES = DSVI_PATH_MAX + 128, ROOM_GROWTH = 64 * DSVI_TEXT_ROWS };

/* Names text i in messages: its line in `file`, or its number if there is no file. */
static void name_text(const char *file, int64_t i, int64_t negative, char out[LINE_BYTES])
{
    if (i == negative)
        snprintf(out, LINE_BYTES, "negative prompt");
    else if (file)
        snprintf(out, LINE_BYTES, "%s: line %lld", file, (long long)i + 1);
    else
        snprintf(out, LINE_BYTES, "prompt %lld", (long long)i + 1);
}

static void warn_about_cut(const DsvEvents *events, const char *name, int64_t cut)
{
    char line[LINE_BYTES + 128];
    snprintf(line, sizeof line,
             "%s has %lld ids, of which the last %lld before the end are cut off: the model takes %d", name,
             (long long)cut + DSVI_TEXT_ROWS, (long long)cut, DSVI_TEXT_ROWS);
    if (cut > 0 && events->log)
        events->log(events->context, DSV_LOG_WARNING, line);
}

static DsvStatus wan_texts_no_memory(int64_t count)
{
    return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the rows of %lld texts: divide them among files",
                     (long long)count);
}

/* Makes room for the ids of one more text after `used` ids. */
static DsvStatus make_room(DsviWanTexts *texts, int64_t used, int64_t *room)
{
    if (*room - used >= DSVI_TEXT_ROWS)
        return DSV_OK;
    *room = 2 * *room + ROOM_GROWTH;
    int32_t *more = realloc(texts->ids, (size_t)*room * sizeof *more);
    if (!more)
        return wan_texts_no_memory(texts->count);
    texts->ids = more;
    return DSV_OK;
}

static DsvStatus tokenize_all(const DsviTokenizer *tokenizer, const char *const *texts, int64_t negative,
                              const char *file, const DsvEvents *events, DsviWanTexts *out)
{
    char name[LINE_BYTES];
    int64_t room = 0;
    for (int64_t i = 0; i < out->count; i++) {
        int64_t count = 0, cut = 0;
        DSVI_TRY(make_room(out, out->first[i], &room));
        DsvStatus status = dsvi_tokenizer_encode(tokenizer, texts[i], DSVI_TEXT_ROWS,
                                                 out->ids + out->first[i], &count, &cut);
        name_text(file, i, negative, name);
        if (status != DSV_OK)
            return dsvi_fail_prefix(status, "%s", name);
        warn_about_cut(events, name, cut);
        out->first[i + 1] = out->first[i] + count;
    }
    return DSV_OK;
}

DsvStatus dsvi_wan_texts_tokenize(const char *tokenizer_path, const char *const *texts, int64_t count,
                                  int64_t negative, const char *file, const DsvEvents *events,
                                  DsviWanTexts *out)
{
    DsviTokenizer *tokenizer;
    *out = (DsviWanTexts){.count = count};
    out->first = calloc((size_t)count + 1, sizeof *out->first);
    if (!out->first)
        return wan_texts_no_memory(count);
    DSVI_TRY(dsvi_tokenizer_open(tokenizer_path, &tokenizer));
    DsvStatus status = tokenize_all(tokenizer, texts, negative, file, events, out);
    dsvi_tokenizer_close(&tokenizer);
    return status;
}

DsviUmt5Options dsvi_wan_texts_options(const DsviWanTexts *texts, const DsvConfig *settings)
{
    int64_t longest = 0;
    for (int64_t i = 0; i < texts->count; i++) {
        int64_t rows = texts->first[i + 1] - texts->first[i];
        longest = rows > longest ? rows : longest;
    }
    return (DsviUmt5Options){.act = dsvi_dit_act(settings),
                             .rows = dsvi_umt5_rows(texts->first[texts->count], longest),
                             .memory_bytes = dsvi_memory_limit(settings)};
}

/* Encodes the texts in groups of at most `limit` rows, and reports after each group. */
static DsvStatus encode_groups(DsviUmt5 *encoder, int64_t limit, const int64_t *lengths,
                               const DsvEvents *events, DsviWanTexts *out)
{
    const double start = dsvi_clock_seconds();
    const int64_t all = out->first[out->count];
    for (int64_t done = 0; done < out->count;) {
        int64_t group = 0, row = out->first[done];
        while (done + group < out->count && out->first[done + group + 1] - row <= limit)
            group++;
        DSVI_TRY(
            dsvi_umt5_encode(encoder, group, lengths + done, out->ids + row, out->states + row * out->dim));
        done += group;
        row = out->first[done];
        DsvProgress progress = {.unit = "prompt", .done = done, .total = out->count};
        progress.seconds_left = (dsvi_clock_seconds() - start) / (double)row * (double)(all - row);
        if (events && events->progress)
            events->progress(events->context, &progress);
        if (done < out->count && events && events->stop && events->stop(events->context))
            return DSVI_FAIL(DSV_E_INTERRUPTED, "stopped after %lld of %lld prompts; nothing is written",
                             (long long)done, (long long)out->count);
    }
    return DSV_OK;
}

DsvStatus dsvi_wan_texts_encode(DsviBackend *backend, const DsvConfig *settings, const char *encoder_path,
                                const DsvEvents *events, DsviWanTexts *texts)
{
    DsvStatus status;
    DsviUmt5 *encoder = NULL;
    const DsviUmt5Options options = dsvi_wan_texts_options(texts, settings);
    int64_t *lengths = malloc((size_t)texts->count * sizeof *lengths);
    if (!lengths)
        return wan_texts_no_memory(texts->count);
    for (int64_t i = 0; i < texts->count; i++)
        lengths[i] = texts->first[i + 1] - texts->first[i];
    DSVI_TRY_GOTO(status, dsvi_umt5_open(backend, encoder_path, &options, &encoder), done);
    texts->dim = dsvi_umt5_config(encoder)->d_model;
    texts->states = malloc((size_t)(texts->first[texts->count] * texts->dim + 1) * sizeof *texts->states);
    status = texts->states ? encode_groups(encoder, options.rows, lengths, events, texts)
                           : wan_texts_no_memory(texts->count);
    if (status != DSV_OK && status != DSV_E_INTERRUPTED)
        status = dsvi_fail_prefix(status, "%s", encoder_path);
done:
    dsvi_umt5_close(&encoder);
    free(lengths);
    return status;
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
