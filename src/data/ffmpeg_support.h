/* What every user of FFmpeg's libraries in dsv needs. */
#ifndef DSVI_FFMPEG_SUPPORT_H
#define DSVI_FFMPEG_SUPPORT_H

#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Takes over FFmpeg's log, once for the process: FFmpeg reports broken files to standard error by itself, and
 * nothing in a library may print. Call it before any other call of FFmpeg. */
void dsvi_ffmpeg_quiet(void);

/* How many log messages of the calling thread, from its start on, said that a picture is wrong: FFmpeg's
 * decoders replace what is missing (a lost reference picture, a damaged block) by something made up, return
 * success and set no flag on the frame; the log alone tells. A decoder with thread_count 1 logs on the thread
 * that calls it, so the difference over a call belongs to the decoder called. */
int64_t dsvi_ffmpeg_errors(void);

/* Records "path: what: FFmpeg's text for code"; out of memory and failing reads and writes keep their
 * status, anything else gets `status`. */
DsvStatus dsvi_ffmpeg_fail(DsvStatus status, const char *path, const char *what, int code);

#ifdef __cplusplus
}
#endif
#endif
