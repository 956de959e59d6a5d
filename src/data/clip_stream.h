/* Decodes the frames of a file's first video stream one after another, with their times. */
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

typedef struct DsviClipStream {
    const char *path;
    struct AVFormatContext *format;
    struct AVCodecContext *decoder;
    struct AVStream *video;
    struct AVPacket *packet;
    struct AVFrame *frame; /* the newest decoded frame */
    int64_t time_us;       /* when `frame` is first shown, in microseconds after the clip's first frame */
    int64_t until_us;      /* when `frame` ends according to the container */
    double fps;            /* nominal frame rate; 0: unknown */
    int64_t width, height; /* size as displayed, after rotation and with square pixels */
    int turn[4];           /* orientation: pixel (x, y) of a frame is shown at (x t0 + y t2, x t1 + y t3) */
    int64_t origin;        /* time of the first frame, in ticks of the container */
    bool first_waits;      /* `frame` is the clip's first frame and was not returned yet */
    bool started;          /* a frame has been decoded since the opening or the last seek */
    bool drained;          /* the decoder was notified that no packets follow */
    bool keyed;            /* a packet of a key frame was read since the opening or the last seek */
    bool timed;            /* the first frame has a timestamp, so that `origin` is exact */
    int refused;           /* number of packets before the first frame that the decoder could not use */
    int64_t fed;           /* time of the packet that was last sent to the decoder, in ticks; AV_NOPTS_VALUE:
                            * unknown */
    int64_t doubted; /* latest time of a packet with an error before the first frame, in ticks; INT64_MIN:
                      * none */
} DsviClipStream;

/* Returns whether the name ends like the name of a picture: .png, .jpg or .jpeg. A picture is a video of one
 * frame. */
bool dsvi_clip_is_picture(const char *path);

/* Opens the file and decodes the first frame. A zero-initialised stream may be closed, and so may a stream
 * whose opening failed. `path` must outlive the stream. */
DsvStatus dsvi_clip_stream_open(const char *path, DsviClipStream *stream);

/* Decodes the next frame into stream->frame; *got is false at the end of the data. Fails with DSV_E_FORMAT on
 * damage after the first frame: a missing frame is better than one that the decoder invents. Damage that the
 * decoder does not detect is not reported: MPEG-2, MPEG-4 and VP8 cannot detect a missing picture. */
DsvStatus dsvi_clip_stream_next(DsviClipStream *stream, bool *got);

/* Seeks to a key frame at or before the time. The seek is only a hint: if the container has no index or a
 * poor one, the position may not change, or the next frame may be later than the time. */
void dsvi_clip_stream_seek(DsviClipStream *stream, int64_t time_us);

/* Determines when the last frame ends, in microseconds after the first frame, from the packets near the end
 * of the file, without decoding. */
DsvStatus dsvi_clip_stream_end(DsviClipStream *stream, int64_t *end_us);

/* Returns the microseconds of video before the first frame that can be decoded. A recording that was cut
 * between two key frames begins with packets that cannot be decoded. */
int64_t dsvi_clip_stream_lead(const DsviClipStream *stream);

void dsvi_clip_stream_close(DsviClipStream *stream);

#ifdef __cplusplus
}
#endif
#endif
