/* Implements dataset_sizes.h. */
#include "data/dataset_sizes.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "data/dataset_sources.h"

static const char AUTO[] = "auto";

static DsvStatus sizes_no_memory(void)
{
    return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the sizes of clips");
}

/* ---- Windows of a clip ---- */

static bool windows_are(const DsvConfig *config, const char *policy)
{
    return strcmp(config->data_windows, policy) == 0;
}

int64_t dsvi_clip_windows_count(const DsvConfig *config, int64_t frames, int64_t length)
{
    int64_t places = frames - length + 1, all = frames / length;
    if (places <= 1 || windows_are(config, "head") || windows_are(config, "middle"))
        return 1;
    if (windows_are(config, "uniform"))
        return config->data_windows_max < places ? config->data_windows_max : places;
    return all;
}

int64_t dsvi_clip_windows_start(const DsvConfig *config, int64_t frames, int64_t length, int64_t i)
{
    int64_t slack = frames - length, count = dsvi_clip_windows_count(config, frames, length);
    if (slack <= 0 || windows_are(config, "head"))
        return 0;
    if (windows_are(config, "middle"))
        return slack / 2;
    if (!windows_are(config, "uniform"))
        return i * length;
    return count > 1 ? i * slack / (count - 1) : slack / 2;
}

/* ---- Choosing a size ---- */

DsviClipSize dsvi_dataset_size(const DsviDataset *d, const DsvConfig *config, int64_t item)
{
    if (!d->sized)
        return (DsviClipSize){config->num_frames, config->height, config->width};
    return d->sizes.at[d->items[item].size];
}

static int64_t item_frames(const DsvConfig *config, const DsviDatasetItem *item)
{
    return dsvi_clip_frame_times(&item->info, config->fps);
}

static int64_t size_index(const DsviClipSizes *sizes, const DsviClipSize *wanted)
{
    for (int64_t i = 0; i < sizes->count; i++)
        if (dsvi_clip_size_same(&sizes->at[i], wanted))
            return i;
    return -1;
}

/* Lists the sizes that the clips, or cached windows, have by themselves. */
static DsvStatus find_sizes(DsviDataset *d, const DsvConfig *config, const DsviClipSteps *steps)
{
    const DsviClipSize limit = {config->num_frames, config->height, config->width};
    d->sizes.count = 0;
    for (int64_t i = 0; i < d->count; i++) {
        const DsviDatasetItem *item = &d->items[i];
        DsviClipSize size = d->latents ? item->window
                                       : dsvi_clip_size_auto(&item->info, item_frames(config, item), steps,
                                                             &limit, config->data_bucket_tokens);
        if (size.frames > 0)
            DSVI_TRY(dsvi_clip_sizes_add(&d->sizes, &size));
    }
    return DSV_OK;
}

/* Sets the size of an item, or `reason` why it has none. */
static void choose_size(DsviDataset *d, const DsvConfig *config, const DsviClipSteps *steps,
                        DsviDatasetItem *item, char *reason, size_t room)
{
    const DsviClipSize limit = {config->num_frames, config->height, config->width};
    char text[DSVI_CLIP_SIZE_BYTES];
    DsviClipSize size = item->window;
    reason[0] = 0;
    if (d->latents) {
        item->size = size_index(&d->sizes, &size);
        if (item->size < 0)
            snprintf(reason, room, "%s: a window of %s, which is no size of data.buckets", item->path,
                     dsvi_clip_size_text(&size, text));
    } else if (strcmp(config->data_buckets, AUTO) == 0) {
        size = dsvi_clip_size_auto(&item->info, item_frames(config, item), steps, &limit,
                                   config->data_bucket_tokens);
        item->size = size_index(&d->sizes, &size);
        if (item->size < 0)
            snprintf(reason, room,
                     "%s: %" PRId64 " x %" PRId64 " (height x width) is too small for any size, expected at "
                     "least %" PRId64 " in both",
                     item->path, item->info.height, item->info.width, steps->pixel_step);
    } else {
        item->size = dsvi_clip_sizes_choose(&d->sizes, item->path, &item->info, item_frames(config, item),
                                            reason, room);
    }
}

static DsvStatus choose_sizes(DsviDataset *d, const DsvConfig *config, const DsviClipSteps *steps)
{
    DsvStatus status = DSV_OK;
    char reason[DSVI_PATH_MAX + 256];
    char **reasons = calloc((size_t)d->count + 1, sizeof *reasons);
    if (!reasons)
        return sizes_no_memory();
    for (int64_t i = 0; i < d->count; i++) {
        choose_size(d, config, steps, &d->items[i], reason, sizeof reason);
        if (reason[0] && !(reasons[i] = strdup(reason)))
            status = sizes_no_memory();
    }
    dsvi_dataset_leave_out(d, reasons);
    free(reasons);
    if (status == DSV_OK && d->count == 0)
        status = DSVI_FAIL(DSV_E_NOT_FOUND,
                           "data.buckets=%.200s leaves no clip of %" PRId64 ", the first: %s",
                           config->data_buckets, d->left_out_count, d->left_out[0].reason);
    return status;
}

/* ---- Items of several windows ---- */

static DsvStatus copy_item(const DsviDatasetItem *from, int64_t start, DsviDatasetItem *to)
{
    *to = *from;
    to->start = start;
    to->captions = (DsviCaptions){0};
    to->source = to->image = NULL; /* read only while whole clips are encoded */
    to->path = strdup(from->path);
    DsvStatus status = dsvi_captions_copy(&to->captions, &from->captions);
    return status == DSV_OK && !to->path ? sizes_no_memory() : status;
}

/* Counts the windows that each clip gives. */
static void count_windows(DsviDataset *d, const DsvConfig *config)
{
    for (int64_t i = 0; i < d->count; i++)
        d->items[i].windows = dsvi_clip_windows_count(config, item_frames(config, &d->items[i]),
                                                      dsvi_dataset_size(d, config, i).frames);
}

/* Replaces each item by one item for each of its windows. */
static DsvStatus expand_windows(DsviDataset *d, const DsvConfig *config)
{
    int64_t total = 0, next = 0;
    DsvStatus status = DSV_OK;
    for (int64_t i = 0; i < d->count; i++)
        total += dsvi_clip_windows_count(config, item_frames(config, &d->items[i]),
                                         dsvi_dataset_size(d, config, i).frames);
    DsviDatasetItem *items = calloc((size_t)total, sizeof *items);
    if (!items)
        return sizes_no_memory();
    for (int64_t i = 0; i < d->count; i++) {
        int64_t frames = item_frames(config, &d->items[i]), length = dsvi_dataset_size(d, config, i).frames;
        int64_t count = dsvi_clip_windows_count(config, frames, length);
        for (int64_t w = 1; w < count && status == DSV_OK; w++)
            status = copy_item(&d->items[i], dsvi_clip_windows_start(config, frames, length, w),
                               &items[next + w]);
        items[next] = d->items[i];
        items[next].start = dsvi_clip_windows_start(config, frames, length, 0);
        next += count;
    }
    free(d->items);
    d->items = items;
    d->count = total;
    d->fixed = true;
    return status;
}

/* ---- Order ---- */

static bool repeats_any(const DsviDataset *d)
{
    for (int64_t i = 0; i < d->count; i++)
        if (d->items[i].repeats > 1)
            return true;
    return false;
}

/* Lists the items by size, and their places in an epoch. */
static DsvStatus order_items(DsviDataset *d)
{
    int64_t next = 0;
    d->order = calloc((size_t)d->count, sizeof *d->order);
    d->places_end = calloc((size_t)d->count, sizeof *d->places_end);
    if (!d->order || !d->places_end)
        return sizes_no_memory();
    for (int64_t size = 0; size < d->sizes.count; size++) {
        int64_t places = 0;
        d->first_of[size] = next;
        for (int64_t i = 0; i < d->count; i++) {
            if (d->items[i].size != size)
                continue;
            d->order[next] = i;
            d->places_end[next++] = places += d->items[i].repeats;
        }
    }
    d->first_of[d->sizes.count] = next;
    return DSV_OK;
}

static DsvStatus check_sizes_used(const DsviDataset *d)
{
    char text[DSVI_CLIP_SIZE_BYTES];
    for (int64_t size = 0; size < d->sizes.count; size++)
        if (dsvi_dataset_size_count(d, size).windows == 0)
            return DSVI_FAIL(DSV_E_USAGE,
                             "data.buckets: no clip goes to %s, expected at least one: leave this size out",
                             dsvi_clip_size_text(&d->sizes.at[size], text));
    return DSV_OK;
}

DsvStatus dsvi_dataset_assign(DsviDataset *d, const DsvConfig *config, const DsviClipSteps *steps,
                              bool expand)
{
    bool several = d->sized = config->data_buckets[0] != 0;
    if (several && strcmp(config->data_buckets, AUTO) == 0)
        DSVI_TRY(find_sizes(d, config, steps));
    else if (several)
        DSVI_TRY(dsvi_clip_sizes_parse(config->data_buckets, &d->sizes));
    if (several)
        DSVI_TRY(choose_sizes(d, config, steps));
    if (!expand && !d->latents)
        count_windows(d, config);
    if (expand && !d->latents && !windows_are(config, AUTO))
        DSVI_TRY(expand_windows(d, config));
    DSVI_TRY(dsvi_dataset_weigh(d));
    if (several || repeats_any(d))
        DSVI_TRY(order_items(d));
    return several ? check_sizes_used(d) : DSV_OK;
}

/* ---- The list of inputs ---- */

/* Returns the file that the user knows: the clip, also of a cached window. */
static const char *input_of(const DsviDatasetItem *item)
{
    return item->source ? item->source : item->path;
}

/* Returns the end of the range of items from `begin` that come from one clip at one size. */
static int64_t input_end(const DsviDataset *d, int64_t begin)
{
    int64_t end = begin + 1;
    while (end < d->count && d->items[end].size == d->items[begin].size &&
           strcmp(input_of(&d->items[end]), input_of(&d->items[begin])) == 0)
        end++;
    return end;
}

DsviSizeCount dsvi_dataset_size_count(const DsviDataset *d, int64_t size)
{
    DsviSizeCount count = {0};
    for (int64_t i = 0; i < d->count; i = input_end(d, i)) {
        if (d->items[i].size != size)
            continue;
        count.clips++;
        for (int64_t at = i; at < input_end(d, i); at++) {
            count.windows += d->items[at].windows;
            count.samples += d->items[at].windows * d->items[at].repeats;
        }
    }
    return count;
}

void dsvi_csv_field(FILE *to, const char *text)
{
    fputc('"', to);
    for (; *text; text++) {
        if (*text == '"')
            fputc('"', to);
        fputc(*text, to);
    }
    fputc('"', to);
}

/* Returns how many frames of a clip its windows use. Windows may overlap. */
static int64_t frames_used(const DsviDataset *d, int64_t begin, int64_t end, int64_t frames, int64_t length)
{
    int64_t used = 0, upto = 0;
    if (d->items[begin].start < 0) /* each sample draws its window: all frames are used in turn */
        return frames;
    for (int64_t i = begin; i < end; i++) {
        int64_t first = d->items[i].start > upto ? d->items[i].start : upto;
        upto = d->items[i].start + length < frames ? d->items[i].start + length : frames;
        used += upto > first ? upto - first : 0;
    }
    return used;
}

static void write_inputs(const DsviDataset *d, const DsvConfig *config, FILE *to)
{
    char text[DSVI_CLIP_SIZE_BYTES];
    fputs("input,bucket,windows,frames,frames_used,left_out,repeats\n", to);
    for (int64_t i = 0, end; i < d->count; i = end) {
        DsviClipSize size = dsvi_dataset_size(d, config, i);
        end = input_end(d, i);
        int64_t frames = d->latents ? (end - i) * size.frames : item_frames(config, &d->items[i]);
        int64_t used = d->latents ? frames : frames_used(d, i, end, frames, size.frames);
        dsvi_csv_field(to, input_of(&d->items[i]));
        fprintf(to, ",%s,%" PRId64 ",%" PRId64 ",%" PRId64 ",,%" PRId64 "\n",
                dsvi_clip_size_text(&size, text), end - i, frames, used, d->items[i].repeats);
    }
    for (int64_t i = 0; i < d->left_out_count; i++) {
        dsvi_csv_field(to, d->left_out[i].path);
        fputs(",,0,,0,", to);
        dsvi_csv_field(to, d->left_out[i].reason);
        fputs(",0\n", to);
    }
}

DsvStatus dsvi_dataset_write_list(const DsviDataset *d, const DsvConfig *config, const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    if (!to)
        return sizes_no_memory();
    write_inputs(d, config, to);
    DsvStatus status = fclose(to) == 0 ? dsvi_file_replace(path, text, bytes) : sizes_no_memory();
    free(text);
    return status;
}
