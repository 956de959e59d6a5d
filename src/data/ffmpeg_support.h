/* Logging and errors of FFmpeg's libraries. */
#ifndef DSVI_FFMPEG_SUPPORT_H
#define DSVI_FFMPEG_SUPPORT_H

#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Redirects FFmpeg's log, once per process, because FFmpeg prints errors of broken files to standard error
 * and this library must not print. Must be called before any other FFmpeg function. */
void dsvi_ffmpeg_capture_log(void);

/* Returns how many log messages of the calling thread since its start reported a damaged picture. FFmpeg's
 * decoders replace missing data (a lost reference picture, a damaged block) by invented data, return success
 * and set no flag on the frame; only the log reports it. A decoder with thread_count 1 logs on the calling
 * thread, so the difference across a call belongs to the decoder that was called. */
int64_t dsvi_ffmpeg_errors(void);

/* Fails with the message "path: what: FFmpeg's text for code". Out of memory and I/O errors get their own
 * status, any other code gets `status`. */
DsvStatus dsvi_ffmpeg_fail(DsvStatus status, const char *path, const char *what, int code);

#ifdef __cplusplus
}
#endif
#endif
