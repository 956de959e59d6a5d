/* Implements ffmpeg_support.h: captures FFmpeg's log and converts its errors. */
#include "data/ffmpeg_support.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include <libavutil/error.h>
#include <libavutil/log.h>

static _Thread_local int64_t ffmpeg_errors;

static bool begins_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

/* Returns whether a log message reports a damaged picture. The H.264 decoder reports lost pictures, which it
 * replaces by copies of the previous picture, at level debug. At level error it also reports harmless events:
 * truncated camera metadata (SEI), and the release of a reference picture that does not exist (mmco), as
 * happens if decoding began at a later key frame. */
static bool is_damage(int level, const char *format)
{
    enum { LEVEL_BITS = 0xff }; /* the higher bits of FFmpeg's log level are a colour */
    if (begins_with(format, "Frame num gap"))
        return true;
    return level >= 0 && (level & LEVEL_BITS) <= AV_LOG_ERROR && !begins_with(format, "SEI ") &&
           !begins_with(format, "mmco: ");
}

static void ffmpeg_count_errors(void *object, int level, const char *format, va_list args)
{
    (void)object, (void)args;
    ffmpeg_errors += is_damage(level, format);
}

static void ffmpeg_redirect_log(void)
{
    av_log_set_callback(ffmpeg_count_errors);
}

int64_t dsvi_ffmpeg_errors(void)
{
    return ffmpeg_errors;
}

void dsvi_ffmpeg_capture_log(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, ffmpeg_redirect_log);
}

DsvStatus dsvi_ffmpeg_fail(DsvStatus status, const char *path, const char *what, int code)
{
    char text[AV_ERROR_MAX_STRING_SIZE];
    if (code == AVERROR(ENOMEM))
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: %s: out of memory", path, what);
    if (code == AVERROR(EIO) || code == AVERROR(EACCES) || code == AVERROR(ENOSPC) || code == AVERROR(EFBIG))
        status = DSV_E_IO;
    av_strerror(code, text, sizeof text);
    return DSVI_FAIL(status, "%s: %s: %s", path, what, text);
}
