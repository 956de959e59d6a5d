/* dsv_encode (include/dsv/encode.h): cuts every clip into consecutive windows and encodes each into the
 * latent cache. */
#include "dsv/encode.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config_abi.h"
#include "base/host.h"
#include "base/threads.h"
#include "data/dataset.h"
#include "data/latent_cache.h"
#include "model/codec/codec.h"

#define FLUSH_SECONDS 10.0 /* minimum seconds between two writes of the index of the latent cache */

typedef struct Window {
    const DsviLatentSource *source;
    DsviClipWindow window;
    DsvStatus status;
    bool unreadable; /* `status` is a failure to read the clip, not for example to write the cache */
    char message[512];
} Window;

typedef struct Encoding {
    const DsvConfig *settings;
    const DsvEvents *events;
    DsviDataset *dataset;
    DsviLatentSource *sources; /* (dataset->count) */
    DsviCodec *codec;
    DsviLatentCache *cache;
    DsviVideoShape video, latent;
    size_t pixel_count, latent_count;
    Window *windows;
    int64_t count;
    const DsviLatentSource *named; /* the last clip that was reported for a left-out window */
    Window *wave;                  /* the windows that are encoded in parallel now */
    float *buffers;                /* for each thread: pixels and latent of one window */
} Encoding;

/* Returns the number of complete windows in a clip. A clip shorter than one window gives one window, which
 * repeats its last frame. */
static int64_t window_count(const DsvConfig *settings, const DsviClipInfo *info)
{
    int64_t count = dsvi_clip_frame_times(info, settings->fps) / settings->num_frames;
    return count > 0 ? count : 1;
}

static DsvStatus list_windows(Encoding *e)
{
    for (int64_t i = 0; i < e->dataset->count; i++)
        e->count += window_count(e->settings, &e->dataset->items[i].info);
    e->windows = calloc((size_t)e->count, sizeof *e->windows);
    if (!e->windows)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a list of %lld windows", (long long)e->count);
    Window *next = e->windows;
    for (int64_t i = 0; i < e->dataset->count; i++) {
        for (int64_t w = 0; w < window_count(e->settings, &e->dataset->items[i].info); w++) {
            next->source = &e->sources[i];
            next->window = (DsviClipWindow){
                .start = (double)(w * e->settings->num_frames) / e->settings->fps,
                .fps = e->settings->fps,
                .frames = e->settings->num_frames,
                .height = e->settings->height,
                .width = e->settings->width,
                .crop_x = 0.5,
                .crop_y = 0.5,
            };
            next++;
        }
    }
    return DSV_OK;
}

static DsvStatus encode_window(const Encoding *e, Window *w, float *pixels, float *latent)
{
    const int64_t shape[4] = {e->latent.channels, e->latent.frames, e->latent.height, e->latent.width};
    if (dsvi_latent_cache_has(e->cache, w->source->path, &w->window))
        return DSV_OK;
    DsvStatus status = dsvi_clip_read(w->source->path, &w->window, pixels);
    w->unreadable = dsvi_dataset_is_broken(status);
    DSVI_TRY(status);
    DSVI_TRY(e->codec->encode(e->codec, e->video, pixels, latent));
    return dsvi_latent_cache_put(e->cache, w->source, &w->window, shape, latent);
}

static void encode_range(void *context, int64_t begin, int64_t end, int worker)
{
    const Encoding *e = context;
    float *pixels = e->buffers + (size_t)worker * (e->pixel_count + e->latent_count);
    for (int64_t i = begin; i < end; i++) {
        Window *w = e->wave + i;
        w->status = encode_window(e, w, pixels, pixels + e->pixel_count);
        if (w->status != DSV_OK)
            snprintf(w->message, sizeof w->message, "%s", dsv_error_message());
    }
}

static void encode_log(const Encoding *e, DsvLogLevel level, const char *line)
{
    if (e->events->log)
        e->events->log(e->events->context, level, line);
}

static void warn_left_out(const Encoding *e, const char *what)
{
    char line[768];
    snprintf(line, sizeof line, "left out: %s", what);
    encode_log(e, DSV_LOG_WARNING, line);
}

/* Handles the result of a window. An unreadable window is left out, and its clip is reported once. Other
 * failures, for example a full disk, end the call. */
static DsvStatus encode_handle_result(Encoding *e, const Window *w)
{
    if (w->status == DSV_OK)
        return DSV_OK;
    if (!w->unreadable)
        return dsvi_fail_adopt(w->status, w->message);
    if (e->named != w->source)
        warn_left_out(e, w->message);
    e->named = w->source;
    return DSV_OK;
}

static bool encode_wants_stop(const DsvEvents *events)
{
    return events->stop && events->stop(events->context);
}

/* Encodes all windows in waves of a few per thread. After each wave progress is reported, and the caller can
 * stop. The index is written every FLUSH_SECONDS only, because each write rewrites all of it. */
static DsvStatus encode_all(Encoding *e)
{
    double start = dsvi_clock_seconds(), flushed = start;
    int64_t wave = 4 * (int64_t)dsvi_threads_count();
    for (int64_t done = 0; done < e->count;) {
        int64_t n = e->count - done < wave ? e->count - done : wave;
        e->wave = e->windows + done;
        dsvi_parallel_for(n, 1, encode_range, e);
        for (int64_t i = 0; i < n; i++)
            DSVI_TRY(encode_handle_result(e, &e->wave[i]));
        done += n;
        if (dsvi_clock_seconds() - flushed > FLUSH_SECONDS) {
            DSVI_TRY(dsvi_latent_cache_flush(e->cache));
            flushed = dsvi_clock_seconds();
        }
        DsvProgress progress = {.unit = "window", .done = done, .total = e->count};
        progress.seconds_left = (dsvi_clock_seconds() - start) / (double)done * (double)(e->count - done);
        if (e->events->progress)
            e->events->progress(e->events->context, &progress);
        if (done < e->count && encode_wants_stop(e->events))
            return DSVI_FAIL(DSV_E_INTERRUPTED,
                             "stopped after %lld of %lld windows; the same command goes on", (long long)done,
                             (long long)e->count);
    }
    return dsvi_latent_cache_flush(e->cache);
}

/* Records size and modification time of every clip. They show later whether a clip has changed. */
static DsvStatus stamp_sources(Encoding *e)
{
    e->sources = calloc((size_t)e->dataset->count, sizeof *e->sources);
    if (!e->sources)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a list of %lld clips", (long long)e->dataset->count);
    for (int64_t i = 0; i < e->dataset->count; i++) {
        const DsviDatasetItem *item = &e->dataset->items[i];
        e->sources[i] = (DsviLatentSource){.path = item->path, .text = item->text};
        DSVI_TRY(dsvi_file_stamp(item->path, &e->sources[i].stamp));
    }
    return DSV_OK;
}

static void log_changed(void *context, const char *path, int64_t windows)
{
    const Encoding *e = context;
    char line[768];
    snprintf(line, sizeof line, "%s has changed since it was encoded: its %lld old windows are dropped", path,
             (long long)windows);
    encode_log(e, DSV_LOG_INFO, line);
}

/* Allocates pixels and latent of one window for each thread. Reduces the number of threads if this would need
 * more than half of the machine's memory. */
static DsvStatus encode_allocate(Encoding *e)
{
    size_t window = (e->pixel_count + e->latent_count) * sizeof(float);
    uint64_t fitting = dsvi_memory_bytes() / 2 / window;
    int threads = dsvi_threads_count();
    char line[256];
    if (dsvi_memory_bytes() > 0 && fitting < (uint64_t)threads) {
        dsvi_threads_set(fitting > 1 ? (int)fitting : 1);
        snprintf(line, sizeof line, "%d threads instead of %d: each holds %.1f GiB of frames",
                 dsvi_threads_count(), threads, (double)window / 1073741824.0);
        encode_log(e, DSV_LOG_INFO, line);
    }
    e->buffers = malloc((size_t)dsvi_threads_count() * window);
    if (!e->buffers)
        return DSVI_FAIL(DSV_E_NO_MEMORY,
                         "no memory for the frames of %d windows of %.1f GiB, one for each "
                         "thread: lower threads",
                         dsvi_threads_count(), (double)window / 1073741824.0);
    return DSV_OK;
}

/* Fails if the output folder contains clips. After encoding, the folder would be read as a latent cache, and
 * the clips in it would be ignored. */
static DsvStatus check_folder(const Encoding *e, const char *out_dir)
{
    DsvStatus status = DSV_OK;
    char *out = realpath(out_dir, NULL), *data = realpath(e->settings->data_path, NULL);
    if (!out) /* the output folder does not exist yet */
        goto done;
    if (data && strcmp(out, data) == 0)
        status = DSVI_FAIL(DSV_E_USAGE, "%s holds the clips: latents need a folder of their own", out_dir);
    for (int64_t i = 0; i < e->dataset->count && status == DSV_OK; i++) {
        const char *clip = e->dataset->items[i].path, *slash = strrchr(clip, '/');
        size_t length = (size_t)(slash - clip);
        if (strlen(out) == length && strncmp(out, clip, length) == 0)
            status = DSVI_FAIL(DSV_E_USAGE, "%s holds a clip, %s: latents need a folder of their own",
                               out_dir, slash + 1);
    }
done:
    free(out);
    free(data);
    return status;
}

static DsvStatus encode_prepare(Encoding *e, const char *out_dir)
{
    const DsvConfig *settings = e->settings;
    DSVI_TRY(dsvi_codec_open(settings, &e->codec));
    e->video = (DsviVideoShape){3, settings->num_frames, settings->height, settings->width};
    DSVI_TRY(e->codec->latent_shape(e->codec, e->video, &e->latent));
    e->pixel_count = (size_t)(3 * e->video.frames * e->video.height * e->video.width);
    e->latent_count = (size_t)(e->latent.channels * e->latent.frames * e->latent.height * e->latent.width);
    DSVI_TRY(dsvi_dataset_open(settings->data_path, settings, &e->dataset));
    if (e->dataset->latents)
        return DSVI_FAIL(DSV_E_USAGE, "%s is a latent cache already, expected clips", settings->data_path);
    DSVI_TRY(dsvi_dataset_deduplicate(e->dataset));
    DSVI_TRY(check_folder(e, out_dir));
    DSVI_TRY(stamp_sources(e));
    DSVI_TRY(list_windows(e));
    DSVI_TRY(encode_allocate(e));
    DSVI_TRY(dsvi_latent_cache_create(out_dir, settings, &e->cache));
    return dsvi_latent_cache_drop_changed(e->cache, e->sources, e->dataset->count, log_changed, e);
}

DsvStatus dsv_encode(const char *out_dir, const DsvConfig *settings, const DsvEvents *events)
{
    DSVI_TRY(dsvi_config_check_abi(settings));
    DsvStatus status;
    DsvEvents none = {0};
    Encoding e = {.settings = settings, .events = events ? events : &none};
    dsvi_threads_set((int)settings->threads);
    DSVI_TRY_GOTO(status, encode_prepare(&e, out_dir), done);
    for (int64_t i = 0; i < e.dataset->left_out_count; i++)
        warn_left_out(&e, e.dataset->left_out[i]);
    for (int64_t i = 0; i < e.dataset->remark_count; i++)
        encode_log(&e, DSV_LOG_WARNING, e.dataset->remarks[i]);
    DSVI_TRY_GOTO(status, encode_all(&e), done);
done:
    dsvi_latent_cache_close(&e.cache);
    dsvi_dataset_close(&e.dataset);
    if (e.codec)
        e.codec->close(e.codec);
    free(e.sources);
    free(e.windows);
    free(e.buffers);
    return status;
}
