/* Implements dataset.h. This file finds the items (clips or cached latents) of a data set;
 * dataset_sample.c defines the i-th sample. */
#include "data/dataset.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <xxhash.h>

#include "base/fs.h"
#include "base/threads.h"
#include "base/utf8.h"
#include "data/caption_files.h"
#include "data/clip_stream.h"
#include "data/dataset_list.h"
#include "data/list_weights.h"
#include "data/trigger_word.h"
#include "data/latent_cache.h"
#include "data/latent_file.h"

static const char *const CLIP_ENDINGS[] = {".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg"};

typedef struct Scan {
    DsviDataset *dataset;
    const DsvConfig *config;
    const char *folder; /* the folder to which names are relative */
    bool inside;  /* `folder` is a subfolder of the data folder, so that its own subfolders are not read */
    int64_t room; /* capacity of dataset->items */
    DsviCaptionFiles text_files; /* those of the folders */
    char **reasons;              /* (count): why an item cannot be used, or NULL */
    char **notes;                /* (count): a line for the user about an item, or NULL */
    int64_t remark_room;
    double *weights; /* (room) of a list: how often an epoch uses an item, relative to others */
    bool weighed;    /* a weight is not 1 */
} Scan;

static DsvStatus dataset_no_memory(void)
{
    return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the list of clips");
}

/* Appends `line` to the remarks and takes ownership of it. NULL means that memory was lacking. */
static DsvStatus add_remark(Scan *scan, char *line)
{
    DsviDataset *d = scan->dataset;
    if (line && d->remark_count == scan->remark_room) {
        int64_t room = scan->remark_room ? 2 * scan->remark_room : 16;
        char **remarks = realloc(d->remarks, (size_t)room * sizeof *remarks);
        if (!remarks) {
            free(line);
            return dataset_no_memory();
        }
        d->remarks = remarks;
        scan->remark_room = room;
    }
    if (!line)
        return dataset_no_memory();
    d->remarks[d->remark_count++] = line;
    return DSV_OK;
}

static DsvStatus add_remark_of(Scan *scan, const char *format, const char *words)
{
    char line[DSVI_PATH_MAX + 512];
    snprintf(line, sizeof line, format, words);
    return add_remark(scan, strdup(line));
}

/* Appends an item with copies of the path and of the captions. A caption that is not valid UTF-8, which text
 * encoders require, is left out with a remark. */
static DsvStatus add_item(Scan *scan, const char *path, const DsviCaptions *captions, int64_t repeats)
{
    DsviDataset *d = scan->dataset;
    if (d->count == scan->room) {
        int64_t room = scan->room ? 2 * scan->room : 64;
        DsviDatasetItem *items = realloc(d->items, (size_t)room * sizeof *items);
        if (!items)
            return dataset_no_memory();
        d->items = items;
        scan->room = room;
    }
    DsviDatasetItem *item = &d->items[d->count];
    memset(item, 0, sizeof *item);
    item->path = strdup(path);
    item->start = -1;
    item->repeats = repeats;
    d->count++;
    if (!item->path)
        return dataset_no_memory();
    for (int64_t i = 0; captions && i < captions->count; i++) {
        const DsviCaption *caption = &captions->at[i];
        if (!dsvi_utf8_valid(caption->text, strlen(caption->text))) {
            DSVI_TRY(add_remark_of(scan, "%s: its caption is not UTF-8 and is left out", path));
            continue;
        }
        DSVI_TRY(dsvi_captions_add(&item->captions, caption->text));
        item->captions.at[item->captions.count - 1].states = caption->states;
    }
    return DSV_OK;
}

/* Returns the start of the file name extension, or NULL if it is not an extension of clips. Pictures count as
 * clips of one frame if the data set has several sizes, or the size of one frame. */
static const char *clip_ending(const DsvConfig *config, const char *name)
{
    const char *dot = strrchr(name, '.');
    if (dsvi_clip_is_picture(name) && (config->data_buckets[0] || config->num_frames == 1))
        return dot;
    for (size_t i = 0; dot && i < sizeof CLIP_ENDINGS / sizeof *CLIP_ENDINGS; i++)
        if (strcasecmp(dot, CLIP_ENDINGS[i]) == 0)
            return dot;
    return NULL;
}

/* Gives the item the caption of its caption file, if there is one. A file that cannot be used is named by a
 * remark. */
static DsvStatus read_caption(Scan *scan, DsviDatasetItem *item)
{
    char *text;
    DsviCaptionFile *file = dsvi_caption_files_find(
        &scan->text_files, item->path, (size_t)(clip_ending(scan->config, item->path) - item->path));
    if (!file)
        return DSV_OK;
    DsvStatus status = dsvi_caption_file_read(file->path, &text);
    if (status == DSV_E_NO_MEMORY)
        return status;
    if (status != DSV_OK)
        return add_remark_of(scan, "a caption is left out: %s", dsv_error_message());
    status = dsvi_captions_add(&item->captions, text);
    free(text);
    file->used = true;
    return status;
}

/* Gives all clips the captions of their caption files, and counts the files. */
static DsvStatus read_captions(Scan *scan)
{
    DsviCaptionFileCounts *counts = &scan->dataset->caption_files;
    dsvi_caption_files_sort(&scan->text_files);
    for (int64_t i = 0; i < scan->dataset->count; i++)
        DSVI_TRY(read_caption(scan, &scan->dataset->items[i]));
    for (int64_t i = 0; i < scan->text_files.count; i++) {
        const DsviCaptionFile *file = &scan->text_files.at[i];
        counts->found++;
        counts->used += file->used;
        counts->unusable += file->found && !file->used;
        counts->alone += !file->found;
        if (!file->found)
            DSVI_TRY(add_remark_of(scan, "a caption is left out: %s: no clip has the name of this file",
                                   file->path));
    }
    return DSV_OK;
}

/* Adds a single clip and the caption file beside it. */
static DsvStatus scan_clip(Scan *scan, const char *path)
{
    char text_file[DSVI_PATH_MAX];
    snprintf(text_file, sizeof text_file, "%.*s.txt", (int)(clip_ending(scan->config, path) - path), path);
    if (dsvi_path_exists(text_file))
        DSVI_TRY(dsvi_caption_files_add(&scan->text_files, text_file));
    DSVI_TRY(add_item(scan, path, NULL, 1));
    return read_captions(scan);
}

static DsvStatus scan_entry(void *context, const char *name)
{
    Scan *scan = context;
    char path[DSVI_PATH_MAX];
    DSVI_TRY(dsvi_path_join(path, scan->folder, name));
    if (dsvi_path_is_folder(path)) {
        if (scan->inside)
            return DSV_OK;
        const char *outer = scan->folder;
        scan->folder = path;
        scan->inside = true;
        DsvStatus status = dsvi_folder_list(path, scan_entry, scan);
        scan->folder = outer;
        scan->inside = false;
        return status;
    }
    if (dsvi_caption_file_is(name))
        return dsvi_caption_files_add(&scan->text_files, path);
    return clip_ending(scan->config, name) ? add_item(scan, path, NULL, 1) : DSV_OK;
}

/* Writes the path of a file that the list names. */
static DsvStatus listed_path(const Scan *scan, const char *path, char out[DSVI_PATH_MAX])
{
    return path[0] == '/' ? dsvi_path_join(out, "/", path + 1) : dsvi_path_join(out, scan->folder, path);
}

/* Keeps the weight of the newest item. */
static DsvStatus note_weight(Scan *scan, double weight, bool weighs)
{
    double *weights = realloc(scan->weights, (size_t)scan->room * sizeof *weights);
    if (!weights)
        return dataset_no_memory();
    scan->weights = weights;
    weights[scan->dataset->count - 1] = weight;
    scan->weighed = scan->weighed || weighs;
    return DSV_OK;
}

static DsvStatus add_listed(void *context, const DsviListRow *row)
{
    Scan *scan = context;
    char joined[DSVI_PATH_MAX];
    DSVI_TRY(listed_path(scan, row->path, joined));
    DSVI_TRY(add_item(scan, joined, &row->captions, row->repeats));
    DSVI_TRY(note_weight(scan, (double)row->repeats * row->weight, row->weight != 1));
    if (!row->image)
        return DSV_OK;
    DsviDatasetItem *item = &scan->dataset->items[scan->dataset->count - 1];
    DSVI_TRY(listed_path(scan, row->image, joined));
    item->image = strdup(joined);
    return item->image ? DSV_OK : dataset_no_memory();
}

/* Reads a list, whose weights replace the repeats of its items. */
static DsvStatus scan_rows(Scan *scan, const char *path)
{
    DsviDataset *d = scan->dataset;
    DSVI_TRY(dsvi_list_read(path, add_listed, scan));
    if (!scan->weighed)
        return DSV_OK;
    int64_t *repeats = calloc((size_t)d->count + 1, sizeof *repeats);
    if (!repeats)
        return dataset_no_memory();
    DsvStatus status = dsvi_list_weights_apply(scan->weights, d->count, repeats);
    for (int64_t i = 0; i < d->count && status == DSV_OK; i++)
        d->items[i].repeats = repeats[i];
    free(repeats);
    return status == DSV_OK ? DSV_OK : dsvi_fail_prefix(status, "%s", path);
}

static DsvStatus scan_list(Scan *scan, const char *path)
{
    char folder[DSVI_PATH_MAX];
    const char *slash = strrchr(path, '/');
    if (snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path + 1) : 2, slash ? path : "./") >=
        (int)sizeof folder)
        return DSVI_FAIL(DSV_E_USAGE, "%.64s...: path longer than %d bytes", path, DSVI_PATH_MAX - 1);
    scan->folder = folder;
    DsvStatus status = scan_rows(scan, path);
    free(scan->weights);
    scan->weights = NULL;
    return status;
}

/* Sets source and size of the newest item: the clip from which a cached window was taken. */
static DsvStatus set_source(Scan *scan, const DsviLatentCache *cache, int64_t at)
{
    DsviDataset *d = scan->dataset;
    DsviDatasetItem *item = &d->items[d->count - 1];
    item->source = strdup(dsvi_latent_cache_source(cache, at));
    item->window = dsvi_latent_cache_size(cache, at);
    return item->source ? DSV_OK : dataset_no_memory();
}

static DsvStatus scan_latents(Scan *scan, const char *path)
{
    DsvStatus status = DSV_OK;
    DsviLatentCache *cache;
    DSVI_TRY(dsvi_latent_cache_open(path, scan->config, &cache));
    scan->dataset->latents = true;
    scan->dataset->text = dsvi_latent_cache_model(cache)->text;
    scan->dataset->image = dsvi_latent_cache_model(cache)->image;
    for (int64_t i = 0; i < dsvi_latent_cache_count(cache) && status == DSV_OK; i++) {
        status = add_item(scan, dsvi_latent_cache_file(cache, i), dsvi_latent_cache_captions(cache, i),
                          dsvi_latent_cache_repeats(cache, i));
        if (status == DSV_OK)
            status = set_source(scan, cache, i);
    }
    dsvi_latent_cache_close(&cache);
    return status;
}

/* Fails if the states of the empty prompt are needed and cannot be used: no other sample could replace one
 * whose caption is dropped. */
static DsvStatus check_empty_prompt(const Scan *scan)
{
    const DsviTextStore *text = &scan->dataset->text;
    if (!text->folder[0] || scan->config->caption_dropout == 0)
        return DSV_OK;
    DsvStatus status = dsvi_text_states_probe(text, &text->empty);
    return status == DSV_OK
               ? DSV_OK
               : dsvi_fail_prefix(status, "caption_dropout=%g needs the states of the empty prompt",
                                  scan->config->caption_dropout);
}

static DsvStatus scan_path(Scan *scan, const char *path)
{
    if (!path[0])
        return DSVI_FAIL(DSV_E_USAGE, "data.path is empty, expected a folder of clips, a list or a cache");
    if (!dsvi_path_exists(path))
        return DSVI_FAIL(DSV_E_NOT_FOUND, "%s: no such file or folder", path);
    if (dsvi_path_is_folder(path)) {
        if (dsvi_latent_cache_is(path)) {
            DSVI_TRY(scan_latents(scan, path));
            return check_empty_prompt(scan);
        }
        scan->folder = path;
        DSVI_TRY(dsvi_folder_list(path, scan_entry, scan));
        return read_captions(scan);
    }
    if (dsvi_list_is(path))
        return scan_list(scan, path);
    if (clip_ending(scan->config, path))
        return scan_clip(scan, path);
    return DSVI_FAIL(DSV_E_USAGE, "%s: neither a folder, nor a .csv or .jsonl list, nor a clip", path);
}

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
    DSVI_TRY(dsvi_latent_probe(item->path));
    for (int64_t i = 0; d->text.folder[0] && i < item->captions.count; i++)
        if (item->captions.at[i].states.hex[0] &&
            (status = dsvi_text_states_probe(&d->text, &item->captions.at[i].states)) != DSV_OK)
            return dsvi_fail_prefix(status, "%s: its caption", item->path);
    return DSV_OK;
}

/* Probes an item and fails if it cannot be used. Sets *note to a line for the user, if there is something to
 * report. */
static DsvStatus check_item(const Scan *scan, DsviDatasetItem *item, char **note)
{
    char text[DSVI_PATH_MAX + 512];
    int64_t cover[2];
    if (scan->dataset->latents) {
        DSVI_TRY(check_cached(scan->dataset, item));
        return scan->config->data_buckets[0] ? DSV_OK : check_window_size(scan->config, item);
    }
    DSVI_TRY(dsvi_clip_probe(item->path, &item->info));
    if (dsvi_clip_oddities_text(item->path, &item->info, text, sizeof text))
        *note = strdup(text);
    if (scan->config->data_buckets[0])
        return DSV_OK; /* the size that the clip must cover is not known yet */
    return dsvi_clip_cover(item->path, item->info.height, item->info.width, scan->config->height,
                           scan->config->width, &cover[0], &cover[1]);
}

static void check_range(void *context, int64_t begin, int64_t end, int worker)
{
    Scan *scan = context;
    (void)worker;
    for (int64_t i = begin; i < end; i++)
        if (check_item(scan, &scan->dataset->items[i], &scan->notes[i]) != DSV_OK)
            scan->reasons[i] = strdup(dsv_error_message());
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
            d->left_out[d->left_out_count++] = (DsviLeftOut){d->items[i].path, reasons[i]};
            d->items[i].path = NULL;
            free_item(&d->items[i]);
        } else {
            d->items[usable++] = d->items[i];
        }
    }
    d->count = usable;
}

/* Probes all items in parallel, and moves those that cannot be used to left_out. */
static DsvStatus check_items(Scan *scan)
{
    DsviDataset *d = scan->dataset;
    scan->reasons = calloc((size_t)d->count + 1, sizeof *scan->reasons);
    d->left_out = calloc((size_t)d->count + 1, sizeof *d->left_out);
    scan->notes = calloc((size_t)d->count + 1, sizeof *scan->notes);
    if (!scan->reasons || !d->left_out || !scan->notes)
        return dataset_no_memory();
    int64_t listed = d->count;
    DsvStatus status = DSV_OK;
    dsvi_parallel_for(listed, 1, check_range, scan);
    for (int64_t i = 0; i < listed; i++) {
        if (scan->notes[i] && !scan->reasons[i] && status == DSV_OK)
            status = add_remark(scan, scan->notes[i]);
        else
            free(scan->notes[i]);
    }
    dsvi_dataset_leave_out(d, scan->reasons);
    return status;
}

static DsvStatus nothing_usable(const char *path, const DsviDataset *d)
{
    if (d->left_out_count == 0 && dsvi_latent_cache_lacks_index(path))
        return DSVI_FAIL(
            DSV_E_NOT_FOUND,
            "%s: a latent cache without a usable index.json: remove this file if it is there, and "
            "repeat dsv encode, which keeps the windows",
            path);
    if (d->left_out_count == 0)
        return DSVI_FAIL(DSV_E_NOT_FOUND, "%s: no usable clip in it: %s", path,
                         dsvi_path_is_folder(path) ? "no name there ends like that of a clip"
                                                   : "the list is empty");
    return DSVI_FAIL(DSV_E_NOT_FOUND, "%s: no usable clip in it; %lld tried, the first: %s", path,
                     (long long)d->left_out_count, d->left_out[0].reason);
}

DsvStatus dsvi_dataset_open(const char *path, const DsvConfig *config, DsviDataset **out)
{
    DsvStatus status;
    Scan scan = {.config = config};
    *out = NULL;
    scan.dataset = calloc(1, sizeof *scan.dataset);
    if (!scan.dataset)
        return dataset_no_memory();
    DSVI_TRY_GOTO(status, scan_path(&scan, path), done);
    DSVI_TRY_GOTO(status, check_items(&scan), done);
    if (scan.dataset->count == 0) {
        status = nothing_usable(path, scan.dataset);
        goto done;
    }
    DSVI_TRY_GOTO(status, dsvi_trigger_word_apply(scan.dataset, config->data_trigger_word), done);
    scan.dataset->sizes.count = 1;
    scan.dataset->sizes.at[0] = (DsviClipSize){config->num_frames, config->height, config->width};
    *out = scan.dataset;
    scan.dataset = NULL;
done:
    free(scan.reasons);
    free(scan.notes);
    dsvi_caption_files_free(&scan.text_files);
    dsvi_dataset_close(&scan.dataset);
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
    free(d->order);
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
        status = dataset_no_memory();
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
            status = dataset_no_memory();
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
