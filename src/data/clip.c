/* Implements clip.h: selects the frames of a window and crops them. clip_stream.c decodes frames, and
 * clip_scale.c scales them and converts their colours. */
#include "data/clip.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/frame.h>

#include "data/clip_scale.h"
#include "data/clip_stream.h"

enum {
    /* A frame counts as shown this many microseconds before its time. Matroska rounds the times of a
     * frame and of the clip's beginning to milliseconds, each by up to half a millisecond, and this code
     * rounds to microseconds. */
    EARLY_US = 1010,
    /* A window may begin this many microseconds after the end of the last frame, because containers state
     * the end of a clip inaccurately. */
    LATE_US = 100000,
    COVER_MAX = 65536,    /* largest size of a scaled frame, in pixels per side */
    SECONDS_MAX = 1000000 /* longest length that a clip may claim */
};

static DsvStatus clip_measure(DsviClipStream *s, DsviClipInfo *info)
{
    int64_t end_us, declared = s->video->duration;
    double declared_seconds = declared != AV_NOPTS_VALUE ? (double)declared * av_q2d(s->video->time_base) : 0;
    int64_t declared_frames = s->video->nb_frames;
    DSVI_TRY(dsvi_clip_stream_end(s, &end_us));
    info->seconds = (double)end_us * 1e-6;
    double stored_seconds = info->seconds + (double)dsvi_clip_stream_lead(s) * 1e-6;
    if (stored_seconds < declared_seconds - 1 && stored_seconds < 0.9 * declared_seconds)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: truncated: its head promises %.1f s of video, %.1f s are there",
                         s->path, declared_seconds, stored_seconds);
    if (!(info->seconds <= SECONDS_MAX))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: claims to last %.0f s, expected at most %d", s->path,
                         info->seconds, SECONDS_MAX);
    info->frames = declared_frames > 0 ? declared_frames : llround(info->seconds * s->fps);
    if (info->frames < 1)
        info->frames = 1;
    info->fps = s->fps > 0 || info->seconds <= 0 ? s->fps : (double)info->frames / info->seconds;
    return DSV_OK;
}

bool dsvi_clip_oddities_text(const char *path, const DsviClipInfo *info, char *text, size_t room)
{
    static const struct {
        unsigned oddity;
        const char *words;
    } WORDS[] = {
        {DSVI_CLIP_INTERLACED,
         "interlaced, and both fields are taken as one picture: moving edges are combs"},
        {DSVI_CLIP_HDR, "in the transfer curve of PQ or HLG, which is not converted: it looks flat and grey"},
        {DSVI_CLIP_WIDE, "in colours wider than BT.709's, which are not converted: they look pale"},
        {DSVI_CLIP_ALPHA, "with transparency, which is dropped"},
    };
    size_t used = 0;
    text[0] = 0;
    for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS; i++)
        if (info->oddities & WORDS[i].oddity && used < room)
            used += used == 0 ? (size_t)snprintf(text, room, "%s: %s", path, WORDS[i].words)
                              : (size_t)snprintf(text + used, room - used, "; %s", WORDS[i].words);
    return used > 0;
}

DsvStatus dsvi_clip_probe(const char *path, DsviClipInfo *info)
{
    DsvStatus status;
    DsviClipStream stream = {0};
    memset(info, 0, sizeof *info);
    DSVI_TRY_GOTO(status, dsvi_clip_stream_open(path, &stream), done);
    info->width = stream.width;
    info->height = stream.height;
    snprintf(info->codec, sizeof info->codec, "%s", avcodec_get_name(stream.decoder->codec_id));
    const char *names = stream.format->iformat->name; /* "mov,mp4,m4a,...": the first name is used */
    snprintf(info->container, sizeof info->container, "%.*s", (int)strcspn(names, ","), names);
    DSVI_TRY_GOTO(status, dsvi_clip_colours(stream.frame, path, &info->oddities), done);
    DSVI_TRY_GOTO(status, clip_measure(&stream, info), done);
done:
    dsvi_clip_stream_close(&stream);
    return status;
}

/* Returns the time of frame `i` of a window that begins `first` frames into the clip. All frame times are
 * integers of microseconds. */
static int64_t frame_us(double first, int64_t i, double fps)
{
    return llrint((first + (double)i) / fps * 1e6);
}

/* Returns whether the time i / fps, in seconds, is before the end of the clip. A time that precedes the
 * clip's end by no more than the rounding of containers is outside. If half a frame is shorter than this
 * rounding, half a frame is used instead. */
static bool is_inside(int64_t i, double fps, int64_t end_us)
{
    double half = 0.5e6 / fps;
    return frame_us(0, i, fps) + (half < EARLY_US ? llrint(half) : EARLY_US) < end_us;
}

int64_t dsvi_clip_frame_times(const DsviClipInfo *info, double fps)
{
    int64_t end_us = llround(info->seconds * 1e6);
    int64_t times = llround(info->seconds * fps); /* number of frame times, wrong by one at most */
    while (times > 1 && !is_inside(times - 1, fps, end_us))
        times--;
    while (is_inside(times, fps, end_us))
        times++;
    return times > 1 ? times : 1;
}

DsvStatus dsvi_clip_cover(const char *path, int64_t shown_height, int64_t shown_width, int64_t height,
                          int64_t width, int64_t *cover_height, int64_t *cover_width)
{
    bool width_decides = width * shown_height >= height * shown_width;
    double shown_ratio = (double)shown_width / (double)shown_height;
    *cover_width = width_decides ? width : llround((double)height * shown_ratio);
    *cover_height = width_decides ? llround((double)width / shown_ratio) : height;
    if (*cover_height > COVER_MAX || *cover_width > COVER_MAX)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: frames of %lld x %lld are too narrow to cover %lld x %lld", path,
                         (long long)shown_width, (long long)shown_height, (long long)width,
                         (long long)height);
    return DSV_OK;
}

static int64_t crop_offset(double where, int64_t slack)
{
    int64_t offset = (int64_t)floor(where * (double)(slack + 1));
    return offset < 0 ? 0 : offset > slack ? slack : offset;
}

void dsvi_clip_crop(const DsviClipWindow *w, const uint8_t *rgb, int64_t cover_height, int64_t cover_width,
                    int64_t i, float *pixels)
{
    int64_t top = crop_offset(w->crop_y, cover_height - w->height);
    int64_t left = crop_offset(w->crop_x, cover_width - w->width), plane = w->frames * w->height * w->width;
    float widened[256];
    for (int v = 0; v < 256; v++)
        widened[v] = (float)v / 127.5f - 1;
    for (int64_t y = 0; y < w->height; y++) {
        const uint8_t *from = rgb + 3 * ((top + y) * cover_width + left);
        float *red = pixels + (i * w->height + y) * w->width, *green = red + plane, *blue = green + plane;
        for (int64_t x = 0; x < w->width; x++) {
            red[x] = widened[from[3 * x]];
            green[x] = widened[from[3 * x + 1]];
            blue[x] = widened[from[3 * x + 2]];
        }
    }
}

/* Receives frame i of a window as rgb (cover height, cover width, 3), valid during the call. */
typedef void frame_sink(void *context, int64_t i, const uint8_t *rgb);

typedef struct Walk {
    const DsviClipWindow *window;
    DsviClipStream stream;
    DsviClipScaler scaler;
    AVFrame *shown; /* the newest frame that is not later than the next frame time */
    bool scaled;    /* `rgb` contains the scaled frame `shown` */
    uint8_t *rgb;   /* (cover height, cover width, 3) */
    int64_t next;   /* the window's next frame to deliver */
    int64_t covered;
    frame_sink *sink;
    void *context;
} Walk;

/* Returns the time of frame i of a window. If the window starts at a multiple of 1 / fps (up to the
 * precision of a double), the times are exactly those that a window starting at 0 has for the same
 * frames. */
static int64_t target_us(const DsviClipWindow *w, int64_t i)
{
    double first = w->start * w->fps;
    if (fabs(first - rint(first)) < 1e-6)
        first = rint(first);
    return frame_us(first, i, w->fps);
}

/* Delivers `shown` as the window's next frame. Frames are scaled only when they are delivered. */
static DsvStatus deliver(Walk *walk)
{
    if (!walk->scaled)
        DSVI_TRY(dsvi_clip_scale(&walk->scaler, walk->shown, walk->stream.path, walk->rgb));
    walk->scaled = true;
    walk->sink(walk->context, walk->next++, walk->rgb);
    return DSV_OK;
}

/* Decodes frames from the current position of the stream until all frames of the window are delivered.
 * *placed is false, and nothing was delivered, if no frame was found or if, after a seek, the first frame is
 * too late. */
static DsvStatus clip_fill_window(Walk *walk, bool sought, bool *placed)
{
    DsviClipStream *s = &walk->stream;
    const DsviClipWindow *w = walk->window;
    int64_t until_us = 0;
    *placed = false;
    while (walk->next < w->frames) {
        bool got;
        DSVI_TRY(dsvi_clip_stream_next(s, &got));
        if (!got)
            break;
        if (sought && !*placed && s->time_us > target_us(w, 0) + EARLY_US)
            return DSV_OK;
        while (*placed && walk->next < w->frames && s->time_us > target_us(w, walk->next) + EARLY_US)
            DSVI_TRY(deliver(walk));
        av_frame_unref(walk->shown);
        av_frame_move_ref(walk->shown, s->frame);
        until_us = s->until_us;
        walk->scaled = false;
        *placed = true;
    }
    walk->covered = walk->next;
    while (*placed && walk->next < w->frames) {
        walk->covered += target_us(w, walk->next) <= until_us + LATE_US;
        DSVI_TRY(deliver(walk));
    }
    return DSV_OK;
}

/* Seeks to a key frame before the window. If that key frame proves to be after the window's start, seeks
 * further back, and finally starts at the beginning, where the first frame stands for all earlier times. */
static DsvStatus walk_window(Walk *walk)
{
    static const int64_t BACK_US[] = {0, 2000000};
    DsviClipStream *s = &walk->stream;
    int64_t start_us = target_us(walk->window, 0);
    bool placed = false, sought = false;
    for (size_t i = 0; !placed && i < sizeof BACK_US / sizeof BACK_US[0] && start_us > BACK_US[i]; i++) {
        sought = true;
        dsvi_clip_stream_seek(s, start_us - BACK_US[i]);
        DSVI_TRY(clip_fill_window(walk, true, &placed));
    }
    if (placed)
        return DSV_OK;
    if (sought) {
        const char *path = s->path;
        dsvi_clip_stream_close(s);
        DSVI_TRY(dsvi_clip_stream_open(path, s));
    }
    DSVI_TRY(clip_fill_window(walk, false, &placed));
    DSVI_ASSERT(placed); /* every stream that opens has a first frame */
    return DSV_OK;
}

static DsvStatus check_window(const char *path, const DsviClipWindow *w)
{
    bool good = w->start >= 0 && w->start <= SECONDS_MAX && w->fps > 0 && w->fps <= 1e6 && w->frames >= 1 &&
                w->height >= 1 && w->height <= COVER_MAX && w->width >= 1 && w->width <= COVER_MAX;
    if (!good)
        return DSVI_FAIL(DSV_E_USAGE, "%s: no window of %lld frames of %lld x %lld at %g frames/s from %g s",
                         path, (long long)w->frames, (long long)w->width, (long long)w->height, w->fps,
                         w->start);
    return DSV_OK;
}

/* Delivers all frames of the window to `sink`. cover is the {height, width} to which frames are scaled.
 * If cover is {0, 0} on entry, the size is computed and stored there; otherwise it must equal the
 * computed size. */
static DsvStatus walk_clip(const char *path, const DsviClipWindow *window, int64_t cover[2], frame_sink *sink,
                           void *context, int64_t *covered)
{
    DsvStatus status;
    Walk walk = {.window = window, .sink = sink, .context = context};
    DsviClipStream *s = &walk.stream;
    int64_t height, width;
    DSVI_TRY_GOTO(status, check_window(path, window), done);
    DSVI_TRY_GOTO(status, dsvi_clip_stream_open(path, s), done);
    DSVI_TRY_GOTO(status,
                  dsvi_clip_cover(path, s->height, s->width, window->height, window->width, &height, &width),
                  done);
    if (cover[0] != 0 && (cover[0] != height || cover[1] != width)) {
        status = DSVI_FAIL(DSV_E_FORMAT, "%s: frames are now %lld x %lld: changed since it was listed", path,
                           (long long)s->width, (long long)s->height);
        goto done;
    }
    cover[0] = height;
    cover[1] = width;
    DSVI_TRY_GOTO(status, dsvi_clip_scaler_open(s, height, width, &walk.scaler), done);
    walk.shown = av_frame_alloc();
    walk.rgb = malloc((size_t)(3 * height * width));
    if (!walk.shown || !walk.rgb) {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for a frame of %lld x %lld", path,
                           (long long)width, (long long)height);
        goto done;
    }
    DSVI_TRY_GOTO(status, walk_window(&walk), done);
    *covered = walk.covered;
done:
    free(walk.rgb);
    av_frame_free(&walk.shown);
    dsvi_clip_scaler_close(&walk.scaler);
    dsvi_clip_stream_close(s);
    return status;
}

typedef struct CropSink {
    const DsviClipWindow *window;
    int64_t cover[2];
    float *pixels;
} CropSink;

static void crop_frame(void *context, int64_t i, const uint8_t *rgb)
{
    const CropSink *to = context;
    dsvi_clip_crop(to->window, rgb, to->cover[0], to->cover[1], i, to->pixels);
}

DsvStatus dsvi_clip_read(const char *path, const DsviClipWindow *window, float *pixels)
{
    CropSink to = {.window = window, .pixels = pixels};
    int64_t covered;
    DSVI_TRY(walk_clip(path, window, to.cover, crop_frame, &to, &covered));
    if (covered == 0)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: its frames end before %.2f s, where a window starts", path,
                         window->start);
    return DSV_OK;
}

typedef struct KeepSink {
    size_t bytes; /* bytes of a frame */
    uint8_t *rgb;
} KeepSink;

static void keep_frame(void *context, int64_t i, const uint8_t *rgb)
{
    const KeepSink *to = context;
    memcpy(to->rgb + (size_t)i * to->bytes, rgb, to->bytes);
}

DsvStatus dsvi_clip_read_rgb(const char *path, const DsviClipWindow *window, int64_t cover_height,
                             int64_t cover_width, uint8_t *rgb, int64_t *covered)
{
    KeepSink to = {(size_t)(3 * cover_height * cover_width), rgb};
    int64_t cover[2] = {cover_height, cover_width};
    return walk_clip(path, window, cover, keep_frame, &to, covered);
}
