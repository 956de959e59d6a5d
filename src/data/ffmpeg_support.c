/* See ffmpeg_support.h. */
#include "data/ffmpeg_support.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include <libavutil/error.h>
#include <libavutil/log.h>

static _Thread_local int64_t errors;

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* Whether a message says that a picture is wrong. H.264's decoder reports lost pictures, which it replaces
 * by copies of the one before, at level debug. At level error it also reports what spoils no picture: notes
 * that a camera stored next to the pictures (SEI) and that are cut short, and the release of a reference
 * picture that is not there (mmco), as happens where decoding began at a later key frame. */
static bool is_damage(int level, const char *format)
{
    enum { LEVEL_BITS = 0xff }; /* the bits above hold a colour */
    if (begins(format, "Frame num gap"))
        return true;
    return level >= 0 && (level & LEVEL_BITS) <= AV_LOG_ERROR && !begins(format, "SEI ") &&
           !begins(format, "mmco: ");
}

static void count(void *object, int level, const char *format, va_list args)
{
    (void)object, (void)args;
    errors += is_damage(level, format);
}

static void take_log(void)
{
    av_log_set_callback(count);
}

int64_t dsvi_ffmpeg_errors(void)
{
    return errors;
}

void dsvi_ffmpeg_quiet(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, take_log);
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
