/* Lines of a training run for the user. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "run/run_internal.h"

bool dsvi_run_is_first(const DsviRun *run)
{
    return dsvi_comm_rank(run->comm) == 0;
}

void dsvi_run_log(const DsviRun *run, DsvLogLevel level, const char *format, ...)
{
    char line[1024];
    va_list args;
    if (!run->events->log || (level == DSV_LOG_INFO && !dsvi_run_is_first(run)))
        return;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    run->events->log(run->events->context, level, line);
}

void dsvi_run_log_line(void *context, const char *line)
{
    dsvi_run_log(context, DSV_LOG_INFO, "%s", line);
}

void dsvi_run_decision_line(void *context, const char *line)
{
    DsviRun *run = context;
    dsvi_run_log(run, DSV_LOG_INFO, "%s", line);
    if (run->record)
        dsvi_run_record_decision(run->record, line);
    else if (run->costs < DSVI_RUN_COSTS)
        snprintf(run->cost[run->costs++], sizeof run->cost[0], "%s", line);
}

void dsvi_run_event_line(void *context, DsvLogLevel level, const char *line)
{
    dsvi_run_log(context, level, "%s", line);
}

void dsvi_run_warn_line(void *context, const char *line)
{
    const DsviRun *run = context;
    if (dsvi_run_is_first(run))
        dsvi_run_log(run, DSV_LOG_WARNING, "%s", line);
    else
        dsvi_run_log(run, DSV_LOG_WARNING, "rank %" PRId64 ": %s", dsvi_comm_rank(run->comm), line);
}
