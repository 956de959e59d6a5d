/* Implements what the parts of sampling share (wan_job.h). */
#include "pipeline/wan_job.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/host.h"
#include "base/memory_limit.h"
#include "model/vae/vae.h"
#include "sample/clip_writer.h"

enum { LINE_BYTES = 512 };

void dsvi_wan_add_seconds(double *sum, double *since)
{
    double now = dsvi_clock_seconds();
    *sum += now - *since;
    *since = now;
}

void dsvi_wan_log(const DsviWanJob *job, const char *format, ...)
{
    const DsvEvents *events = job->args->events;
    char line[LINE_BYTES];
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    if (events->log)
        events->log(events->context, DSV_LOG_INFO, line);
}

DsvStatus dsvi_wan_path_of_clip(const DsviWanJob *job, const char *path, int64_t clip,
                                char out[DSVI_PATH_MAX])
{
    if (job->clips > 1)
        return dsvi_clip_numbered_path(out, path, clip);
    snprintf(out, DSVI_PATH_MAX, "%s", path);
    return DSV_OK;
}

uint64_t dsvi_wan_vae_memory(const DsviWanJob *job)
{
    return dsvi_vae_memory_limit(job->args->backend->device, dsvi_memory_limit(job->args->settings));
}
