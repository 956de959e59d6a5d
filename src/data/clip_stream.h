/* The frames of a file's first video stream, one after the other, with their times. */
#ifndef DSVI_CLIP_STREAM_H
#define DSVI_CLIP_STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct AVCodecContext;
struct AVFormatContext;
struct AVFrame;
struct AVPacket;
struct AVStream;

typedef struct DsvClipStream {
    const char *path;
    struct AVFormatContext *format;
    struct AVCodecContext *decoder;
    struct AVStream *video;
    struct AVPacket *packet;
    struct AVFrame *frame; /* the newest decoded frame */
    int64_t time_us;       /* when it is first shown, from the first frame of the clip */
    int64_t until_us;      /* when the container has it end */
    double fps;            /* nominal; 0: unknown */
    int64_t width, height; /* as displayed: rotation and pixel aspect applied */
    int turn[4];           /* row-wise: a frame's (x, y) is shown at (x t0 + y t2, x t1 + y t3) */
    int64_t origin;        /* time of the first frame, in ticks of the container */
    bool first_waits;      /* `frame` is the first of the clip and has not been handed out */
    bool started;          /* a frame has been decoded since the opening or the last seek */
    bool drained;          /* the decoder has been told that no packets follow */
    bool keyed;            /* a key frame's packet has come since the opening or the last seek */
    bool timed;            /* the first frame has a time of its own, so that `origin` is exact */
    int refused;           /* packets the decoder could not use before the first frame */
    int64_t fed;           /* time of the packet the decoder got last, in ticks; AV_NOPTS_VALUE: unknown */
    int64_t doubted; /* the latest packet with an error before the first frame, in ticks; INT64_MIN: none */
} DsvClipStream;

/* Opens the file at its beginning and decodes the first frame. A zeroed stream may be closed, as may one
 * whose opening failed. `path` must outlive the stream. */
DsvStatus dsvi_clip_stream_open(const char *path, DsvClipStream *stream);

/* Decodes the next frame into stream->frame; *got is false at the end of the data. Damage after the first
 * frame is DSV_E_FORMAT: better no frame than one that a decoder has made up. What the decoder does not
 * notice itself passes: MPEG-2, MPEG-4 and VP8 have no means to see that a picture is missing. */
DsvStatus dsvi_clip_stream_next(DsvClipStream *stream, bool *got);

/* Goes to a key frame at or before the time. It is a hint: the position may stay as it was, or the next frame
 * lie behind the time, where the container has no index or a poor one. */
void dsvi_clip_stream_seek(DsvClipStream *stream, int64_t time_us);

/* When the last frame ends, counted from the first frame like time_us, from the packets near the end of the
 * file, without decoding. */
DsvStatus dsvi_clip_stream_end(DsvClipStream *stream, int64_t *end_us);

/* How much of the file's video comes before the first frame that can be decoded: a recording that was cut
 * between two key frames begins with packets that cannot. */
int64_t dsvi_clip_stream_lead(const DsvClipStream *stream);

void dsvi_clip_stream_close(DsvClipStream *stream);

#ifdef __cplusplus
}
#endif
#endif
