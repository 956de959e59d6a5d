/* The page's section on sampled clips: frames as one picture each, and the clip itself where it is small. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <libavcodec/avcodec.h>

#include "data/clip.h"
#include "data/ffmpeg_support.h"
#include "report/report_page.h"
#include "report/report_text.h"

enum {
    CLIPS_MOST = 4, FRAMES_MOST = 8, FRAME_ROWS_MOST = 96, GAP = 2,
    VIDEO_BYTES_MOST = 384 << 10 /* of a clip that goes into the page as it is */
};

/* The newest CLIPS_MOST - 1 clips and the oldest, so that both the state and the way there show. Names
 * come in ascending order, and begin with the step in six digits. */
typedef struct Names {
    char name[CLIPS_MOST][256];
    int64_t count;
} Names;

static DsvStatus take_name(void *context, const char *name)
{
    Names *names = context;
    const char *dot = strrchr(name, '.');
    if (!dot || strcmp(dot, ".mp4") != 0)
        return DSV_OK;
    if (names->count >= CLIPS_MOST)
        memmove(names->name[1], names->name[2], sizeof names->name[1] * (CLIPS_MOST - 2));
    int64_t at = names->count < CLIPS_MOST ? names->count : CLIPS_MOST - 1;
    snprintf(names->name[at], sizeof names->name[at], "%s", name);
    names->count++;
    return DSV_OK;
}

/* Frames side by side. */
typedef struct Strip {
    int64_t frames, height, width; /* of a frame */
    uint8_t *frame;                /* (frames, height, width, 3) */
} Strip;

static DsvStatus decode_frames(const char *path, const DsvClipInfo *info, Strip *strip)
{
    int64_t height = info->height < FRAME_ROWS_MOST ? info->height : FRAME_ROWS_MOST, covered;
    int64_t width = height * info->width / info->height;
    strip->frames = info->frames < 1 ? 1 : info->frames < FRAMES_MOST ? info->frames : FRAMES_MOST;
    DsvClipWindow window = {
        .fps = info->seconds > 0 ? (double)strip->frames / info->seconds : 1, .frames = strip->frames,
        .height = height, .width = width > 0 ? width : 1,
    };
    DSVI_TRY(dsvi_clip_cover(path, info->height, info->width, window.height, window.width, &strip->height,
                             &strip->width));
    strip->frame = malloc((size_t)(strip->frames * strip->height * strip->width * 3));
    if (!strip->frame)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for its frames", path);
    return dsvi_clip_read_rgb(path, &window, strip->height, strip->width, strip->frame, &covered);
}

/* The frames in a row, transparent between them. */
static void lay_out(const Strip *strip, AVFrame *picture)
{
    for (int64_t y = 0; y < strip->height; y++) {
        uint8_t *row = picture->data[0] + y * picture->linesize[0];
        memset(row, 0, (size_t)picture->width * 4);
        for (int64_t f = 0; f < strip->frames; f++)
            for (int64_t x = 0; x < strip->width; x++) {
                const uint8_t *from = strip->frame + ((f * strip->height + y) * strip->width + x) * 3;
                uint8_t *to = row + (f * (strip->width + GAP) + x) * 4;
                memcpy(to, from, 3);
                to[3] = 255;
            }
    }
}

static DsvStatus encode_picture(const char *path, const Strip *strip, AVCodecContext *encoder,
                                AVFrame *picture, AVPacket *packet)
{
    picture->width = encoder->width = (int)(strip->frames * (strip->width + GAP) - GAP);
    picture->height = encoder->height = (int)strip->height;
    picture->format = encoder->pix_fmt = AV_PIX_FMT_RGBA;
    encoder->time_base = (AVRational){1, 25}; /* a video's, which a picture has to have */
    encoder->thread_count = 1;
    int code = avcodec_open2(encoder, encoder->codec, NULL);
    if (code >= 0)
        code = av_frame_get_buffer(picture, 0);
    if (code >= 0) {
        lay_out(strip, picture);
        code = avcodec_send_frame(encoder, picture);
    }
    if (code >= 0)
        code = avcodec_receive_packet(encoder, packet);
    return code < 0 ? dsvi_ffmpeg_fail(DSV_E_UNSUPPORTED, path, "its frames make no picture", code) : DSV_OK;
}

static DsvStatus put_picture(FILE *to, const char *path, const Strip *strip)
{
    const AVCodec *codec = avcodec_find_encoder(AV_CODEC_ID_PNG);
    AVCodecContext *encoder = codec ? avcodec_alloc_context3(codec) : NULL;
    AVFrame *picture = av_frame_alloc();
    AVPacket *packet = av_packet_alloc();
    DsvStatus status = !codec ? DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: FFmpeg has no encoder for PNG here", path) :
                       !encoder || !picture || !packet
                           ? DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for a picture", path)
                           : encode_picture(path, strip, encoder, picture, packet);
    if (status == DSV_OK) {
        fprintf(to, "<img alt=\"%lld frames in a row\" src=\"data:image/png;base64,",
                (long long)strip->frames);
        dsvi_put_base64(to, packet->data, (size_t)packet->size);
        fputs("\">", to);
    }
    av_packet_free(&packet);
    av_frame_free(&picture);
    avcodec_free_context(&encoder);
    return status;
}

/* What browsers play, if it is small. */
static DsvStatus put_video(FILE *to, const char *path, const DsvClipInfo *info)
{
    char *bytes;
    uint64_t size;
    size_t count;
    DSVI_TRY(dsvi_file_size(path, &size));
    if (strcmp(info->codec, "h264") != 0 || size > VIDEO_BYTES_MOST)
        return DSV_OK;
    DSVI_TRY(dsvi_file_read(path, VIDEO_BYTES_MOST, &bytes, &count));
    fputs("<video loop muted autoplay playsinline src=\"data:video/mp4;base64,", to);
    dsvi_put_base64(to, bytes, count);
    fputs("\"></video>", to);
    free(bytes);
    return DSV_OK;
}

static DsvStatus put_clip(FILE *to, const char *path)
{
    DsvClipInfo info;
    Strip strip = {0};
    DSVI_TRY(dsvi_clip_probe(path, &info));
    DsvStatus status = decode_frames(path, &info, &strip);
    if (status == DSV_OK)
        status = put_video(to, path, &info);
    if (status == DSV_OK)
        status = put_picture(to, path, &strip);
    free(strip.frame);
    return status;
}

DsvStatus dsvi_report_clips(FILE *to, const DsvReportData *data)
{
    char folder[DSVI_PATH_MAX], path[DSVI_PATH_MAX];
    Names names = {.count = 0};
    DSVI_TRY(dsvi_path_join(folder, data->folder, "samples"));
    if (dsvi_path_is_folder(folder))
        DSVI_TRY(dsvi_folder_list(folder, take_name, &names));
    int64_t shown = names.count < CLIPS_MOST ? names.count : CLIPS_MOST;
    if (shown == 0)
        dsvi_report_note(to, "No clip has been sampled yet.");
    else if (shown < names.count)
        fprintf(to, "<p>The newest %d of %lld, and the first.</p>\n", CLIPS_MOST - 1, (long long)names.count);
    for (int64_t i = shown - 1; i >= 0; i--) {
        DSVI_TRY(dsvi_path_join(path, folder, names.name[i]));
        fputs("<h3>", to);
        dsvi_put_text(to, names.name[i]);
        fputs("</h3>\n<div class=\"clip\">", to);
        if (put_clip(to, path) != DSV_OK)
            dsvi_report_note(to, dsv_error_message());
        fputs("</div>\n", to);
    }
    return DSV_OK;
}
