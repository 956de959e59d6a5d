/* What every user of FFmpeg's libraries in dsv needs. */
#ifndef DSVI_FFMPEG_SUPPORT_H
#define DSVI_FFMPEG_SUPPORT_H

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Silences FFmpeg, once for the process: it reports broken files to standard error by itself, and nothing
 * in a library may print. To be called before any other call of FFmpeg. */
void dsvi_ffmpeg_quiet(void);

/* Records "path: what: FFmpeg's text for code"; out of memory and failing reads and writes keep their
 * status, anything else gets `status`. */
DsvStatus dsvi_ffmpeg_fail(DsvStatus status, const char *path, const char *what, int code);

#ifdef __cplusplus
}
#endif
#endif
