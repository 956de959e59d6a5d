/* Implements clip_stream.h: decodes a video stream frame by frame. Uses the demuxers and decoders of
 * FFmpeg 5.1, restricted to local files in video containers. */
#include "data/clip_stream.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/display.h>

#include "base/fs.h"
#include "data/ffmpeg_support.h"

enum {
    SIDE_MAX = 16384,         /* pixels per side of a frame */
    PIXELS_MAX = 8192 * 8192, /* pixels of a frame; 8K video has half as many */
    FPS_MAX = 1000,           /* a higher rate is the tick of a clock, not a frame rate */
    REFUSED_PACKETS_MAX = 256 /* maximum number of packets before the first frame that the decoder may
                               * refuse; a stream cut between key frames can be decoded after fewer */
};

/* Demuxers that may be used. FFmpeg's other demuxers accept pictures and texts as video, or are playlists,
 * which open files and addresses that a hostile file names. */
static const char CONTAINERS[] = "mov,mp4,matroska,webm,avi,mpeg,mpegts,flv,ogg,asf";

/* The demuxers of pictures: each takes one picture from one file. The first bytes of a file tell which one.
 * FFmpeg's own choice goes by the name of the file if a JPEG file is longer than what FFmpeg looks at. */
static const struct {
    const char *demuxer, *signature;
} PICTURES[] = {{"png_pipe", "\x89PNG\r\n\x1a\n"}, {"jpeg_pipe", "\xff\xd8\xff"}};
enum { PICTURE_KINDS = sizeof PICTURES / sizeof *PICTURES, SIGNATURE_MAX = 8 };

bool dsvi_clip_is_picture(const char *path)
{
    static const char *const ENDINGS[] = {".png", ".jpg", ".jpeg"};
    const char *dot = strrchr(path, '.');
    for (size_t i = 0; dot && i < sizeof ENDINGS / sizeof *ENDINGS; i++)
        if (strcasecmp(dot, ENDINGS[i]) == 0)
            return true;
    return false;
}

static DsvStatus clip_stream_check_file(const char *path)
{
    struct stat found;
    if (stat(path, &found) != 0)
        return DSVI_FAIL(errno == ENOENT || errno == ENOTDIR ? DSV_E_NOT_FOUND : DSV_E_IO, "%s: %s", path,
                         strerror(errno));
    if (!S_ISREG(found.st_mode))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: %s, expected a %s", path,
                         S_ISDIR(found.st_mode) ? "a folder" : "not a regular file",
                         dsvi_clip_is_picture(path) ? "picture" : "video file");
    if (found.st_size == 0)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: the file is empty", path);
    return DSV_OK;
}

/* Sets *demuxer to the picture file's. */
static DsvStatus find_picture_demuxer(const char *path, const AVInputFormat **demuxer)
{
    char head[SIGNATURE_MAX] = {0};
    FILE *file = fopen(path, "rb");
    if (!file)
        return DSVI_FAIL(DSV_E_IO, "%s: %s", path, strerror(errno));
    size_t length = fread(head, 1, sizeof head, file);
    fclose(file);
    const char *kind = NULL;
    for (int i = 0; i < PICTURE_KINDS; i++) {
        size_t wanted = strlen(PICTURES[i].signature);
        if (length >= wanted && memcmp(head, PICTURES[i].signature, wanted) == 0)
            kind = PICTURES[i].demuxer;
    }
    if (!kind)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: not a PNG or JPEG file, or broken at its head", path);
    *demuxer = av_find_input_format(kind);
    if (!*demuxer)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: this build of FFmpeg lacks the demuxer %s", path, kind);
    return DSV_OK;
}

static DsvStatus open_container(DsviClipStream *s)
{
    char url[DSVI_PATH_MAX + 8];
    AVDictionary *options = NULL;
    const AVInputFormat *demuxer = NULL;
    bool picture = dsvi_clip_is_picture(s->path);
    /* Without the prefix "file:", FFmpeg could take the part of a path before a colon as another protocol. */
    if (snprintf(url, sizeof url, "file:%s", s->path) >= (int)sizeof url)
        return DSVI_FAIL(DSV_E_USAGE, "%.64s...: path longer than %d bytes", s->path, DSVI_PATH_MAX - 1);
    if (picture)
        DSVI_TRY(find_picture_demuxer(s->path, &demuxer));
    if ((!picture && av_dict_set(&options, "format_whitelist", CONTAINERS, 0) < 0) ||
        av_dict_set(&options, "protocol_whitelist", "file", 0) < 0) {
        av_dict_free(&options);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory to open it", s->path);
    }
    int code = avformat_open_input(&s->format, url, demuxer, &options);
    av_dict_free(&options);
    if (code < 0)
        return dsvi_ffmpeg_fail(DSV_E_FORMAT, s->path,
                                picture ? "broken at its head" : "not a video file, or broken at its head",
                                code);
    s->format->flags |= AVFMT_FLAG_DISCARD_CORRUPT;
    code = avformat_find_stream_info(s->format, NULL);
    if (code < 0)
        return dsvi_ffmpeg_fail(DSV_E_FORMAT, s->path, "cannot tell what it holds", code);
    return DSV_OK;
}

/* Selects the first video stream. FFmpeg's "best" stream would depend on a score. Cover pictures of music
 * files do not count as video. */
static DsvStatus find_video(DsviClipStream *s)
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

static DsvStatus open_decoder(DsviClipStream *s)
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
        /* The clips of a batch are decoded in parallel; threads inside a clip would only add memory. */
        s->decoder->thread_count = 1;
        /* H.264 pictures may refer to pictures before the key frame at which decoding began. With this flag
         * the decoder returns such pictures with a mark, and this file drops them. If the decoder dropped one
         * itself at the end of the data, FFmpeg would stop there and lose the good frames after it. */
        s->decoder->flags |= AV_CODEC_FLAG_OUTPUT_CORRUPT;
        code = avcodec_open2(s->decoder, codec, NULL);
    }
    if (code < 0)
        return dsvi_ffmpeg_fail(DSV_E_FORMAT, s->path, "its decoder does not start", code);
    return DSV_OK;
}

/* Sets s->turn as a display matrix says. A matrix that is neither a quarter rotation nor a mirror image is
 * ignored: cameras do not write such matrices, and the frames can be shown without it. */
static void use_matrix(DsviClipStream *s, const uint8_t *data, size_t bytes)
{
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

/* Reads the orientation of the picture from the container. */
static void read_orientation(DsviClipStream *s)
{
    static const int UPRIGHT[4] = {1, 0, 0, 1};
    size_t bytes = 0;
    memcpy(s->turn, UPRIGHT, sizeof s->turn);
    const uint8_t *data = av_stream_get_side_data(s->video, AV_PKT_DATA_DISPLAYMATRIX, &bytes);
    use_matrix(s, data, bytes);
}

/* Reads the orientation from the first frame if the container says nothing: photographs in JPEG files have it
 * in their EXIF data. */
static void read_frame_orientation(DsviClipStream *s)
{
    const AVFrameSideData *side = av_frame_get_side_data(s->frame, AV_FRAME_DATA_DISPLAYMATRIX);
    int64_t width = s->width;
    if (!side || av_stream_get_side_data(s->video, AV_PKT_DATA_DISPLAYMATRIX, NULL))
        return;
    use_matrix(s, side->data, side->size);
    if (s->turn[0] != 0)
        return;
    s->width = s->height;
    s->height = width;
}

static DsvStatus read_geometry(DsviClipStream *s)
{
    int64_t width = s->video->codecpar->width, height = s->video->codecpar->height;
    if (width < 1 || height < 1 || width > SIDE_MAX || height > SIDE_MAX || width * height > PIXELS_MAX)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: frames of %lld x %lld pixels, expected 1 to %d a side, %d in all",
                         s->path, (long long)width, (long long)height, SIDE_MAX, PIXELS_MAX);
    AVRational aspect = av_guess_sample_aspect_ratio(s->format, s->video, NULL);
    double ratio = aspect.num > 0 && aspect.den > 0 ? av_q2d(aspect) : 1;
    if (ratio < 1.0 / 16 || ratio > 16)
        ratio = 1; /* no camera has such pixels: the field is damaged */
    read_orientation(s);
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

void dsvi_clip_stream_close(DsviClipStream *s)
{
    av_frame_free(&s->frame);
    av_packet_free(&s->packet);
    avcodec_free_context(&s->decoder);
    avformat_close_input(&s->format);
    s->video = NULL;
}

static int64_t to_us(const DsviClipStream *s, int64_t ticks)
{
    return av_rescale_q(ticks, s->video->time_base, AV_TIME_BASE_Q);
}

/* Converts ticks to microseconds; returns the length of one frame if the container does not state a
 * duration. */
static int64_t duration_us(const DsviClipStream *s, int64_t ticks)
{
    if (ticks > 0)
        return to_us(s, ticks);
    return s->fps > 0 ? llround(1e6 / s->fps) : 0;
}

/* Sets time_us and until_us of the new frame. A frame without a timestamp starts when the previous frame
 * ends. */
static void set_frame_times(DsviClipStream *s)
{
    int64_t ticks = s->frame->best_effort_timestamp;
    if (ticks != AV_NOPTS_VALUE)
        s->time_us = to_us(s, ticks - s->origin);
    else
        s->time_us = s->started ? s->until_us : 0;
    s->until_us = s->time_us + duration_us(s, s->frame->pkt_duration);
}

static DsvStatus damaged(const DsviClipStream *s)
{
    return DSVI_FAIL(DSV_E_FORMAT, "%s: damaged after %.2f s", s->path, (double)s->time_us * 1e-6);
}

/* Handles an error of the decoder in the picture at time `ticks`. After the first frame such an error
 * means that the file is damaged. Before the first frame, the stream was entered in its middle: pictures
 * that refer to earlier pictures are dropped. Which pictures these are is known only when the first frame
 * is known (check_doubts). */
static DsvStatus note_decoder_error(DsviClipStream *s, int64_t ticks)
{
    if (s->started)
        return damaged(s);
    if (ticks != AV_NOPTS_VALUE && ticks > s->doubted)
        s->doubted = ticks;
    return DSV_OK;
}

static DsvStatus clip_stream_refuse(DsviClipStream *s)
{
    if (++s->refused > REFUSED_PACKETS_MAX)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: none of %d packets can be decoded", s->path, s->refused);
    return DSV_OK;
}

/* Handles a packet that the decoder could not use. */
static DsvStatus handle_lost_packet(DsviClipStream *s, int code)
{
    if (code == AVERROR(ENOMEM))
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory to decode it", s->path);
    DSVI_TRY(note_decoder_error(s, s->fed));
    return clip_stream_refuse(s);
}

/* Called when the first frame is known. Fails if the decoder has reported an error in a later picture: a
 * decoder that delays frames may meet such an error before it returns the first frame. */
static DsvStatus check_doubts(const DsviClipStream *s)
{
    int64_t ticks = s->frame->best_effort_timestamp;
    return ticks != AV_NOPTS_VALUE && s->doubted > ticks ? damaged(s) : DSV_OK;
}

/* Returns whether packets must be dropped until a key frame. FFmpeg's H.265 decoder starts at any picture and
 * invents the pictures that it refers to; other decoders wait for a key frame themselves. */
static bool awaits_key(DsviClipStream *s)
{
    if (s->packet->flags & AV_PKT_FLAG_KEY)
        s->keyed = true;
    return !s->keyed && s->decoder->codec_id == AV_CODEC_ID_HEVC;
}

/* Sends the packet to the decoder. */
static DsvStatus clip_stream_send(DsviClipStream *s)
{
    int64_t errors = dsvi_ffmpeg_errors();
    if (awaits_key(s))
        return clip_stream_refuse(s);
    s->fed = s->packet->pts;
    int code = avcodec_send_packet(s->decoder, s->packet);
    if (code < 0)
        return handle_lost_packet(s, code);
    return dsvi_ffmpeg_errors() > errors ? note_decoder_error(s, s->fed) : DSV_OK;
}

/* Reads the next packet and sends it to the decoder, or notifies the decoder of the end. */
static DsvStatus clip_stream_feed(DsviClipStream *s)
{
    int code = av_read_frame(s->format, s->packet);
    if (code == AVERROR(EIO))
        return dsvi_ffmpeg_fail(DSV_E_IO, s->path, "cannot be read", code);
    if (code < 0) { /* end of the file, or unreadable data: in both cases no packets follow */
        s->drained = true;
        avcodec_send_packet(s->decoder, NULL);
        return DSV_OK;
    }
    DsvStatus status = s->packet->stream_index == s->video->index ? clip_stream_send(s) : DSV_OK;
    av_packet_unref(s->packet);
    return status;
}

DsvStatus dsvi_clip_stream_next(DsviClipStream *s, bool *got)
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
            DSVI_TRY(note_decoder_error(s, s->fed));
        if (code == AVERROR_EOF || (code == AVERROR(EAGAIN) && s->drained))
            return DSV_OK;
        if (code == AVERROR(EAGAIN)) {
            DSVI_TRY(clip_stream_feed(s));
        } else if (code < 0) {
            DSVI_TRY(handle_lost_packet(s, code));
        } else if (s->frame->decode_error_flags || (s->frame->flags & AV_FRAME_FLAG_CORRUPT)) {
            DSVI_TRY(note_decoder_error(s, s->frame->best_effort_timestamp));
        } else {
            set_frame_times(s);
            if (!s->started)
                DSVI_TRY(check_doubts(s));
            s->started = true;
            return DSV_OK;
        }
    }
}

/* Decodes the first frame and makes it time 0. Its timestamp is known only after decoding: in AVI it depends
 * on how many frames the decoder delays. */
static DsvStatus decode_first(DsviClipStream *s)
{
    bool got;
    DSVI_TRY(dsvi_clip_stream_next(s, &got));
    if (!got)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: no frame in it can be decoded", s->path);
    if (s->frame->best_effort_timestamp != AV_NOPTS_VALUE)
        s->origin = s->frame->best_effort_timestamp;
    s->timed = s->frame->pts != AV_NOPTS_VALUE;
    read_frame_orientation(s);
    s->until_us -= s->time_us;
    s->time_us = 0;
    s->first_waits = true;
    return DSV_OK;
}

DsvStatus dsvi_clip_stream_open(const char *path, DsviClipStream *s)
{
    dsvi_ffmpeg_capture_log();
    memset(s, 0, sizeof *s);
    s->path = path;
    s->fed = AV_NOPTS_VALUE;
    s->doubted = INT64_MIN;
    DSVI_TRY(clip_stream_check_file(path));
    DSVI_TRY(open_container(s));
    DSVI_TRY(find_video(s));
    DSVI_TRY(read_geometry(s));
    DSVI_TRY(open_decoder(s));
    return decode_first(s);
}

void dsvi_clip_stream_seek(DsviClipStream *s, int64_t time_us)
{
    /* Broadcast formats have no index, and few of their frames have timestamps. After a seek the other
     * timestamps are guesses, often wrong by half a frame. Such clips are read from the beginning. */
    if (s->format->iformat->flags & AVFMT_TS_DISCONT)
        return;
    int64_t ticks = av_rescale_q(time_us, AV_TIME_BASE_Q, s->video->time_base) + s->origin;
    /* If the seek fails, the position stays at the beginning, from where the caller would have to read
     * anyway. */
    av_seek_frame(s->format, s->video->index, ticks, AVSEEK_FLAG_BACKWARD);
    avcodec_flush_buffers(s->decoder);
    s->started = s->drained = s->first_waits = s->keyed = false;
    s->refused = 0;
    s->fed = AV_NOPTS_VALUE;
    s->doubted = INT64_MIN;
}

/* Returns the time of the stream's first packet, in ticks. */
static int64_t first_ticks(const DsviClipStream *s)
{
    return s->video->start_time != AV_NOPTS_VALUE ? s->video->start_time : 0;
}

int64_t dsvi_clip_stream_lead(const DsviClipStream *s)
{
    int64_t lead = s->timed ? to_us(s, s->origin - first_ticks(s)) : 0;
    return lead > 0 ? lead : 0;
}

/* Reads all packets to the end of the file and stores in *end_us when the last one ends. *end_us is
 * unchanged if no packet has a timestamp. In AVI, frames have no timestamps, and `origin` is late by the
 * frames that the decoder delays; there the first packet is the beginning. */
static void read_to_end(DsviClipStream *s, int64_t *end_us)
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

DsvStatus dsvi_clip_stream_end(DsviClipStream *s, int64_t *end_us)
{
    *end_us = 0;
    int64_t declared = s->format->duration;
    if (declared != AV_NOPTS_VALUE && declared > 0) {
        dsvi_clip_stream_seek(s, declared);
        read_to_end(s, end_us);
    }
    if (*end_us <= 0) { /* the container states no duration, or its index led to no packet */
        const char *path = s->path;
        dsvi_clip_stream_close(s);
        DSVI_TRY(dsvi_clip_stream_open(path, s));
        read_to_end(s, end_us);
    }
    return DSV_OK;
}
