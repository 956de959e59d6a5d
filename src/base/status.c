/* The per-thread record of the last failure. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static DsviStatusRecord *local_status_record(void)
{
    static _Thread_local DsviStatusRecord record;
    return &record;
}

static DsviStatusRecordOfThread *record_of_thread = local_status_record;

DsviStatusRecord *dsvi_status_record(void)
{
    return record_of_thread();
}

void dsvi_status_use_records_of(DsviStatusRecordOfThread *shared)
{
    record_of_thread = shared;
}

const char *dsv_status_text(DsvStatus status)
{
    switch (status) {
#define STATUS_TEXT(name, value, text) \
    case DSV_##name: return text;
        DSV_STATUS_LIST(STATUS_TEXT)
#undef STATUS_TEXT
    }
    return "unknown status";
}

const char *dsv_error_message(void)
{
    return dsvi_status_record()->message;
}

const char *dsv_error_trail(void)
{
    return dsvi_status_record()->trail;
}

void dsvi_trail_add(const char *file, int line)
{
    char *trail = dsvi_status_record()->trail;
    size_t used = strlen(trail);
    snprintf(trail + used, DSVI_TRAIL_BYTES - used, "%s%s:%d", used ? "\n" : "", file, line);
}

DsvStatus dsvi_fail_at(const char *file, int line, DsvStatus status, const char *format, ...)
{
    DsviStatusRecord *record = dsvi_status_record();
    char whole[DSVI_MESSAGE_BYTES]; /* the new message is not written directly to record->message, because the
                                       arguments may point into it */
    va_list args;
    va_start(args, format);
    vsnprintf(whole, sizeof whole, format, args);
    va_end(args);
    memcpy(record->message, whole, strlen(whole) + 1);
    record->trail[0] = 0;
    dsvi_trail_add(file, line);
    return status;
}

DsvStatus dsvi_fail_prefix(DsvStatus status, const char *format, ...)
{
    char *message = dsvi_status_record()->message;
    char prefixed[DSVI_MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    int used = vsnprintf(prefixed, sizeof prefixed, format, args);
    va_end(args);
    if (used >= 0 && (size_t)used < sizeof prefixed) {
        snprintf(prefixed + used, sizeof prefixed - (size_t)used, ": %s", message);
        memcpy(message, prefixed, strlen(prefixed) + 1);
    }
    return status;
}

DsvStatus dsvi_fail_adopt(DsvStatus status, const char *text)
{
    DsviStatusRecord *record = dsvi_status_record();
    if (text != record->message)
        snprintf(record->message, sizeof record->message, "%s", text);
    record->trail[0] = 0;
    return status;
}

void dsvi_assert_failed(const char *file, int line, const char *condition)
{
    fprintf(stderr, "dsv: broken promise at %s:%d: %s\n", file, line, condition);
    abort();
}
