/* Implements encode_texts.h. Captions are converted to ids in parallel. Texts are then sorted by the keys of
 * their states, which brings equal texts together, and by length before they are encoded, so that a batch
 * holds texts of similar lengths. */
#include "encode/encode_texts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/host.h"
#include "base/threads.h"

typedef struct DsviText {
    DsviHashKey key;
    int32_t *ids;
    int64_t count, cut;
    DsviCaption *caption; /* that has this text; NULL for the empty prompt */
    int64_t item;         /* of the data set, to which the caption belongs */
    DsvStatus status;
    char *message; /* of a failure */
} Text;

/* The texts of all captions, before equal ones are found. */
typedef struct Collection {
    const DsviTextIds *ids;
    const DsviTextStore *store;
    Text *texts;
    int32_t *room; /* (threads, limit) */
} Collection;

static DsvStatus convert_text(const Collection *c, Text *text, int32_t *room)
{
    DSVI_TRY(c->ids->ids(c->ids->context, text->caption ? text->caption->text : "", room, &text->count,
                         &text->cut));
    text->ids = malloc((size_t)(text->count ? text->count : 1) * sizeof *text->ids);
    if (!text->ids)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the %lld ids of a caption", (long long)text->count);
    memcpy(text->ids, room, (size_t)text->count * sizeof *text->ids);
    text->key = dsvi_text_states_key(c->store, text->ids, text->count);
    return DSV_OK;
}

static void convert_range(void *context, int64_t begin, int64_t end, int worker)
{
    const Collection *c = context;
    for (int64_t i = begin; i < end; i++) {
        Text *text = &c->texts[i];
        text->status = convert_text(c, text, c->room + worker * c->ids->limit);
        if (text->status != DSV_OK)
            text->message = strdup(dsv_error_message());
    }
}

/* Lists the empty prompt and all captions. */
static DsvStatus list_texts(DsviDataset *dataset, DsviTexts *out)
{
    int64_t count = 1;
    for (int64_t i = 0; i < dataset->count; i++)
        count += dataset->items[i].captions.count;
    out->at = calloc((size_t)count, sizeof *out->at);
    if (!out->at)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a list of %lld captions", (long long)count);
    out->count = 1;
    for (int64_t i = 0; i < dataset->count; i++)
        for (int64_t k = 0; k < dataset->items[i].captions.count; k++)
            out->at[out->count++] = (Text){.caption = &dataset->items[i].captions.at[k], .item = i};
    return DSV_OK;
}

/* Checks the results of convert_range, stores the keys, and counts the texts that were cut. */
static DsvStatus take_keys(DsviTextStore *store, DsviTexts *texts)
{
    for (int64_t i = 0; i < texts->count; i++) {
        const Text *text = &texts->at[i];
        if (text->status != DSV_OK)
            return dsvi_fail_adopt(text->status, text->message ? text->message : "out of memory");
        if (!text->caption)
            store->empty = text->key;
        else
            text->caption->states = text->key;
        if (text->cut > 0 && texts->cut++ == 0)
            texts->cut_item = text->item;
    }
    return DSV_OK;
}

static void free_text(Text *text)
{
    free(text->ids);
    free(text->message);
}

static int text_by_key(const void *a, const void *b)
{
    return strcmp(((const Text *)a)->key.hex, ((const Text *)b)->key.hex);
}

static int text_by_length(const void *a, const void *b)
{
    const Text *x = a, *y = b;
    int order = (x->count > y->count) - (x->count < y->count);
    return order ? order : text_by_key(a, b);
}

/* Keeps one of the texts with equal keys. */
static void drop_equal(DsviTexts *texts)
{
    int64_t kept = 1;
    qsort(texts->at, (size_t)texts->count, sizeof *texts->at, text_by_key);
    for (int64_t i = 1; i < texts->count; i++) {
        if (text_by_key(&texts->at[i], &texts->at[kept - 1]) == 0)
            free_text(&texts->at[i]);
        else
            texts->at[kept++] = texts->at[i];
    }
    texts->count = kept;
    qsort(texts->at, (size_t)kept, sizeof *texts->at, text_by_length);
}

DsvStatus dsvi_texts_collect(DsviDataset *dataset, const DsviTextIds *ids, DsviTextStore *store,
                             DsviTexts *out)
{
    *out = (DsviTexts){0};
    DSVI_TRY(list_texts(dataset, out));
    Collection c = {.ids = ids, .store = store, .texts = out->at};
    c.room = malloc((size_t)dsvi_threads_count() * (size_t)ids->limit * sizeof *c.room);
    if (!c.room)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the ids of captions");
    dsvi_parallel_for(out->count, 16, convert_range, &c);
    free(c.room);
    DSVI_TRY(take_keys(store, out));
    drop_equal(out);
    return DSV_OK;
}

void dsvi_texts_free(DsviTexts *texts)
{
    for (int64_t i = 0; i < texts->count; i++)
        free_text(&texts->at[i]);
    free(texts->at);
    *texts = (DsviTexts){0};
}

int64_t dsvi_texts_rows(const DsviTexts *texts)
{
    int64_t rows = 0;
    for (int64_t i = 0; i < texts->count; i++)
        rows += texts->at[i].count;
    return rows;
}

void dsvi_texts_drop_stored(DsviTexts *texts, const DsviTextStore *store)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < texts->count; i++) {
        if (dsvi_text_states_has(store, &texts->at[i].key))
            free_text(&texts->at[i]);
        else
            texts->at[kept++] = texts->at[i];
    }
    texts->count = kept;
}

/* One call of the encoder. */
typedef struct TextBatch {
    const DsviTextStore *store;
    const Text *first;
    int64_t *lengths, *offsets; /* (rows) of each text; in `ids` and `hidden`, in rows */
    int32_t *ids;               /* (rows) */
    float *hidden;              /* (rows, dim) */
    DsvStatus *written;         /* (rows) of each text: the result of writing its states */
} TextBatch;

static DsvStatus batch_allocate(TextBatch *batch, int64_t rows, int64_t dim)
{
    batch->lengths = malloc((size_t)rows * sizeof *batch->lengths);
    batch->offsets = malloc((size_t)rows * sizeof *batch->offsets);
    batch->written = malloc((size_t)rows * sizeof *batch->written);
    batch->ids = malloc((size_t)rows * sizeof *batch->ids);
    batch->hidden = malloc((size_t)rows * (size_t)dim * sizeof *batch->hidden);
    if (!batch->lengths || !batch->offsets || !batch->written || !batch->ids || !batch->hidden)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %lld rows of text states", (long long)rows);
    return DSV_OK;
}

static void batch_free(TextBatch *batch)
{
    free(batch->lengths);
    free(batch->offsets);
    free(batch->written);
    free(batch->ids);
    free(batch->hidden);
}

static void write_range(void *context, int64_t begin, int64_t end, int worker)
{
    TextBatch *batch = context;
    (void)worker;
    for (int64_t i = begin; i < end; i++)
        batch->written[i] = dsvi_text_states_write(batch->store, &batch->first[i].key, batch->lengths[i],
                                                   batch->hidden + batch->offsets[i] * batch->store->dim);
}

/* Stores the states of `count` texts. Threads write, since each file is synced to the disk. */
static DsvStatus write_batch(TextBatch *batch, int64_t count)
{
    dsvi_parallel_for(count, 1, write_range, batch);
    for (int64_t i = 0; i < count; i++) /* again, on this thread, for the sentence of the failure */
        if (batch->written[i] != DSV_OK)
            write_range(batch, i, i + 1, 0);
    for (int64_t i = 0; i < count; i++)
        DSVI_TRY(batch->written[i]);
    return DSV_OK;
}

/* Encodes and stores as many texts from batch->first on as fit into one call; `left`: their number at most.
 * Stores their number in *count. */
static DsvStatus encode_batch(TextBatch *batch, const DsviTextEncoder *encoder, int64_t left, int64_t *count)
{
    int64_t rows = 0, n = 0;
    for (; n < left && rows + batch->first[n].count <= encoder->rows; n++) {
        const Text *text = &batch->first[n];
        memcpy(batch->ids + rows, text->ids, (size_t)text->count * sizeof *text->ids);
        batch->lengths[n] = text->count;
        batch->offsets[n] = rows;
        rows += text->count;
    }
    DSVI_ASSERT(n > 0);
    *count = n;
    DSVI_TRY(encoder->encode(encoder->context, n, batch->lengths, batch->ids, batch->hidden));
    return write_batch(batch, n);
}

DsvStatus dsvi_texts_encode(const DsviTexts *texts, const DsviTextStore *store,
                            const DsviTextEncoder *encoder, const DsvEvents *events)
{
    DsvStatus status;
    TextBatch batch = {.store = store};
    double start = dsvi_clock_seconds();
    DSVI_TRY_GOTO(status, batch_allocate(&batch, encoder->rows, store->dim), done);
    for (int64_t done = 0, count; done < texts->count; done += count) {
        if (done > 0 && events->stop && events->stop(events->context)) {
            status = DSVI_FAIL(DSV_E_INTERRUPTED,
                               "stopped after %lld of %lld captions; the same command goes on",
                               (long long)done, (long long)texts->count);
            goto done;
        }
        batch.first = &texts->at[done];
        DSVI_TRY_GOTO(status, encode_batch(&batch, encoder, texts->count - done, &count), done);
        double each = (dsvi_clock_seconds() - start) / (double)(done + count);
        DsvProgress progress = {
            .unit = "caption", .done = done + count, .total = texts->count, .step_ms = 1e3 * each};
        progress.seconds_left = each * (double)(texts->count - progress.done);
        if (events->progress)
            events->progress(events->context, &progress);
    }
done:
    batch_free(&batch);
    return status;
}
