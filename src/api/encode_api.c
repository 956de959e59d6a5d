/* dsv_encode (include/dsv/encode.h): cuts every clip into consecutive windows and encodes each into the
 * latent cache. */
#include "dsv/encode.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/config_abi.h"
#include "base/host.h"
#include "base/threads.h"
#include "data/dataset_sizes.h"
#include "data/dataset_sources.h"
#include "encode/encode_clips.h"
#include "encode/encode_models.h"
#include "model/dit/dit.h"

static const char LIST_NAME[] = "clips.csv"; /* the list of clips in the folder of the cache */

enum { LINE_BYTES = 1024 };

typedef struct Encoding {
    const char *out_dir;
    const DsvConfig *settings;
    const DsvEvents *events;
    DsviDataset *dataset;
    DsviEncodeClips clips;
    DsviLatentCache *cache;
    DsviCodec *codec;                              /* NULL: the VAE encodes */
    DsviVideoShape videos[DSVI_CLIP_SIZES_MAX];    /* of the windows of each size */
    int64_t latent_shapes[DSVI_CLIP_SIZES_MAX][4]; /* of their latents */
    const char *model_path;                        /* NULL: no model */
    DsviBackend backend;                           /* these three with a model only */
    DsviEncodeModels models;
    DsviTexts texts;
    DsviWindowEncoder encoder;
} Encoding;

static void encode_log(const Encoding *e, DsvLogLevel level, const char *line)
{
    if (e->events->log)
        e->events->log(e->events->context, level, line);
}

static void warn_left_out(const Encoding *e, const char *what)
{
    char line[LINE_BYTES];
    snprintf(line, sizeof line, "left out: %s", what);
    encode_log(e, DSV_LOG_WARNING, line);
}

/* ---- The codec ---- */

static bool by_vae(const Encoding *e)
{
    return strcmp(e->settings->codec_name, "wan") == 0;
}

static DsvStatus encode_by_codec(void *context, int64_t size, const float *pixels, float *latent)
{
    const Encoding *e = context;
    return e->codec->encode(e->codec, e->videos[size], pixels, latent);
}

static DsvStatus open_codec(Encoding *e)
{
    const DsvConfig *settings = e->settings;
    const DsviVideoShape video = {3, settings->num_frames, settings->height, settings->width};
    DsviVideoShape latent;
    DSVI_TRY(dsvi_codec_open(settings, &e->codec));
    e->encoder = (DsviWindowEncoder){.context = e, .encode = encode_by_codec, .parallel = true};
    return settings->data_buckets[0] ? DSV_OK : e->codec->latent_shape(e->codec, video, &latent);
}

/* Returns the codec that knows the shapes of latents. */
static const DsviCodec *shape_codec(const Encoding *e)
{
    return e->codec ? e->codec : &e->models.shape.codec;
}

/* Computes the shape of a size's windows and latents, and checks that the transformer takes it. */
static DsvStatus find_shape(Encoding *e, int64_t size)
{
    const DsviClipSize *clip = &e->dataset->sizes.at[size];
    DsviVideoShape latent, *video = &e->videos[size];
    *video = (DsviVideoShape){3, clip->frames, clip->height, clip->width};
    DSVI_TRY(shape_codec(e)->latent_shape(shape_codec(e), *video, &latent));
    const int64_t shape[4] = {latent.channels + e->models.condition_channels, latent.frames, latent.height,
                              latent.width};
    memcpy(e->latent_shapes[size], shape, sizeof shape);
    return by_vae(e) ? dsvi_dit_check_pictures(&e->models.transformer, latent) : DSV_OK;
}

/* Computes the shapes of all sizes, before anything is encoded. */
static DsvStatus find_shapes(Encoding *e)
{
    char text[DSVI_CLIP_SIZE_BYTES];
    for (int64_t i = 0; i < e->dataset->sizes.count; i++) {
        DsvStatus status = find_shape(e, i);
        if (status != DSV_OK && e->settings->data_buckets[0])
            return dsvi_fail_prefix(status, "data.buckets: %s",
                                    dsvi_clip_size_text(&e->dataset->sizes.at[i], text));
        DSVI_TRY(status);
    }
    return DSV_OK;
}

/* Enters the shapes of all sizes into the encoder. */
static void set_shapes(Encoding *e)
{
    DsviWindowEncoder *encoder = &e->encoder;
    encoder->shapes = (const int64_t(*)[4])e->latent_shapes;
    encoder->size_count = e->dataset->sizes.count;
    e->models.videos = e->videos;
    for (int64_t i = 0; i < encoder->size_count; i++) {
        const DsviVideoShape *video = &e->videos[i];
        int64_t frames = video->frames + (encoder->pictures ? 1 : 0);
        int64_t pixels = video->channels * frames * video->height * video->width;
        encoder->pixels = pixels > encoder->pixels ? pixels : encoder->pixels;
    }
}

/* Assigns the clips to the sizes of data.buckets. A transformer's patch has two by two latent pixels in every
 * published model. */
static DsvStatus assign_sizes(Encoding *e)
{
    enum { PATCH = 2 };
    DsviClipSteps steps;
    DSVI_TRY(dsvi_codec_steps(shape_codec(e), &steps.frame_step, &steps.pixel_step));
    steps.pixel_step *= PATCH;
    return dsvi_dataset_assign(e->dataset, e->settings, &steps, false);
}

/* ---- The model ---- */

/* Opens the codec or finds the VAE, and finds the text encoder. Nothing large is loaded yet. */
static DsvStatus open_models(Encoding *e)
{
    if (by_vae(e) && !e->model_path)
        return DSVI_FAIL(DSV_E_USAGE, "codec.name is wan, which needs the VAE of a model: name its folder");
    if (!by_vae(e))
        DSVI_TRY(open_codec(e));
    if (!e->model_path)
        return DSV_OK;
    DSVI_TRY(dsvi_backend_open(e->settings, &e->backend));
    return dsvi_encode_models_open(e->model_path, e->settings, &e->backend, &e->models);
}

/* Computes the keys of all captions, and lists the distinct ones. */
static DsvStatus collect_texts(Encoding *e)
{
    char line[DSVI_PATH_MAX + 128];
    const DsviTextIds ids = dsvi_encode_models_ids(&e->models);
    if (!e->model_path)
        return DSV_OK;
    DSVI_TRY(dsvi_texts_collect(e->dataset, &ids, &e->models.identity.text, &e->texts));
    if (e->texts.cut > 0) {
        snprintf(line, sizeof line,
                 "%lld captions have more than %d ids and are cut, the first is that of %s",
                 (long long)e->texts.cut, DSVI_TEXT_ROWS, e->dataset->items[e->texts.cut_item].path);
        encode_log(e, DSV_LOG_WARNING, line);
    }
    return DSV_OK;
}

/* Encodes the texts that the cache does not have. The text encoder is not loaded if there are none. */
static DsvStatus encode_texts(Encoding *e)
{
    const DsviTextStore *store = &dsvi_latent_cache_model(e->cache)->text;
    DsviTextEncoder encoder;
    char line[LINE_BYTES];
    if (!e->model_path)
        return DSV_OK;
    int64_t distinct = e->texts.count, rows = 0;
    dsvi_texts_drop_stored(&e->texts, store);
    if (e->texts.count == 0)
        return DSV_OK;
    rows = dsvi_texts_rows(&e->texts);
    DSVI_TRY(dsvi_encode_models_load_text(&e->models, rows, &encoder));
    DsvStatus status = dsvi_texts_encode(&e->texts, store, &encoder, e->events);
    dsvi_encode_models_free_text(&e->models);
    DSVI_TRY(status);
    snprintf(line, sizeof line, "%lld of %lld distinct texts encoded, the empty prompt among them, %lld rows",
             (long long)e->texts.count, (long long)distinct, (long long)rows);
    encode_log(e, DSV_LOG_INFO, line);
    return DSV_OK;
}

/* ---- Clips ---- */

/* Fails if the output folder contains clips. After encoding, the folder would be read as a latent cache, and
 * the clips in it would be ignored. */
static DsvStatus check_folder(const Encoding *e)
{
    DsvStatus status = DSV_OK;
    char *out = realpath(e->out_dir, NULL);
    if (!out) /* the output folder does not exist yet */
        return DSV_OK;
    for (int64_t i = 0; i < e->dataset->source_count && status == DSV_OK; i++) {
        char *data = realpath(e->dataset->sources[i].named.path, NULL);
        if (data && strcmp(out, data) == 0)
            status = DSVI_FAIL(DSV_E_USAGE, "%s holds the clips: latents need a folder of their own",
                               e->out_dir);
        free(data);
    }
    for (int64_t i = 0; i < e->dataset->count && status == DSV_OK; i++) {
        const char *clip = e->dataset->items[i].path, *slash = strrchr(clip, '/');
        size_t length = (size_t)(slash - clip);
        if (strlen(out) == length && strncmp(out, clip, length) == 0)
            status = DSVI_FAIL(DSV_E_USAGE, "%s holds a clip, %s: latents need a folder of their own",
                               e->out_dir, slash + 1);
    }
    free(out);
    return status;
}

static void log_source(void *context, const char *line)
{
    encode_log(context, DSV_LOG_INFO, line);
}

static DsvStatus open_clips(Encoding *e)
{
    const char *path = e->settings->data_path;
    DSVI_TRY(dsvi_dataset_open(path, e->settings, &e->dataset));
    if (e->dataset->latents)
        return DSVI_FAIL(DSV_E_USAGE, "%s is a latent cache already, expected clips", path);
    DSVI_TRY(dsvi_dataset_deduplicate(e->dataset));
    DSVI_TRY(check_folder(e));
    DSVI_TRY(assign_sizes(e));
    DSVI_TRY(find_shapes(e));
    for (int64_t i = 0; i < e->dataset->left_out_count; i++)
        warn_left_out(e, e->dataset->left_out[i].reason);
    for (int64_t i = 0; i < e->dataset->remark_count; i++)
        encode_log(e, DSV_LOG_WARNING, e->dataset->remarks[i]);
    dsvi_dataset_sources_report(e->dataset, log_source, e);
    return dsvi_encode_clips_list(e->dataset, e->settings, e->models.pictures, &e->clips);
}

static void log_change(void *context, const char *path, DsviLatentChange change, int64_t windows)
{
    static const char *const WHAT[] = {
        [DSVI_LATENT_DROPPED] = "%s has changed since it was encoded: its %lld old windows are dropped",
        [DSVI_LATENT_MOVED] = "%s was encoded under another name: its %lld windows are kept",
        [DSVI_LATENT_SHARED] = "%s is a copy of another clip, whose %lld windows are used for both",
    };
    char line[DSVI_PATH_MAX + 128];
    snprintf(line, sizeof line, WHAT[change], path, (long long)windows);
    encode_log(context, DSV_LOG_INFO, line);
}

/* Finds out what the cache already has of the clips. */
static DsvStatus update_cache(Encoding *e)
{
    return dsvi_latent_cache_update(e->cache, e->clips.sources, e->clips.count, log_change, e);
}

/* ---- Windows ---- */

/* Returns the number of threads that decode and write. If the VAE computes on the CPU, few threads decode,
 * because the VAE uses all cores. */
static int decoding_threads(const Encoding *e)
{
    bool computes = !e->backend.device || e->backend.device->kind == DSVI_DEVICE_CPU;
    if (e->encoder.parallel)
        return dsvi_threads_count();
    if (e->settings->data_workers > 0)
        return (int)e->settings->data_workers;
    return computes || dsvi_threads_count() == 1 ? 1 : dsvi_threads_count() - 1;
}

/* Sets the number of decoding threads, and of windows whose pixels are in memory at once: fewer if they would
 * take more than half of the machine's memory. */
static void plan_threads(const Encoding *e, DsviEncodeWindowsArgs *args)
{
    enum { MORE = 2 }; /* windows that are decoded while the encoder works and all threads wait */
    size_t window = (size_t)e->encoder.pixels * sizeof(float);
    int64_t fitting = (int64_t)(dsvi_memory_bytes() / 2 / window);
    int wanted = decoding_threads(e);
    char line[LINE_BYTES];
    args->threads = wanted;
    args->ahead = e->encoder.parallel ? args->threads : args->threads + MORE;
    if (dsvi_memory_bytes() == 0 || fitting >= args->ahead)
        return;
    args->ahead = fitting > 1 ? fitting : 1;
    if (args->threads > args->ahead) {
        args->threads = (int)args->ahead;
        snprintf(line, sizeof line, "%d threads instead of %d: each holds %.1f GiB of frames", args->threads,
                 wanted, (double)window / 1073741824.0);
        encode_log(e, DSV_LOG_INFO, line);
    }
}

/* Counts the outcome of a window. A clip with an unreadable window is reported once. */
static void take_outcome(void *context, int64_t window, DsviWindowOutcome outcome, const char *message)
{
    Encoding *e = context;
    const DsviEncodeClip *clip = &e->clips.at[e->clips.clip_of[window]];
    if (outcome == DSVI_WINDOW_UNREADABLE && clip->unreadable == 0)
        warn_left_out(e, message);
    dsvi_encode_clips_outcome(&e->clips, window, outcome, message);
}

static DsvStatus encode_windows(Encoding *e)
{
    char line[LINE_BYTES];
    DsviEncodeTimes times;
    DsviEncodeWindowsArgs args = {
        .cache = e->cache,
        .encoder = &e->encoder,
        .outcome = take_outcome,
        .context = e,
        .events = e->events,
    };
    DSVI_TRY(dsvi_encode_clips_windows(&e->clips));
    args.windows = e->clips.windows;
    args.count = e->clips.window_count;
    plan_threads(e, &args);
    DSVI_TRY(dsvi_encode_windows(&args, &times));
    if (times.encoded > 0 && !e->encoder.parallel) {
        snprintf(line, sizeof line, "%lld windows encoded in %.1f s, %.2f s each; device busy %.0f %%",
                 (long long)times.encoded, times.seconds, times.seconds / (double)times.encoded,
                 100 * times.busy / times.seconds);
        encode_log(e, DSV_LOG_INFO, line);
    }
    return update_cache(e); /* copies of clips get the windows that were encoded now */
}

/* ---- The list of clips ---- */

static DsvStatus write_list(const Encoding *e)
{
    const DsviCaptionFileCounts *files = &e->dataset->caption_files;
    char path[DSVI_PATH_MAX], sums[512], line[DSVI_PATH_MAX + LINE_BYTES];
    const char *first;
    DSVI_TRY(dsvi_path_join(path, e->out_dir, LIST_NAME));
    DSVI_TRY(dsvi_encode_clips_write(&e->clips, path));
    dsvi_encode_clips_summary(&e->clips, sums, sizeof sums);
    snprintf(line, sizeof line, "%s; listed in %s", sums, path);
    encode_log(e, DSV_LOG_INFO, line);
    int64_t shorter = dsvi_encode_clips_shorter(&e->clips, &first);
    if (shorter > 0) {
        snprintf(line, sizeof line,
                 "%lld clip%s shorter than %lld frames, the first: %s: the last frame is repeated; with "
                 "data.buckets a clip is trained at the nearest shorter length",
                 (long long)shorter, shorter == 1 ? " is" : "s are", (long long)e->settings->num_frames,
                 first);
        encode_log(e, DSV_LOG_WARNING, line);
    }
    if (files->found > 0) {
        snprintf(line, sizeof line, "%lld caption files: %lld used, %lld unusable, %lld of no clip",
                 (long long)files->found, (long long)files->used, (long long)files->unusable,
                 (long long)files->alone);
        encode_log(e, files->used == files->found ? DSV_LOG_INFO : DSV_LOG_WARNING, line);
    }
    return DSV_OK;
}

static DsvStatus encode_all(Encoding *e)
{
    DSVI_TRY(open_models(e));
    DSVI_TRY(open_clips(e));
    DSVI_TRY(collect_texts(e));
    DSVI_TRY(dsvi_latent_cache_create(e->out_dir, e->settings, &e->models.identity, &e->cache));
    DSVI_TRY(dsvi_encode_clips_hash(&e->clips, e->cache, e->events));
    DSVI_TRY(update_cache(e));
    DSVI_TRY(encode_texts(e));
    if (by_vae(e))
        DSVI_TRY(dsvi_encode_models_load_vae(&e->models, &e->encoder));
    set_shapes(e);
    DSVI_TRY(encode_windows(e));
    return write_list(e);
}

DsvStatus dsv_encode(const char *out_dir, const char *model_path, const DsvConfig *settings,
                     const DsvEvents *events)
{
    static const DsvEvents NONE;
    DSVI_TRY(dsvi_config_check_abi(settings));
    Encoding e = {.out_dir = out_dir,
                  .model_path = model_path,
                  .settings = settings,
                  .events = events ? events : &NONE};
    dsvi_threads_set((int)settings->threads);
    DsvStatus status = encode_all(&e);
    if (status != DSV_OK)
        dsvi_trail_add(__FILE__, __LINE__);
    dsvi_latent_cache_close(&e.cache);
    dsvi_texts_free(&e.texts);
    dsvi_encode_clips_free(&e.clips);
    dsvi_dataset_close(&e.dataset);
    if (e.codec)
        e.codec->close(e.codec);
    dsvi_encode_models_close(&e.models);
    dsvi_backend_close(&e.backend);
    return status;
}
