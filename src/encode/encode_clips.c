/* Implements encode_clips.h. */
#include "encode/encode_clips.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/host.h"
#include "base/threads.h"
#include "data/dataset_sizes.h"

static DsvStatus clips_no_memory(int64_t count)
{
    return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a list of %" PRId64 " clips", count);
}

/* Returns the number of a clip's frames that are in a window or in several. */
static int64_t frames_in_windows(const DsvConfig *config, const DsviEncodeClip *clip, int64_t length)
{
    int64_t used = 0, end = 0;
    for (int64_t w = 0; w < clip->windows; w++) {
        int64_t start = dsvi_clip_windows_start(config, clip->frames, length, w), upto = start + length;
        upto = upto < clip->frames ? upto : clip->frames;
        used += upto - (start > end ? start : end);
        end = upto;
    }
    return used;
}

/* Finds the stamp of a source and, as part of it, that of its picture. */
static DsvStatus stamp_source(DsviLatentSource *source)
{
    DsviFileStamp picture;
    DSVI_TRY(dsvi_file_stamp(source->path, &source->stamp));
    if (!source->image)
        return DSV_OK;
    DsvStatus status = dsvi_file_stamp(source->image, &picture);
    if (status != DSV_OK)
        return dsvi_fail_prefix(status, "image of %s", source->path);
    source->stamp.bytes += picture.bytes;
    source->stamp.modified = fmax(source->stamp.modified, picture.modified);
    return DSV_OK;
}

DsvStatus dsvi_encode_clips_list(const DsviDataset *dataset, const DsvConfig *config, bool pictures,
                                 DsviEncodeClips *out)
{
    *out = (DsviEncodeClips){.dataset = dataset, .config = config, .count = dataset->count};
    out->at = calloc((size_t)out->count, sizeof *out->at);
    out->sources = calloc((size_t)out->count, sizeof *out->sources);
    if (!out->at || !out->sources)
        return clips_no_memory(out->count);
    for (int64_t i = 0; i < out->count; i++) {
        const DsviDatasetItem *item = &dataset->items[i];
        DsviEncodeClip *clip = &out->at[i];
        int64_t length = dsvi_dataset_size(dataset, config, i).frames;
        out->sources[i] = (DsviLatentSource){
            .path = item->path,
            .captions = &item->captions,
            .image = pictures ? item->image : NULL,
            .repeats = item->repeats,
        };
        DSVI_TRY(stamp_source(&out->sources[i]));
        clip->copy_of = -1;
        clip->frames = dsvi_clip_frame_times(&item->info, config->fps);
        clip->windows = item->windows;
        clip->used = frames_in_windows(config, clip, length);
    }
    return DSV_OK;
}

void dsvi_encode_clips_free(DsviEncodeClips *clips)
{
    for (int64_t i = 0; clips->at && i < clips->count; i++)
        free(clips->at[i].reason);
    free(clips->at);
    free(clips->sources);
    free(clips->windows);
    free(clips->clip_of);
    *clips = (DsviEncodeClips){0};
}

/* ---- Contents ---- */

/* Hashes a source, and its picture with it. The content stays unknown if one of them cannot be read. */
static void hash_source(DsviLatentSource *source)
{
    DsviHashKey both[2];
    if (dsvi_file_hash_key(source->path, &both[0]) != DSV_OK)
        return;
    if (!source->image)
        source->content = both[0];
    else if (dsvi_file_hash_key(source->image, &both[1]) == DSV_OK)
        source->content = dsvi_hash_key_of(both, sizeof both);
}

static void hash_range(void *context, int64_t begin, int64_t end, int worker)
{
    DsviLatentSource *const *sources = context;
    (void)worker;
    for (int64_t i = begin; i < end; i++)
        hash_source(sources[i]);
}

/* Hashes the sources in waves. After each wave its hashes are kept in the cache's folder and progress is
 * reported, and the caller can stop. */
static DsvStatus hash_sources(DsviLatentSource **sources, int64_t count, const DsviLatentCache *cache,
                              const DsvEvents *events)
{
    int64_t wave = 16 * (int64_t)dsvi_threads_count();
    double start = dsvi_clock_seconds();
    for (int64_t done = 0; done < count;) {
        int64_t n = count - done < wave ? count - done : wave;
        dsvi_parallel_for(n, 1, hash_range, sources + done);
        DSVI_TRY(dsvi_latent_cache_remember(cache, sources + done, n));
        done += n;
        DsvProgress progress = {.unit = "clip", .done = done, .total = count};
        progress.seconds_left = (dsvi_clock_seconds() - start) / (double)done * (double)(count - done);
        if (count > wave && events->progress)
            events->progress(events->context, &progress);
        if (done < count && events->stop && events->stop(events->context))
            return DSVI_FAIL(DSV_E_INTERRUPTED,
                             "stopped after reading %" PRId64 " of %" PRId64 " clips, of which nothing was "
                             "encoded; the same command goes on",
                             done, count);
    }
    return DSV_OK;
}

/* Hashes the clips whose contents are unknown. */
static DsvStatus hash_clips(DsviEncodeClips *clips, const DsviLatentCache *cache, const DsvEvents *events)
{
    int64_t unknown = 0;
    DsviLatentSource **sources = calloc((size_t)clips->count + 1, sizeof *sources);
    if (!sources)
        return clips_no_memory(clips->count);
    for (int64_t i = 0; i < clips->count; i++)
        if (!clips->sources[i].content.hex[0])
            sources[unknown++] = &clips->sources[i];
    DsvStatus status = hash_sources(sources, unknown, cache, events);
    free(sources);
    return status;
}

static int clip_by_content(const void *a, const void *b)
{
    const DsviLatentSource *x = *(DsviLatentSource *const *)a, *y = *(DsviLatentSource *const *)b;
    int order = strcmp(x->content.hex, y->content.hex);
    return order ? order : (x > y) - (x < y);
}

static DsvStatus find_copies(DsviEncodeClips *clips)
{
    const DsviLatentSource *first = NULL, **order = calloc((size_t)clips->count + 1, sizeof *order);
    if (!order)
        return clips_no_memory(clips->count);
    for (int64_t i = 0; i < clips->count; i++)
        order[i] = &clips->sources[i];
    qsort(order, (size_t)clips->count, sizeof *order, clip_by_content);
    for (int64_t i = 0; i < clips->count; i++) {
        if (first && dsvi_hash_key_same(&first->content, &order[i]->content))
            clips->at[order[i] - clips->sources].copy_of = first - clips->sources;
        else
            first = order[i];
    }
    free(order);
    return DSV_OK;
}

DsvStatus dsvi_encode_clips_hash(DsviEncodeClips *clips, const DsviLatentCache *cache,
                                 const DsvEvents *events)
{
    DSVI_TRY(dsvi_latent_cache_recall(cache, clips->sources, clips->count));
    DSVI_TRY(hash_clips(clips, cache, events));
    return find_copies(clips);
}

/* ---- Windows ---- */

DsvStatus dsvi_encode_clips_windows(DsviEncodeClips *clips)
{
    const DsvConfig *config = clips->config;
    for (int64_t i = 0; i < clips->count; i++)
        clips->window_count += clips->at[i].copy_of < 0 ? clips->at[i].windows : 0;
    clips->windows = calloc((size_t)clips->window_count, sizeof *clips->windows);
    clips->clip_of = calloc((size_t)clips->window_count, sizeof *clips->clip_of);
    if (!clips->windows || !clips->clip_of)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a list of %" PRId64 " windows", clips->window_count);
    int64_t next = 0;
    for (int64_t i = 0; i < clips->count; i++) {
        const DsviClipSize size = dsvi_dataset_size(clips->dataset, config, i);
        for (int64_t w = 0; clips->at[i].copy_of < 0 && w < clips->at[i].windows; w++, next++) {
            int64_t start = dsvi_clip_windows_start(config, clips->at[i].frames, size.frames, w);
            clips->clip_of[next] = i;
            clips->windows[next].source = &clips->sources[i];
            clips->windows[next].size = clips->dataset->items[i].size;
            clips->windows[next].window = (DsviClipWindow){
                .start = (double)start / config->fps,
                .fps = config->fps,
                .frames = size.frames,
                .height = size.height,
                .width = size.width,
                .crop_x = 0.5,
                .crop_y = 0.5,
            };
        }
    }
    return DSV_OK;
}

void dsvi_encode_clips_outcome(DsviEncodeClips *clips, int64_t window, DsviWindowOutcome outcome,
                               const char *message)
{
    DsviEncodeClip *clip = &clips->at[clips->clip_of[window]];
    clip->encoded += outcome == DSVI_WINDOW_ENCODED;
    clip->kept += outcome == DSVI_WINDOW_KEPT;
    clip->unreadable += outcome == DSVI_WINDOW_UNREADABLE;
    if (message && !clip->reason)
        clip->reason = strdup(message);
}

/* ---- The list of clips ---- */

/* Returns by how many frames a clip is shorter than its window; 0 or less: it fills the window. */
static int64_t missing_frames(const DsviEncodeClips *clips, int64_t i)
{
    return dsvi_dataset_size(clips->dataset, clips->config, i).frames - clips->at[i].frames;
}

/* Writes what a user should know about a clip, or nothing. */
static void clip_note(const DsviEncodeClips *clips, int64_t i, char *text, size_t room)
{
    const DsviEncodeClip *clip = &clips->at[i];
    int64_t rest = clip->frames - clip->used, missing = missing_frames(clips, i);
    text[0] = 0;
    if (clip->copy_of >= 0)
        snprintf(text, room, "has the contents of %s, whose windows are used",
                 clips->sources[clip->copy_of].path);
    else if (clip->reason)
        snprintf(text, room, "%" PRId64 " unreadable windows: %s", clip->unreadable, clip->reason);
    else if (missing > 0)
        snprintf(text, room, "shorter than a window: the last frame is repeated %" PRId64 " times", missing);
    else if (rest > 0)
        snprintf(text, room, "%" PRId64 " frames are in no window", rest);
}

/* Returns the clip whose windows are those of clip `i`. */
static const DsviEncodeClip *encoded_clip(const DsviEncodeClips *clips, int64_t i)
{
    const DsviEncodeClip *clip = &clips->at[i];
    return clip->copy_of < 0 ? clip : &clips->at[clip->copy_of];
}

static int64_t clip_usable_windows(const DsviEncodeClips *clips, int64_t i)
{
    const DsviEncodeClip *clip = encoded_clip(clips, i);
    return clip->encoded + clip->kept;
}

static void write_rows(const DsviEncodeClips *clips, FILE *to)
{
    const DsviDataset *d = clips->dataset;
    char note[DSVI_PATH_MAX + DSVI_MESSAGE_BYTES];
    char size_text[DSVI_CLIP_SIZE_BYTES];
    fputs("clip,bucket,windows,frames,frames_used,captions,note,repeats\n", to);
    for (int64_t i = 0; i < clips->count; i++) {
        const DsviEncodeClip *clip = &clips->at[i];
        int64_t windows = clip_usable_windows(clips, i);
        const DsviClipSize size = dsvi_dataset_size(d, clips->config, i);
        dsvi_csv_field(to, clips->sources[i].path);
        clip_note(clips, i, note, sizeof note);
        fprintf(to, ",%s,%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 ",",
                dsvi_clip_size_text(&size, size_text), windows, clip->frames,
                clip->used - (clip->windows - windows) * (clip->used / clip->windows),
                d->items[i].captions.count);
        dsvi_csv_field(to, note);
        fprintf(to, ",%" PRId64 "\n", d->items[i].repeats);
    }
    for (int64_t i = 0; i < d->left_out_count; i++) {
        dsvi_csv_field(to, d->left_out[i].path);
        fputs(",,0,0,0,0,", to);
        dsvi_csv_field(to, d->left_out[i].reason);
        fputs(",0\n", to);
    }
}

DsvStatus dsvi_encode_clips_write(const DsviEncodeClips *clips, const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    if (!to)
        return clips_no_memory(clips->count);
    write_rows(clips, to);
    DsvStatus status = fclose(to) == 0 ? dsvi_file_replace(path, text, bytes) : clips_no_memory(clips->count);
    free(text);
    return status;
}

int64_t dsvi_encode_clips_shorter(const DsviEncodeClips *clips, const char **first)
{
    int64_t count = 0;
    for (int64_t i = 0; i < clips->count; i++) {
        bool shorter = clip_usable_windows(clips, i) > 0 && missing_frames(clips, i) > 0;
        if (shorter && count == 0)
            *first = clips->sources[i].path;
        count += shorter;
    }
    return count;
}

void dsvi_encode_clips_summary(const DsviEncodeClips *clips, char *text, size_t room)
{
    const DsviDataset *d = clips->dataset;
    int64_t used = 0, captioned = 0, captions = 0, encoded = 0, kept = 0, unreadable = 0, samples = 0;
    bool repeats = false;
    char repeated[64] = "";
    for (int64_t i = 0; i < clips->count; i++) {
        bool usable = clip_usable_windows(clips, i) > 0;
        int64_t own = d->items[i].captions.count;
        used += usable;
        captioned += usable && own > 0;
        captions += usable ? own : 0;
        encoded += clips->at[i].encoded;
        kept += clips->at[i].kept;
        unreadable += clips->at[i].unreadable;
        samples += clip_usable_windows(clips, i) * d->items[i].repeats;
        repeats = repeats || (usable && d->items[i].repeats > 1);
    }
    if (repeats)
        snprintf(repeated, sizeof repeated, "; %" PRId64 " samples an epoch with repeats", samples);
    snprintf(text, room,
             "%" PRId64 " clips: %" PRId64 " used, %" PRId64 " left out; %" PRId64 " windows: %" PRId64
             " encoded, %" PRId64 " kept, %" PRId64 " unreadable; %" PRId64 " captions for %" PRId64
             " clips, %" PRId64 " clips without%s",
             clips->count + d->left_out_count, used, clips->count - used + d->left_out_count,
             clips->window_count, encoded, kept, unreadable, captions, captioned, used - captioned, repeated);
}
