/* Implements dataset_find.h. */
#include "data/dataset_find.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/fs.h"
#include "base/utf8.h"
#include "data/caption_files.h"
#include "data/clip_stream.h"
#include "data/dataset_list.h"
#include "data/latent_cache.h"

static const char *const CLIP_ENDINGS[] = {".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg"};

typedef struct Scan {
    DsviDataset *dataset;
    const DsvConfig *config;
    int64_t from;       /* number of the source that is read */
    const char *folder; /* the folder to which names are relative */
    int64_t first;      /* number of the source's first item */
    bool inside;  /* `folder` is a subfolder of the data folder, so that its own subfolders are not read */
    int64_t room; /* capacity of dataset->items */
    DsviCaptionFiles text_files; /* those of the source's folders */
    DsviLatentModel model;       /* of the first cache */
} Scan;

DsvStatus dsvi_dataset_no_memory(void)
{
    return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the list of clips");
}

DsvStatus dsvi_dataset_add_remark(DsviDataset *d, char *line)
{
    enum { FIRST_ROOM = 16 };
    int64_t room = d->remark_count;
    bool full = room == 0 || (room >= FIRST_ROOM && (room & (room - 1)) == 0);
    if (line && full) {
        room = room ? 2 * room : FIRST_ROOM;
        char **remarks = realloc(d->remarks, (size_t)room * sizeof *remarks);
        if (!remarks) {
            free(line);
            return dsvi_dataset_no_memory();
        }
        d->remarks = remarks;
    }
    if (!line)
        return dsvi_dataset_no_memory();
    d->remarks[d->remark_count++] = line;
    return DSV_OK;
}

static DsvStatus add_remark_of(Scan *scan, const char *format, const char *words)
{
    char line[DSVI_PATH_MAX + 512];
    snprintf(line, sizeof line, format, words);
    return dsvi_dataset_add_remark(scan->dataset, strdup(line));
}

/* Appends an item with copies of the path and of the captions. A caption that is not valid UTF-8, which text
 * encoders require, is left out with a remark. */
static DsvStatus add_item(Scan *scan, const char *path, const DsviCaptions *captions, int64_t repeats)
{
    DsviDataset *d = scan->dataset;
    int64_t factor = d->sources[scan->from].named.repeats;
    if (factor > DSVI_REPEATS_MAX / repeats)
        return DSVI_FAIL(DSV_E_USAGE, "%s: %lld x %lld repeats, expected at most %d", path, (long long)factor,
                         (long long)repeats, DSVI_REPEATS_MAX);
    if (d->count == scan->room) {
        int64_t room = scan->room ? 2 * scan->room : 64;
        DsviDatasetItem *items = realloc(d->items, (size_t)room * sizeof *items);
        if (!items)
            return dsvi_dataset_no_memory();
        d->items = items;
        scan->room = room;
    }
    DsviDatasetItem *item = &d->items[d->count];
    memset(item, 0, sizeof *item);
    item->path = strdup(path);
    item->from = scan->from;
    item->start = -1;
    item->windows = 1;
    item->weight = 1;
    item->repeats = repeats * factor;
    d->count++;
    if (!item->path)
        return dsvi_dataset_no_memory();
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
    for (int64_t i = scan->first; i < scan->dataset->count; i++)
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

static DsvStatus add_listed(void *context, const DsviListRow *row)
{
    Scan *scan = context;
    char joined[DSVI_PATH_MAX];
    DSVI_TRY(listed_path(scan, row->path, joined));
    DSVI_TRY(add_item(scan, joined, &row->captions, row->repeats));
    DsviDatasetItem *item = &scan->dataset->items[scan->dataset->count - 1];
    item->weight = row->weight;
    scan->dataset->weighed = scan->dataset->weighed || row->weight != 1;
    if (!row->image)
        return DSV_OK;
    DSVI_TRY(listed_path(scan, row->image, joined));
    item->image = strdup(joined);
    return item->image ? DSV_OK : dsvi_dataset_no_memory();
}

static DsvStatus scan_list(Scan *scan, const char *path)
{
    char folder[DSVI_PATH_MAX];
    const char *slash = strrchr(path, '/');
    if (snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path + 1) : 2, slash ? path : "./") >=
        (int)sizeof folder)
        return DSVI_FAIL(DSV_E_USAGE, "%.64s...: path longer than %d bytes", path, DSVI_PATH_MAX - 1);
    scan->folder = folder;
    return dsvi_list_read(path, add_listed, scan);
}

/* Sets source and size of the newest item: the clip from which a cached window was taken. */
static DsvStatus set_source(Scan *scan, const DsviLatentCache *cache, int64_t at)
{
    DsviDataset *d = scan->dataset;
    DsviDatasetItem *item = &d->items[d->count - 1];
    item->source = strdup(dsvi_latent_cache_source(cache, at));
    item->window = dsvi_latent_cache_size(cache, at);
    return item->source ? DSV_OK : dsvi_dataset_no_memory();
}

/* Returns what differs between the models of two caches, or NULL. */
static const char *other_model(const DsviLatentModel *a, const DsviLatentModel *b)
{
    if (strcmp(a->vae.hex, b->vae.hex) != 0 || a->condition != b->condition)
        return "VAE";
    if (strcmp(a->text.encoder.hex, b->text.encoder.hex) != 0 || a->text.dim != b->text.dim)
        return "text encoder";
    return strcmp(a->image_encoder.hex, b->image_encoder.hex) != 0 || a->image.rows != b->image.rows
               ? "image encoder"
               : NULL;
}

/* Takes the models of a cache. Those of all sources must be the same. */
static DsvStatus take_model(Scan *scan, const char *path, const DsviLatentModel *model)
{
    DsviDataset *d = scan->dataset;
    const char *other = other_model(&scan->model, model);
    if (scan->from > 0 && other)
        return DSVI_FAIL(DSV_E_USAGE, "%s was made by another %s than %s, expected caches of one model", path,
                         other, d->sources[0].named.path);
    d->sources[scan->from].text = model->text;
    if (scan->from > 0)
        return DSV_OK;
    scan->model = *model;
    d->text = model->text;
    d->image = model->image;
    return DSV_OK;
}

static DsvStatus scan_latents(Scan *scan, const char *path)
{
    DsviLatentCache *cache;
    DSVI_TRY(dsvi_latent_cache_open(path, scan->config, &cache));
    DsvStatus status = take_model(scan, path, dsvi_latent_cache_model(cache));
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
    const DsviTextStore *text = &scan->dataset->sources[scan->from].text;
    if (!text->folder[0] || scan->config->caption_dropout == 0)
        return DSV_OK;
    DsvStatus status = dsvi_text_states_probe(text, &text->empty);
    return status == DSV_OK
               ? DSV_OK
               : dsvi_fail_prefix(status, "caption_dropout=%g needs the states of the empty prompt",
                                  scan->config->caption_dropout);
}

/* Adds the items of the source at `path`. */
static DsvStatus scan_path(Scan *scan, const char *path)
{
    DsviDataset *d = scan->dataset;
    bool latents = dsvi_latent_cache_is(path);
    if (scan->from > 0 && latents != d->latents)
        return DSVI_FAIL(DSV_E_USAGE,
                         "%s is a latent cache and %s holds clips, expected only caches or only clips",
                         (latents ? &d->sources[scan->from] : &d->sources[0])->named.path,
                         (latents ? &d->sources[0] : &d->sources[scan->from])->named.path);
    d->latents = latents;
    if (latents) {
        DSVI_TRY(scan_latents(scan, path));
        return check_empty_prompt(scan);
    }
    if (dsvi_path_is_folder(path)) {
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

DsvStatus dsvi_dataset_find(DsviDataset *d, const char *path, const DsvConfig *config)
{
    DsvStatus status;
    Scan scan = {.dataset = d, .config = config};
    DsviDataSource *named = calloc(DSVI_DATA_SOURCES_MAX, sizeof *named);
    d->sources = calloc(DSVI_DATA_SOURCES_MAX, sizeof *d->sources);
    if (!named || !d->sources) {
        status = dsvi_dataset_no_memory();
        goto done;
    }
    DSVI_TRY_GOTO(status, dsvi_data_sources_parse(path, named, &d->source_count), done);
    for (int64_t i = 0; i < d->source_count; i++)
        d->sources[i].named = named[i];
    for (; scan.from < d->source_count; scan.from++) {
        scan.first = d->count;
        DSVI_TRY_GOTO(status, scan_path(&scan, named[scan.from].path), done);
        dsvi_caption_files_free(&scan.text_files);
    }
done:
    dsvi_caption_files_free(&scan.text_files);
    free(named);
    return status;
}
