/* See ffmpeg_support.h. */
#include "data/ffmpeg_support.h"

#include <errno.h>
#include <pthread.h>

#include <libavutil/error.h>
#include <libavutil/log.h>

static void drop(void *object, int level, const char *format, va_list args)
{
    (void)object, (void)level, (void)format, (void)args;
}

static void silence(void)
{
    av_log_set_callback(drop);
}

void dsvi_ffmpeg_quiet(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, silence);
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
