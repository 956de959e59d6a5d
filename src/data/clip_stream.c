/* See clip_stream.h. FFmpeg 5.1's demuxers and decoders, held to local files in real video containers. */
#include "data/clip_stream.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/display.h>

#include "base/fs.h"
#include "data/ffmpeg_support.h"

enum {
    SIDE_MAX = 16384,         /* pixels */
    PIXELS_MAX = 8192 * 8192, /* of a frame: 8K video has half as many */
    FPS_MAX = 1000,           /* beyond, it is the tick of a clock and no frame rate */
    REFUSED_PACKETS_MAX = 256 /* before the first frame: a stream cut anywhere decodes sooner than that */
};

/* Demuxers that may be chosen. FFmpeg's others take pictures and texts for video, or, being playlists, open
 * files and addresses that a hostile file names. */
static const char CONTAINERS[] = "mov,mp4,matroska,webm,avi,mpeg,mpegts,flv,ogg,asf";

static DsvStatus check_file(const char *path)
{
    struct stat found;
    if (stat(path, &found) != 0)
        return DSVI_FAIL(errno == ENOENT || errno == ENOTDIR ? DSV_E_NOT_FOUND : DSV_E_IO, "%s: %s", path,
                         strerror(errno));
    if (!S_ISREG(found.st_mode))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: %s, wanted a video file", path,
                         S_ISDIR(found.st_mode) ? "a folder" : "not a regular file");
    if (found.st_size == 0)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: the file is empty", path);
    return DSV_OK;
}

static DsvStatus open_container(DsvClipStream *s)
{
    char url[DSVI_PATH_MAX + 8];
    AVDictionary *options = NULL;
    /* Without the prefix a path with a colon in it could mean another protocol. */
    if (snprintf(url, sizeof url, "file:%s", s->path) >= (int)sizeof url)
        return DSVI_FAIL(DSV_E_USAGE, "%.64s...: path longer than %d bytes", s->path, DSVI_PATH_MAX - 1);
    if (av_dict_set(&options, "format_whitelist", CONTAINERS, 0) < 0 ||
        av_dict_set(&options, "protocol_whitelist", "file", 0) < 0) {
        av_dict_free(&options);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory to open it", s->path);
    }
    int code = avformat_open_input(&s->format, url, NULL, &options);
    av_dict_free(&options);
    if (code < 0)
        return dsvi_ffmpeg_fail(DSV_E_FORMAT, s->path, "not a video file, or broken at its head", code);
    s->format->flags |= AVFMT_FLAG_DISCARD_CORRUPT;
    code = avformat_find_stream_info(s->format, NULL);
    if (code < 0)
        return dsvi_ffmpeg_fail(DSV_E_FORMAT, s->path, "cannot tell what it holds", code);
    return DSV_OK;
}

/* The first video stream, not FFmpeg's "best": which one that is would depend on a score. Cover pictures of
 * music files are no video. */
static DsvStatus find_video(DsvClipStream *s)
{
    for (unsigned i = 0; i < s->format->nb_streams; i++) {
        AVStream *stream = s->format->streams[i];
        bool video = stream->codecpar->codec_type == AVMEDIA_TYPE_VIDEO &&
                     !(stream->disposition & AV_DISPOSITION_ATTACHED_PIC);
        if (video && !s->video)
            s->video = stream;
        else
            stream->discard = AVDISCARD_ALL;
    }
    if (!s->video)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: no video stream in it", s->path);
    return DSV_OK;
}

static DsvStatus open_decoder(DsvClipStream *s)
{
    const AVCodecParameters *parameters = s->video->codecpar;
    const AVCodec *codec = avcodec_find_decoder(parameters->codec_id);
    if (!codec)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: no decoder for codec %s", s->path,
                         avcodec_get_name(parameters->codec_id));
    s->decoder = avcodec_alloc_context3(codec);
    s->packet = av_packet_alloc();
    s->frame = av_frame_alloc();
    if (!s->decoder || !s->packet || !s->frame)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory to decode it", s->path);
    int code = avcodec_parameters_to_context(s->decoder, parameters);
    if (code >= 0) {
        s->decoder->pkt_timebase = s->video->time_base;
        s->decoder->max_pixels = PIXELS_MAX;
        /* The clips of a batch are decoded side by side; threads inside a clip would only add memory. */
        s->decoder->thread_count = 1;
        /* H.264 pictures that refer to what came before the key frame that decoding began at: they are to be
         * handed out, marked, and are dropped here. When the decoder drops one itself at the end of the data,
         * FFmpeg takes that for the end and loses the good frames after it. */
        s->decoder->flags |= AV_CODEC_FLAG_OUTPUT_CORRUPT;
        code = avcodec_open2(s->decoder, codec, NULL);
    }
    if (code < 0)
        return dsvi_ffmpeg_fail(DSV_E_FORMAT, s->path, "its decoder does not start", code);
    return DSV_OK;
}

/* How the picture is to be turned. A matrix that is no quarter turn or mirror image is left aside: cameras
 * write none, and its frames can be shown as they are. */
static void read_turn(DsvClipStream *s)
{
    static const int UPRIGHT[4] = {1, 0, 0, 1};
    memcpy(s->turn, UPRIGHT, sizeof s->turn);
    size_t bytes = 0;
    const uint8_t *data = av_stream_get_side_data(s->video, AV_PKT_DATA_DISPLAYMATRIX, &bytes);
    if (!data || bytes < 9 * sizeof(int32_t))
        return;
    int32_t matrix[9];
    memcpy(matrix, data, sizeof matrix);
    const int32_t linear[4] = {matrix[0], matrix[1], matrix[3], matrix[4]};
    int turn[4];
    for (int i = 0; i < 4; i++)
        turn[i] = (linear[i] > 0) - (linear[i] < 0);
    if (turn[0] * turn[3] - turn[1] * turn[2] != 0 && turn[0] * turn[1] == 0 && turn[2] * turn[3] == 0)
        memcpy(s->turn, turn, sizeof s->turn);
}

static DsvStatus read_geometry(DsvClipStream *s)
{
    int64_t width = s->video->codecpar->width, height = s->video->codecpar->height;
    if (width < 1 || height < 1 || width > SIDE_MAX || height > SIDE_MAX || width * height > PIXELS_MAX)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: frames of %lld x %lld pixels, wanted 1 to %d a side, %d in all",
                         s->path, (long long)width, (long long)height, SIDE_MAX, PIXELS_MAX);
    AVRational aspect = av_guess_sample_aspect_ratio(s->format, s->video, NULL);
    double ratio = aspect.num > 0 && aspect.den > 0 ? av_q2d(aspect) : 1;
    if (ratio < 1.0 / 16 || ratio > 16)
        ratio = 1; /* nobody films with such pixels: a damaged field */
    read_turn(s);
    int64_t shown = llround((double)width * ratio);
    if (shown < 1)
        shown = 1;
    s->width = s->turn[0] != 0 ? shown : height;
    s->height = s->turn[0] != 0 ? height : shown;
    AVRational rate = av_guess_frame_rate(s->format, s->video, NULL);
    if (rate.num > 0 && rate.den > 0 && av_q2d(rate) <= FPS_MAX)
        s->fps = av_q2d(rate);
    return DSV_OK;
}

void dsvi_clip_stream_close(DsvClipStream *s)
{
    av_frame_free(&s->frame);
    av_packet_free(&s->packet);
    avcodec_free_context(&s->decoder);
    avformat_close_input(&s->format);
    s->video = NULL;
}

static int64_t to_us(const DsvClipStream *s, int64_t ticks)
{
    return av_rescale_q(ticks, s->video->time_base, AV_TIME_BASE_Q);
}

/* Ticks, or one frame where the container leaves the duration out. */
static int64_t duration_us(const DsvClipStream *s, int64_t ticks)
{
    if (ticks > 0)
        return to_us(s, ticks);
    return s->fps > 0 ? llround(1e6 / s->fps) : 0;
}

/* A frame without a time follows the one before it. */
static void take_times(DsvClipStream *s)
{
    int64_t ticks = s->frame->best_effort_timestamp;
    if (ticks != AV_NOPTS_VALUE)
        s->time_us = to_us(s, ticks - s->origin);
    else
        s->time_us = s->started ? s->until_us : 0;
    s->until_us = s->time_us + duration_us(s, s->frame->pkt_duration);
}

static DsvStatus damaged(const DsvClipStream *s)
{
    return DSVI_FAIL(DSV_E_FORMAT, "%s: damaged after %.2f s", s->path, (double)s->time_us * 1e-6);
}

/* The decoder has met an error in the picture of that time. After the first frame that is damage. Before, a
 * stream was entered in its middle: pictures that refer to earlier ones are dropped, and which these were is
 * known only once the first frame is (check_doubts). */
static DsvStatus meet_error(DsvClipStream *s, int64_t ticks)
{
    if (s->started)
        return damaged(s);
    if (ticks != AV_NOPTS_VALUE && ticks > s->doubted)
        s->doubted = ticks;
    return DSV_OK;
}

static DsvStatus refuse(DsvClipStream *s)
{
    if (++s->refused > REFUSED_PACKETS_MAX)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: none of %d packets can be decoded", s->path, s->refused);
    return DSV_OK;
}

/* The decoder could not use the packet it got last. */
static DsvStatus lose_packet(DsvClipStream *s, int code)
{
    if (code == AVERROR(ENOMEM))
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory to decode it", s->path);
    DSVI_TRY(meet_error(s, s->fed));
    return refuse(s);
}

/* Of the first frame: a decoder that holds frames back may have met errors in pictures shown after it. */
static DsvStatus check_doubts(const DsvClipStream *s)
{
    int64_t ticks = s->frame->best_effort_timestamp;
    return ticks != AV_NOPTS_VALUE && s->doubted > ticks ? damaged(s) : DSV_OK;
}

/* H.265's decoder begins at any picture and makes up those that it refers to; others wait for a key frame. */
static bool awaits_key(DsvClipStream *s)
{
    if (s->packet->flags & AV_PKT_FLAG_KEY)
        s->keyed = true;
    return !s->keyed && s->decoder->codec_id == AV_CODEC_ID_HEVC;
}

/* The packet to the decoder. */
static DsvStatus send(DsvClipStream *s)
{
    int64_t errors = dsvi_ffmpeg_errors();
    if (awaits_key(s))
        return refuse(s);
    s->fed = s->packet->pts;
    int code = avcodec_send_packet(s->decoder, s->packet);
    if (code < 0)
        return lose_packet(s, code);
    return dsvi_ffmpeg_errors() > errors ? meet_error(s, s->fed) : DSV_OK;
}

/* Hands the decoder the next packet, or word that there are no more. */
static DsvStatus feed(DsvClipStream *s)
{
    int code = av_read_frame(s->format, s->packet);
    if (code == AVERROR(EIO))
        return dsvi_ffmpeg_fail(DSV_E_IO, s->path, "cannot be read", code);
    if (code < 0) { /* the end, or data nothing more can be found in: what follows is lost either way */
        s->drained = true;
        avcodec_send_packet(s->decoder, NULL);
        return DSV_OK;
    }
    DsvStatus status = s->packet->stream_index == s->video->index ? send(s) : DSV_OK;
    av_packet_unref(s->packet);
    return status;
}

DsvStatus dsvi_clip_stream_next(DsvClipStream *s, bool *got)
{
    if (s->first_waits) {
        s->first_waits = false;
        *got = true;
        return DSV_OK;
    }
    for (;;) {
        int64_t errors = dsvi_ffmpeg_errors();
        int code = avcodec_receive_frame(s->decoder, s->frame);
        *got = code == 0;
        if (dsvi_ffmpeg_errors() > errors)
            DSVI_TRY(meet_error(s, s->fed));
        if (code == AVERROR_EOF || (code == AVERROR(EAGAIN) && s->drained))
            return DSV_OK;
        if (code == AVERROR(EAGAIN)) {
            DSVI_TRY(feed(s));
        } else if (code < 0) {
            DSVI_TRY(lose_packet(s, code));
        } else if (s->frame->decode_error_flags || (s->frame->flags & AV_FRAME_FLAG_CORRUPT)) {
            DSVI_TRY(meet_error(s, s->frame->best_effort_timestamp));
        } else {
            take_times(s);
            if (!s->started)
                DSVI_TRY(check_doubts(s));
            s->started = true;
            return DSV_OK;
        }
    }
}

/* Times count from the first frame. Its own time is known only once it is decoded: in an avi it depends on
 * how many frames the decoder holds back. */
static DsvStatus decode_first(DsvClipStream *s)
{
    bool got;
    DSVI_TRY(dsvi_clip_stream_next(s, &got));
    if (!got)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: no frame in it can be decoded", s->path);
    if (s->frame->best_effort_timestamp != AV_NOPTS_VALUE)
        s->origin = s->frame->best_effort_timestamp;
    s->timed = s->frame->pts != AV_NOPTS_VALUE;
    s->until_us -= s->time_us;
    s->time_us = 0;
    s->first_waits = true;
    return DSV_OK;
}

DsvStatus dsvi_clip_stream_open(const char *path, DsvClipStream *s)
{
    dsvi_ffmpeg_quiet();
    memset(s, 0, sizeof *s);
    s->path = path;
    s->fed = AV_NOPTS_VALUE;
    s->doubted = INT64_MIN;
    DSVI_TRY(check_file(path));
    DSVI_TRY(open_container(s));
    DSVI_TRY(find_video(s));
    DSVI_TRY(read_geometry(s));
    DSVI_TRY(open_decoder(s));
    return decode_first(s);
}

void dsvi_clip_stream_seek(DsvClipStream *s, int64_t time_us)
{
    /* Broadcast formats have no index and give few frames a time; behind a seek the others' are guessed, and
     * half a frame off as often as not. Those clips are read from the beginning. */
    if (s->format->iformat->flags & AVFMT_TS_DISCONT)
        return;
    int64_t ticks = av_rescale_q(time_us, AV_TIME_BASE_Q, s->video->time_base) + s->origin;
    /* Where it fails the position stays: at the beginning, where the caller would have to start then. */
    av_seek_frame(s->format, s->video->index, ticks, AVSEEK_FLAG_BACKWARD);
    avcodec_flush_buffers(s->decoder);
    s->started = s->drained = s->first_waits = s->keyed = false;
    s->refused = 0;
    s->fed = AV_NOPTS_VALUE;
    s->doubted = INT64_MIN;
}

/* The time of the stream's first packet, in ticks. */
static int64_t first_ticks(const DsvClipStream *s)
{
    return s->video->start_time != AV_NOPTS_VALUE ? s->video->start_time : 0;
}

int64_t dsvi_clip_stream_lead(const DsvClipStream *s)
{
    int64_t lead = s->timed ? to_us(s, s->origin - first_ticks(s)) : 0;
    return lead > 0 ? lead : 0;
}

/* Reads on to the end of the file; leaves *end_us alone when no packet has a time. In avi, frames have no
 * time of their own, and `origin` is late by the frames that the decoder holds back: there the first packet
 * is the beginning. */
static void read_to_end(DsvClipStream *s, int64_t *end_us)
{
    int64_t from = s->timed ? s->origin : first_ticks(s);
    while (av_read_frame(s->format, s->packet) >= 0) {
        const AVPacket *p = s->packet;
        int64_t ticks = p->pts != AV_NOPTS_VALUE ? p->pts : p->dts;
        if (p->stream_index == s->video->index && ticks != AV_NOPTS_VALUE) {
            int64_t end = to_us(s, ticks - from) + duration_us(s, p->duration);
            if (end > *end_us)
                *end_us = end;
        }
        av_packet_unref(s->packet);
    }
}

DsvStatus dsvi_clip_stream_end(DsvClipStream *s, int64_t *end_us)
{
    *end_us = 0;
    int64_t told = s->format->duration;
    if (told != AV_NOPTS_VALUE && told > 0) {
        dsvi_clip_stream_seek(s, told);
        read_to_end(s, end_us);
    }
    if (*end_us <= 0) { /* no duration, or an index that led nowhere */
        const char *path = s->path;
        dsvi_clip_stream_close(s);
        DSVI_TRY(dsvi_clip_stream_open(path, s));
        read_to_end(s, end_us);
    }
    return DSV_OK;
}
