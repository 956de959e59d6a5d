/* The per-thread record of the last failure. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MESSAGE_BYTES = 2048, TRAIL_BYTES = 1024 };

static _Thread_local char message[MESSAGE_BYTES];
static _Thread_local char trail[TRAIL_BYTES];

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
    return message;
}

const char *dsv_error_trail(void)
{
    return trail;
}

void dsvi_trail_add(const char *file, int line)
{
    size_t used = strlen(trail);
    snprintf(trail + used, sizeof trail - used, "%s%s:%d", used ? "\n" : "", file, line);
}

DsvStatus dsvi_fail_at(const char *file, int line, DsvStatus status, const char *format, ...)
{
    char whole[MESSAGE_BYTES]; /* the arguments may be parts of the sentence before */
    va_list args;
    va_start(args, format);
    vsnprintf(whole, sizeof whole, format, args);
    va_end(args);
    memcpy(message, whole, strlen(whole) + 1);
    trail[0] = 0;
    dsvi_trail_add(file, line);
    return status;
}

DsvStatus dsvi_fail_within(DsvStatus status, const char *format, ...)
{
    char prefixed[MESSAGE_BYTES];
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
    if (text != message)
        snprintf(message, sizeof message, "%s", text);
    trail[0] = 0;
    return status;
}

void dsvi_assert_failed(const char *file, int line, const char *condition)
{
    fprintf(stderr, "dsv: broken promise at %s:%d: %s\n", file, line, condition);
    abort();
}
