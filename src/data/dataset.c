/* Implements dataset.h: opens a data set. dataset_find.c finds its items (clips or cached latents), and
 * dataset_sample.c defines the i-th sample. */
#include "data/dataset.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/fs.h"
#include "base/threads.h"
#include "data/clip_stream.h"
#include "data/dataset_find.h"
#include "data/dataset_sources.h"
#include "data/latent_cache.h"
#include "data/latent_file.h"
#include "data/trigger_word.h"

/* A check of all items. */
typedef struct Check {
    DsviDataset *dataset;
    const DsvConfig *config;
    char **reasons; /* (count): why an item cannot be used, or NULL */
    char **notes;   /* (count): a line for the user about an item, or NULL */
} Check;

/* Fails if a cached window has another size than the configuration's. */
static DsvStatus check_window_size(const DsvConfig *config, const DsviDatasetItem *item)
{
    const DsviClipSize expected = {config->num_frames, config->height, config->width};
    char found_text[DSVI_CLIP_SIZE_BYTES], text[DSVI_CLIP_SIZE_BYTES];
    if (dsvi_clip_size_same(&item->window, &expected))
        return DSV_OK;
    return DSVI_FAIL(DSV_E_SHAPE, "%s: a window of %s, expected %s", item->path,
                     dsvi_clip_size_text(&item->window, found_text), dsvi_clip_size_text(&expected, text));
}

/* Fails if a cached window, or the text states of one of its captions, is not whole. */
static DsvStatus check_cached(const DsviDataset *d, const DsviDatasetItem *item)
{
    DsvStatus status;
    const DsviTextStore *text = &d->sources[item->from].text;
    DSVI_TRY(dsvi_latent_probe(item->path));
    for (int64_t i = 0; text->folder[0] && i < item->captions.count; i++)
        if (item->captions.at[i].states.hex[0] &&
            (status = dsvi_text_states_probe(text, &item->captions.at[i].states)) != DSV_OK)
            return dsvi_fail_prefix(status, "%s: its caption", item->path);
    return DSV_OK;
}

/* Probes an item and fails if it cannot be used. Sets *note to a line for the user, if there is something to
 * report. */
static DsvStatus check_item(const Check *check, DsviDatasetItem *item, char **note)
{
    char text[DSVI_PATH_MAX + 512];
    int64_t cover[2];
    if (check->dataset->latents) {
        DSVI_TRY(check_cached(check->dataset, item));
        return check->config->data_buckets[0] ? DSV_OK : check_window_size(check->config, item);
    }
    DSVI_TRY(dsvi_clip_probe(item->path, &item->info));
    if (dsvi_clip_oddities_text(item->path, &item->info, text, sizeof text))
        *note = strdup(text);
    if (check->config->data_buckets[0])
        return DSV_OK; /* the size that the clip must cover is not known yet */
    return dsvi_clip_cover(item->path, item->info.height, item->info.width, check->config->height,
                           check->config->width, &cover[0], &cover[1]);
}

static void check_range(void *context, int64_t begin, int64_t end, int worker)
{
    Check *check = context;
    (void)worker;
    for (int64_t i = begin; i < end; i++)
        if (check_item(check, &check->dataset->items[i], &check->notes[i]) != DSV_OK)
            check->reasons[i] = strdup(dsv_error_message());
}

static void free_item(DsviDatasetItem *item)
{
    free(item->path);
    dsvi_captions_free(&item->captions);
    free(item->image);
    free(item->source);
}

static void free_left_out(DsviLeftOut *left_out)
{
    free(left_out->path);
    free(left_out->reason);
}

/* d->left_out has room for all items that were found. */
void dsvi_dataset_leave_out(DsviDataset *d, char **reasons)
{
    int64_t usable = 0;
    for (int64_t i = 0; i < d->count; i++) {
        if (reasons[i]) {
            d->left_out[d->left_out_count++] = (DsviLeftOut){d->items[i].path, reasons[i], d->items[i].from};
            d->items[i].path = NULL;
            free_item(&d->items[i]);
        } else {
            d->items[usable++] = d->items[i];
        }
    }
    d->count = usable;
}

/* Probes all items in parallel, and moves those that cannot be used to left_out. */
static DsvStatus check_items(Check *check)
{
    DsviDataset *d = check->dataset;
    check->reasons = calloc((size_t)d->count + 1, sizeof *check->reasons);
    d->left_out = calloc((size_t)d->count + 1, sizeof *d->left_out);
    check->notes = calloc((size_t)d->count + 1, sizeof *check->notes);
    if (!check->reasons || !d->left_out || !check->notes)
        return dsvi_dataset_no_memory();
    int64_t listed = d->count;
    DsvStatus status = DSV_OK;
    dsvi_parallel_for(listed, 1, check_range, check);
    for (int64_t i = 0; i < listed; i++) {
        if (check->notes[i] && !check->reasons[i] && status == DSV_OK)
            status = dsvi_dataset_add_remark(d, check->notes[i]);
        else
            free(check->notes[i]);
    }
    dsvi_dataset_leave_out(d, check->reasons);
    return status;
}

/* Fails because no item of source `from` is usable. */
static DsvStatus nothing_usable(const DsviDataset *d, int64_t from)
{
    const char *path = d->sources[from].named.path;
    int64_t tried = 0, first = 0;
    for (int64_t i = d->left_out_count - 1; i >= 0; i--) {
        bool of = d->left_out[i].from == from;
        first = of ? i : first;
        tried += of;
    }
    if (tried == 0 && dsvi_latent_cache_lacks_index(path))
        return DSVI_FAIL(
            DSV_E_NOT_FOUND,
            "%s: a latent cache without a usable index.json: remove this file if it is there, and "
            "repeat dsv encode, which keeps the windows",
            path);
    if (tried == 0)
        return DSVI_FAIL(DSV_E_NOT_FOUND, "%s: no usable clip in it: %s", path,
                         dsvi_path_is_folder(path) ? "no name there ends like that of a clip"
                                                   : "the list is empty");
    return DSVI_FAIL(DSV_E_NOT_FOUND, "%s: no usable clip in it; %lld tried, the first: %s", path,
                     (long long)tried, d->left_out[first].reason);
}

static DsvStatus check_sources(const DsviDataset *d)
{
    for (int64_t from = 0; from < d->source_count; from++) {
        bool used = false;
        for (int64_t i = 0; i < d->count && !used; i++)
            used = d->items[i].from == from;
        if (!used)
            return nothing_usable(d, from);
    }
    return DSV_OK;
}

DsvStatus dsvi_dataset_open(const char *path, const DsvConfig *config, DsviDataset **out)
{
    DsvStatus status;
    DsviDataset *d = calloc(1, sizeof *d);
    Check check = {.dataset = d, .config = config};
    *out = NULL;
    if (!d)
        return dsvi_dataset_no_memory();
    DSVI_TRY_GOTO(status, dsvi_dataset_find(d, path, config), done);
    DSVI_TRY_GOTO(status, check_items(&check), done);
    DSVI_TRY_GOTO(status, check_sources(d), done);
    DSVI_TRY_GOTO(status, dsvi_dataset_remark_shared(d), done);
    DSVI_TRY_GOTO(status, dsvi_trigger_word_apply(d, config->data_trigger_word), done);
    d->sizes.count = 1;
    d->sizes.at[0] = (DsviClipSize){config->num_frames, config->height, config->width};
    *out = d;
    d = NULL;
done:
    free(check.reasons);
    free(check.notes);
    dsvi_dataset_close(&d);
    return status;
}

void dsvi_dataset_close(DsviDataset **dataset)
{
    DsviDataset *d = *dataset;
    if (!d)
        return;
    for (int64_t i = 0; i < d->count; i++)
        free_item(&d->items[i]);
    for (int64_t i = 0; i < d->left_out_count; i++)
        free_left_out(&d->left_out[i]);
    for (int64_t i = 0; i < d->remark_count; i++)
        free(d->remarks[i]);
    free(d->items);
    free(d->sources);
    free(d->order);
    free(d->places_end);
    free(d->left_out);
    free(d->remarks);
    free(d);
    *dataset = NULL;
}

/* Orders items by path; items with equal paths keep their order. */
static int dataset_by_path(const void *a, const void *b)
{
    const DsviDatasetItem *x = *(DsviDatasetItem *const *)a, *y = *(DsviDatasetItem *const *)b;
    int order = strcmp(x->path, y->path);
    return order ? order : (x > y) - (x < y);
}

static DsvStatus resolve_paths(DsviDataset *d)
{
    for (int64_t i = 0; i < d->count; i++) {
        DsviDatasetItem *item = &d->items[i];
        char *path = realpath(item->path, NULL);
        if (!path)
            return DSVI_FAIL(DSV_E_IO, "%s: %s", item->path, strerror(errno));
        free(item->path);
        item->path = path;
    }
    return DSV_OK;
}

DsvStatus dsvi_dataset_deduplicate(DsviDataset *d)
{
    DsvStatus status = DSV_OK;
    DsviDatasetItem **order = calloc((size_t)d->count, sizeof *order);
    char **reasons = calloc((size_t)d->count, sizeof *reasons);
    if (!order || !reasons) {
        status = dsvi_dataset_no_memory();
        goto done;
    }
    DSVI_TRY_GOTO(status, resolve_paths(d), done);
    for (int64_t i = 0; i < d->count; i++)
        order[i] = &d->items[i];
    qsort(order, (size_t)d->count, sizeof *order, dataset_by_path);
    for (int64_t i = 1; i < d->count; i++) {
        char reason[DSVI_PATH_MAX + 64];
        if (strcmp(order[i]->path, order[i - 1]->path) != 0)
            continue;
        snprintf(reason, sizeof reason, "%s is listed more than once: its first place counts",
                 order[i]->path);
        reasons[order[i] - d->items] = strdup(reason);
        if (!reasons[order[i] - d->items])
            status = dsvi_dataset_no_memory();
    }
    dsvi_dataset_leave_out(d, reasons);
done:
    free(order);
    free(reasons);
    return status;
}

DsviDatasetFingerprint dsvi_dataset_fingerprint(const DsviDataset *d)
{
    uint64_t hash = 0;
    for (int64_t i = 0; i < d->count; i++) {
        const DsviDatasetItem *item = &d->items[i];
        const char *path = item->source ? item->source : item->path, *slash = strrchr(path, '/');
        const char *name = slash ? slash + 1 : path;
        const int64_t size[3] = {item->info.width, item->info.height, llround(1e3 * item->info.seconds)};
        const int64_t window[2] = {item->size, item->start};
        hash = XXH3_64bits_withSeed(name, strlen(name), hash);
        hash = XXH3_64bits_withSeed(size, sizeof size, hash);
        if (d->sized)
            hash = XXH3_64bits_withSeed(window, sizeof window, hash);
        if (item->repeats > 1)
            hash = XXH3_64bits_withSeed(&item->repeats, sizeof item->repeats, hash);
    }
    return (DsviDatasetFingerprint){d->count, hash};
}
